"""`jalax demo`: the paper's first experiment, on the library's public names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jalax

# Independent answers for all 683 rows (randomised quasi-Monte-Carlo importance sampling with
# 2.1e6 draws; NUTS with bridge sampling agrees).
REFERENCE_THETA, REFERENCE_ERROR, REFERENCE_LOG_EVIDENCE = 0.98665, 0.7524, -73.3389
NUM_PARTICLES, THETA_0 = 500, 0.0


def run(out: Path, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    key_train, key_whole = jax.random.split(jax.random.key(seed))
    data = jalax.datasets.wisconsin()
    train, test = jalax.datasets.train_test_split(data, seed)
    console.print(
        f"Wisconsin breast cancer: {len(train.labels)} rows to fit, {len(test.labels)} held out"
    )
    fits = compare(train, key_train, ("JALA-EM", "PGD", "SOUL"))
    held_out = jalax.models.logistic_regression(test.features, test.labels).data
    table = Table("algorithm", "theta", "log evidence (path)", "held-out lppd", "steps", "seconds*")
    for name, result in fits.items():
        evidence = f"{result.path_log_evidence:.2f}" if name == "JALA-EM" else "none"
        table.add_row(
            name,
            f"{result.theta_average(0.3):.3f}",
            evidence,
            f"{jalax.lppd(result, held_out):.4f}",
            str(len(result.history["ess"])),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    console.print("* once compiled; all start from a Student-t on the Laplace mode at theta_0 = 0")

    model = jalax.models.logistic_regression(data.features, data.labels)
    whole = jalax.fit(model, THETA_0, key=key_whole)
    console.print(
        f"{whole.algorithm} on all {len(data.labels)} rows, nothing tuned ({whole.status}): theta "
        f"{whole.theta:.3f}, standard error {whole.standard_errors():.3f} (reference "
        f"{REFERENCE_THETA:.3f}, {REFERENCE_ERROR:.3f}), log evidence "
        f"{whole.log_evidence:.2f} +- {whole.log_evidence_error:.2f} "
        f"(reference {REFERENCE_LOG_EVIDENCE:.2f})"
    )
    path = out / "wisconsin.png"
    draw(fits, path)
    console.print(f"figure: {path}")


def compare(data: Any, key: jax.Array, names: tuple[str, ...]) -> dict[str, jalax.FitResult]:
    """Each algorithm from the same start, theta_0 = 0."""
    import optax

    model = jalax.models.logistic_regression(data.features, data.labels)
    # The paper's bound on the Hessian of U. Its inverse as preconditioner lets one step size
    # serve all directions; PGD and SOUL have the paper's largest, 2 x 0.99 / L, L its largest
    # eigenvalue.
    X = model.data["X"]
    bound = X.T @ X / 4 + jnp.eye(X.shape[1]) / model.data["prior_variance"]
    preconditioner = jnp.linalg.inv(bound)
    gamma = 0.99 / float(jnp.linalg.eigvalsh(bound)[-1])
    algorithms: dict[str, tuple[Any, int]] = {
        "JALA-EM": (
            jalax.JALAEM(
                step_size=1.0,
                preconditioner=preconditioner,
                optimizer=jalax.Optax(optax.adam, learning_rate=0.1),
            ),
            300,
        ),
        "PGD": (jalax.PGD(step_size=2 * gamma), 1000),
        "SOUL": (
            jalax.SOUL(step_size=2 * gamma, optimizer=jalax.Optax(optax.sgd, learning_rate=0.1)),
            100,
        ),
    }

    def fit(name: str, num_steps: int, **options) -> jalax.FitResult:
        return jalax.fit(
            model,
            THETA_0,
            key=key,
            algorithm=algorithms[name][0],
            start=jalax.Laplace(),
            num_particles=NUM_PARTICLES,
            num_steps=num_steps,
            **options,
        )

    fits = {}
    for name in names:
        fit(
            name, 1, progress=jalax.callbacks.Callback()
        )  # compiles, so that the seconds compare the work
        fits[name] = fit(name, algorithms[name][1])
    return fits


def draw(fits: dict[str, jalax.FitResult], path: Path) -> None:
    """theta against time for all, effective sample size and evidence of JALA-EM."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    for name, result in fits.items():
        theta = result.history["theta"]
        left.plot(np.linspace(0, result.seconds, len(theta)), theta, label=name, lw=1.2)
    left.set(xlabel="seconds, once compiled", ylabel=r"$\theta_k$", title="parameter")
    left.legend(frameon=False)
    jala = fits["JALA-EM"].history
    middle.plot(jala["ess"] / NUM_PARTICLES, lw=1.2)
    middle.set(xlabel="step k", ylabel="ESS / N", ylim=(0, 1.02), title="JALA-EM: weights")
    right.plot(jala["log_evidence"], lw=1.2)
    right.set(xlabel="step k", ylabel=r"$\log Z_k$", title="JALA-EM: evidence along the path")
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
