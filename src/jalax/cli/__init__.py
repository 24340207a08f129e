"""The command `jalax`: thin, everything behind it is the library. `import jalax` leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jalax.cli import demo as _demo

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


def main() -> None:
    app()
