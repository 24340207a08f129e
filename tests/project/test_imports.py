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


# What each room may import, besides itself.
_BELOW = ("_runtime", "_particles", "_model", "_reference")
ROOMS = {
    "_runtime": (),
    "_particles": ("_runtime",),
    "_model": ("_runtime", "_particles"),
    "_reference": _BELOW[:3],
    "_starts": _BELOW,
    "_algorithms": _BELOW,
    "_evidence": (*_BELOW, "_starts"),
    "_export": (*_BELOW, "_evidence"),
    "_fit": (*_BELOW, "_starts", "_algorithms", "_evidence", "_export"),
    "_frontends": (*_BELOW, "_evidence", "_export", "_fit", "families", "models"),
    "families": (),
    "models": ("_runtime", "_particles", "_model", "families"),
    "datasets": (),
    "problems": ("_particles", "_model", "families", "models", "datasets"),
    "cli": ("",),
    "launch": ("_runtime", "runtime"),
    "rivals": ("extend",),
}
# Who in `_fit` may know an algorithm by name: the default, and the rules of its step size.
KNOW_ALGORITHMS = {"jalax._fit.choice", "jalax._fit.auto_step_size", "jalax._fit.second_modes"}
# Files beside the algorithms that several of them, or JALA-EM alone, are made of.
PARTS = {
    "peers",
    "jala_em_options",
    "minibatches",
    "newton",
    "scoring_state",
    "step_size",
    "theta_step",
    "weight_rules",
}


def room_of(name: str) -> str:
    """The folder, or the module, directly below jalax; "" is the package itself."""
    return name.removeprefix("jalax").removeprefix(".").partition(".")[0]


def test_the_sources_are_read():
    """The rules below would hold for an empty list, too."""
    assert {f"jalax._algorithms.{name}" for name in ("jala_em", "pgd", "soul")} <= set(SOURCES)
    assert "jalax._model.model" in imports("jalax._algorithms.jala_em")
    assert "jalax._export.report" in imports("jalax._fit.result")  # inside a function
    assert "jalax._export.report" not in imports("jalax._fit.result", everywhere=False)
    assert "jalax._export.tables" in imports("jalax._fit.result")  # for its types
    assert "jalax.models._gaussian" in imports("jalax.models")  # relative


def test_every_room_has_a_rule_and_a_sentence():
    rooms = {path.parent.name for path in ROOT.glob("_*/__init__.py")}
    assert rooms == {room for room in ROOMS if room.startswith("_")}
    for room in rooms:
        (node,) = ast.parse((ROOT / room / "__init__.py").read_text()).body  # and nothing else
        assert ast.literal_eval(node.value).count(".") == 1, room


def test_there_is_no_private_module_beside_the_rooms():
    assert [path.name for path in ROOT.glob("_*.py")] == ["__init__.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_below_it(room):
    names = [name for name in SOURCES if room_of(name) == room]
    assert names
    for name in names:
        others = {room_of(other) for other in imports(name)} - {room}
        assert others <= set(ROOMS[room]), f"{name}: {sorted(others - set(ROOMS[room]))}"


@pytest.mark.parametrize("name", sorted(n for n in SOURCES if n.startswith("jalax._algorithms.")))
def test_an_algorithm_knows_no_other(name):
    found = {other for other in imports(name) if other.startswith("jalax._algorithms.")}
    assert found <= {f"jalax._algorithms.{part}" for part in PARTS}


def test_drivers_know_no_algorithm_by_name():
    for name in SOURCES:
        if name.startswith("jalax._fit.") and name not in KNOW_ALGORITHMS:
            assert "_algorithms" not in {room_of(other) for other in imports(name)}, name


def test_namespaces_only_re_export():
    """`jalax.starts` and the like, and the package itself."""
    for path in [*ROOT.glob("[a-z]*.py"), ROOT / "__init__.py"]:
        if path.name == "launch.py":  # a program
            continue
        for node in ast.parse(path.read_text()).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or isinstance(node, ast.ImportFrom), ast.unparse(node)
            for alias in getattr(node, "names", ()):
                assert alias.name == alias.asname


LONGEST_FILE, LONGEST_BODY = 400, 60


def test_files_and_functions_stay_short():
    for path in SOURCES.values():
        text = path.read_text()
        assert text.count("\n") <= LONGEST_FILE, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                first = node.body[0]
                if ast.get_docstring(node) is not None and len(node.body) > 1:
                    first = node.body[1]
                length = (node.end_lineno or 0) - first.lineno + 1
                assert length <= LONGEST_BODY, f"{path}: {node.name} has {length} lines"


def test_there_are_no_cycles():
    state: dict[str, str] = {}

    def visit(name, path):
        assert state.get(name) != "open", " -> ".join([*path, name])
        if name in state or name not in SOURCES:
            return
        state[name] = "open"
        for other in sorted(imports(name)):  # those inside functions and for types, too
            visit(other, [*path, name])
        state[name] = "closed"

    for name in SOURCES:
        visit(name, [])


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


CONTRACT = [
    *("Model", "GroupedModel", "from_numpyro", "mixed", "JALAEM", "PGD", "IPLA", "SOUL", "SFLA"),
    *("Scoring", "Unadjusted", "GaussianExact"),
    *("fit", "fit_many", "log_evidence", "Evidence", "transport", "compare", "Comparison", "load"),
    *("extend", "FitResult", "Given", "FromSampler", "Laplace", "Importance", "Tempered", "ULA"),
    *("progress_bar", "checkpoint", "stop_when", "time_limit", "systematic", "Optax"),
    *(
        "State",
        "Info",
        "Status",
        "Constrained",
        "group_by",
        "models",
        "datasets",
        "problems",
        "__version__",
    ),
]
NAMESPACES = {
    "starts": ("Given", "FromSampler", "Laplace", "Importance", "Tempered", "ULA"),
    "callbacks": ("progress_bar", "checkpoint", "stop_when", "time_limit"),
    "resampling": ("systematic",),
    "options": ("Optax", "Schedule"),
    "results": ("Evidence", "Comparison", "FitResult", "Status"),
    "extend": ("State", "Info", "Status", "Optax", "Schedule"),
}


def test_public_names():
    assert not [name for name in CONTRACT if not hasattr(jalax, name)]
    for space, names in NAMESPACES.items():  # the same objects, under a second address
        for name in names:
            assert getattr(getattr(jalax, space), name) is getattr(jalax, name)


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
