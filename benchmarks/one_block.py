"""Two of the book's problems in another way: python benchmarks/one_block.py [KEYS]

The salamanders by formula: `jalax.mixed` takes their 120 effects for one block, where the book's
row has six groups of 20. And log p alone, without a fit, of the 700 + 300 crossed effects at the
reference's theta. Each key has a process of its own, which does it twice, with other keys; "off" is
from the book's reference, in errors of both. Cold is from the call to the end of what it prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from _common import machine, write


def salamander(key: Any) -> tuple[float, float, str]:
    import pandas

    import jalax
    from jalax.problems import _data

    frame = pandas.DataFrame(_data.table("salamander_mating.csv.gz"))
    formula = "Mate ~ 0 + Cross + (1 | Female) + (1 | Male)"
    result = jalax.mixed(formula, frame, family="bernoulli", key=key)
    str(result.summary())
    return result.log_evidence, result.log_evidence_error, str(result.status)


def crossed_1000(key: Any) -> tuple[float, float, str]:
    import jalax

    problem = jalax.problems.get("crossed_1000")
    evidence = jalax.log_evidence(problem.model, problem.reference.theta, key=key)
    str(evidence)
    return evidence.value, evidence.error, "evidence"


def child(name: str, first: int) -> None:
    import jax

    import jalax

    reference, row = jalax.problems.get(name).reference, {}
    for key, label in ((first, "cold, s"), (first + 1, "again, s")):
        began = time.perf_counter()
        value, error, status = {"salamander": salamander, "crossed_1000": crossed_1000}[name](
            jax.random.key(key)
        )
        row[label] = time.perf_counter() - began
        off = value - reference.log_evidence
        worst = max((row.get("off", 0.0), off / np.hypot(error, reference.error)), key=abs)
        row |= {"log p off": off, "+-": error, "off": worst, "status": status}
    print(json.dumps({"problem": name, "key": first} | row))


def main(keys: int) -> None:
    rows = []
    for name in ("salamander", "crossed_1000"):
        for key in range(keys):
            command = [sys.executable, __file__, name, str(2 * key)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
    parts = [str(__doc__).split("\n\n", 1)[1].strip(), rows]
    write("one_block", parts, machine=machine(), rows=rows)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
