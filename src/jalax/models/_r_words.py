"""What R's users write and is named otherwise here, or not there: functions, codings, options."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# R's names of codings, and those of formulae and jalax.
CODINGS = {
    "contr.treatment": "Treatment",
    "contr.sum": "Sum",
    "contr.helmert": "Helmert",
    "contr.poly": "Poly",
    **{name: name for name in ("Treatment", "Sum", "Helmert", "Poly")},
}

_COLUMN = "compute it before, as a column of the data"
_SMOOTH = "write ns(x, 4) for a natural spline with 4 columns, or bs, cr, cc, tp"
_INSIDE = "write (1|group) for what the groups differ by"
# Functions of R's formulas that a formula here may not call, and what to write.
FUNCTIONS = {
    **dict.fromkeys(("s", "te", "ti", "t2", "gp", "rcs", "pspline", "lspline", "lo"), _SMOOTH),
    "ordered": "write C(x, Poly()) for polynomial contrasts, or factor(x)",
    "as.ordered": "write C(x, Poly()) for polynomial contrasts, or factor(x)",
    "mo": "write C(x, Poly()) for polynomial contrasts of ordered levels, or factor(x)",
    "interaction": "write g:h",
    "dummy": "write I(x == 'a')",
    "ifelse": "write I(x == 'a') for an indicator, or " + _COLUMN,
    "cut": _COLUMN + ", by pandas.cut",
    "lag": _COLUMN + ", by data.groupby('group')['x'].shift()",
    "strata": _INSIDE,
    "cluster": _INSIDE,
    "frailty": _INSIDE,
    "Error": _INSIDE,
    "random": _INSIDE,
    "re": _INSIDE,
    "gr": "write the grouping factor alone, (1|group)",
    "mm": "memberships of several groups are no grouping factor; write (1|group) for one",
    "me": "errors of measurement need a model of your own, jalax.Model",
    "mi": "missing values are not modelled; drop these rows or impute them before",
    "mvbind": "fit one model for each response",
    "trials": "write p(y, n) ~ ... for counts out of n trials",
    "cens": "write Surv(time, event) ~ ... for censored times",
    "trunc": "write family='truncated poisson' for counts from 1 upwards",
    "as.numeric": "give the column as numbers: " + _COLUMN,
    "as.integer": "give the column as numbers: " + _COLUMN,
    "as.character": "write factor(x)",
    **dict.fromkeys(("max", "min", "mean", "median", "sd", "rank", "cumsum", "ave"), _COLUMN),
    **dict.fromkeys(("round", "floor", "ceiling", "pmin", "pmax", "is.na", "nchar"), _COLUMN),
}

_DESIGN = "write it into the formula, y ~ x + (1|group)"
_SEED = "pass key=jax.random.key(seed)"
_STEPS = "pass num_steps=, or algorithm=jalax.Scoring()"
_LEAVE = "leave it out"
# Options of R's and Python's packages for mixed models, and what to write.
OPTIONS = {
    "REML": "pass likelihood=jalax.REML(), or leave it out for maximum likelihood",
    "nAGQ": "the integral has no Laplace error that it would mend; " + _LEAVE,
    "control": _STEPS,
    "optimizer": _STEPS,
    "maxiter": _STEPS,
    "max_iter": _STEPS,
    "ziformula": "write zero='~ x'",
    "zi": "write zero='~ x'",
    "dispformula": "write dispersion='~ x'",
    "disp": "write dispersion='~ x'",
    "link": "give it to the family, as in family=jalax.families.Binomial(link='probit')",
    "na.action": "pass missing=jalax.missing.Drop() or missing=jalax.missing.Refuse()",
    "na_action": "pass missing=jalax.missing.Drop() or missing=jalax.missing.Refuse()",
    "start": "the start is computed; jalax.fit(jalax.models.mixed(formula, data), theta, key=key) "
    "takes one",
    "random": _DESIGN,
    "fixed_formula": _DESIGN,
    "groups": _DESIGN,
    "re_formula": _DESIGN,
    "vc_formula": _DESIGN,
    "correlation": "residuals have no correlations; random effects may have, by covariances=",
    "exposure": "write offset(log(exposure)) into the formula",
    "trials": "write p(y, n) ~ ... in the formula",
    "prior": "pass log_prior=, a function of theta",
    "priors": "pass log_prior=, a function of theta",
    "seed": _SEED,
    "random_state": _SEED,
    "rng": _SEED,
    "iter": _STEPS,
    "chains": "there are no chains; pass num_particles=, or leave it out",
    "threshold": "thresholds of ordered categories are flexible; " + _LEAVE,
    "method": "pass likelihood=jalax.REML() for REML, and algorithm= for how the maximum is found",
    "verbose": "pass progress=jalax.progress_bar()",
    "se": "standard errors are there; " + _LEAVE,
    "Hess": "standard errors are there; " + _LEAVE,
    "doFit": "jalax.models.mixed(formula, data) makes the model alone",
    "devFunOnly": "jalax.models.mixed(formula, data) makes the model alone",
    "map": "hold numbers of theta by fixed={'sd Intercept | group': 1.0}",
}


def named_options(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function of a formula, data and options by name: a sentence about any other call."""

    def around(function: Callable[P, T]) -> Callable[P, T]:
        known = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checked(*args: P.args, **options: P.kwargs) -> T:
            _check_options(name, known, args, options)
            return function(*args, **options)

        return checked

    return around


def _check_options(name: str, known: list[str], args: Any, options: dict[str, Any]) -> None:
    for option in options:
        if option not in known:
            raise TypeError(f"{name} takes no {option}={_instead(option, known)}.")
    if len(args) > 2:
        raise TypeError(
            f"{name} takes the formula and the data by their places, all else by name, such as "
            f"family='binomial'; got {len(args)} arguments by their places."
        )
    for place, needed in enumerate(("formula", "data")):
        if len(args) <= place and needed not in options:
            raise TypeError(f"{needed} is missing: write {name}('y ~ x + (1|group)', data).")


def _instead(option: str, known: list[str]) -> str:
    if option in OPTIONS:
        return f": {OPTIONS[option]}"
    near = difflib.get_close_matches(option.lower(), known, 1, 0.6)
    if near:
        return f" (did you mean {near[0]}=?)"
    return f": it takes {', '.join(known)}"
