"""How programs are compiled: of a small model, that takes longer than running them.

An automatic fit of a few hundred rows runs for half a second. Compiled as a large model deserves,
its programs take 15 s of CPU; plainly, 5 s (Wisconsin, two cores, jax 0.10), and they are slow only
where there is little to do. The answers agree up to rounding.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jalax._runtime.products import in_full

# On a GPU, trying Triton's versions of each product takes longer than the rest of a compilation
# (the pines' evidence: 46 s, 28 without); a step of a large network is a tenth faster by them.
FEW_TRIALS = {"xla_gpu_enable_triton_gemm": False}
# For programs that run once or twice a fit, and take longer to compile than to run.
LEVEL_1 = {"xla_backend_optimization_level": 1, **FEW_TRIALS}
# For those that run longer: the last level costs a second more to compile an automatic fit, and
# makes it no faster.
LEVEL_2 = {"xla_backend_optimization_level": 2}
# XLA's older emitters of loops: half the time to compile, and up to a third more to run. In two
# parts, not 32: a tenth less, and programs that compile at the same time need not queue.
LEVEL_2_OLD_EMITTERS = {
    "xla_backend_optimization_level": 2,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
    **FEW_TRIALS,
}
# A fifth of the time to compile, and four times as long to run: for what runs once.
LEVEL_0_OLD_EMITTERS = {**LEVEL_2_OLD_EMITTERS, "xla_backend_optimization_level": 0}

# XLA adds up more than 32 numbers in two passes, and joins neither to anything else. That saves
# digits in float32, and two cores share a long sum. In float64, where a sum of ten million in one
# pass is off by 2e-14, and over few particles, it only takes time: 5 to 10 % of a step.
LEVEL_2_ONE_PASS_SUMS = {**LEVEL_2, "xla_disable_hlo_passes": "tree_reduction_rewriter"}

FEW = 2048  # particles of a group: a sum over them is no work for two cores


# XLA's library of CPU kernels: for products in jaxlib 0.10.1, for sums too since 0.10.2. It gets
# the sums of some programs wrong, silently (jax issue 39103; tests/_runtime/test_compiler.py has
# one of ours, which jaxlib 0.11.2 still gets wrong): jalax does without it.
WITHOUT_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}


@functools.cache
def _unknown_options() -> frozenset[str]:
    """Those of the options above that this version of XLA does not have."""
    options = {**LEVEL_2_ONE_PASS_SUMS, **LEVEL_0_OLD_EMITTERS, **WITHOUT_LIBRARY}
    if _compiles_with(options):
        return frozenset()
    return frozenset(name for name in options if not _compiles_with({name: options[name]}))


def _compiles_with(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except RuntimeError:
        return False
    return True


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """These and `WITHOUT_LIBRARY`, less what this version of XLA does not have."""
    every = {**WITHOUT_LIBRARY, **options}
    return {name: value for name, value in every.items() if name not in _unknown_options()}


class Workload:
    """An argument that knows whether a program with it takes longer to compile than to run."""

    def is_short(self) -> bool:
        raise NotImplementedError

    def makes_short(self, others: Sequence[Any]) -> bool:
        """So does any program of it and these, whatever they say."""
        return False


class Jit:
    """`jax.jit` with these compiler options, as far as they are known, and without the library.

    Every program of jalax is compiled by it. Inside of another program it is a part of that: JAX
    takes options for the outermost only.
    """

    def __init__(
        self,
        function: Callable,
        options: dict[str, Any] | None = None,
        static_argnames: str | Sequence[str] = (),
    ):
        functools.update_wrapper(self, function)
        self.function, self.options = in_full(function), options or {}
        self.static = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
        self.part: Any = jax.jit(self.function, static_argnames=self.static)

    @functools.cached_property
    def program(self) -> Any:
        options = known_options(self.options)
        return jax.jit(self.function, compiler_options=options, static_argnames=self.static)

    def __call__(self, *args, **kwargs):
        leaves = jax.tree.leaves((args, kwargs))
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        return (self.part if traced else self.program)(*args, **kwargs)

    def eval_shape(self, *args, **kwargs) -> Any:
        """Shapes of the result; the trace, if one is needed, is kept for the call itself."""
        return self.program.eval_shape(*args, **kwargs)

    def lower(self, *args, **kwargs) -> Any:
        """Traced for arguments of these shapes; what is left to do is `compile_ahead`'s."""
        return self.program.lower(*args, **kwargs)


def jit(options: dict[str, Any] | None = None, **how: Any) -> Callable[[Callable], Any]:
    """`Jit` as a decorator."""
    return lambda function: Jit(function, options, **how)


class Program:
    """A jitted function in versions, each with compiler options of its own.

    `small` is for small models, `large` for others, and `double`, if given, for those of `large`
    in float64 with few particles.
    """

    def __init__(
        self,
        function: Callable,
        *,
        small: dict[str, Any],
        large: dict[str, Any],
        double: dict[str, Any] | None = None,
        static_argnames: str | Sequence[str] = (),
    ):
        self.small = Jit(function, small, static_argnames=static_argnames)
        self.large = Jit(function, large, static_argnames=static_argnames)
        self.double = (
            self.large if double is None else Jit(function, double, static_argnames=static_argnames)
        )

    def __call__(self, *args, **kwargs):
        return self.version(args)(*args, **kwargs)

    def version(self, args: Sequence[Any]) -> Jit:
        if _is_short(args):
            return self.small
        return self.double if _sums_are_short(args) else self.large

    def eval_shape(self, *args, **kwargs) -> Any:
        """Shapes of the result, see `Jit.eval_shape`."""
        return self.version(args).eval_shape(*args, **kwargs)

    def lower(self, *args, **kwargs) -> Any:
        """Traced, see `Jit.lower`."""
        return self.version(args).lower(*args, **kwargs)

    def cache_size(self) -> int:
        """How many programs were compiled."""
        versions = {id(it): it for it in (self.small, self.large, self.double)}
        return sum(it.program._cache_size() for it in versions.values())


def compile_ahead(*lowered: Any) -> threading.Thread:
    """Compile these one after the other while other work goes on; join it before one is called."""

    def work() -> None:
        for program in lowered:
            program.compile()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _is_short(args: Sequence[Any]) -> bool:
    """On a CPU, and no argument makes it a long program, or one says that it is none."""
    loads = [a for a in args if isinstance(a, Workload)]
    short = any(a.makes_short(args) for a in loads) or all(a.is_short() for a in loads)
    return _on_cpu() and short


def _sums_are_short(args: Sequence[Any]) -> bool:
    """On a CPU, in float64 throughout, over a state of few particles."""
    states = [a for a in args if hasattr(a, "log_weights")]
    if not states or not _on_cpu():
        return False
    floats = [jnp.result_type(leaf) for leaf in jax.tree.leaves(args)]
    floats = [dtype for dtype in floats if jnp.issubdtype(dtype, jnp.floating)]
    return set(floats) == {jnp.dtype(jnp.float64)} and states[0].log_weights.shape[1] <= FEW


def _split(key, num: int = 2) -> tuple[jax.Array, ...]:
    return tuple(jax.random.split(key, num))


# Outside of jit a split is two programs, which take four times as long to compile.
split = Program(_split, small=LEVEL_0_OLD_EMITTERS, large={}, static_argnames="num")
fold_in = Program(jax.random.fold_in, small=LEVEL_0_OLD_EMITTERS, large={})
