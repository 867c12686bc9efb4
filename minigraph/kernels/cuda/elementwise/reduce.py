"""Reductions: sums, means, products, extrema and their positions, over any axes.

Axes are merged into runs that are kept or reduced, and one reduced run is taken at a time, the
longest first, so that later passes read little: an array [outer, m, inner] loses its middle axis.
Runs that are long beside their number are cut into pieces for different blocks; a second launch
brings the pieces together. Sums of 16-bit floats are float32 until the last pass rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import FLOATS, bfloat16, bool_, float16, float32, int64, normalize_axes

from .pointwise import bind_pointwise, compute_type

THREADS = 256
RESIDENT = 4  # blocks that a multiprocessor holds at the same time; pieces are cut until there are so many
NARROWEST = 8  # threads that lie side by side along columns: they still read whole sectors
UNROLL = 4  # packs that a thread has under way
WIDEST, WIDEST_POSITION = 8, 4  # elements of a pack: what registers hold

Bind = Callable[[Binder, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], None]
Shape = tuple[int, ...]


class Tiling(NamedTuple):
    """How one launch is divided.

    lanes   threads that share a row, or 0 where columns are reduced by tx * ty threads
    piece   elements of the reduced axis that a block takes, `splits` of them in all
    tiles   blocks that lie side by side along the inner axis
    """

    blocks: int
    splits: int
    piece: int
    lanes: int = 0
    tx: int = 1
    ty: int = 1
    tiles: int = 1


def power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def tile_rows(outer: int, m: int, width: int, multiprocessors: int, whole: bool = False) -> Tiling:
    """`outer` rows of m elements; `whole` forbids pieces."""
    packs = blocks_for(m, width)
    lanes = min(32, power_of_two(blocks_for(packs, UNROLL)))
    if packs >= UNROLL * THREADS or (packs >= 64 and outer * 32 < multiprocessors * 2048):
        lanes = THREADS
    splits = 1
    if lanes == THREADS and not whole:
        wanted = RESIDENT * multiprocessors // outer  # all blocks run at once
        splits = max(1, min(wanted, packs // (UNROLL * THREADS)))
    piece = blocks_for(blocks_for(m, splits), 16) * 16  # pieces begin where packs do
    splits = blocks_for(m, piece)
    return Tiling(blocks_for(outer, THREADS // lanes) * splits, splits, piece, lanes=lanes)


def tile_columns(outer: int, m: int, inner: int, width: int, multiprocessors: int, whole: bool = False) -> Tiling:
    """`outer` matrices [m, inner] whose rows are reduced; a thread takes `width` columns."""
    across = blocks_for(inner, width)
    ty = min(power_of_two(m // (2 * UNROLL)), THREADS // min(32, power_of_two(across)))
    tx = min(power_of_two(across), THREADS // ty)
    while whole and tx > NARROWEST and outer * blocks_for(across, tx) < multiprocessors and m >= 4 * ty:
        tx, ty = tx // 2, ty * 2
    tiles = blocks_for(across, tx)
    blocks = tiles * blocks_for(outer, THREADS // (tx * ty))
    wanted = 1 if whole else RESIDENT * multiprocessors // blocks
    splits = max(1, min(wanted, m // (2 * UNROLL * ty)))
    piece = blocks_for(m, splits)
    splits = blocks_for(m, piece)
    return Tiling(blocks * splits, splits, piece, tx=tx, ty=ty, tiles=tiles)


def runs(shape: Shape, axes: Sequence[int]) -> list[tuple[int, bool]]:
    """(extent, whether it is reduced) of the fewest runs of axes; axes of size 1 are left out."""
    merged: list[tuple[int, bool]] = []
    for axis, extent in enumerate(shape):
        reduced = axis in axes
        if extent == 1:
            continue
        if merged and merged[-1][1] == reduced:
            merged[-1] = merged[-1][0] * extent, reduced
        else:
            merged.append((extent, reduced))
    return merged


def stages(shape: Shape, axes: Sequence[int]) -> list[Shape]:
    """(outer, m, inner) of the passes that reduce `axes` run by run, the longest run first."""
    parts, passes = runs(shape, axes), []
    while any(reduced for _, reduced in parts):
        _, longest = max((extent, i) for i, (extent, reduced) in enumerate(parts) if reduced)
        sizes = [extent for extent, _ in parts]
        passes.append((math.prod(sizes[:longest]), sizes[longest], math.prod(sizes[longest + 1 :])))
        del parts[longest]
    return passes


def accumulator(kind: str, dtype: np.dtype) -> np.dtype:
    """The type in which partial results of `kind` are kept."""
    if dtype in (float16, bfloat16):
        return float32
    return dtype if dtype in FLOATS or kind in ("MAX", "MIN", "ARG_MAX", "ARG_MIN") else int64


def identity(kind: str, dtype: np.dtype) -> str:
    """The C++ value that changes no result of `kind`."""
    if kind in ("SUM", "PROD"):
        return "0" if kind == "SUM" else "1"
    largest = kind.endswith("MIN")
    if dtype in FLOATS:
        return f"{'' if largest else '-'}infinity<{compute_type(dtype)}>()"
    if dtype == bool_:
        return "true" if largest else "false"
    limits = np.iinfo(dtype)
    return f"{limits.max}ll" if largest else f"({limits.min + 1}ll - 1)"


def bind_reduce(binder: Binder, kind: str, x: Buffer, axes: Sequence[int], out: Buffer, mean: bool = False) -> None:
    """out = x reduced over `axes` (counted from the front); `mean` divides by the number of elements."""
    if out.size == 0:
        return
    count = math.prod(x.shape[a] for a in axes)
    if x.size == 0:
        value = "not_a_number<C>()" if mean else f"C({identity(kind, out.dtype)})"
        return bind_pointwise(binder, {"Out": out}, {}, {"Out": value})
    passes = stages(x.shape, axes)
    if not passes:
        value = "C(0)" if kind.startswith("ARG") else "X"
        return bind_pointwise(binder, {"Out": out}, {"X": x}, {"Out": value}, shapes={"X": out.shape})
    source = x
    for sizes in passes:
        last = sizes is passes[-1]
        goal = out if last else binder.scratch((sizes[0] * sizes[2],), accumulator(kind, x.dtype))
        finish = "down<U>((a) / A(count))" if mean and last else "down<U>(a)"
        _one_axis(binder, kind, x.dtype, source, sizes, goal, finish, count)
        source = goal


class Side(NamedTuple):
    """A buffer and the C++ type, of `size` bytes, in which a launch sees it; `widest` elements make a pack."""

    buffer: Buffer
    type: str
    size: int
    widest: int


def _one_axis(
    binder: Binder, kind: str, dtype: np.dtype, x: Buffer, sizes: Shape, goal: Buffer, finish: str, count: int
) -> None:
    """goal[outer, inner] = x[outer, m, inner] reduced; `dtype` is that of the operator's input."""
    position = kind.startswith("ARG")
    finish = "U((a).at)" if position else finish
    facts, widest = _facts(kind, dtype), WIDEST_POSITION if position else WIDEST
    source, end = (Side(b, CUDA_TYPES[b.dtype], b.dtype.itemsize, widest) for b in (x, goal))
    cut = _tile(binder, source, end, sizes, whole=False)
    if cut.splits > 1:
        partial = _pieces(binder, kind, dtype, source, sizes, cut.splits)
        source, sizes = partial, (sizes[0], cut.splits, sizes[2])
    _launch(binder, source, end, sizes, facts | {"FINISH(a)": finish}, count, whole=True)


