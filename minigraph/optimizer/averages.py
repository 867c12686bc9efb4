"""What averages of parameters share: to stand in the place of the parameters for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import ORDER
from minigraph.program import Parameter, Variable
from minigraph.program.context import reusable
from minigraph.program.operator import masters_of
from minigraph.program.scope import Scope, global_scope


class Averages:
    """Base of classes whose `means(scope)` are to be used in the place of the parameters `averaged`.

    Float32 copies of 16-bit parameters are the means, too: what is trained or saved then goes on from there, and so do
    copies that other programs have.
    """

    averaged: Any = ()  # {parameter: what is kept of it}

    def __init__(self) -> None:
        self._before: dict[str, np.ndarray] = {}
        self._together: list[str] = []  # parameters and all their copies
        self._scope = global_scope()  # of which these are

    def means(self, scope: Scope) -> dict[Parameter, np.ndarray]:
        """The means of the parameters, in the type in which they are kept; none before the first run."""
        raise NotImplementedError

    @reusable
    def apply(self, executor: Any = None, need_restore: bool = True) -> Iterator[None]:
        """The parameters of the global scope are their averages inside the block.

        need_restore  False leaves them so until `restore`
        """
        self._take()
        try:
            yield
        finally:
            try:
                if need_restore:
                    self.restore(executor)
            except BaseException:
                self._mark()
                raise

    def restore(self, executor: Any = None) -> None:
        """The parameters are again what they were before `apply`, in the scope that was global then."""
        with self._scope.lock, self._scope.turn.begin():
            self._put_back()

    def _take(self) -> None:
        require(not self._before, "the averages are in place already", ORDER, "call restore first")
        self._scope = scope = global_scope()
        try:
            with scope.lock, scope.turn.begin():
                masters = _masters(scope, self.averaged)
                self._together = [*(p.name for p in self.averaged), *masters.values()]
                copies = {p: name for p, name in masters.items() if getattr(scope.arrays[name], "scopes", True)}
                means = self.means(scope)
                values = {p.name: mean.astype(p.dtype) for p, mean in means.items()}
                values |= {copies[p]: mean for p, mean in means.items() if p in copies}
                self._before = {name: scope.read(name) for name in (*(p.name for p in self.averaged), *copies.values())}
                _put(scope, values, self._together, "averages in place of parameters")
        except BaseException:
            if self._before:
                self._mark()
                self.restore()
            raise

    def _mark(self) -> None:
        """Let nobody take averages for parameters: `restore` was interrupted, or may be."""
        self._scope.tear(self._before, "averages stand in the place of parameters, whose restore was interrupted")

    def _put_back(self) -> None:
        _put(self._scope, self._before, self._together, "a restore of averages")
        self._before = {}


def _masters(scope: Scope, averaged: Collection[Variable]) -> dict[Variable, str]:
    """The float32 copies of parameters, by name; those that processes have in pieces cannot be read, and stay."""
    programs = {p.program for p in averaged}
    masters = {p: copy.name for program in programs for p, copy in masters_of(program.ops).items() if p in averaged}
    return {p: name for p, name in masters.items() if scope.has(name)}


def _put(scope: Scope, values: dict[str, np.ndarray], together: Collection[str], what: str) -> None:
    """Set values; parameters and copies count as set `together`, so that copies of other programs follow."""
    with scope.replacing(values, what):
        for name, value in values.items():
            scope.take(name, value)
        if values:
            scope.were_set(together)
