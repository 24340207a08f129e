"""A fit in a real Jupyter kernel: progress, the table, and an interrupt."""

from __future__ import annotations

import os
import queue
import time
from pathlib import Path

import pytest

import jalax

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

SETUP = """
import warnings
warnings.simplefilter("always")  # an error would be caught by tqdm itself
import jax, jalax, numpy as np
model = jalax.models.hierarchical_normal(np.array([0.5, 1.5, 4.0]))
start = jalax.Given(np.random.default_rng(0).normal(size=(20, 3)))

def fit(num_steps, **changes):
    return jalax.fit(model, 0.0, key=jax.random.key(0), algorithm=jalax.JALAEM(step_size=0.05),
                     num_steps=num_steps, **changes)
"""


class Kernel:
    """Cells one after the other, and what they put out."""

    def __init__(self, client):
        self.client = client

    def start_cell(self, code: str) -> None:
        self.cell = self.client.execute(code)

    def messages(self, seconds: float = 120.0):
        """Of the running cell, until it is done."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=5)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != self.cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                raise AssertionError("\n".join(content["traceback"]))
            if kind == "status" and content["execution_state"] == "idle":
                return
            yield kind, content
        raise AssertionError(f"the cell did not end within {seconds} s.")

    def run(self, code: str) -> dict:
        """Text by stream, and the last expression by MIME type."""
        self.start_cell(code)
        out = {"stdout": "", "stderr": ""}
        for kind, content in self.messages():
            if kind == "stream":
                out[content["name"]] += content["text"]
            elif kind == "execute_result":
                out |= content["data"]
        return out


@pytest.fixture(scope="module")
def manager():
    paths = [str(Path(jalax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env=env)
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(manager):
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    kernel = Kernel(client)
    assert kernel.run(SETUP)["stderr"] == ""
    yield kernel
    client.stop_channels()


def test_a_cell_shows_progress_and_the_table(kernel):
    """Every warning would be on stderr, such as the one about widgets."""
    out = kernel.run("result = fit(300, start=start)\nresult")
    assert "300/300" in out["stdout"]
    assert "ess" in out["stdout"]
    assert out["stderr"] == ""
    assert "<table>" in out["text/html"]
    assert "JALAEM: 300 steps, 20 particles" in out["text/html"]
    assert "JALAEM: 300 steps, 20 particles" in out["text/plain"]


def test_an_interrupted_cell_keeps_what_it_has(kernel, manager):
    kernel.start_cell("part = fit(10_000_000, start=start, chunk_size=100)")
    text, interrupted = "", False
    for kind, content in kernel.messages():
        text += content["text"] if kind == "stream" else ""
        if not interrupted and "ess" in text:  # the first steps are done
            manager.interrupt_kernel()
            interrupted = True
    assert interrupted
    out = kernel.run("print(part.status, len(part.history['ess']), int(part.state.step))\npart")
    status, rows, step = out["stdout"].split()
    assert status == "interrupted"
    assert 0 < int(rows) == int(step) < 10_000_000
    assert f"interrupted after step {step}" in out["text/html"]
    out = kernel.run(
        "rest = fit(50, state=part.state)\n"
        "whole = fit(len(part.history['ess']) + 50, start=start)\n"
        "print('|', rest.status, int(rest.state.step), bool(rest.theta == whole.theta))"
    )
    assert out["stdout"].split("|")[-1].split() == ["max_steps", str(int(step) + 50), "True"]
