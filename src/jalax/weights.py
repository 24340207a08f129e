"""What becomes of the log-weights after a step, for `JALAEM(weights=...)`."""

from jalax._algorithms.weight_rules import ClippedWeights as ClippedWeights
from jalax._algorithms.weight_rules import ExactWeights as ExactWeights
from jalax._algorithms.weight_rules import TemperedWeights as TemperedWeights
