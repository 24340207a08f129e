"""The book's problems with ten keys each, in both precisions: is every one of the fits right?

    python reliability/book_keys.py            # writes book_keys.md and book_keys.json
    python reliability/book_keys.py --problems toenail wine --keys 3 --precisions 64

`benchmarks/book.py` times three keys of each problem, cold. Here one process has them all, one
after the other: the seconds are the median of all fits but the first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import jax
import numpy as np
from _common import Row, machine, write

import jalax
from jalax.cli import book_child, book_verdict

GROUPED = (
    *("pumps", "seeds", "orange", "wine", "kidney", "lsat_rasch", "lsat_2pl", "toenail"),
    *("theophylline", "salamander", "electricity"),
)
TEXT = """\
The book's grouped problems by `jalax.fit(model, theta0, key=key)`, one key after another in one
process: the worst of all fits, but for the seconds, which are the median of all but the first.
"""


def row_of(name: str, bits: int, keys: int) -> Row:
    with jax.enable_x64(bits == 64):
        problem = jalax.problems.get(name)
        reference = book_child.described(problem)["reference"]
        answers = [book_child.answered(problem, key) for key in range(keys)]
    fits = [book_verdict.judge(answer, reference) for answer in answers]
    worst = {
        column: book_verdict.worst(fits, column)
        for column in ("log_p_errors_off", "theta_off", "standard_errors_off")
    }
    return {
        "problem": name,
        "bits": bits,
        "right": f"{sum(fit['verdict'] == 'right' for fit in fits)} of {keys}",
        "converged": f"{sum(answer['status'] == 'converged' for answer in answers)} of {keys}",
        "log p off (errors)": worst["log_p_errors_off"],
        "its error": max(answer.get("error") or np.nan for answer in answers),
        "theta off (s.e.)": worst["theta_off"],
        "s.e. off (%)": worst["standard_errors_off"],
        "seconds": float(np.median([answer["seconds"] for answer in answers[1:]] or [np.nan])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="See the top of this file.")
    parser.add_argument("--problems", nargs="+", default=list(GROUPED), metavar="NAME")
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--precisions", type=int, nargs="+", default=[32, 64], choices=[32, 64])
    options = parser.parse_args()
    rows = []
    for bits in options.precisions:
        for name in options.problems:
            rows.append(row_of(name, bits, options.keys))
            print(*rows[-1].values(), flush=True)
    write("book_keys", [TEXT, rows], Path(__file__).parent, machine=machine(), rows=rows)


if __name__ == "__main__":
    main()
