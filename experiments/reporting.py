"""What every experiment writes: tables, figures, and a verdict on each of the paper's claims.

An experiment is a module with `TITLE` and `run(report, *, quick, seed)`; `jalax reproduce NAME`
calls it. Everything lands in one folder: each table as CSV and Markdown, each figure as PNG and
SVG, and `report.md`, which holds them all. `python experiments/reporting.py` joins the committed
reports of `experiments/results` into `experiments/README.md`.
"""

from __future__ import annotations

import csv
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from typing import Any

NAMES = ("logistic", "error-model", "model-order", "neural-network", "theory")
REPRODUCED, NOT_REPRODUCED, BETTER = "reproduced", "not reproduced", "better"


class Report:
    """Collects what an experiment finds, shows it, and writes it to a folder."""

    def __init__(self, folder: Path, title: str, command: str):
        from rich.console import Console

        self.folder, self.title, self.command = Path(folder), title, command
        self.folder.mkdir(parents=True, exist_ok=True)
        self.console = Console()
        self.claims: list[tuple[str, str, str, str]] = []
        self._sections: list[str] = []
        self._begun = time.perf_counter()
        self.say(f"[bold]{title}[/bold]")

    def say(self, text: str) -> None:
        """Progress: shown, not written."""
        self.console.print(f"[dim]{time.perf_counter() - self._begun:6.1f} s[/dim]  {text}")

    def note(self, text: str) -> None:
        """A sentence for the reader of the report."""
        self._sections.append(text)
        self.console.print(text)

    def table(
        self, name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """`name`.csv with the numbers as they are, `name`.md as they are shown."""
        from rich.table import Table

        shown = [[_shown(cell) for cell in row] for row in rows]
        with (self.folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([list(head), *(list(row) for row in rows)])
        text = _markdown(head, shown)
        (self.folder / f"{name}.md").write_text(f"{caption}\n\n{text}")
        self._sections.append(f"**{caption}**\n\n{text}")
        table = Table(*head, title=caption)
        for row in shown:
            table.add_row(*row)
        self.console.print(table)

    def figure(self, name: str, caption: str, figure: Any) -> None:
        """`name`.png and `name`.svg."""
        from matplotlib import pyplot as plt

        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(self.folder / f"{name}.png", dpi=130)
        figure.savefig(self.folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        self._sections.append(f"![{caption}]({name}.png)")
        self.say(f"figure: {self.folder / name}.png")

    def claim(self, claim: str, paper: str, ours: str, verdict: str) -> None:
        """One of the paper's claims (or of jalax's own), and what came out."""
        if verdict not in (REPRODUCED, NOT_REPRODUCED, BETTER):
            raise ValueError(f"a verdict is one of three words, got {verdict!r}")
        self.claims.append((claim, paper, ours, verdict))

    def close(self) -> None:
        """Write report.md and end with one verdict line a claim."""
        import jax

        seconds = time.perf_counter() - self._begun
        device = jax.devices()[0].device_kind
        where = f"{seconds:.0f} s on {device} ({platform.machine()}), jax {jax.__version__}"
        verdicts = _markdown(["claim", "paper", "here", "verdict"], self.claims)
        text = [f"# {self.title}", f"`{self.command}`: {where}.", verdicts, *self._sections]
        (self.folder / "report.md").write_text("\n\n".join(part.strip() for part in text) + "\n")
        for claim, paper, ours, verdict in self.claims:
            colour = "red" if verdict == NOT_REPRODUCED else "green"
            self.console.print(
                f"[{colour}]{verdict}[/{colour}]: {claim} (paper: {paper}; here: {ours})"
            )
        self.say(f"report: {self.folder / 'report.md'}")


def figure(columns: int = 1, rows: int = 1, width: float = 4.2, height: float = 3.2, **options):
    """A matplotlib figure and its axes, drawn without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **options)


def in_parallel(function: Callable, jobs: Sequence[Any], *, one: bool = False) -> Iterator[Any]:
    """The results in order, from one process a core: small arrays leave XLA's own threads idle.

    Each process compiles for itself; with `one`, for short runs, there is none but this. Nor is
    there on an accelerator, whose memory the first process takes.
    """
    import jax

    if one or jax.default_backend() != "cpu":
        yield from map(function, jobs)
        return
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8), get_context("spawn")) as pool:
        yield from pool.map(function, jobs)


def reproduce(name: str, out: Path, *, quick: bool, seed: int, trials: int | None = None) -> Report:
    """Run one experiment; its results are in the folder `out`/`name`."""
    if quick:  # a short run is mostly compilation; read when the first computation begins
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")
    module = import_module(name.replace("-", "_"))
    options: dict[str, Any] = {"quick": quick, "seed": seed}
    command = f"jalax reproduce {name}" + (" --quick" if quick else "")
    command += f" --seed {seed}" if seed else ""
    if trials is not None:
        if "trials" not in signature(module.run).parameters:
            raise SystemExit(f"{name} has no trials to choose; leave --trials out.")
        options["trials"] = trials
        command += f" --trials {trials}"
    report = Report(out / name, module.TITLE, command)
    module.run(report, **options)
    report.close()
    return report


def _shown(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = [escaped[0], ["---"] * len(head), *escaped[1:]]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def collect(results: Path) -> str:
    """The committed reports, one after the other, with their figures' paths made right."""
    parts = [
        "# The paper, reproduced\n\nWritten by `python experiments/reporting.py` from the reports "
        "in `results/`, which the commands below wrote. Each experiment has one file here; "
        "`jalax reproduce NAME --quick` runs a small version. Where the paper can be read in two "
        "ways, both were run.\n"
    ]
    missing = [name for name in NAMES if not (results / name / "report.md").exists()]
    if missing:
        parts.append(f"Without a full run so far: {', '.join(missing)}.\n")
    for name in NAMES:
        path = results / name / "report.md"
        if path.exists():
            text = path.read_text().replace("](", f"](results/{name}/").replace("# ", "## ", 1)
            parts.append(text)
    return "\n".join(parts)


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "README.md").write_text(collect(here / "results"))
