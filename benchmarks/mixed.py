"""`jalax.mixed` beside lme4 and statsmodels: the numbers, and the wall-clock on cbpp.

Writes mixed.json and mixed.md beside this file; docs/mixed-models.md includes mixed.md. statsmodels
and R (with lme4) are timed where they are installed; lme4's numbers are of the reference fits.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jalax

HERE = Path(__file__).parent
REPEATS = 5

# lme4 1.1: glmer(..., nAGQ = 25) for cbpp, lmer(..., REML = FALSE) else; standard errors of the
# fixed effects only, and for cbpp that of log sd, mapped to the sd.
FITS: dict[str, tuple[str, str, str, dict[str, tuple[float, float | None]], float]] = {
    "cbpp": (
        "p(incidence, size) ~ period + (1|herd)",
        "binomial",
        "cbpp",
        {
            "Intercept": (-1.39923045, 0.2335115676),
            "period[2]": (-0.9914036392, 0.3067679727),
            "period[3]": (-1.127819439, 0.3267683315),
            "period[4]": (-1.57947074, 0.4275944565),
            "sd Intercept | herd": (0.6475184834, 0.6475184834 * 0.27879),
        },
        -91.983369,
    ),
    "sleepstudy, intercept": (
        "reaction ~ days + (1|subject)",
        "gaussian",
        "sleepstudy",
        {
            "Intercept": (251.4051048, 9.506185201),
            "days": (10.46728596, 0.8017354216),
            "sd Intercept | subject": (36.01208198, None),
            "sigma": (30.89543387, None),
        },
        -897.0393215,
    ),
    "sleepstudy, slope": (
        "reaction ~ days + (days|subject)",
        "gaussian",
        "sleepstudy",
        {
            "Intercept": (251.4051048, 6.63227615),
            "days": (10.46728596, 1.502236769),
            "sd Intercept | subject": (565.51520392**0.5, None),
            "sd days | subject": (32.68219623**0.5, None),
            "cor Intercept, days | subject": (0.08132012392, None),
            "sigma": (654.94104463**0.5, None),
        },
        -875.9696722,
    ),
    "dyestuff": (
        "yield_ ~ 1 + (1|batch)",
        "gaussian",
        "dyestuff",
        {
            "Intercept": (1527.5, 17.69455346),
            "sd Intercept | batch": (1388.333333**0.5, None),
            "sigma": (2451.25**0.5, None),
        },
        -163.6635299,
    ),
}

LME4 = """
suppressMessages(library(lme4))
fit <- function(n) glmer(cbind(incidence, size - incidence) ~ period + (1|herd), cbpp, binomial,
                         nAGQ = n)
for (n in c(1, 25)) {
  fit(n)
  cat(min(sapply(1:5, function(i) system.time(fit(n))[["elapsed"]])), "\\n")
}
cat(as.character(packageVersion("lme4")), "\\n")
"""


def timed(run) -> tuple[float, float]:
    """Seconds of the first call, and the best of some more."""
    seconds = []
    for k in range(1 + REPEATS):
        began = time.perf_counter()
        run(k)
        seconds.append(time.perf_counter() - began)
    return seconds[0], min(seconds[1:])


def fits() -> list[dict[str, Any]]:
    rows = []
    for name, (formula, family, data, expected, log_likelihood) in FITS.items():
        frame = getattr(jalax.datasets, data)().to_frame()
        result = jalax.mixed(formula, frame, family=family, key=jax.random.key(0))
        for label, value, error, simulation, *_ in result._rows():
            target, standard_error = expected[label]
            rows.append(
                {
                    "fit": name,
                    "formula": formula,
                    "name": label,
                    "jalax": value,
                    "simulation": simulation,
                    "lme4": target,
                    "se": error,
                    "se_lme4": standard_error,
                }
            )
        evidence = result.evidence
        assert evidence is not None
        row = {"fit": name, "formula": formula, "name": "log-likelihood"}
        row |= {"jalax": evidence.value, "simulation": evidence.error, "lme4": log_likelihood}
        rows.append(row | {"se": None, "se_lme4": None})
    return rows


def seconds_on_cbpp() -> dict[str, Any]:
    frame = jalax.datasets.cbpp().to_frame()
    formula, family, *_ = FITS["cbpp"]

    def ours(k):
        return jalax.mixed(formula, frame, family=family, key=jax.random.key(k))

    first, again = timed(ours)
    found: dict[str, Any] = {"jalax.mixed, first fit (compiles)": first}
    found["jalax.mixed, again"] = again
    try:
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM
    except ImportError:
        pass
    else:
        rows = frame.loc[frame.index.repeat(frame["size"])].copy()  # it takes 0/1 rows only
        order = rows.groupby(level=0).cumcount()
        rows["y"] = (order < rows["incidence"]).astype(int)

        def theirs(k):
            model = BinomialBayesMixedGLM.from_formula("y ~ period", {"herd": "0 + C(herd)"}, rows)
            return model.fit_vb()

        _, found["statsmodels BinomialBayesMixedGLM.fit_vb"] = timed(theirs)
    if shutil.which("Rscript"):
        out = subprocess.run(["Rscript", "-e", LME4], capture_output=True, text=True, check=True)
        laplace, quadrature, version = out.stdout.split()
        found[f"lme4 {version} glmer, Laplace"] = float(laplace)
        found[f"lme4 {version} glmer, nAGQ = 25"] = float(quadrature)
    return found


def markdown(rows: list[dict[str, Any]], seconds: dict[str, Any]) -> str:
    lines = [
        f"`python benchmarks/mixed.py` ({platform.machine()}, jax {jax.__version__}, float32).",
        "",
        "| fit | parameter | jalax | simulation error | lme4 | s.e. jalax | s.e. lme4 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [_number(row[k]) for k in ("jalax", "simulation", "lme4", "se", "se_lme4")]
        name = row["name"].replace("|", r"\|")
        lines.append(f"| {row['fit']} | {name} | {' | '.join(cells)} |")
    worst = max(abs(row["jalax"] - row["lme4"]) / row["simulation"] for row in rows)
    lines += ["", f"The largest difference is {worst:.1f} simulation errors.", ""]
    lines += ["| cbpp, wall-clock | seconds |", "| --- | ---: |"]
    lines += [f"| {name} | {value:.3g} |" for name, value in seconds.items()]
    lines += [
        "",
        "lme4 starts from compiled code and solves this model by 25-point quadrature; statsmodels "
        "fits a variational posterior, not the maximum of the likelihood. jalax compiles first.",
        "",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.5g}"


if __name__ == "__main__":
    seconds = seconds_on_cbpp()  # first: it compiles
    rows = fits()
    (HERE / "mixed.json").write_text(json.dumps({"rows": rows, "seconds": seconds}, indent=1))
    tables = markdown(rows, seconds)
    (HERE / "mixed.md").write_text(tables)
    print(tables)