def _facts(kind: str, dtype: np.dtype) -> dict[str, Any]:
    kept = CUDA_TYPES[accumulator(kind, dtype)]
    if kind.startswith("ARG") and kept == "bool":
        kept = "int"  # truth values as conditions of conditions take the compiler to its limits
    return {"C" if kind.startswith("ARG") else "A": kept, "KIND": kind, "IDENTITY": identity(kind, dtype)}


def _pieces(binder: Binder, kind: str, dtype: np.dtype, source: Side, sizes: Shape, splits: int) -> Side:
    """The results of the pieces [outer, splits, inner], as accumulators."""
    results, kept = sizes[0] * splits * sizes[2], accumulator(kind, dtype)
    if kind.startswith("ARG"):
        partial = Side(binder.scratch((results, 2), int64), "Best", 16, source.widest)
    else:
        partial = Side(binder.scratch((results,), kept), CUDA_TYPES[kept], kept.itemsize, source.widest)
    _launch(binder, source, partial, sizes, _facts(kind, dtype) | {"FINISH(a)": "(a)"}, 1, whole=False)
    return partial


def bind_pieces(binder: Binder, kind: str, x: Buffer, sizes: Shape) -> tuple[Buffer | None, Tiling]:
    """The results of the pieces into which x[outer, m, inner] is cut; None where it stays whole."""
    kept = accumulator(kind, x.dtype)
    source = Side(x, CUDA_TYPES[x.dtype], x.dtype.itemsize, WIDEST)
    end = Side(x, CUDA_TYPES[kept], kept.itemsize, WIDEST)
    cut = _tile(binder, source, end, sizes, whole=False)
    return (_pieces(binder, kind, x.dtype, source, sizes, cut.splits).buffer if cut.splits > 1 else None), cut


def _tile(binder: Binder, source: Side, goal: Side, sizes: Shape, whole: bool) -> Tiling:
    outer, m, inner = sizes
    width = _width(source, goal, inner)
    if inner == 1:
        return tile_rows(outer, m, width, binder.device.multiprocessors, whole)
    return tile_columns(outer, m, inner, width, binder.device.multiprocessors, whole)


