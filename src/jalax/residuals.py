"""Kinds of residuals, for `MixedResult.residuals`."""

from jalax._frontends.mixed_predict import Response as Response
from jalax._frontends.mixed_residuals import Deviance as Deviance
from jalax._frontends.mixed_residuals import Pearson as Pearson
from jalax._frontends.mixed_residuals import Quantile as Quantile
