"""Mating of salamanders: logistic regression with crossed effects of females and males."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jalax._model.groups import group_by
from jalax._model.model import GroupedModel
from jalax.models._checks import to_jax

from . import _data
from ._densities import padded_logistic_effects
from ._problem import Problem, Published, floats, reference


def _blocks(female: np.ndarray, male: np.ndarray) -> np.ndarray:
    """Which of the sets of animals that met each other a row belongs to."""
    block = female.copy()
    for _ in range(female.size):  # each animal takes the lowest number among its partners
        by_male = np.array([block[male == m].min() for m in male])
        joined = np.array([by_male[female == f].min() for f in female])
        if (joined == block).all():
            break
        block = joined
    return block


def salamander() -> Problem:
    """Mating of 60 female and 60 male salamanders of two populations: the logit of a success with
    a mean for each of the crosses RR, RW, WR, WW (female first) and effects of both animals;
    theta is {"beta": (4,), "log_sd_female", "log_sd_male"}.

    Each experiment fell into two sets of ten females and ten males who met no others, so that the
    120 effects fall into six independent blocks.
    """
    table = _data.table("salamander_mating.csv.gz")
    female, male = table["Female"], table["Male"]
    block = _blocks(female, male)
    rows = {
        "X": _data.indicators(table["Cross"], ("RR", "RW", "WR", "WW")),
        "y": table["Mate"].astype(float),
        "female": _data.counted_within(female, block),
        "male": _data.counted_within(male, block),
    }
    data = group_by(rows, block).data
    levels = {factor: data.pop(factor) for factor in ("female", "male")}
    sizes = {factor: int(level.max()) + 1 for factor, level in levels.items()}
    latent = {factor: jnp.zeros(size) for factor, size in sizes.items()}
    theta = floats({"beta": np.zeros(4), "log_sd_female": 0.0, "log_sd_male": 0.0})
    arrays = to_jax({**data, "level": levels})
    call = "Mate ~ 0 + Cross + (1 | Female) + (1 | Male), data, binomial"
    return Problem(
        name="salamander",
        title="Mating of salamanders: logistic regression with crossed effects",
        model=GroupedModel(padded_logistic_effects, latent, arrays, theta=theta),
        theta=theta,
        reference=reference("salamander"),
        published=(Published(None, "Monte-Carlo EM", "vignette of the R package mcemGLM"),),
        structure="6 groups of 20 latents, 10 + 10 crossed",
        data="McCullagh and Nelder (1989), salamander in the R package mcemGLM (GPL-2 or later)",
        peers={"lme4": f"glmer({call})", "glmmTMB": f"glmmTMB({call})"},
    )
