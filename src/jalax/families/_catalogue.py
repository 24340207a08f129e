"""Families by name, with the names that users of R know."""

from __future__ import annotations

import dataclasses
import difflib
from types import FunctionType
from typing import Any

from ._continuous import Beta, Gamma, Gaussian, InverseGaussian, LogNormal, StudentT
from ._conway import ConwayMaxwellPoisson
from ._counts import GeneralizedPoisson, NegativeBinomial, NegativeBinomial1, Poisson
from ._family import Family
from ._links import LINKS
from ._multinomial import Multinomial
from ._ordinal import Ordinal
from ._survival import Exponential, LogNormalTime, Weibull
from ._trials import Bernoulli, BetaBinomial, Binomial
from ._tweedie import Tweedie
from ._zeros import Truncated

NAMES: dict[str, Family] = {
    "gaussian": Gaussian(),
    "student": StudentT(),
    "lognormal": LogNormal(),
    "gamma": Gamma(),
    "inversegaussian": InverseGaussian(),
    "beta": Beta(),
    "binomial": Binomial(),
    "bernoulli": Bernoulli(),
    "betabinomial": BetaBinomial(),
    "poisson": Poisson(),
    "negativebinomial": NegativeBinomial(),
    "negativebinomial1": NegativeBinomial1(),
    "generalizedpoisson": GeneralizedPoisson(),
    "conwaymaxwellpoisson": ConwayMaxwellPoisson(),
    "tweedie": Tweedie(),
    "truncated poisson": Truncated(Poisson()),
    "truncated negativebinomial": Truncated(NegativeBinomial()),
    "truncated conwaymaxwellpoisson": Truncated(ConwayMaxwellPoisson()),
    "multinomial": Multinomial(),
    "ordinal": Ordinal(),
    "exponential": Exponential(),
    "weibull": Weibull(),
    "lognormaltime": LogNormalTime(),
}
# What glmmTMB, lme4, ordinal, brms, statsmodels and Bambi call these.
OTHERS = {
    "normal": "gaussian",
    "t": "student",
    "studentt": "student",
    "t_family": "student",
    "inverse.gaussian": "inversegaussian",
    "inverse_gaussian": "inversegaussian",
    "wald": "inversegaussian",
    "beta_family": "beta",
    "beta_binomial": "betabinomial",
    "nbinom2": "negativebinomial",
    "negbinomial": "negativebinomial",
    "negative_binomial": "negativebinomial",
    "nbinom": "negativebinomial",
    "negbin": "negativebinomial",
    "nbinom1": "negativebinomial1",
    "genpois": "generalizedpoisson",
    "compois": "conwaymaxwellpoisson",
    "com_poisson": "conwaymaxwellpoisson",
    "truncated_poisson": "truncated poisson",
    "truncated_nbinom2": "truncated negativebinomial",
    "truncated_compois": "truncated conwaymaxwellpoisson",
    "cumulative": "ordinal",
    "clmm": "ordinal",
    "categorical": "multinomial",
    "mblogit": "multinomial",
}
# What they have and jalax has not, and what to do.
ABSENT = {
    "quasipoisson": "a quasi-likelihood is no likelihood; use 'negativebinomial1', whose variance "
    "is a multiple of the mean, too",
    "quasibinomial": "a quasi-likelihood is no likelihood; use 'betabinomial'",
    "ordbeta": "use 'beta' with zero='~ 1', or 'ordinal'",
    "zero_inflated_poisson": "use 'poisson' with zero='~ 1'",
    "zero_inflated_negbinomial": "use 'negativebinomial' with zero='~ 1'",
    "hurdle_poisson": "use 'truncated poisson' with zero='~ 1'",
    "ziGamma": "use 'gamma' with zero='~ 1'",
    "zigamma": "use 'gamma' with zero='~ 1'",
}


def find(family: Any) -> Family:
    """The family of that name, in any case and with the names of R's packages; or itself.

    >>> from jalax import families
    >>> families.find("nbinom2")
    NegativeBinomial(link=Log())
    """
    if isinstance(family, Family):
        return family
    if isinstance(family, type) and issubclass(family, Family):
        raise TypeError(f"family must be an object: {family.__name__}(), not {family.__name__}.")
    if not isinstance(family, str):
        what = (
            f"the function {family.__name__}" if isinstance(family, FunctionType) else repr(family)
        )
        raise TypeError(
            "family must be a name in quotes such as 'poisson', or an object such as "
            f"jalax.families.Poisson(), got {what}."
        )
    name = family.lower().replace("-", "_").strip()
    name = OTHERS.get(name, name)
    if name in NAMES:
        return NAMES[name]
    if name in ABSENT:
        raise ValueError(f"there is no family {family!r}: {ABSENT[name]}.")
    if "(" in name:
        kind = type(find(name.partition("(")[0])).__name__
        raise ValueError(
            f"family={family!r} is a call in quotes: write jalax.families.{kind}(link='...')."
        )
    near = difflib.get_close_matches(name, [*NAMES, *OTHERS], 1, 0.6)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"family must be one of {', '.join(NAMES)}, got {family!r}{hint}.")


# --- in a file -----------------------------------------------------------------------------------


def written(family: Family) -> dict[str, Any]:
    """A family in plain numbers and texts."""
    if isinstance(family, Truncated):
        return {"name": "truncated", "family": written(family.family)}
    fields = {field.name: getattr(family, field.name) for field in dataclasses.fields(family)}
    return {"name": family.name} | fields | {"link": family.link.name}


def read(plain: dict[str, Any]) -> Family:
    """The inverse of `written`."""
    if plain["name"] == "truncated":
        return Truncated(read(plain["family"]))
    known = {name: value for name, value in plain.items() if name not in ("name", "link")}
    return dataclasses.replace(NAMES[plain["name"]], link=LINKS[plain["link"]], **known)
