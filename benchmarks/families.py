"""Calls of glmmTMB, lme4 and ordinal, and the same of `jalax.mixed`: python benchmarks/families.py

The data and most of the calls are those of these packages' help pages. Of Gaussian models both
log-likelihoods are exact; of the others R's is Laplace's approximation, whose error is the column
"R - jalax" less the Monte-Carlo error beside it. "beta off" is the largest difference of a fixed
effect in jalax's standard errors. Seconds are those of the first fit of a call and of the second,
R's and ours in a process each; our first one compiles. Needs R with glmmTMB, lme4 and ordinal.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from _common import HERE, machine, write

import jalax
from jalax import families


class Call(NamedTuple):
    r: str
    data: str
    formula: str
    options: dict[str, Any]


SPECIES = "count ~ spp + mined + (1|site)"
CHICKS = "SiblingNegotiation ~ FoodTreatment * SexParent + offset(log(BroodSize)) + (1|Nest)"
SALAMANDERS = "glmmTMB(count ~ spp + mined + (1 | site), {}data = Salamanders)"
OWLS = (
    "glmmTMB(SiblingNegotiation ~ FoodTreatment * SexParent + offset(log(BroodSize)) + "
    "(1 | Nest), {}data = Owls)"
)
WINE = "rating ~ temp + contact + (1|judge)"
CLMM = "clmm(rating ~ temp + contact + (1 | judge), {}data = wine)"
CATTLE = "p(incidence, size) ~ period + (1|herd)"
CBPP = "cbind(incidence, size - incidence) ~ period + (1 | herd)"
CALLS = [
    Call(
        "lmer(Yield ~ 1 + (1 | Batch), Dyestuff, REML = FALSE)",
        "Dyestuff",
        "Yield ~ 1 + (1|Batch)",
        {},
    ),
    Call(
        "lmer(Reaction ~ Days + (Days | Subject), sleepstudy, REML = FALSE)",
        "sleepstudy",
        "Reaction ~ Days + (Days|Subject)",
        {},
    ),
    Call(
        "lmer(Reaction ~ Days + (Days || Subject), sleepstudy, REML = FALSE)",
        "sleepstudy",
        "Reaction ~ Days + (Days||Subject)",
        {},
    ),
    Call(
        "lmer(diameter ~ 1 + (1 | plate) + (1 | sample), Penicillin, REML = FALSE)",
        "Penicillin",
        "diameter ~ 1 + (1|plate) + (1|sample)",
        {},
    ),
    Call(
        "glmmTMB(Reaction ~ Days + (1 | Subject), dispformula = ~ Days, data = sleepstudy)",
        "sleepstudy",
        "Reaction ~ Days + (1|Subject)",
        {"dispersion": "~ Days"},
    ),
    Call(
        'glmmTMB(Reaction ~ Days + (1 | Subject), family = Gamma(link = "log"), data = sleepstudy)',
        "sleepstudy",
        "Reaction ~ Days + (1|Subject)",
        {"family": "Gamma"},
    ),
    Call(
        "glmmTMB(share ~ temp + contact + (1 | judge), family = beta_family(), data = wine)",
        "wine",
        "share ~ temp + contact + (1|judge)",
        {"family": "beta_family"},
    ),
    Call(f"glmer({CBPP}, cbpp, binomial)", "cbpp", CATTLE, {"family": "binomial"}),
    Call(
        f'glmer({CBPP}, cbpp, binomial(link = "probit"))',
        "cbpp",
        CATTLE,
        {"family": families.Binomial(link="probit")},
    ),
    Call(
        f'glmer({CBPP}, cbpp, binomial(link = "cloglog"))',
        "cbpp",
        CATTLE,
        {"family": families.Binomial(link="cloglog")},
    ),
    Call(
        f"glmmTMB({CBPP}, family = betabinomial(), data = cbpp)",
        "cbpp",
        CATTLE,
        {"family": "betabinomial"},
    ),
    Call(SALAMANDERS.format("family = poisson, "), "Salamanders", SPECIES, {"family": "poisson"}),
    Call(
        SALAMANDERS.format("family = nbinom2, "),
        "Salamanders",
        SPECIES,
        {"family": "nbinom2"},
    ),
    Call(
        SALAMANDERS.format("family = nbinom1, "),
        "Salamanders",
        SPECIES,
        {"family": "nbinom1"},
    ),
    Call(
        SALAMANDERS.format("family = genpois, "),
        "Salamanders",
        SPECIES,
        {"family": "genpois"},
    ),
    Call(
        SALAMANDERS.format("family = tweedie, "),
        "Salamanders",
        SPECIES,
        {"family": "tweedie"},
    ),
    Call(
        SALAMANDERS.format("ziformula = ~ spp + mined, family = poisson, "),
        "Salamanders",
        SPECIES,
        {"family": "poisson", "zero": "~ spp + mined"},
    ),
    Call(
        SALAMANDERS.format("ziformula = ~ 1, family = nbinom2, "),
        "Salamanders",
        SPECIES,
        {"family": "nbinom2", "zero": "~ 1"},
    ),
    Call(
        SALAMANDERS.format("ziformula = ~ spp + mined, family = truncated_poisson, "),
        "Salamanders",
        SPECIES,
        {"family": "truncated_poisson", "zero": "~ spp + mined"},
    ),
    Call(
        SALAMANDERS.format("ziformula = ~ spp + mined, family = truncated_nbinom2, "),
        "Salamanders",
        SPECIES,
        {"family": "truncated_nbinom2", "zero": "~ spp + mined"},
    ),
    Call(
        SALAMANDERS.format("dispformula = ~ mined, family = nbinom2, "),
        "Salamanders",
        SPECIES,
        {"family": "nbinom2", "dispersion": "~ mined"},
    ),
    Call(
        OWLS.format("ziformula = ~ 1, family = poisson, "),
        "Owls",
        CHICKS,
        {"family": "poisson", "zero": "~ 1"},
    ),
    Call(
        OWLS.format("ziformula = ~ 1, family = nbinom2, "),
        "Owls",
        CHICKS,
        {"family": "nbinom2", "zero": "~ 1"},
    ),
    Call(
        OWLS.format("ziformula = ~ 1, family = nbinom1, "),
        "Owls",
        CHICKS,
        {"family": "nbinom1", "zero": "~ 1"},
    ),
    Call(
        "glmmTMB(y ~ Base * trt + Age + Visit + (Visit | subject), family = nbinom2, data = epil2)",
        "epil2",
        "y ~ Base * trt + Age + Visit + (Visit|subject)",
        {"family": "nbinom2"},
    ),
    Call(CLMM.format(""), "wine", WINE, {"family": "clmm"}),
    Call(CLMM.format('link = "probit", '), "wine", WINE, {"family": families.Ordinal("probit")}),
    # What clmm calls "loglog" is the "cloglog" of clm, and of jalax.
    Call(CLMM.format('link = "loglog", '), "wine", WINE, {"family": families.Ordinal("cloglog")}),
]


def frame(name: str, folder: Path) -> pd.DataFrame:
    """With the levels of factors in R's order."""
    data = pd.read_csv(folder / f"{name}.csv")
    for line in (folder / f"{name}.levels").read_text().splitlines():
        column, *levels = line.split("\t")
        values = data[column].astype(str)
        data[column] = pd.Categorical(values, categories=levels, ordered=True)
    return data


