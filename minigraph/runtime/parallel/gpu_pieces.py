"""Pieces of parameters that lie in the Scope's arrays: their update writes there, and gathering moves no byte of them.

    c_shards(w) -> adamw(piece of w) -> c_gather_shards -> w        the piece is a part of w, from the first to the last

Only where nobody reads w in between, no kernel after the piece is taken may report a fault (a run that has one leaves
the Scope as it was), and the array can be cut into equal pieces.
"""

from __future__ import annotations

from minigraph.kernels.cuda.record.views import PIECE
from minigraph.kernels.groups import present
from minigraph.kernels.pieces import piece_bounds, piece_size
from minigraph.runtime.cuda.values import ValueBuffers
from minigraph.runtime.schedule import Schedule


def lay_pieces(values: ValueBuffers, reports: int) -> None:
    """Let pieces lie in what they are pieces of; `reports` is the last step that may report a fault."""
    schedule = values.schedule
    gathering = [step for step in schedule.steps if step.op.type == "c_gather_shards"]
    if not gathering:
        return
    readers: dict[int, list[int]] = {}  # steps that read a value, or another one that shows it
    for position, step in enumerate(schedule.steps):
        for i in {*step.read, *(schedule.values[i].root for i in step.read)}:
            readers.setdefault(i, []).append(position)
    for step in gathering:
        slots = step.inputs[0], step.in_place[0] or [None] * len(step.outputs[0]), step.outputs[0]
        for piece, whole, made in zip(*slots, strict=True):
            if whole is not None and values.buffers[made] is values.buffers[whole]:
                _lay(values, readers, piece, whole, reports)


def _lay(values: ValueBuffers, readers: dict[int, list[int]], piece: int, whole: int, reports: int) -> None:
    """Let an updated piece lie in `whole`, where it is taken from, if it may."""
    schedule, all_values = values.schedule, values.schedule.values
    update = all_values[piece].producer
    taken = _taken_from(schedule, update, piece)
    if taken is None or update <= reports or {piece, taken} & {*schedule.fetched}:
        return
    cut, size = all_values[taken].producer, all_values[whole].type.size
    group, wide, there = present(), piece_size(size, present().size), values.buffers[whole]
    start, end = piece_bounds(size, group.rank, group.size)
    fits = group.size * wide == size and all_values[piece].type.size == wide and not wide * there.dtype.itemsize % PIECE
    alone = readers[taken] == [update] and len(readers[piece]) == 1
    if fits and alone and whole in schedule.steps[cut].read and max(readers[whole]) == cut:
        shown = there.view((end - start,), offset=start * there.dtype.itemsize)
        values.lay(piece, shown)
        values.lay(taken, shown)
        values.in_pieces.add(all_values[whole].name)


def _taken_from(schedule: Schedule, update: int, piece: int) -> int | None:
    """The piece, just taken, that this update writes anew as value `piece`."""
    step = schedule.steps[update] if update >= 0 else None
    if step is None or "guarded" not in step.op.opdef.traits:
        return None
    opdef = step.op.opdef
    param, out = (step.inputs[opdef.input_names.index("Param")], step.outputs[opdef.output_names.index("ParamOut")])
    pairs = zip(param, out, strict=True) if isinstance(out, list) else [(param, out)]
    taken = next((given for given, written in pairs if written == piece), None)
    if taken is None:
        return None
    maker = schedule.values[taken].producer
    return taken if maker >= 0 and schedule.steps[maker].op.type == "c_shards" else None
