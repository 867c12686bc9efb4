"""Overwriting: which inputs of a step may give their memory to its outputs, on any device.

What a device asks besides (where the memory lies, which kernels read all before they write) its plan knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .schedule import Step, Value, shown_once


def dies(step: Step, position: int, values: Sequence[Value], i: int) -> bool:
    """Whether nobody reads value i after this step, and no other input of it shows the same memory."""
    return values[i].root == i and values[i].last_use <= position and shown_once(step, values, i)


def named_input(step: Step, slot: int) -> Any:
    """What stands in the input that the operator names for output number `slot` (`OpDef.inplace`); None for none."""
    opdef = step.op.opdef
    name = opdef.inplace.get(opdef.outputs[slot].name)
    return step.inputs[opdef.input_names.index(name)] if name is not None else None
