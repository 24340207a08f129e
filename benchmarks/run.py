"""`make bench`: floor, kernels, peers, growth, memory and first_result, one after the other.

Each is a program of its own (`python benchmarks/floor.py`) and writes NAME.md and NAME.json beside
itself; `--quick` tries them out on small sizes and writes nothing. The evidence of other libraries,
mixed models, the problem book, many groups and accelerators have their own: evidence.py, mixed.py,
book.py, groups.py, gpu.py.
"""

from __future__ import annotations

import subprocess
import sys
import time

from _common import HERE

NAMES = ("floor", "kernels", "peers", "growth", "memory", "first_result")


def main() -> None:
    for name in NAMES:
        began = time.perf_counter()
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *sys.argv[1:]], check=True)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
