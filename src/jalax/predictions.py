"""What is predicted, and on which scale, by `MixedResult.predict`."""

from jalax._frontends.mixed_predict import Conditional as Conditional
from jalax._frontends.mixed_predict import ConditionalOrNew as ConditionalOrNew
from jalax._frontends.mixed_predict import Link as Link
from jalax._frontends.mixed_predict import Marginal as Marginal
from jalax._frontends.mixed_predict import Population as Population
from jalax._frontends.mixed_predict import Response as Response