def said_by_r(folder: Path) -> list[list[float]]:
    rscript = shutil.which("Rscript")
    if rscript is None:
        sys.exit("there is no Rscript: apt-get install r-base-core r-cran-glmmtmb r-cran-ordinal.")
    (folder / "calls").write_text("".join(f"{call.r}\n" for call in CALLS))
    command = [rscript, str(HERE / "families.R"), str(folder / "calls"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [[float(x) for x in line.split()] for line in done.stdout.splitlines()]


def row_of(call: Call, r: list[float], data: pd.DataFrame) -> dict[str, Any]:
    first, second, log_p, *theirs = r
    times = []
    for seed in (0, 1):
        began = time.perf_counter()
        fit = jalax.mixed(call.formula, data, key=jax.random.key(seed), **call.options)
        str(fit.summary())
        times.append(time.perf_counter() - began)
    size = len(theirs)
    errors = np.sqrt(np.diagonal(fit.vcov()))[:size]
    off = np.abs(np.asarray(fit.theta["beta"], float) - theirs) / errors
    return {
        "R": f"`{call.r}`".replace("|", "\\|"),
        "R, s": first,
        "again": second,
        "jalax, s": times[0],
        "again, s": times[1],
        "log p": f"{fit.evidence.value:.3f}",
        "+-": fit.evidence.error,
        "R - jalax": log_p - fit.evidence.value,
        "beta off": float(np.max(off)),
        "status": str(fit.status),
    }


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        known = said_by_r(Path(place))
        for call, r in zip(CALLS, known, strict=True):
            rows.append(row_of(call, r, frame(call.data, Path(place))))
            print(rows[-1], flush=True)
    write("families", [__doc__.strip(), rows], machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
