"""Modules: kernels of CUDA sources, compiled and loaded. Needs a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cupy

from minigraph.kernels.cuda.record.compile import SideBySide, compile_source


class Modules:
    """Kernels of one GPU by source and name.

    waiting   those that wait for the kernels before them: their CUfunctions
    compiled  how many had to be compiled
    shared    how much shared memory was asked for: without it a block has 48 KB, what its kernel declares included
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.waiting: set[int] = set()
        self.compiled = 0
        self._work = SideBySide(arch)
        self.shared: dict[tuple[str, str], int] = {}
        self._functions: dict[tuple[str, str], Any] = {}

    def begin(self, kernels: Iterable[tuple[str, str]]) -> None:
        """Begin to compile those (source, name) that are not loaded; `compile` waits for them."""
        self._work.begin(self._missing(kernels))

    def compile(self, kernels: Iterable[tuple[str, str]]) -> None:
        """Compile those (source, name) that are not loaded, side by side."""
        missing = self._missing(kernels)
        self._work.begin(missing)
        self.compiled += self._work.end(missing)

    def _missing(self, kernels: Iterable[tuple[str, str]]) -> list[str]:
        return [source for source, name in kernels if (source, name) not in self._functions]

    def function(self, source: str, name: str, shared: int = 0, together: bool = False) -> Any:
        """A kernel, compiled and loaded once; it may have `shared` bytes of shared memory.

        together   its blocks wait for each other
        """
        key = source, name
        if key not in self._functions:
            cubin = compile_source(source, self.arch)
            module = cupy.RawModule(path=str(cubin.path), enable_cooperative_groups=together)
            function = self._functions[key] = module.get_function(name)
            self.waiting |= {function.kernel.ptr} if cubin.waits_first and not together else set()
        function = self._functions[key]
        if shared > self.shared.get(key, 0):  # a longer row may need more
            function.max_dynamic_shared_size_bytes = self.shared[key] = shared
        return function
