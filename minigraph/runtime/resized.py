"""Schedules of one program for feeds of other sizes: its steps and which values they read stay, types are found anew.

A step whose inputs have the types that they had before gives what it gave before. Where the new sizes let values show
other memory than before (a slice that kernels can take where it lies only for some sizes), the Schedule is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from minigraph.types import TensorType

from .schedule import Schedule, Show, Step, Value, check_accepted, flat, inferred


def resized(like: Schedule, feeds: Mapping[str, TensorType], show: Show) -> Schedule | None:
    """What `Schedule` makes of these feeds; None where values would show other memory than in `like`.

    like   of the same program, fetches and names of feeds, with the same `show`
    """
    made = copy(like)
    made.values = [Value(v.name, v.type, v.producer, v.persistable, -1, i) for i, v in enumerate(like.values)]
    for name, index in like.feeds.items():
        _retype(made.values[index], feeds[name])
    made.steps = [_again(step, made.values, like.values) for step in like.steps]
    made.remarks = show(made)
    for new, old in zip(made.values, like.values, strict=True):
        if new.root != old.root:
            return None  # other lives, and others that may be overwritten
        new.last_use = old.last_use
    return made


def _retype(value: Value, found: TensorType) -> None:
    """The same object as before where the type is, so that readers need not look closely."""
    if value.type != found:
        value.type = found


def _again(step: Step, values: list[Value], before: list[Value]) -> Step:
    """The step for inputs of these types; the values that it writes get theirs."""
    typed = step.typed or {}
    given = [*step.read, *(i for indices in typed.values() for i in indices)]
    if all(values[i].type is before[i].type for i in given) and "control" not in step.op.opdef.traits:
        return step
    types: dict[str, list[TensorType]] = {}
    inputs = list(step.inputs)
    for number, slot in enumerate(step.op.opdef.inputs):
        indices = typed.get(number) or flat([inputs[number]])
        if indices:
            types[slot.name] = own = [values[i].type for i in indices]
            if number in typed:
                inputs[number] = own if slot.variadic else own[0]
    found = inferred(step.op, types)
    for slot, output in zip(step.op.opdef.outputs, step.outputs, strict=True):
        if output is None:
            continue
        for i, v, t in zip(flat([output]), step.op.outputs[slot.name], found[slot.name], strict=True):
            if t != values[i].type:
                check_accepted(step.op, v, t, types)
                values[i].type = t
    return replace(step, inputs=inputs) if typed else step
