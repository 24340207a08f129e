"""What is known for and against a fit, in sentences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jalax._evidence.record import FitRecord
from jalax._model.types import Status
from jalax._particles.pareto import NO_VARIANCE

MEANING = {
    Status.CONVERGED: "theta is known to a fraction of its standard error",
    Status.BOUNDARY: "in some direction the data say nothing about theta, or it is at a boundary",
    Status.MAX_STEPS: "all the steps asked for were done; whether theta has settled is for you to "
    "see",
    Status.STOPPED: "a callback asked for it",
    Status.TIME_LIMIT: "the time was up before theta had settled",
    Status.INTERRUPTED: "somebody stopped it; the result holds everything up to there",
    Status.DIVERGED: "particles or theta became non-finite; this is the last finite state",
}


class Check(NamedTuple):
    """`passed` is None where nothing can be said yet."""

    passed: bool | None
    text: str


def checks(result: FitRecord) -> list[Check]:
    good = (Status.CONVERGED,)
    neutral = (Status.MAX_STEPS, Status.STOPPED)
    passed = None if result.status in neutral else result.status in good
    found = [
        Check(
            passed,
            f"Status {result.status}: {MEANING[result.status]}. {_sentence(result.message)}",
        )
    ]
    return [*found, *_uncertainty(result), *_evidence(result), *_particles(result)]


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _uncertainty(result: FitRecord) -> list[Check]:
    known = result.known_uncertainty
    if known is None:
        return [
            Check(
                None,
                "Standard errors were not computed: result.standard_errors() does it, and they are "
                "in the next report.",
            )
        ]
    fraction = known.simulation_fraction
    out = []
    if np.isfinite(fraction):
        out.append(
            Check(
                fraction <= 0.1,
                f"Another key would change theta by about {fraction:.3f} of its standard error at "
                "most (simulation error; up to 0.1 is fine).",
            )
        )
    if len(known.flat):
        out.append(Check(False, f"No standard error for {known.describe_flat()}."))
    return out


def _evidence(result: FitRecord) -> list[Check]:
    evidence = result.known_evidence
    if evidence is None:
        reason = result.evidence_reason
        if result.origin is not None and result.origin.algorithm.gives_evidence:
            reason = "the evidence at theta was not computed: result.log_evidence does it"
        return [Check(None, _sentence(reason or "the file holds no evidence"))]
    out = [
        Check(
            bool(evidence.k_hat < NO_VARIANCE),
            f"Pareto k-hat of the weights behind the evidence: {evidence.k_hat:.2f} (below "
            f"{NO_VARIANCE} its error can be trusted). Found by the {evidence.route} route with "
            f"{evidence.num_particles} draws, effective sample size {evidence.ess:.0%}.",
        )
    ]
    if evidence.messages:
        out += [Check(False, f"Evidence: {_sentence(message)}") for message in evidence.messages]
    else:
        out.append(Check(True, "Nothing is known against the evidence."))
    if result.path_value is not None and not result.relative:
        apart = result.path_value - evidence.value
        out.append(
            Check(
                None,
                f"The evidence carried along the path differs from it by {apart:+.2f}; that one is "
                "noisy, and biased upwards a little at each step.",
            )
        )
    return out


def _particles(result: FitRecord) -> list[Check]:
    out = []
    count, lowest = result.log_weights.shape[-1], float(np.min(result.ess))
    which = "The worst group has" if result.log_weights.ndim == 2 else "The particles have"
    out.append(
        Check(
            bool(lowest >= 0.1 * count),
            f"{which} an effective sample size of {lowest:.1f} out of {count} at the end.",
        )
    )
    if result.log_weights.ndim == 2 and result.followed_a_path:
        bias = result.gradient_bias
        out.append(
            Check(
                bool(bias <= 0.25),
                f"With this many groups and particles a gradient is off by about {bias:.2f} "
                "standard errors along the path (an automatic fit takes it out at the end).",
            )
        )
    dead = int(np.sum(result.history.get("dead", 0)))
    died = "No particle" if dead == 0 else f"{dead} particle{'s' if dead > 1 else ''}"
    out.append(Check(dead == 0, f"{died} died (became non-finite) along the way."))
    return out
