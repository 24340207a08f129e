"""`jalax reproduce`: finds the folder of experiments and runs one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

HERE = Path(__file__).resolve()
# In a wheel the experiments lie inside the package, in a checkout beside src.
PLACES = (HERE.parents[1] / "_experiments", HERE.parents[3] / "experiments")


def run(name: str, out: Path, *, quick: bool, seed: int, trials: int | None) -> None:
    folder = next((place for place in PLACES if (place / "reporting.py").exists()), None)
    if folder is None:
        typer.echo(
            "The experiments were not installed with this copy of jalax; run this command from a "
            "checkout of its repository.",
            err=True,
        )
        raise typer.Exit(1)
    sys.path.insert(0, str(folder))
    import reporting

    reporting.reproduce(name, out, quick=quick, seed=seed, trials=trials)
