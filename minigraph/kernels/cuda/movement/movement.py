"""Data movement: arrays under another shape, another order of axes, cut apart or joined.

All these operators are one copy between two places in memory, described by axes: how many steps
there are along each, and how far a step leads in the source and in the destination (elements).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from minigraph.kernels.cuda.elementwise.pointwise import PACK_BYTES, bind_pointwise
from minigraph.kernels.cuda.elementwise.reduce import bind_sum_to
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import Buffer, Words, root_and_offset
from minigraph.kernels.cuda.record.tensors import close_width
from minigraph.kernels.cuda.record.views import Shows, reshaped, section
from minigraph.types import int8, int16, int32, int64, uint8

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64", 16: "Pack<u64, 2>"}
BITS = {1: int8, 2: int16, 4: int32, 8: int64}
COPY_AXES, TILE_AXES = 8, 6  # what movement.cu takes
WORDS_PER_BLOCK = 1024
TILES = {1: (128, 128), 2: (128, 128), 4: (64, 64), 8: (32, 32), 16: (32, 32)}  # words across and down, by bytes of one
ODD_TILES = {2: (256, 64), 4: (64, 64)}  # where rows of odd pitch begin as in the source, which pays for these words
SECTOR_BYTES = 32
PARTS, PART_WORDS = 64, 512  # that a launch of parts.cu takes, within 4 KB of arguments; words of a block
SMALL_PART = 8 << 20  # bytes of an array up to which several are copied by one launch
SHORT = 32  # an axis below this length would leave most of a tile empty

Slots = Mapping[str, Any]


class Axis(NamedTuple):
    """`extent` places, a step leads so many elements on in the source and in the destination."""

    extent: int
    source: int
    destination: int


def bits(buffer: Buffer) -> Buffer:
    """The buffer with its elements as integers of their size: values are moved, not computed."""
    return buffer.view(buffer.shape, BITS[buffer.dtype.itemsize])


def bind_copy(
    binder: Binder, destination: Buffer, source: Buffer, axes: Sequence[Axis], to: int = 0, start: int = 0
) -> None:
    """destination[to + sum i * axis.destination] = source[start + sum i * axis.source]; `axes` in destination order."""
    if any(a.extent == 0 for a in axes):
        return
    axes = merged(axes)
    if len(axes) == 1 and axes[0][1:] == (1, 1):
        _copy_run(binder, destination, source, axes[0].extent, to, start)
        return
    itemsize = source.dtype.itemsize
    word = word_bytes(itemsize, axes, (to, start), min(source.alignment, destination.alignment))
    axes, to, start = in_words(axes, word // itemsize), to * itemsize // word, start * itemsize // word
    fastest = next((i for i, a in enumerate(axes) if a.source == 1), len(axes) - 1)
    last = axes[-1]
    if fastest < len(axes) - 1 and last.destination == 1:
        if min(axes[fastest].extent, last.extent) >= SHORT and len(axes) <= TILE_AXES + 2:
            _bind_tiles(binder, destination, source, axes, fastest, word, to, start)
            return
        if axes[fastest].extent < last.extent:  # consecutive threads then read, not write, one after the other
            axes = sorted(axes, key=lambda a: -abs(a.source))
    _bind_words(binder, destination, source, axes, word, to, start)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The fewest axes that visit the same places in the same order."""
    fewest: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        outer = fewest[-1] if fewest else None
        if outer and outer[1:] == (axis.extent * axis.source, axis.extent * axis.destination):
            fewest[-1] = Axis(outer.extent * axis.extent, axis.source, axis.destination)
        else:
            fewest.append(axis)
    return fewest or [Axis(1, 1, 1)]


