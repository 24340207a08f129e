"""The command `jalax`: thin, everything behind it is the library. `import jalax` leaves it out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jalax.cli import book as _book
from jalax.cli import demo as _demo
from jalax.cli import reproduce as _reproduce

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


# Seeds that JAX and NumPy both take, whatever the precision.
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the random numbers.")]


@app.callback()
def _root() -> None:
    """Maximum marginal likelihood for latent variable models, with the evidence."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("jalax-demo"),
    seed: Seed = 0,
) -> None:
    """Logistic regression on the Wisconsin data: JALA-EM against PGD and SOUL."""
    _make_folder(out)
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
    seed: Seed = 0,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Data sets a cell, where there are.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the report.")] = Path(
        "jalax-results"
    ),
) -> None:
    """Run an experiment of the paper and hold its claims against what comes out."""
    _make_folder(out)
    _reproduce.run(experiment.value, out, quick=quick, seed=seed, trials=trials)


@app.command()
def book(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which problems; all of them by default.")
    ] = None,
    keys: Annotated[int, typer.Option(min=1, help="Keys a problem, a process each.")] = 3,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds a fit may take.")] = 240.0,
    platform: Annotated[
        str | None, typer.Option(help="JAX's platform, such as cpu or cuda.")
    ] = None,
) -> None:
    """Fit the problems of jalax.problems and hold the answers against their references."""
    try:
        chosen = _book.check_names(names or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAMES") from error
    rows = _book.run(chosen, keys=keys, limit=limit, platform=platform, tell=typer.echo)
    _book.show(rows)
    if not _book.succeeded(rows):
        raise typer.Exit(1)


def _make_folder(out: Path) -> None:
    """Before the work begins, so that a wrong --out costs nothing but a sentence."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"{str(out)!r} is no folder and cannot be made one: {error}", param_hint="--out"
        ) from error


def main() -> None:
    app()
