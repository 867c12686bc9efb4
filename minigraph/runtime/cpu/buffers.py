"""Which memory each value of a plan on a CPU lies in: buffers of one arena, shared and taken over.

What a kernel writes as a list with the trait one_piece lies one behind the other: a bucket of gradients is one array.
16-bit floats are storage: a kernel computes in float32, and what it gives is rounded once, into its buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.one_piece import in_a_row
from minigraph.runtime.memory import Life
from minigraph.runtime.options import RunOptions
from minigraph.runtime.schedule import Step, Value, dies, each, flat, named_input
from minigraph.types import TensorType, float32

from .memory import LOW_PRECISION, AddressRange, WideInputs, placed


def assign_buffers(
    values: list[Value], steps: Sequence[Any], options: RunOptions, arena: AddressRange | None
) -> tuple[list[np.ndarray], int]:
    """Give each value that a kernel can write in place a buffer, shared with what it overwrites; their bytes in all.

    steps   BoundSteps, which get the arrays
    arena   None for no arrays: what they would take is only counted
    """
    lives: list[Life] = []
    owner: dict[int, int] = {}  # root -> buffer
    wishes: list[tuple[Any, int, int | None, int]] = []
    for position, bound in enumerate(steps):
        step = bound.step
        free = _overwritable(bound, values) if options.inplace and bound.out is not None else []
        for (slot, place, index), inputs in zip(_places(step.outputs), free or itertools.repeat(()), strict=False):
            if bound.out is None or values[index].persistable:
                continue
            value = values[index]
            buffer = _inherited(step, index, inputs, values, owner, position)
            if buffer is None:
                buffer = len(lives)
                lives.append(Life(value.type.nbytes, position, position))
            nbytes, first, last = lives[buffer]
            end = max(last, position, value.last_use) if options.reuse else len(steps)
            lives[buffer] = Life(nbytes, first, end)
            owner[index] = value.buffer = buffer
            wishes.append((bound, slot, place, index))
    blocks, places = _in_rows([bound.step for bound in steps], owner, lives)
    if arena is None:
        return [], placed(blocks)[1]
    memory, nbytes = arena.buffers(blocks)
    buffers = [memory[block][at : at + life.nbytes] for (block, at), life in zip(places, lives, strict=True)]
    for bound, slot, place, index in wishes:
        t = values[index].type
        array = buffers[owner[index]].view(t.dtype).reshape(t.shape)
        assert bound.out is not None
        if place is None:
            bound.out[slot] = array
        else:
            bound.out[slot][place] = array
    return buffers, nbytes


def _in_rows(
    steps: Sequence[Step], owner: dict[int, int], lives: Sequence[Life]
) -> tuple[list[Life], list[tuple[int, int]]]:
    """(blocks of memory, the block of each buffer and its offset there): rows of buffers, and each other by itself."""
    blocks, places = list[Life](), dict[int, tuple[int, int]]()
    for step in steps:
        written = flat(step.outputs) if "one_piece" in step.op.opdef.traits else []
        row = [owner[i] for i in written if i in owner]
        if not row or len(row) < len(written) or len({*row} - places.keys()) < len(row):
            continue
        placed, end = in_a_row(lives[buffer] for buffer in row)
        places |= {buffer: (len(blocks), at) for buffer, (_, at) in zip(row, placed, strict=True)}
        blocks.append(Life(end, min(lives[b].first for b in row), max(lives[b].last for b in row)))
    for buffer, life in enumerate(lives):
        if buffer not in places:
            places[buffer] = len(blocks), 0
            blocks.append(life)
    return blocks, [places[buffer] for buffer in range(len(lives))]


def _places(outputs: Sequence[Any]) -> Iterator[tuple[int, int | None, int]]:
    """(slot, position in a list slot, value) of all that a step writes."""
    for slot, index in enumerate(outputs):
        if isinstance(index, list):
            yield from ((slot, place, i) for place, i in enumerate(index))
        elif index is not None:
            yield slot, None, index


def _overwritable(bound: Any, values: list[Value]) -> list[list[int]]:
    """For each output, as `_places` gives them, the values that its kernel may write it over.

    One that may write over others than its operator names in `inplace` has a function `may_overwrite`.
    """
    step, ask = bound.step, getattr(bound.kernel, "may_overwrite", None)
    if ask is None:
        named = [(named_input(step, slot), place) for slot, place, _ in _places(step.outputs)]
        found = [i[place] if isinstance(i, list) and place is not None and place < len(i) else i for i, place in named]
        return [[i] if isinstance(i, int) else [] for i in found]
    types = [each(s, lambda i: values[i].type if isinstance(i, int) else i) for s in step.inputs]
    listed = flat(step.inputs[:1])
    return [[listed[k] for k in some if isinstance(listed[k], int)] for some in ask(*types, **bound.attrs)]


def _inherited(
    step: Step, index: int, inputs: Sequence[int], values: list[Value], owner: dict[int, int], position: int
) -> int | None:
    """The buffer of an input that this output may overwrite, if nobody reads that input later."""
    taken = {owner[i] for i in flat(step.outputs) if i in owner}
    for i in inputs:
        fits = i in owner and owner[i] not in taken and values[i].type == values[index].type
        if fits and dies(step, position, values, i):
            return owner[i]
    return None


def in_float32(kernel: Callable[..., Any], types: list[Any], writes: bool, inputs: WideInputs) -> Callable[..., Any]:
    """A kernel for 16-bit operands or results of `types`, of one that computes in float32.

    writes   whether the kernel takes `out`: results of other types are its own business then
    """

    def up(x: Any) -> Any:
        if isinstance(x, list):
            return [up(v) for v in x]
        return inputs.of(x) if x is not None and x.dtype in LOW_PRECISION else x

    def own(t: Any, to: Any) -> Any:
        if isinstance(t, list):
            return [own(*pair) for pair in zip(t, to, strict=True)]
        return to if t is not None and t.dtype not in LOW_PRECISION else None

    def down(x: Any, t: Any, to: Any) -> Any:
        if isinstance(t, list):
            return [down(*each) for each in zip(x, t, to, strict=True)]
        if t is None:
            return None
        if to is None or (writes and t.dtype not in LOW_PRECISION):
            return np.asarray(x).astype(t.dtype, copy=False)
        np.copyto(to, x, casting="unsafe")  # all is read by now, whatever it is written over
        return to

    def run(*args: Any, out: Sequence[Any], **attrs: Any) -> Any:
        inputs.end = 0
        if writes:
            attrs["out"] = tuple(own(*pair) for pair in zip(types, out, strict=True))
        results = kernel(*[up(a) for a in args], **attrs)
        if len(types) == 1:
            return down(results, types[0], out[0])
        return tuple(down(*each) for each in zip(results, types, out, strict=True))

    if hasattr(kernel, "may_overwrite"):
        run.may_overwrite = partial(_may_overwrite, kernel.may_overwrite, flat(types))  # type: ignore[attr-defined]
    return run


def _may_overwrite(
    kernel: Callable[..., list[list[int]]], types: Sequence[TensorType], X: list[TensorType], *more: Any, **attrs: Any
) -> list[Sequence[int]]:
    """Over which of X each result may be written: of 16 bits over all, they have been read by then."""
    wide = [[t.with_dtype(float32) if t.dtype in LOW_PRECISION else t for t in s] if s else s for s in (X, *more)]
    found = kernel(*wide, **attrs) or [[]] * len(types)
    return [range(len(X)) if t.dtype in LOW_PRECISION else own for t, own in zip(types, found, strict=True)]
