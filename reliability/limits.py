"""Is a time limit kept? Three fits that take longer than a minute, stopped at 5, 20 and 60 seconds.

Each in a process of its own, with nothing compiled: JALA-EM for millions of steps (the loop), the
161 communities of guImmun (points, then legs), and the 73,421 binary ratings of InstEval (legs of
4,114 latents). A limit is kept if the fit is back after it plus a tenth plus 2 seconds; else a line
of the log must say that a compilation, or a step, is under way. Writes limits.json and .md beside
this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIMITS = 5, 20, 60
FITS = {
    "JALA-EM, pumps": "pumps",
    "guImmun": "guimmun",
    "InstEval, binary": "insteval_binary",
}
FIT = """
import json, logging, sys, time
import jax, jalax
from jalax import problems
name, limit = sys.argv[1], float(sys.argv[2])
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append((time.perf_counter(), record.getMessage()))
logging.getLogger("jalax").addHandler(handler)
logging.getLogger("jalax").setLevel(logging.INFO)
problem = problems.get(name)
options = {"num_steps": 10**8, "algorithm": jalax.JALAEM(step_size=0.01)} if name == "pumps" else {}
began = time.perf_counter()
result = jalax.fit(
    problem.model, problem.theta, key=jax.random.key(0), callbacks=[jalax.time_limit(limit)],
    **options,
)
seconds = time.perf_counter() - began
lines = [line for when, line in said if when - began < limit + 2]
print(json.dumps({"seconds": seconds, "status": result.status, "said": lines[-1:]}))
"""


def stopped(name: str, limit: int) -> dict:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", FIT, FITS[name], str(limit)]
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return {"fit": name, "limit": limit, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    rows = []
    for name in FITS:
        for limit in LIMITS:
            rows.append(stopped(name, limit))
            print(rows[-1], flush=True)
    asked.out.mkdir(exist_ok=True)
    (asked.out / "limits.json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = ["| fit | limit, s | back after, s | status | kept | last words before |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        words = "; ".join(row["said"])
        late = row["seconds"] > 1.1 * row["limit"] + 2
        kept = "yes" if not late else "late, said so" if "time limit" in words else "no"
        lines.append(
            f"| {row['fit']} | {row['limit']} | {row['seconds']:.1f} | {row['status']} | {kept} |"
            f" {words} |"
        )
    page = ["`python reliability/limits.py`", "", *lines, ""]
    (asked.out / "limits.md").write_text("\n".join(page))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
