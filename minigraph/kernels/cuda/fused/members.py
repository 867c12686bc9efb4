"""A body whose members run one after the other, each by its own kernel, and where what lies between them is kept.

It takes no more memory than the members would alone: values that do not live at once lie in one buffer, and what an
output is made of lies where the output will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer

from .code import last_uses, values_read


def bind_members(binder: Binder, fused: Any, buffers: Mapping[str, Buffer]) -> None:
    """Each member by its own kernel."""
    own, rooms = binder.number, _rooms(binder, fused, buffers)
    rooms |= _copies(binder, fused.members, buffers)
    for m in fused.members:
        binder.number, binder.member = m.number, m.opdef.type
        m.opdef.gpu_bind(
            binder, _slots(m.opdef.inputs, m.inputs, rooms), _slots(m.opdef.outputs, m.outputs, rooms), m.attrs
        )
    binder.number = own


def _slots(slots: Sequence[Any], names: Mapping[str, Sequence[str]], buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    given = {s.name: [buffers[n] for n in names.get(s.name, ())] for s in slots}
    return {s.name: given[s.name] if s.variadic else (given[s.name] or [None])[0] for s in slots}


def _rooms(binder: Binder, fused: Any, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The buffer of each value: that of an output which is made of it, or one that is free while it lives."""
    members, types, last = fused.members, fused.types, last_uses(fused.members)
    rooms = _of_outputs(members, types, buffers)
    inner = {name for m in members for name in m.written} - rooms.keys()
    until = {id(rooms[name]): i for i, m in reversed([*enumerate(members)]) for name in m.written if name in rooms}
    free = [(types[name], b) for name, b in buffers.items() if name[0] == "y"]
    for i, m in enumerate(members):
        dying = [n for n in sorted(inner & values_read(m)) if last[n] == i]
        taken = dict(_over(m, types, dying))
        for slot, name in [(slot, name) for slot, names in m.outputs.items() for name in names if name in inner]:
            source = taken.get(name)
            if source is not None and last[name] < until.get(id(rooms[source]), len(members)):
                dying.remove(source)
                rooms[name] = rooms[source]
                continue
            fits = [
                pair for pair in free if pair[0] == types[name] and last[name] < until.get(id(pair[1]), len(members))
                and not _reads_behind(members, buffers, pair[1], i, slot)
            ]  # fmt: skip
            if fits:
                free.remove(fits[0])
            rooms[name] = fits[0][1] if fits else binder.scratch(types[name].shape, types[name].dtype)
        dying += [n for n in m.written if n in inner and last[n] == i]
        free += [(types[n], rooms[n]) for n in dying]
    return rooms


def _of_outputs(members: Sequence[Any], types: Mapping[str, Any], buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The buffers, also of values over which members write what becomes an output."""
    rooms, last = dict(buffers), last_uses(members)
    writers = {name: (i, slot) for i, m in enumerate(members) for slot, names in m.outputs.items() for name in names}
    for i, m in reversed([*enumerate(members)]):
        for name, source in _over(m, types, [n for n in values_read(m) if last[n] == i and n not in rooms]):
            if name in rooms and not _reads_behind(members, buffers, rooms[name], *writers[source]):
                rooms[source] = rooms[name]
    return rooms


def _reads_behind(
    members: Sequence[Any], buffers: Mapping[str, Buffer], room: Buffer, at: int, slot: str
) -> list[str]:  # fmt: skip
    """The inputs in `room` that are lost where the member `at` writes an output there: a later one reads them."""
    own, behind = members[at], [values_read(m) for m in members[at + 1 :]]
    return [
        name for name, b in buffers.items() if name[0] == "x" and b is room
        and (any(name in read for read in behind) or (name in values_read(own) and not _writes_over(own, slot, name)))
    ]  # fmt: skip


def _over(m: Any, types: Mapping[str, Any], dying: Sequence[str]) -> list[tuple[str, str]]:
    """(output, one of the values that die) pairs of which the member may write the one over the other."""
    pairs, left = [], sorted(dying)
    for slot, names in m.outputs.items():
        for name in names:
            source = next((n for n in left if types[n] == types[name] and _writes_over(m, slot, n)), None)
            if source is not None:
                pairs.append((name, source))
                left.remove(source)
    return pairs


def _writes_over(m: Any, slot: str, name: str) -> bool:
    """Whether the kernels of a member may write an output into the memory of this input, of the same type."""
    opdef = m.opdef
    if opdef.is_expression:
        return True
    return "in_place" in opdef.traits and name in (m.inputs[opdef.inplace[slot]] if slot in opdef.inplace else m.read)


def _copies(binder: Binder, members: Sequence[Any], buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """A copy of each input that is read after an output was written into its memory."""
    copies = {}
    for i, m in enumerate(members):
        for slot, names in m.outputs.items():
            for room in [buffers[n] for n in names if n in buffers]:
                for name in _reads_behind(members, buffers, room, i, slot):
                    copies[name] = binder.scratch(room.shape, room.dtype)
                    binder.copy(copies[name], room)
    return copies
