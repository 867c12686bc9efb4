"""JAX as a peer on the GPU: a jitted function on the same numbers, timed by the clock of the host.

JAX has streams of its own, so events on another library's stream do not see its work. A turn is timed from
the first launch until the last result is there; with turns of some milliseconds that adds next to nothing.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

COMPILERS = 8  # functions that are compiled at the same time


class Jax:
    """The framework; it takes memory as it needs it, not most of the card's at its start."""

    def __init__(self, cupy: Any) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.cupy, self.jax = cupy, importlib.import_module("jax")
        self.compiled: dict[Any, Any] = {}

    def prepare(self, cases: Iterable[Any]) -> None:
        """Compile the functions of several cases at the same time, and not between the turns of others.

        Not those with products: XLA chooses their kernels by times, which it takes while it compiles.
        """
        wanted = [case for case in cases if case.jax is not None and not case.flops]
        with ThreadPoolExecutor(COMPILERS) as pool:
            for case in wanted:  # what fails does so again in its row
                pool.submit(self._compile, case.jax, self._types(case.inputs))

    def _types(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What `arrays` makes of such inputs."""
        struct = self.jax.ShapeDtypeStruct
        return {n: struct(i.shape, "int32" if i.dtype == "int64" else i.dtype) for n, i in inputs.items()}

    def _compile(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """`function` for these arrays, or types of arrays."""
        if function not in self.compiled:
            jitted = self.jax.jit(lambda arrays: function(self.jax, **arrays))
            self.compiled[function] = jitted.lower(given).compile()
        return self.compiled[function]

    def arrays(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of device arrays; 16-bit floats travel as words."""
        made = {}
        for name, a in given.items():
            a = a.astype("i4") if a.dtype == "i8" else a  # as JAX has integers
            words = a.view(f"u{a.dtype.itemsize}")
            self.cupy.cuda.get_current_stream().synchronize()
            found = self.jax.dlpack.from_dlpack(words)
            made[name] = self.jax.lax.bitcast_convert_type(found, a.dtype)
        return self.jax.block_until_ready(made)

    def arm(self, function: Callable[..., Any], given: Mapping[str, Any]) -> JaxArm:
        """`function(jax, **arrays) -> results`, compiled once for all sets of inputs."""
        arrays = self.arrays(given)
        return JaxArm(self, self._compile(function, arrays), arrays)

    def results(self, found: Sequence[Any], dtypes: Sequence[np.dtype]) -> list[Any]:
        """JAX's arrays as CuPy's."""
        made = []
        for x, dtype in zip(found, dtypes, strict=True):
            words = self.jax.lax.bitcast_convert_type(x, np.dtype(f"u{dtype.itemsize}"))
            made.append(self.cupy.from_dlpack(self.jax.block_until_ready(words)).view(dtype))
        return made


class JaxArm:
    """One launch of the compiled function on one set of inputs."""

    def __init__(self, peer: Jax, function: Callable[[Any], Any], arrays: Mapping[str, Any]) -> None:
        self.peer, self.function, self.arrays = peer, function, arrays

    def __call__(self) -> Any:
        return self.function(self.arrays)

    def milliseconds(self, calls: Sequence[JaxArm], repeats: int) -> float:
        """Mean time of one call over `repeats` calls back to back."""
        start, last = time.perf_counter(), None
        for i in range(repeats):
            last = calls[i % len(calls)]()
        self.peer.jax.block_until_ready(last)
        return (time.perf_counter() - start) * 1e3 / repeats
