"""Imports run one way, and `import jalax` is light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jalax

ROOT = Path(jalax.__file__).parent


def module_name(path: Path) -> str:
    parts = ("jalax", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imports(name: str, everywhere: bool = True) -> set[str]:
    """The modules of jalax that a module imports; `everywhere`: inside functions too."""
    path = SOURCES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in SOURCES else base)
    return {module for module in found if module.split(".")[0] == "jalax"} - {name}


ALGORITHMS = {"jala_em", "pgd", "ipla", "soul", "sfla"}
PARTS = [
    *("_model.types", "_particles.trees", "_particles.weight_math", "_particles.langevin"),
    *("_particles.resampling", "_runtime.options", "_model.model", "_runtime.function_keys"),
]
DRIVERS = {f"jalax._fit.{name}" for name in ("loop", "driver", "conclusion", "fit", "fit_many")}


def test_the_sources_are_read():
    """The rules below would hold for an empty list, too."""
    assert {f"jalax._algorithms.{name}" for name in ALGORITHMS} <= set(SOURCES)
    assert "jalax._model" in imports("jalax._algorithms.jala_em")
    assert {"jalax._fit.loop", "jalax._model.checks", "jalax._fit.checkpoint"} <= imports(
        "jalax._fit"
    )
    assert "jalax._fit.saving" in imports("jalax._fit.result")  # inside a function
    assert "jalax._fit.checkpoint" not in imports("jalax._fit.result", everywhere=False)
    assert "jalax.models._gaussian" in imports("jalax.models")  # relative


@pytest.mark.parametrize("name", PARTS)
def test_parts_know_neither_drivers_nor_algorithms(name):
    found = imports(f"jalax.{name}")
    assert not found & DRIVERS
    assert not [module for module in found if module.startswith("jalax._algorithms")]
    assert "jalax" not in found


def test_parts_are_below_the_types_or_beside_them():
    for name in ("_particles.trees", "_particles.weight_math", "_model.model"):
        assert "jalax._model.types" not in imports(f"jalax.{name}"), name


@pytest.mark.parametrize(
    "name", sorted(name for name in SOURCES if name.startswith("jalax._algorithms."))
)
def test_an_algorithm_knows_neither_drivers_nor_another(name):
    found = imports(name)
    assert not found & DRIVERS
    assert not found & {
        "jalax",
        "jalax._fit.result",
        "jalax._fit.callbacks",
        "jalax._fit.checkpoint",
    }
    others = {module for module in found if module.startswith("jalax._algorithms")}
    assert others <= {"jalax._algorithms", "jalax._algorithms.peers"}


def test_the_loop_knows_no_algorithm():
    found = imports("jalax._fit.loop")
    assert not [module for module in found if module.startswith("jalax._algorithms")]
    assert not found & {"jalax", "jalax._fit", "jalax._fit.fit_many", "jalax._fit.result"}


def test_starts_know_neither_drivers_nor_algorithms():
    for name in SOURCES:
        if name.startswith("jalax._starts"):
            found = imports(name)
            assert not found & DRIVERS
            assert not [module for module in found if module.startswith("jalax._algorithms")]


def test_models_and_data_sets_do_not_reach_into_the_engine():
    allowed = {
        "jalax._model",
        "jalax._particles.trees",
        "jalax._particles.weight_math",
        "jalax._model.groups",
    }
    for name in SOURCES:
        if name.startswith(("jalax.models", "jalax.datasets")):
            inside = {m for m in imports(name) if m.startswith(("jalax._", "jalax._starts"))}
            assert inside <= allowed, name


def test_nothing_imports_the_package_from_inside():
    """`import jalax` inside jalax works or not depending on who came first."""
    for name in SOURCES:
        if not name.startswith("jalax.cli"):
            assert "jalax" not in imports(name, everywhere=False), name


def test_there_are_no_cycles():
    state: dict[str, str] = {}

    def visit(name, path):
        assert state.get(name) != "open", " -> ".join([*path, name])
        if name in state or name not in SOURCES:
            return
        state[name] = "open"
        for other in sorted(imports(name, everywhere=False)):
            visit(other, [*path, name])
        state[name] = "closed"

    for name in SOURCES:
        visit(name, [])


def test_the_package_only_re_exports():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        assert docstring or isinstance(node, ast.ImportFrom), ast.unparse(node)
        for alias in getattr(node, "names", ()):
            assert alias.name == alias.asname


HEAVY = ["optax", "blackjax", "matplotlib", "tqdm", "typer", "rich", "IPython", "arviz", "numpyro"]


def test_importing_jalax_is_light_and_changes_nothing():
    script = """
import json, sys, warnings
import jax
before = dict(jax.config.values)
filters = list(warnings.filters)
import jalax
after = dict(jax.config.values)
print(json.dumps({
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "config": [name for name in after if after[name] != before[name]],
    "filters": warnings.filters == filters,
    "backends": len(jax._src.xla_bridge._backends),
}))
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "jalax" in found["modules"]
    assert not set(HEAVY) & set(found["modules"])
    assert found["config"] == []
    assert found["filters"]
    assert found["backends"] == 0  # no array was made, no device looked for
    assert done.stderr == ""


PUBLIC = [
    *("Model", "GroupedModel", "JALAEM", "PGD", "IPLA", "SOUL", "SFLA", "fit", "fit_many"),
    *("transport", "load", "FitResult", "Given", "FromSampler", "progress_bar", "checkpoint"),
    *("stop_when", "time_limit", "systematic", "stratified", "multinomial", "residual"),
    *("Optax", "Schedule", "State", "Info", "Status", "Callback", "models", "datasets"),
    *("mixed", "from_numpyro", "Constrained", "compare", "log_evidence", "group_by"),
]


def test_public_names():
    assert not [name for name in PUBLIC if not hasattr(jalax, name)]


def test_public_models_and_data_sets():
    names = [
        *("hierarchical_normal", "gaussian_regression", "student_t_regression"),
        *("polynomial_regression", "logistic_regression", "neural_network", "random_intercept"),
    ]
    assert not [name for name in names if not callable(getattr(jalax.models, name, None))]
    assert callable(jalax.datasets.wisconsin)


def test_results_have_the_contracts_attributes():
    names = [
        *("theta", "particles", "log_weights", "weights", "log_evidence", "log_evidence_error"),
        *("path_log_evidence", "status", "state", "history"),
        *("expectation", "resample", "summary", "save"),
    ]
    fields = jalax.FitResult.__dataclass_fields__
    assert not [name for name in names if not (name in fields or hasattr(jalax.FitResult, name))]
    assert jalax.State._fields == (
        *("step", "theta", "particles", "log_weights", "log_evidence_base", "memory"),
    )
    assert jalax.Info._fields[:6] == (
        *("log_evidence", "ess", "mean_log_joint", "grad_norm", "resampled", "dead"),
    )


@pytest.mark.parametrize("name", ["JALAEM", "PGD", "IPLA", "SOUL", "SFLA"])
def test_algorithms_are_frozen_and_take_keywords_only(name):
    algorithm = getattr(jalax, name)
    with pytest.raises(TypeError, match="positional"):
        algorithm(0.1)
    with pytest.raises(AttributeError):
        algorithm(step_size=0.1).step_size = 0.2
