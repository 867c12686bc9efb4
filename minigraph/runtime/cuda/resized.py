"""Schedules for other sizes of feeds: steps and which values they read stay, types are found anew.

Where the sizes of values follow from those of the feeds as they did for others, nothing is inferred (symbolic.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.symbolic import NO_SYMBOLS, SizeSymbol, Trace, Values
from minigraph.kernels.cuda.record.templates import Templates
from minigraph.runtime.schedule import Schedule, Show, Step, Value, check_accepted, flat, inferred
from minigraph.types import TensorType


class TypesTemplate:
    """The types of the values of a Schedule, with symbols for sizes.

    changing   the values with symbols: their number, data type, and each size as (node, size), of which one counts
    """

    def __init__(self, trace: Trace, values: Sequence[Value]) -> None:
        self.values = trace.program()
        self.changing: list[tuple[int, np.dtype, list[tuple[int, Any]]]] = []
        for i, t in enumerate(v.type for v in values):
            sizes = [(n.node, 0) if isinstance(n, SizeSymbol) else (-1, n) for n in t.shape]
            if any(node >= 0 for node, _ in sizes):
                self.changing.append((i, t.dtype, sizes))

    def give(self, found: Values, values: list[Value]) -> None:
        """Give the values their types for these sizes; the other types are the same for all."""
        for i, dtype, sizes in self.changing:
            values[i].type = TensorType(tuple([found[n] if n >= 0 else size for n, size in sizes]), dtype)


def resized(
    like: Schedule, feeds: Mapping[str, TensorType], show: Show, known: Templates[TypesTemplate]
) -> Schedule | None:  # fmt: skip
    """What `Schedule` makes of these feeds; None where values would show other memory than in `like`.

    like   of the same program, fetches and names of feeds, with the same `show`
    known  for these; it gets what can be kept
    """
    made = copy(like)
    made.values = _values(like)
    sizes, before = (tuple([n for name in like.feeds for n in own[name].shape]) for own in (feeds, _fed(like)))
    found = known.fitting(sizes) if known.made and known.vary_alike(before) else None
    if found is None:
        for name, index in like.feeds.items():
            _retype(made.values[index], feeds[name])
        made.steps = [_again(step, made.values, like.values) for step in like.steps]
        _learn(known, like, sizes, made.values)
    else:
        found[0].give(found[1], made.values)
        made.steps = [_with_types(step, made.values) if step.typed else step for step in like.steps]
    made.remarks = show(made)
    for new, old in zip(made.values, like.values, strict=True):
        if new.root != old.root:
            return None  # other lives, and others that may be overwritten
        new.last_use = old.last_use
    return made


def _fed(like: Schedule) -> dict[str, TensorType]:
    """The types of its feeds."""
    return {name: like.values[index].type for name, index in like.feeds.items()}


def _values(like: Schedule) -> list[Value]:
    """New values with the types of these."""
    return [Value(v.name, v.type, v.producer, v.persistable, -1, i) for i, v in enumerate(like.values)]


def _learn(known: Templates[TypesTemplate], like: Schedule, sizes: tuple[int, ...], found: Sequence[Value]) -> None:
    """Keep a template of the types that were found for these sizes of feeds."""
    traced = known.trace(sizes)
    if traced is None:
        return
    trace, symbols = traced
    left, values = iter(symbols), _values(like)
    try:
        for index in like.feeds.values():
            t = values[index].type
            values[index].type = TensorType(tuple([next(left) for _ in t.shape]), t.dtype)
        for step in like.steps:
            _again(step, values, like.values)
        made = TypesTemplate(trace, values)
    except NO_SYMBOLS:
        return
    again = made.values([symbol.value for symbol in trace.symbols])
    given = _values(like)
    if again is not None:
        made.give(again, given)
        if [v.type for v in given] == [v.type for v in found]:
            known.keep(made)


def _retype(value: Value, found: TensorType) -> None:
    """The same object as before where the type is, so that readers need not look closely."""
    if value.type != found:
        value.type = found


def _with_types(step: Step, values: Sequence[Value]) -> Step:
    """The step with the types of the values in slots that are not read."""
    inputs = list(step.inputs)
    for number, indices in (step.typed or {}).items():
        types = [values[i].type for i in indices]
        inputs[number] = types if step.op.opdef.inputs[number].variadic else types[0]
    return replace(step, inputs=inputs)


def _again(step: Step, values: list[Value], before: list[Value]) -> Step:
    """The step for inputs of these types; the values that it writes get theirs."""
    typed = step.typed or {}
    given = [*step.read, *(i for indices in typed.values() for i in indices)]
    if all(values[i].type is before[i].type for i in given) and "control" not in step.op.opdef.traits:
        return step
    types: dict[str, list[TensorType]] = {}
    for number, slot in enumerate(step.op.opdef.inputs):
        indices = typed.get(number) or flat([step.inputs[number]])
        if indices:
            types[slot.name] = [values[i].type for i in indices]
    found = inferred(step.op, types)
    for slot, output in zip(step.op.opdef.outputs, step.outputs, strict=True):
        if output is None:
            continue
        for i, v, t in zip(flat([output]), step.op.outputs[slot.name], found[slot.name], strict=True):
            if t != values[i].type:
                check_accepted(step.op, v, t, types)
                values[i].type = t
    return _with_types(step, values) if typed else step
