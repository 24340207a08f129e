"""The problem book: every problem of `jalax.problems` by `jalax.fit(model, theta0, key=key)`.

Nothing is tuned. Each problem and key has a process of its own, which fits twice, the second time
with another key. Two problems fix theta: they are `jalax.log_evidence(model, theta, key=key)`.

- log p off: from the reference, the worst of all fits; in errors: the same divided by the combined
  standard error of both. log p is that of the fit's own theta, the reference's that of the maximum:
  the distance d of the two, in standard errors, costs d^2 / 2, which is taken off first.
- theta off: the worst number of theta, in standard errors; s.e. off: the worst standard error.
- right: log p, and every number of theta by its simulation error, within 4.5 combined errors, or
  the t quantile of the same probability where an error has few degrees of freedom, in all fits.
- cold: from the entry of `fit` to the end of `summary()` in a new process; again: the same call in
  that process; process: from the start of Python to the first result. Medians over the keys. What
  has no answer with a key is not tried with the next.
- programs, compiling: what the first fit compiled. Several compile at once, so that their seconds
  may add up to more than the fit's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import _book_figure
import _book_peers
from _common import HERE, Row, commit, machine, table

from jalax.cli.book import STAGES, check_names, run
from jalax.cli.book import table as columns

FIGURE = HERE.parent / "docs" / "images" / "book.svg"
PEERS = """Beside it, in the same run, the packages of R that fit the same model, with their first
fit, a second one in the same process, and their log-likelihood less the exact one. Laplace's
approximation is what lme4 (nAGQ = 1), glmmTMB and ordinal compute unless told otherwise."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The problem book; see the top of this file.")
    parser.add_argument("--problems", nargs="+", default=[], metavar="NAME", help="default: all")
    parser.add_argument("--peers", action="store_true", help="R's packages too")
    parser.add_argument("--keys", type=int, default=3, help="processes a problem")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds a fit")
    parser.add_argument("--platform", help="JAX's platform, such as cpu or cuda")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for book.md, book.json and book.svg; its rows of other problems are kept. By "
        "default this folder, and docs/images, if all problems are asked for, else nowhere",
    )
    parser.add_argument("--draw", action="store_true", help="only write page and figure again")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    try:
        names = check_names(asked.problems)
    except ValueError as error:
        sys.exit(f"book.py: {error}")
    out = asked.out or (None if asked.problems else HERE)
    if asked.draw:
        found = json.loads(((out or HERE) / "book.json").read_text())
    else:
        before = kept(asked.out, names)
        rows = []
        for name in names:
            rows += measured(name, asked)
            found = {"limit": asked.limit, "keys": asked.keys, "rows": ordered(before + rows)}
            if out is not None:  # a run takes hours: what is known stays known
                save(found, out)
        found["machine"] = machine()  # after the last child: it takes hold of the accelerator
    text = page(found)
    print(text)
    if out is not None:
        save(found, out)
        (out / "book.md").write_text(text)
        _book_figure.draw(found, FIGURE if out.resolve() == HERE else out / "book.svg")


def kept(out: Path | None, names: list[str]) -> list[Row]:
    """The rows of earlier runs about other problems."""
    if out is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    file = out / "book.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    return [row for row in rows if row["name"] not in names]


def ordered(rows: list[Row]) -> list[Row]:
    """As in the book."""
    known = check_names([])
    return sorted(rows, key=lambda row: known.index(row["name"]))


def measured(name: str, asked: argparse.Namespace) -> list[Row]:
    options: dict[str, Any] = {"keys": asked.keys, "limit": asked.limit, "platform": asked.platform}
    (row,) = run([name], tell=lambda text: print(text, flush=True), **options)
    row["commit"] = commit()
    row["peers"] = []
    if asked.peers and row["calls"]:
        exact = row["reference"]["log_evidence"]
        row["peers"] = _book_peers.run(name, row["calls"], exact, asked.limit)
        for peer in row["peers"]:
            said = peer.get("failed") or f"{peer['first']:.2f} s, log p {peer['log_p_off']:+.4f}"
            print(f"{name}, {peer['peer']}: {said}", flush=True)
    return [row]


def save(found: Row, out: Path) -> None:
    """Without the covariances, which were for the cost of theta."""
    for row in found["rows"]:
        for one in row["fits"]:
            for stage in STAGES:
                one[stage].pop("covariance", None)
    (out / "book.json").write_text(json.dumps(found, indent=1) + "\n")


def page(found: Row) -> str:
    rows = found["rows"]
    known = {**found.get("machine", {}), "commit": commits(rows)}
    about = ", ".join(f"{k} {v}" for k, v in known.items())
    head = (
        f"`python benchmarks/book.py`: keys {found['keys']}, limit {found['limit']:g} s, {about}."
    )
    # A reason may be long: in the table stands the verdict, below it why.
    lines = [line | {"verdict": short(line["verdict"])} for line in columns(rows)]
    reasons = [f"- {row['name']}: {row['verdict']}" for row in rows if row["verdict"] != "right"]
    right = sum(row["verdict"] == "right" for row in rows)
    parts = [head, __doc__.strip(), table(lines), f"{right} of {len(rows)} problems are right."]
    if reasons:
        parts.append("\n".join(reasons))
    if compared := [line for row in rows for line in beside(row)]:
        parts += [PEERS, table(compared)]
    return "\n\n".join(parts) + "\n"


def commits(rows: list[Row]) -> str:
    """Most rows' first; of the others, whose they are."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row["commit"], []).append(row["name"])
    first, *others = sorted(by.items(), key=lambda pair: -len(pair[1]))
    return ", ".join([first[0], *(f"{name} ({', '.join(of)})" for name, of in others)])


def short(verdict: str) -> str:
    return verdict.partition(":")[0].partition(" (")[0]


def beside(row: Row) -> list[Row]:
    """What R's packages say about one problem; its first line is jalax's."""
    lines = [
        {
            "problem": row["name"],
            "peer": peer["peer"] + (f" ({peer['version']})" if "version" in peer else ""),
            "first (s)": peer.get("first"),
            "again (s)": peer.get("second"),
            "log p off": peer.get("log_p_off"),
            "": peer.get("failed", ""),
        }
        for peer in row["peers"]
    ]
    if not lines:
        return []
    ours: Row = {"problem": row["name"], "peer": "jalax", "first (s)": row["cold"]}
    ours |= {"again (s)": row["again"], "log p off": row["log_p_off"], "": short(row["verdict"])}
    return [ours, *lines]


if __name__ == "__main__":
    main()
