"""One problem of the book and one key, in this process: what `jalax book` starts for each.

Every stage prints a line of JSON as soon as it is done, so that what is known survives the stages
that never end: "problem" (what is asked for), "cold" (the first fit), "again" (the same call with
another key), or "failed" with a sentence.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jalax

AGAIN = 1000  # added to the key of the first fit
COMPILED = "/jax/core/compile/backend_compile_duration"


def main(name: str, key: int, import_seconds: float) -> None:
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        began = time.perf_counter()
        problem = jalax.problems.get(name)
        about = {"import": import_seconds, "build": time.perf_counter() - began}
        say("problem", described(problem) | about)
        for stage, number in (("cold", key), ("again", key + AGAIN)):
            so_far = len(compiled)
            answer = answered(problem, number)
            answer |= {"programs": len(compiled) - so_far, "compile": sum(compiled[so_far:])}
            say(stage, answer | {"memory": peak_memory()})
    except Exception as error:  # the reason belongs in the table, whatever it is
        say("failed", {"reason": sentence(error)})


def say(stage: str, content: dict[str, Any]) -> None:
    print(json.dumps({"stage": stage} | content), flush=True)


def sentence(error: Exception) -> str:
    """The first line of what went wrong; the kind where the words do not say it."""
    text = str(error).strip().split("\n")[0]
    if isinstance(error, (ValueError, OSError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def described(problem: Any) -> dict[str, Any]:
    """What is asked for, and the reference, in plain numbers."""
    reference = problem.reference
    return {
        "title": problem.title,
        "structure": problem.structure,
        "fixed": problem.fixed,
        "published": [[one.log_evidence, one.method] for one in problem.published],
        "peers": dict(problem.peers),
        "reference": {
            "theta": {} if problem.fixed else by_name(reference.theta),
            "standard_errors": by_name(reference.standard_errors),
            "log_evidence": float(reference.log_evidence),
            "error": float(reference.error),
            "theta_error": float(reference.theta_error),
            "method": reference.method,
            "strength": reference.strength,
        },
    }


def answered(problem: Any, key: int) -> dict[str, Any]:
    """The question put as a user would, timed to the end of `summary()`."""
    if problem.fixed:
        seconds, evidence = timed(
            lambda: jalax.log_evidence(problem.model, problem.theta, key=jax.random.key(key)), repr
        )
        return {"key": key, "status": "evidence only", "seconds": seconds} | plain_evidence(
            evidence
        )
    seconds, result = timed(
        lambda: jalax.fit(problem.model, problem.theta, key=jax.random.key(key)),
        lambda result: result.summary(),
    )
    answer = {"key": key, "status": str(result.status), "seconds": seconds}
    answer |= {"steps": result.num_steps, "theta": by_name(result.theta)}
    if result.status == jalax.Status.DIVERGED:
        return answer | {"log_evidence": None, "messages": [result.message]}
    uncertainty = result.uncertainty
    covariance = uncertainty.jacobian @ uncertainty.covariance @ uncertainty.jacobian.T
    return answer | {
        "standard_errors": by_name(result.standard_errors()),
        "simulation_errors": by_name(result.simulation_errors()),
        "theta_freedom": finite(uncertainty.degrees_of_freedom),
        "covariance": covariance.tolist() if np.isfinite(covariance).all() else None,
        **plain_evidence(result.evidence),
    }


def timed(ask: Callable[[], Any], show: Callable[[Any], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = ask()
    show(answer)
    return time.perf_counter() - began, answer


def plain_evidence(evidence: jalax.Evidence) -> dict[str, Any]:
    return {
        "log_evidence": finite(evidence.value),
        "error": finite(evidence.error),
        "freedom": finite(evidence.degrees_of_freedom),
        "route": evidence.route,
        "messages": list(evidence.messages),
        # log p is known no better than this in the precision that it is computed in.
        "resolution": float(jax.numpy.finfo(jax.numpy.result_type(float)).eps)
        / 2
        * abs(float(evidence.value)),
    }


def finite(number: Any) -> float | None:
    """JSON has no infinity and no NaN."""
    return float(number) if number is not None and np.isfinite(number) else None


def by_name(tree: Any) -> dict[str, float | None]:
    """The numbers of theta, in the order in which a fit lays them out; a list is an array."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        values = np.asarray(leaf, dtype=float)
        for index in np.ndindex(values.shape):
            label = ".".join([*([name] if name else []), *map(str, index)])
            found[label or "theta"] = finite(values[index])
    return found


def peak_memory() -> float:
    """The largest resident set of this process so far, in bytes.

    Linux keeps it as VmHWM. `ru_maxrss` survives exec: of a process that was started by a large
    one it is at least the size of that one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return 1024.0 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
