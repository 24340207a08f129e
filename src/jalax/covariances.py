"""Covariances of the random effects of a mixed model, for `jalax.mixed(covariances=...)`."""

from jalax.models._covariances import AR1 as AR1
from jalax.models._covariances import CompoundSymmetry as CompoundSymmetry
from jalax.models._covariances import Covariance as Covariance
from jalax.models._covariances import Diagonal as Diagonal
from jalax.models._covariances import Exponential as Exponential
from jalax.models._covariances import Known as Known
from jalax.models._covariances import Matern as Matern
from jalax.models._covariances import StudentT as StudentT
from jalax.models._covariances import Unstructured as Unstructured
