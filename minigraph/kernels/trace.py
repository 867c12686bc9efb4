"""The elementary operations of a loop over elements, or of a formula, found by running it on symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Operand = Any  # a Symbol or a float


class Symbol(NDArrayOperatorsMixin):
    """A value of a trace: a named one that is given, or the result of an operation, which is a ufunc of NumPy.

    operation  NumPy's name of the ufunc; empty for a given value
    given      names of the given values that it depends on
    """

    def __init__(self, name: str, operation: str = "", operands: Sequence[Operand] = (), steps: Any = None) -> None:
        self.name, self.operation, self.operands = name, operation, tuple(operands)
        symbols = [o for o in operands if isinstance(o, Symbol)]
        self.steps: list[Symbol] = steps if steps is not None else symbols[0].steps if symbols else []
        self.given: frozenset[str] = frozenset({name}) if not operation else frozenset().union(
            *(s.given for s in symbols)
        )  # fmt: skip

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Symbol:
        assert method == "__call__" and not options, f"{ufunc.__name__} has options"
        plain = [o if isinstance(o, Symbol) else float(o) for o in operands]
        made = Symbol(f"t{len(self.steps)}", ufunc.__name__, plain, self.steps)
        self.steps.append(made)
        return made

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]  # equal to itself alone


class Element:
    """An array of a traced loop: the value of its present element."""

    def __init__(self, value: Symbol) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> Symbol:
        return self.value

    def __setitem__(self, index: Any, value: Symbol) -> None:
        self.value = value


def trace_loop(
    loop: Callable[..., None], arrays: Sequence[str], numbers: Sequence[str]
) -> tuple[list[Symbol], dict[str, Symbol]]:
    """(operations in order, new value of each array that the loop writes) of `loop(*arrays, *numbers)`."""
    steps: list[Symbol] = []
    given = [Element(Symbol(name, steps=steps)) for name in arrays]
    loop(*given, *[Symbol(name, steps=steps) for name in numbers])
    changed = {n: e.value for n, e in zip(arrays, given, strict=True) if e.value.operation}
    return steps, changed


def trace_numbers(formula: Callable[..., Sequence[Operand]], given: Sequence[str], **attrs: Any) -> list[Operand]:
    """What `formula(*given, **attrs)` returns; numbers among the attributes are given values too."""
    steps: list[Symbol] = []
    symbols = {
        name: Symbol(name, steps=steps) if isinstance(value, float) else value for name, value in attrs.items()
    }
    return list(formula(*[Symbol(name, steps=steps) for name in given], **symbols))


def leading_to(results: Sequence[Operand]) -> list[Symbol]:
    """The operations that these results need, in order."""
    needed = [r for r in results if isinstance(r, Symbol)]
    steps = needed[0].steps if needed else []
    wanted = {id(r) for r in needed}
    for step in reversed(steps):
        if id(step) in wanted:
            wanted |= {id(o) for o in step.operands}
    return [s for s in steps if id(s) in wanted]
