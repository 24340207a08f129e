"""What TF32 does to an evidence: the Finnish pines in float32, for a GPU.

900 latents whose `log_joint` has a product with a 900 x 900 matrix, written as a user writes it.
Ten keys, each with products in full (what jalax asks for) and with JAX's default of NVIDIA GPUs,
against the reference of 1,000 runs of sequential Monte Carlo. Keys are shared, so that in exact
arithmetic both rows would be the same. Writes products.json and .md beside this file.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jalax
from jalax import problems

HERE = Path(__file__).parent
KEYS = 10
KINDS = {
    "in full": nullcontext,
    "TF32": lambda: jax.default_matmul_precision("tensorfloat32"),
}


def log_joint(theta: Any, x: Any, data: Any) -> Any:
    white = data["whitening"] @ (x - data["mean"])
    prior = -0.5 * jnp.sum(white**2) - x.size / 2 * jnp.log(2 * jnp.pi) + data["log_det"]
    return prior + jnp.sum(data["y"] * x - jnp.exp(x) / x.size)


def evidences(kind: str) -> dict[str, Any]:
    """Offs and errors of ten keys, and seconds of the first and of the median of the others."""
    problem = problems.finpines()
    model = jalax.Model(log_joint, problem.model.latent, problem.model.data, theta={})
    off, errors, seconds = [], [], []
    with KINDS[kind]():
        for seed in range(KEYS):
            began = time.perf_counter()
            found = jalax.log_evidence(model, {}, key=jax.random.key(seed))
            seconds.append(time.perf_counter() - began)
            off.append(float(found.value) - problem.reference.log_evidence)
            errors.append(float(found.error))
    return {
        "off": off,
        "errors": errors,
        "seconds": [seconds[0], float(np.median(seconds[1:]))],
    }


def lines_of(found: dict[str, Any]) -> list[str]:
    lines = ["| | mean off | its standard error | largest, in errors | first, s | again, s |"]
    lines.append("|---|---|---|---|---|---|")
    for kind, row in found.items():
        off, errors = np.array(row["off"]), np.array(row["errors"])
        numbers = (
            f"{off.mean():+.3f}",
            f"{off.std(ddof=1) / np.sqrt(off.size):.3f}",
            f"{np.abs(off / errors).max():.1f}",
            *(f"{second:.1f}" for second in row["seconds"]),
        )
        lines.append(f"| {kind} | {' | '.join(numbers)} |")
    apart = np.subtract(found["TF32"]["off"], found["in full"]["off"])
    apart = np.abs(apart).mean()
    lines += ["", f"The same key with TF32 and in full: {apart:.3f} apart on average."]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    asked = parser.parse_args()
    device = jax.devices()[0].device_kind
    found = {kind: evidences(kind) for kind in KINDS}
    asked.out.mkdir(exist_ok=True)
    text = json.dumps({"device": device, **found}, indent=1)
    (asked.out / "products.json").write_text(text + "\n")
    page = [f"`python reliability/products.py` on {device}, jax {jax.__version__}.", ""]
    (asked.out / "products.md").write_text("\n".join([*page, *lines_of(found), ""]))
    print("\n".join(lines_of(found)))


if __name__ == "__main__":
    main()
