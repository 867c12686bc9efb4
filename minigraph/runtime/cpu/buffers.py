"""Which memory each value of a plan on a CPU lies in: buffers of one arena, shared and taken over.

What a kernel writes as a list with the trait one_piece lies one behind the other: a bucket of gradients is one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minigraph.kernels.one_piece import in_a_row
from minigraph.runtime.memory import Life
from minigraph.runtime.options import RunOptions
from minigraph.runtime.overwriting import dies, named_input
from minigraph.runtime.schedule import Step, Value, flat

from .memory import AddressRange, placed


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
        for slot, place, index in _places(step.outputs):
            if bound.out is None or values[index].persistable:
                continue
            value = values[index]
            buffer = _inherited(step, slot, place, index, values, owner, position) if options.inplace else None
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


def _inherited(
    step: Step, slot: int, place: int | None, index: int, values: list[Value], owner: dict[int, int], position: int
) -> int | None:
    """The buffer of the input that this output may overwrite, if nobody reads that input later."""
    i = named_input(step, slot)
    if isinstance(i, list) and place is not None and place < len(i):
        i = i[place]
    if not isinstance(i, int):
        return None
    fits = i in owner and values[i].type == values[index].type
    return owner[i] if fits and dies(step, position, values, i) else None
