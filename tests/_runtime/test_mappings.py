"""A process that has compiled too many programs forgets them, and says so; nothing else changes."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import pytest

import jalax
from jalax._runtime import mappings

MODEL = jalax.models.hierarchical_normal(jnp.array([0.5, 1.5, 4.0]))


def fitted():
    return jalax.fit(
        MODEL,
        0.0,
        key=jax.random.key(1),
        algorithm=jalax.PGD(step_size=0.1),
        start=jalax.Given(jnp.zeros((16, 3))),
        num_steps=5,
        progress=jalax.callbacks.Callback(),
    )


def test_a_full_process_makes_room(monkeypatch, tmp_path):
    before = fitted()
    limit = tmp_path / "max_map_count"
    monkeypatch.setattr(mappings, "LIMIT", limit)
    limit.write_text("1000000")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted()
    full = len(mappings.OURS.read_text().splitlines())
    limit.write_text(f"{full}\n")
    with pytest.warns(UserWarning, match="memory mappings") as caught:
        after = fitted()
    assert caught[0].filename == __file__
    assert float(after.theta) == float(before.theta)
    mappings.forget_programs()
    assert len(mappings.OURS.read_text().splitlines()) < full


def test_where_it_is_not_known_nothing_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(mappings, "LIMIT", tmp_path / "none")
    assert mappings.share_in_use() == 0.0
    mappings.make_room()
