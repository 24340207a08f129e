"""The command `jalax`: thin, everything behind it is the library. `import jalax` leaves it out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jalax.cli import demo as _demo
from jalax.cli import reproduce as _reproduce

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Maximum marginal likelihood for latent variable models, with the evidence."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("jalax-demo"),
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
) -> None:
    """Logistic regression on the Wisconsin data: JALA-EM against PGD and SOUL."""
    _demo.run(out, seed)


class Experiment(StrEnum):
    """The experiments of the paper."""

    LOGISTIC = "logistic"
    ERROR_MODEL = "error-model"
    MODEL_ORDER = "model-order"
    NEURAL_NETWORK = "neural-network"
    THEORY = "theory"


@app.command()
def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="Which one.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of data and random numbers.")] = 0,
    trials: Annotated[int | None, typer.Option(help="Data sets a cell, where there are.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the report.")] = Path(
        "jalax-results"
    ),
) -> None:
    """Run an experiment of the paper and hold its claims against what comes out."""
    _reproduce.run(experiment.value, out, quick=quick, seed=seed, trials=trials)


def main() -> None:
    app()
