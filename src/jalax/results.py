"""What functions of jalax hand back."""

from jalax._evidence.log_evidence import Evidence as Evidence
from jalax._evidence.record import Maxima as Maxima
from jalax._evidence.uncertainty import Uncertainty as Uncertainty
from jalax._fit.compare import Comparison as Comparison
from jalax._fit.fit_many import FitResults as FitResults
from jalax._fit.result import EvidenceCheck as EvidenceCheck
from jalax._fit.result import FitResult as FitResult
from jalax._fit.transport import Transport as Transport
from jalax._fit.tune import Tuning as Tuning
from jalax._frontends.mixed import MixedResult as MixedResult
from jalax._frontends.mixed_residuals import ResidualTest as ResidualTest
from jalax._model.groups import Groups as Groups
from jalax._model.types import Status as Status
