"""Time to an error of 0.03 in log p_theta(y), against what a user would pick: Wisconsin, theta = 0.

    python benchmarks/evidence.py          (needs: pip install pymc dynesty)

Each method runs a few times after a first run that compiles; its error is the root mean square
distance from the reference answer, and its time is scaled to the error 0.03 by the Monte-Carlo
law, time x (error / 0.03)^2. All run in this process, on the same model and machine.
"""

from __future__ import annotations

import json
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from _common import HERE, machine, table

import jalax

TRUTH, ASKED = -74.19912, 0.03
DATA = jalax.datasets.wisconsin()
X, Y = DATA.features, DATA.labels


def log_prior(w):
    return jnp.sum(jax.scipy.stats.norm.logpdf(w, 0.0, np.sqrt(5.0)))


def log_likelihood(w):
    z = jnp.asarray(X, jnp.float32) @ w
    return jnp.sum(jnp.asarray(Y, jnp.float32) * z - jax.nn.softplus(z))


def with_jalax(seed: int) -> float:
    model = jalax.models.logistic_regression(X, Y)
    return jalax.log_evidence(model, 0.0, key=jax.random.key(seed), error=ASKED).value


def blackjax_smc(draws, base, target):
    """Adaptive tempered SMC as in BlackJAX's documentation: HMC moves, ESS 0.5, dichotomy."""
    import blackjax
    from blackjax.smc import extend_params, resampling

    def build(cov):
        return blackjax.adaptive_tempered_smc(
            base,
            target,
            blackjax.hmc.build_kernel(),
            blackjax.hmc.init,
            extend_params(
                {
                    "step_size": 0.3,
                    "inverse_mass_matrix": jnp.diag(cov),
                    "num_integration_steps": 5,
                }
            ),
            resampling.systematic,
            0.5,
            num_mcmc_steps=5,
        )

    @jax.jit
    def run(key):
        key, key_draw = jax.random.split(key)
        first, cov = draws(key_draw)
        smc = build(cov)

        def body(carry):
            key, state, total = carry
            key, now = jax.random.split(key)
            state, info = smc.step(now, state)
            return key, state, total + info.log_likelihood_increment

        carry = key, smc.init(first), jnp.zeros(())
        carry = jax.lax.while_loop(lambda c: c[1].tempering_param < 1, body, carry)
        return carry[2]

    return lambda seed: float(run(jax.random.key(seed)))


def with_blackjax_from_prior():
    def draws(key):
        x = np.sqrt(5.0) * jax.random.normal(key, (1000, 9))
        return x, jnp.eye(9) * 0.3

    return blackjax_smc(draws, log_prior, log_likelihood)


def with_blackjax_from_laplace():
    from jalax._model.checks import prepare_model
    from jalax._reference.references import AtMode

    model = prepare_model(jalax.models.logistic_regression(X, Y))
    prepared = jax.jit(lambda: AtMode().prepare(None, model, jnp.zeros(())))()
    root = prepared.mode.root[0]

    def base(w):
        return prepared.log_density(model, None, w[None, None])[0, 0]

    def draws(key):
        x = prepared.sample(key, model, None, 1000)[0]
        return x, root @ root.T

    return blackjax_smc(draws, base, lambda w: log_prior(w) + log_likelihood(w) - base(w))


def with_pymc():
    import logging

    import pymc

    logging.getLogger("pymc").setLevel(logging.ERROR)

    def run(seed: int) -> float:
        with pymc.Model():
            w = pymc.Normal("w", 0.0, np.sqrt(5.0), shape=9)
            pymc.Bernoulli("y", logit_p=pymc.math.dot(X, w), observed=Y)
            trace = pymc.sample_smc(
                draws=1000, chains=1, cores=1, random_seed=seed, progressbar=False
            )
        return float(np.asarray(trace.sample_stats["log_marginal_likelihood"][0].values[-1]))

    return run


def with_dynesty():
    import dynesty
    from scipy.special import ndtri

    def likelihood(w):
        z = X @ w
        return float(np.sum(Y * z - np.logaddexp(0.0, z)))

    def run(seed: int) -> float:
        sampler = dynesty.NestedSampler(
            likelihood, lambda u: np.sqrt(5.0) * ndtri(u), 9, nlive=500,
            rstate=np.random.default_rng(seed),
        )  # fmt: skip
        sampler.run_nested(print_progress=False)
        return float(sampler.results.logz[-1])

    return run


def main() -> None:
    warnings.filterwarnings("ignore")
    methods = {
        "jalax.log_evidence": (lambda: with_jalax, 20),
        "BlackJAX adaptive tempered SMC, from the prior": (with_blackjax_from_prior, 12),
        "BlackJAX adaptive tempered SMC, from the Laplace reference": (
            with_blackjax_from_laplace,
            12,
        ),
        "PyMC sample_smc": (with_pymc, 8),
        "dynesty NestedSampler": (with_dynesty, 5),
    }
    rows = []
    for name, (make, repeats) in methods.items():
        try:
            run = make()
            begin = time.perf_counter()
            run(0)
            first = time.perf_counter() - begin
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        seconds, errors = [], []
        for seed in range(1, repeats + 1):
            begin = time.perf_counter()
            value = run(seed)
            seconds.append(time.perf_counter() - begin)
            errors.append(value - TRUTH)
        rmse = float(np.sqrt(np.mean(np.square(errors))))
        median = float(np.median(seconds))
        rows.append(
            {
                "method": name,
                "runs": str(repeats),
                "first run s": first,
                "seconds": median,
                "rms error": rmse,
                "seconds to 0.03": median * max(rmse / ASKED, 0.1) ** 2,
            }
        )
        print(rows[-1], flush=True)
    # jalax stops when its error is below the one asked for: no credit for being better.
    ours = rows[0]["seconds"]
    rows[0]["seconds to 0.03"] = ours
    shown = table([row | {"x jalax": row["seconds to 0.03"] / ours} for row in rows])
    where = machine()
    note = (
        f"Wisconsin, theta = 0: seconds to an error of {ASKED} in log p(y), after compilation "
        f"(`python benchmarks/evidence.py`, {where['machine']}, {where['cores']} cores, jax "
        f"{where['jax']}). BlackJAX from our own Laplace reference shows what is owed to the "
        "reference, which jalax chooses for the user."
    )
    print(shown)
    (HERE / "evidence.md").write_text(f"{note}\n\n{shown}\n")
    (HERE / "evidence.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
