"""What is predicted, and on which scale, by `MixedResult.predict` and `random_effects`."""

from jalax._frontends.mixed_effects import Mean as Mean
from jalax._frontends.mixed_effects import Mode as Mode
from jalax._frontends.mixed_predict import Conditional as Conditional
from jalax._frontends.mixed_predict import ConditionalOrNew as ConditionalOrNew
from jalax._frontends.mixed_predict import Link as Link
from jalax._frontends.mixed_predict import Marginal as Marginal
from jalax._frontends.mixed_predict import Population as Population
from jalax._frontends.mixed_predict import Response as Response