def _width(source: Side, goal: Side, inner: int) -> int:
    """Elements of a pack: 16 bytes of what is read. Rows find their own boundaries, columns must lie on them."""
    width = min(source.widest, 16 // source.size)
    if inner == 1:
        return width
    while inner % width or any(o.buffer.alignment % (width * o.size) for o in (source, goal)):
        width //= 2
    return width


def _launch(
    binder: Binder, source: Side, goal: Side, sizes: Shape, facts: Mapping[str, Any], count: int, whole: bool
) -> None:
    outer, m, inner = sizes
    t = _tile(binder, source, goal, sizes, whole)
    width = _width(source, goal, inner)
    defines = {**facts, "T": source.type, "U": goal.type, "WIDTH": width, "UNROLL": UNROLL, "BY_ROWS": int(inner == 1)}
    args = source.buffer, goal.buffer, i64(outer), i64(m)
    if inner == 1:
        defines["WHOLE"] = int(t.lanes == THREADS)
        args = *args, i64(t.piece), i32(t.splits), i64(count), i32(t.lanes)
        binder.launch("elementwise/reduce.cu", "rows", t.blocks, THREADS, *args, defines=defines)
    else:
        args = *args, i64(inner), i64(t.piece), i32(t.splits), i32(t.tiles), i64(count), i32(t.tx), i32(t.ty)
        binder.launch("elementwise/reduce.cu", "columns", t.blocks, THREADS, *args, defines=defines)


def bind_sum_to(binder: Binder, whole: Buffer, out: Buffer, shape: Shape) -> None:
    """out = `whole` summed over the axes along which an operand of `shape` was broadcast to it.

    out has as many elements as `shape`; its type may be narrower than that of `whole`.
    """
    extra = len(whole.shape) - len(shape)
    axes = [i for i in range(len(whole.shape)) if i < extra or (shape[i - extra] == 1 and whole.shape[i] != 1)]
    if not axes and whole.dtype == out.dtype:
        return binder.copy(out, whole)
    bind_reduce(binder, "SUM", whole, axes, out)


def bind_column_sum(binder: Binder, x: Buffer, out: Buffer) -> None:
    """out[N] = the sum of all rows of x[..., N]."""
    bind_sum_to(binder, x, out, (x.shape[-1],))


def column_sums(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out[n] = the sum of X[..., n]."""
    bind_column_sum(binder, ins["X"], outs["Out"])


def _reduction(kind: str, mean: bool = False) -> Bind:
    def bind(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        X = ins["X"]
        bind_reduce(binder, kind, X, normalize_axes(attrs["axis"], X.ndim), outs["Out"], mean)

    return bind


reduce_sum, reduce_mean, reduce_prod = _reduction("SUM"), _reduction("SUM", mean=True), _reduction("PROD")
reduce_max, reduce_min = _reduction("MAX"), _reduction("MIN")


def _position(kind: str) -> Bind:
    def bind(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        X, axis = ins["X"], attrs["axis"]
        if axis is None:  # a place in the flattened array
            bind_reduce(binder, kind, X.view((X.size,)), [0], outs["Out"])
        else:
            bind_reduce(binder, kind, X, [axis % X.ndim], outs["Out"])

    return bind


arg_max, arg_min = _position("ARG_MAX"), _position("ARG_MIN")


def kept_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` with size 1 along `axes`."""
    return tuple(1 if i in axes else s for i, s in enumerate(shape))


def _spread(expression: str) -> Bind:
    """The gradient of a sum: `expression` of Out_grad and of the number of summed elements."""

    def bind(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        X_grad = outs["X_grad"]
        axes = normalize_axes(attrs["axis"], X_grad.ndim)
        count = max(1, math.prod(X_grad.shape[a] for a in axes))
        bind_pointwise(
            binder, {"X_grad": X_grad}, {"Out_grad": ins["Out_grad"]}, {"X_grad": expression},
            {"count": count}, {"Out_grad": kept_shape(X_grad.shape, axes)},
        )  # fmt: skip

    return bind


reduce_sum_grad, reduce_mean_grad = _spread("Out_grad"), _spread("Out_grad / count")


def reduce_max_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad = Out_grad where X == Out, else 0; divided by the number of elements that are, if they share it."""
    X, Out, Out_grad, X_grad = ins["X"], ins["Out"], ins["Out_grad"], outs["X_grad"]
    if X.size == 0:
        return
    axes = normalize_axes(attrs["axis"], X.ndim)
    kept = kept_shape(X.shape, axes)
    shapes = {"Out": kept, "Out_grad": kept, "number": kept}
    if not attrs["share"]:
        given, text = {"X": X, "Out": Out, "Out_grad": Out_grad}, {"X_grad": "X == Out ? Out_grad : C(0)"}
        return bind_pointwise(binder, {"X_grad": X_grad}, given, text, shapes=shapes)
    chosen, number = binder.scratch(X.shape, bool_), binder.scratch(kept, int64)
    bind_pointwise(binder, {"chosen": chosen}, {"X": X, "Out": Out}, {"chosen": "X == Out"}, shapes=shapes)
    bind_reduce(binder, "SUM", chosen, axes, number)
    bind_pointwise(
        binder, {"X_grad": X_grad}, {"chosen": chosen, "Out_grad": Out_grad, "number": number},
        {"X_grad": "chosen ? Out_grad / C(number > 1 ? number : 1) : C(0)"}, shapes=shapes,
    )  # fmt: skip


reduce_min_grad = reduce_max_grad