def word_bytes(itemsize: int, axes: Sequence[Axis], offsets: Sequence[int], alignment: int) -> int:
    """Bytes of the widest word that both sides hold in one piece."""
    *outer, last = axes
    if last[1:] != (1, 1):
        return itemsize
    word = PACK_BYTES
    while word > itemsize:
        n = word // itemsize
        whole = all(k % n == 0 for k in (last.extent, *offsets, *(s for a in outer for s in a[1:])))
        if whole and alignment % word == 0:
            return word
        word //= 2
    return itemsize


def in_words(axes: Sequence[Axis], n: int) -> list[Axis]:
    """The axes with n consecutive elements made one word."""
    if n == 1:
        return list(axes)
    *outer, last = axes
    return merged([*(Axis(a.extent, a.source // n, a.destination // n) for a in outer), Axis(last.extent // n, 1, 1)])


def _copy_run(binder: Binder, destination: Buffer, source: Buffer, extent: int, to: int, start: int) -> None:
    if extent == destination.size == source.size:
        binder.copy(destination, source)
        return
    size = source.dtype.itemsize
    binder.copy(
        destination.view((extent * size,), uint8, to * size), source.view((extent * size,), uint8, start * size)
    )


def _bind_words(
    binder: Binder, destination: Buffer, source: Buffer, axes: list[Axis], word: int, to: int, start: int
) -> None:
    if len(axes) > COPY_AXES:
        outer, *axes = axes
        for i in range(outer.extent):
            _bind_words(binder, destination, source, axes, word, to + i * outer.destination, start + i * outer.source)
        return
    words = math.prod(a.extent for a in axes)
    wide = is_wide(axes, to, start)
    number = i64 if wide else i32
    padded = [*axes, *[Axis(1, 0, 0)] * (COPY_AXES - len(axes))]
    binder.launch(
        "movement/movement.cu", "copy", blocks_for(words, WORDS_PER_BLOCK), 256, source, destination,
        number(words), number(start), number(to), *(number(n) for column in zip(*padded, strict=True) for n in column),
        defines={"W": WORDS[word], "AXES": len(axes), "I": "i64" if wide else "int", "U": "u64" if wide else "u32"},
    )  # fmt: skip


def is_wide(axes: Sequence[Axis], to: int, start: int) -> bool:
    """Whether some word's number or offset needs more than 31 bits."""
    source = start + sum((a.extent - 1) * max(a.source, 0) for a in axes)
    destination = to + sum((a.extent - 1) * max(a.destination, 0) for a in axes)
    return max(source, destination, math.prod(a.extent for a in axes), start, to) >= 2**31


def numbering(items: int) -> str:
    """The type that numbers so many items, and those that the last block has beyond them."""
    return "u32" if items < 2**31 else "u64"


def lanes_for(accesses: int) -> int:
    """Threads that share a row of so many accesses: a power of two, at most a warp."""
    return min(32, 1 << (accesses - 1).bit_length())


def _bind_tiles(
    binder: Binder, destination: Buffer, source: Buffer, axes: list[Axis], fastest: int, word: int, to: int, start: int
) -> None:
    across, down = axes[fastest], axes[-1]
    batch = [*axes[:fastest], *axes[fastest + 1 : -1]]
    steps = [across.destination, down.source, *(s for a in batch for s in a[1:])]
    pack = PACK_BYTES // word
    aligned = min(source.alignment, destination.alignment) % PACK_BYTES == 0
    aligned = aligned and not any(k % pack for k in (across.extent, down.extent, to, start, *steps))
    odd = word in ODD_TILES and down.source % 2 == 1
    wide, deep = (ODD_TILES if odd else TILES)[word]
    defines = {"W": WORDS[word], "AXES": len(batch), "I": "int", "U": "u32", "ALIGNED": int(aligned), "ODD": int(odd)}
    defines |= {"TILE": wide, "DOWN": deep}
    halo = 0 if aligned else SECTOR_BYTES // word  # words before a boundary belong to the tile behind it
    if not aligned:  # a tile has room for one more word, whatever lies before the first; all are made alike
        wide = blocks_for(across.extent, blocks_for(across.extent, wide + 1))
    tiles = blocks_for(across.extent, wide), blocks_for(down.extent + max(halo - 1, 0), deep)
    padded = [*batch, *[Axis(1, 0, 0)] * (TILE_AXES - len(batch))]
    binder.launch(
        "movement/movement.cu", "tiles", math.prod(tiles) * math.prod(a.extent for a in batch), 256, source,
        destination,
        i64(source.nbytes // word), i64(start), i64(to), i64(across.extent), i64(down.extent), i64(down.source),
        i64(across.destination), *(i64(n) for n in tiles), i64(wide),
        *(i64(n) for column in zip(*padded, strict=True) for n in column), defines=defines,
        shared=tile_bytes(word, aligned, odd),
    )  # fmt: skip


def tile_bytes(word: int, aligned: bool, odd: bool = False) -> int:
    """Shared memory of a tile: rows of lines; a line behind as many rows as it has words, unless their pitch is odd."""
    pack, (across, down) = PACK_BYTES // word, (ODD_TILES if odd else TILES)[word]
    rows, lines = down + (0 if aligned else SECTOR_BYTES // word), across // pack + (8 if odd else 0 if aligned else 1)
    return (rows * lines + (0 if odd else rows // pack)) * PACK_BYTES


class Move(NamedTuple):
    """A copy between two arrays that lie in one piece, from their elements `to` and `start` on."""

    destination: Buffer
    source: Buffer
    axes: list[Axis]
    to: int
    start: int


def bring(binder: Binder, out: Buffer, shown: Buffer) -> None:
    """out = `shown`, element by element in C order; nothing to do where both are the same memory."""
    bring_all(binder, [(out, shown)])


def bring_all(binder: Binder, pairs: Iterable[tuple[Buffer, Buffer]]) -> None:
    """`bring` each pair (out, shown); those that are small are one launch for each width of their words."""
    moves = [move for pair in pairs if (move := _move(*pair)) is not None]
    small = [move for move in moves if _is_small(move)]
    if len(small) > 1:
        moves = [move for move in moves if not _is_small(move)]
        together: dict[int, list[Move]] = {}
        for move in small:
            together.setdefault(_word(move), []).append(move)
        for word, some in together.items():
            for i in range(0, len(some), PARTS):
                _bind_parts(binder, some[i : i + PARTS], word)
    for destination, source, axes, to, start in moves:
        bind_copy(binder, destination, source, axes, to=to, start=start)


def _move(out: Buffer, shown: Buffer) -> Move | None:
    """What brings `shown` to `out`, None where it is there."""
    source, target = reshaped(shown, out.shape), out
    if source is None:
        source, target = shown, reshaped(out, shown.shape)
    assert source is not None
    assert target is not None
    axes = [Axis(*steps) for steps in zip(source.shape, source.strides, target.strides, strict=True)]
    if place(source) == place(target) and all(a.source == a.destination for a in axes if a.extent > 1):
        return None
    (target, to), (source, start) = _around(target), _around(source)
    return None if any(a.extent == 0 for a in axes) else Move(target, source, merged(axes), to, start)


def _is_small(move: Move) -> bool:
    """Whether a launch of its own would take longer to begin than to copy, and it copies rows in one piece."""
    small = math.prod(a.extent for a in move.axes) * move.source.dtype.itemsize <= SMALL_PART
    return small and len(move.axes) <= 2 and move.axes[-1][1:] == (1, 1)


def _word(move: Move) -> int:
    """Bytes of the words in which a small move copies."""
    alignment = min(move.source.alignment, move.destination.alignment)
    return word_bytes(move.source.dtype.itemsize, move.axes, (move.to, move.start), alignment)


def _bind_parts(binder: Binder, moves: Sequence[Move], word: int) -> None:
    """At most PARTS small moves, which have words of so many bytes, as one launch."""
    columns: list[list[Buffer | int]] = [[] for _ in range(7)]  # those of struct Parts
    blocks = 0
    for move in moves:
        n = word // move.source.dtype.itemsize
        *outer, last = move.axes
        rows, p, q = (outer[0].extent, outer[0].source // n, outer[0].destination // n) if outer else (1, 0, 0)
        ends = _from(move.source, move.start), _from(move.destination, move.to)
        for column, value in zip(columns, (*ends, p, q, rows, last.extent // n, blocks), strict=True):
            column.append(value)
        blocks += blocks_for(rows * last.extent // n, PART_WORDS)
    width = close_width(len(moves), PARTS)
    words = [value for column in columns for value in (*column, *[0] * (width - len(column)))]
    defines = {"W": WORDS[word], "WIDTH": width, "BLOCK": PART_WORDS}
    binder.launch("movement/parts.cu", "parts", blocks, 256, Words([*words, len(moves)]), defines=defines)


def _from(buffer: Buffer, start: int) -> Buffer:
    """A buffer from its element number `start` on."""
    return buffer.view((buffer.size - start,), offset=start * buffer.dtype.itemsize)


def _around(buffer: Buffer) -> tuple[Buffer, int]:
    """What lies in one piece around a buffer, and the number of its first element there: words may be wider."""
    inner, offset = buffer, 0
    while inner.steps is not None:
        assert inner.owner is not None
        inner, offset = inner.owner, offset + inner.offset
    return inner, offset // buffer.dtype.itemsize


def place(buffer: Buffer) -> tuple[Buffer, int] | int:
    """Where a buffer's memory begins: its address, or before that is known the buffer that owns it and the offset."""
    root, offset = root_and_offset(buffer)
    return (root, offset) if root.ptr is None else root.ptr + offset


def bind_shown(shows: Shows, binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Outputs hold what the operator shows of its input."""
    parts = next(iter(outs.values()))
    pairs = zip(parts if isinstance(parts, list) else [parts], shows(ins, outs, attrs), strict=True)
    bring_all(binder, [(out, shown) for out, shown in pairs if out is not None])


def bind_joined(joins: Shows, binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Inputs become parts of Out."""
    bring_all(binder, zip(joins(ins, outs, attrs), ins["X"], strict=True))


def slice_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Zeros, and Out_grad where the slice was taken."""
    binder.zero(outs["X_grad"])
    bring(binder, section(outs["X_grad"], attrs), ins["Out_grad"])


def expand(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X broadcast to Out's shape."""
    bind_pointwise(binder, {"Out": bits(outs["Out"])}, {"X": bits(ins["X"])}, {"Out": "X"})


def expand_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out_grad summed over the axes along which X was repeated."""
    bind_sum_to(binder, ins["Out_grad"], outs["X_grad"], outs["X_grad"].shape)


def tile(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out = X side by side: X is broadcast along the axes of copies, which lie between its own."""
    x, out = ins["X"], outs["Out"]
    copies, single = _copies(x.shape, out.ndim, attrs["repeat_times"])
    bind_pointwise(binder, {"Out": bits(out.view(copies))}, {"X": bits(x)}, {"Out": "X"}, shapes={"X": single})


def tile_grad(binder: Binder, ins: Slots, outs: Slots, attrs: Slots) -> None:
    """Out_grad summed over the copies of X."""
    grad, out = ins["Out_grad"], outs["X_grad"]
    copies, single = _copies(out.shape, grad.ndim, attrs["repeat_times"])
    bind_sum_to(binder, grad.view(copies), out.view(single), single)


def _copies(sizes: Sequence[int], ndim: int, times: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes [copies, size, copies, size, ...] of the repeated array and of the single one."""
    sizes, times = (1,) * (ndim - len(sizes)) + tuple(sizes), (1,) * (ndim - len(times)) + tuple(times)
    pairs = list(zip(times, sizes, strict=True))
    return tuple(n for pair in pairs for n in pair), tuple(n for _, size in pairs for n in (1, size))
