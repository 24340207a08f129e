"""Verbal aggression: 316 persons crossed with 24 items.

r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item), logistic, R's treatment coding. The 24
items are integrated by importance sampling on Sobol points, the persons inside by adaptive
Gauss-Hermite. Routes beside it: persons sampled and items inside, and annealed importance sampling
of all 340 effects.

    python benchmarks/references/verbagg.py --jobs 16
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from _annealed import annealed, logistic
from _crossed import crossed
from _crossed_fit import Sizes, evidence, fit
from _files import arguments, codes, read, record

NAMES = ("Intercept", "Anger", "GenderM", "btypescold", "btypeshout", "situself")
# The nested scheme has the columns of persons first, then those of items.
ORDER = np.array([1, 2, 0, 3, 4, 5])


def load(folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Persons, items, responses, and the design in R's order."""
    table = read("VerbAgg", folder)
    design = np.stack(
        [
            np.ones(table["r2"].size),
            table["Anger"].astype(float),
            table["Gender"] == "M",
            table["btype"] == "scold",
            table["btype"] == "shout",
            table["situ"] == "self",
        ],
        1,
    )
    return codes(table["id"]), codes(table["item"]), (table["r2"] == "Y").astype(float), design


def of_levels(level: np.ndarray, design: np.ndarray) -> np.ndarray:
    """The rows of a design that is constant within levels, one for each level."""
    found = design[np.unique(level, return_index=True)[1]]
    assert np.array_equal(found[level], design)
    return found


def main() -> None:
    options, began = arguments(__doc__ or ""), time.time()
    person, item, y, design = load(options.data)
    persons, items = of_levels(person, design[:, ORDER[:2]]), of_levels(item, design[:, ORDER[2:]])
    # Around the mean of Anger the items' effects and its slope are nearly uncorrelated, and the
    # score has far less noise; `back` returns to R's columns and order.
    mean = persons[:, 0].mean()
    persons = persons - [mean, 0.0]
    back = np.eye(8)[[2, 0, 1, 3, 4, 5, 6, 7]]
    back[0, 0] = -mean
    more = int(np.round(np.log2(options.effort)))
    sizes = Sizes(first=7, power=9 + more, rounds=16, points=13)
    problem = crossed(person, item, y, z=persons, w=items)
    start = np.array([0.06, 0.3, 1.3, -1.0, -2.0, -1.0, 0.3, -0.7])
    estimate, share = fit([problem], start, sizes, options.jobs)
    inside, final = estimate.theta, estimate.mapped(back)
    at, errors = final.theta, final.standard_errors
    swapped = crossed(item, person, y, z=items, w=persons)
    turned = np.concatenate([inside[2:6], inside[:2], inside[[7, 6]]])
    effects = [(person, 316, np.exp(at[6])), (item, 24, np.exp(at[7]))]
    routes = {
        "items sampled, persons inside": {
            "log_evidence": estimate.log_evidence, "error": estimate.error,
            "effective_share": share,
        },
        "the same, Student t, 21 points inside": evidence(
            [problem], inside, sizes._replace(points=21, rounds=4, freedom=15.0), options.jobs
        ),
        "persons sampled, items inside": evidence(
            [swapped], turned, sizes._replace(points=15), options.jobs
        ),
        "annealed importance sampling of all effects": annealed(
            logistic(y, design @ at[:6], effects), int(32 * options.effort), 64, options.jobs
        ),
    }  # fmt: skip
    entry = {
        "theta": {"beta": at[:6], "log_sd_id": at[6], "log_sd_item": at[7]},
        "standard_errors": {"beta": errors[:6], "log_sd_id": errors[6], "log_sd_item": errors[7]},
        "names": {"beta": list(NAMES)},
        "log_evidence": estimate.log_evidence,
        "error": estimate.error,
        "theta_error": final.theta_error,
        "standard_errors_error": estimate.halves_apart,
        "method": "importance sampling of the items on Sobol points, persons by quadrature",
        "routes": routes,
    }
    record("verbagg", entry, options, began)


if __name__ == "__main__":
    main()
