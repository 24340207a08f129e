"""Codings of factors, for `contrasts=` of `jalax.mixed`."""

from jalax.models._contrasts import Contrasts as Contrasts
from jalax.models._contrasts import Helmert as Helmert
from jalax.models._contrasts import Poly as Poly
from jalax.models._contrasts import Sum as Sum
from jalax.models._contrasts import Treatment as Treatment
