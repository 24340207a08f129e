"""Seconds until there is something to look at, each in a process of its own.

1. From the start of the process to the end of an automatic fit of the Wisconsin model: cold, and
   with `jalax.runtime.compilation_cache(folder)` and a folder that an earlier process has filled.
   The best of a few; where the time goes is from the best run's own clock.
2. `import jalax` beside `import jax`: whole processes, in rounds, the best of each, and the median
   ratio inside a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from _common import Row, machine, quick, ratio, write

RUNS = 1 if quick() else 3
ROUNDS = 2 if quick() else 10

FIT = """
import time
began = time.perf_counter()
import json, os, jax, jalax
imported = time.perf_counter()
if "JALAX_CACHE" in os.environ:
    jalax.runtime.compilation_cache(os.environ["JALAX_CACHE"])
data = jalax.datasets.wisconsin()
model = jalax.models.logistic_regression(data.features, data.labels)
result = jalax.fit(model, key=jax.random.key(0), progress=jalax.callbacks.Callback())
evidence = result.log_evidence
fitted = time.perf_counter()
again = jalax.fit(model, key=jax.random.key(1), progress=jalax.callbacks.Callback())
evidence = again.log_evidence
last = time.perf_counter()
print(json.dumps({"import": imported - began, "first fit": fitted - imported,
                  "second fit": last - fitted}))
"""


def process(code: str, **environment: str) -> tuple[float, str]:
    """Seconds of a fresh interpreter from start to end, and what it printed.

    Modules are compiled to bytecode once, as everywhere else, whatever this shell says.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, done.stdout


def first_fit(name: str, **environment: str) -> Row:
    """The best of a few processes; the second fit is there to tell compilation from the rest."""
    found = []
    for _ in range(RUNS):
        total, printed = process(FIT, **environment)
        parts = json.loads(printed.splitlines()[-1])
        total -= parts["second fit"]
        found.append({"start": name, "s to the end of the first fit": total} | parts)
        print(found[-1], flush=True)
    return min(found, key=lambda row: row["s to the end of the first fit"])


def first_fits() -> list[Row]:
    off = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    rows = [first_fit("cold", **off)]
    with tempfile.TemporaryDirectory() as folder:
        on = {"JALAX_CACHE": folder}
        process(FIT, **on)
        rows.append(first_fit("with the cache", **on))
    return rows


def imports() -> Row:
    times: dict[str, list[float]] = {"pass": [], "import jax": [], "import jalax": []}
    for code in times:
        process(code)  # the files are then in the system's cache, and compiled to bytecode
    for _ in range(ROUNDS):
        for code, seconds in times.items():
            seconds.append(process(code)[0])
    best = {f"{code}, s": min(seconds) for code, seconds in times.items()}
    jax_, jalax_ = np.array(times["import jax"]), np.array(times["import jalax"])
    return best | {"jalax / jax": ratio(jalax_, jax_)}


def main() -> None:
    fits, imported = first_fits(), imports()
    parts = [__doc__.strip(), fits, [imported]]
    write("first_result", parts, machine=machine(), fits=fits, imports=imported)


if __name__ == "__main__":
    main()
