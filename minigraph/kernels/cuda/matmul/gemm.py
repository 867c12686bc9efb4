"""Matrix products: which calls an operator becomes, cuBLASLt's or those of the kernels in registry.py.

Everything is row-major here; device/cublaslt.py swaps operands for the column-major library. Products whose
second operand is a matrix are one GEMM over all rows; batches that step evenly are one strided
batched GEMM, other broadcasts one for each outer index.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise, merged_axes
from minigraph.kernels.cuda.elementwise.reduce import bind_sum_to
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.types import FLOATS, bfloat16, float16, float32

from .product import Epilogue, Product
from .registry import record, ways

TILE = 16  # of gemm_int.cu
HALVES = frozenset({float16, bfloat16})

Shape = tuple[int, ...]


def product(
    binder: Binder, a: Buffer, b: Buffer, c: Buffer, shapes: Sequence[Shape], trans_a: bool, trans_b: bool,
    beta: float = 0.0,
) -> None:  # fmt: skip
    """c = op(a) @ op(b) + beta * c, the last two axes being matrices and the others batches that broadcast.

    shapes   of a, b, c as they take part, each of rank 2 or more
    """
    sa, sb, sc = shapes
    m, n = sc[-2:]
    k = sa[-2] if trans_a else sa[-1]
    if math.prod(sc) == 0:
        return
    if k == 0:
        return None if beta else binder.zero(c)
    if math.prod(sb[:-2]) == 1 and not trans_a:  # all rows of a meet one matrix
        _one_product(binder, a, b, c, m=math.prod(sc[:-1]), n=n, k=k, trans_b=trans_b, beta=beta)
        return
    extents, (ea, eb, ec) = merged_axes(sc[:-2], [sa[:-2], sb[:-2], sc[:-2]])
    sizes = m * k, k * n, m * n
    inner = (ea[-1] * sizes[0], eb[-1] * sizes[1], ec[-1] * sizes[2])
    for index in itertools.product(*(range(e) for e in extents[:-1])):
        parts = []
        for buffer, steps, size in zip((a, b, c), (ea, eb, ec), sizes, strict=True):
            start = sum(i * s for i, s in zip(index, steps, strict=False)) * size
            parts.append(buffer.view((buffer.size - start,), offset=start * buffer.dtype.itemsize))
        _one_product(
            binder, *parts, m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, batch=extents[-1],
            strides=inner if extents[-1] > 1 else (0, 0, 0), beta=beta,
        )  # fmt: skip


def _one_product(binder: Binder, a: Buffer, b: Buffer, c: Buffer, **facts: Any) -> None:
    """Floats through cuBLASLt or by kernels of our own, integers by one for them."""
    m, n, k, batch, beta = facts["m"], facts["n"], facts["k"], facts.get("batch", 1), facts["beta"]
    if a.dtype in FLOATS:
        library = {"product": partial(binder.gemm, a, b, c, **facts)}
        if batch > 1 or beta not in (0.0, 1.0):
            return library["product"]()
        trans = facts.get("trans_a", False), facts["trans_b"]
        return record(binder, ways(binder, Product(a, b, c, (m, n, k), *trans, Epilogue(add=beta == 1.0)), library))
    tiles = blocks_for(m, TILE) * blocks_for(n, TILE) * batch
    binder.launch(
        "matmul/gemm_int.cu", "gemm_int", tiles, TILE * TILE, a, b, c, i64(m), i64(n), i64(k),
        i32(facts.get("trans_a", False)), i32(facts["trans_b"]), *(i64(s) for s in facts.get("strides", (0, 0, 0))),
        defines={"T": CUDA_TYPES[a.dtype]},
    )  # fmt: skip


def matmul(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Out = X @ Y; vectors take part as matrices of one row or column."""
    x, y, out = ins["X"], ins["Y"], outs["Out"]
    sx, sy, so = _as_matrices(x.shape, y.shape, out.shape)
    trans_x, trans_y = attrs["trans_x"] and x.ndim > 1, attrs["trans_y"] and y.ndim > 1
    library = out.dtype == x.dtype or x.dtype in HALVES  # others have one type for operands and result
    whole = out if library else binder.scratch(out.shape, x.dtype)
    product(binder, x, y, whole, (sx, sy, so), trans_x, trans_y)
    if not library:
        bind_pointwise(binder, {"Out": out}, {"X": whole}, {"Out": "X"})


def matmul_accumulate(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Out = Acc + X @ Y: added by the product itself where it has Acc's shape, else summed over batches first."""
    x, y, out = ins["X"], ins["Y"], outs["Out"]
    trans_x, trans_y = attrs["trans_x"], attrs["trans_y"]
    binder.copy(out, ins["Acc"])
    sx, sy = x.shape, y.shape
    if out.ndim == 2 < x.ndim and trans_x and not trans_y:  # all rows of all batches are one product
        sx, sy = (math.prod(sx[:-1]), sx[-1]), (math.prod(sy[:-1]), sy[-1])
    full = (*_broadcast(sx[:-2], sy[:-2]), *out.shape[-2:])
    if math.prod(full) == out.size:
        return product(binder, x, y, out, (sx, sy, full), trans_x, trans_y, beta=1.0)
    wide = float32 if x.dtype in HALVES else x.dtype
    whole, total = binder.scratch(full, wide), binder.scratch(out.shape, wide)
    product(binder, x, y, whole, (sx, sy, full), trans_x, trans_y)
    bind_sum_to(binder, whole, total, out.shape)
    bind_pointwise(binder, {"Out": out}, {"Acc": out, "S": total}, {"Out": "Acc + S"})


def matmul_grad(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """X_grad and Y_grad, those of broadcast batches summed."""
    x, y, d = ins["X"], ins["Y"], ins["Out_grad"]
    sx, sy, sd = _as_matrices(x.shape, y.shape, d.shape)
    trans_x, trans_y = attrs["trans_x"] and x.ndim > 1, attrs["trans_y"] and y.ndim > 1
    if outs.get("X_grad"):
        if trans_x:
            _grad(binder, y, d, outs["X_grad"], (sy, sd, sx), trans_y, True)
        else:
            _grad(binder, d, y, outs["X_grad"], (sd, sy, sx), False, not trans_y)
    if outs.get("Y_grad"):
        if math.prod(sy[:-2]) == 1 and not trans_x:  # one product over all rows instead of a batch and a sum
            sx, sd = (math.prod(sx[:-1]), sx[-1]), (math.prod(sd[:-1]), sd[-1])
        if trans_y:
            _grad(binder, d, x, outs["Y_grad"], (sd, sx, sy), True, trans_x)
        else:
            _grad(binder, x, d, outs["Y_grad"], (sx, sd, sy), not trans_x, False)


def _grad(
    binder: Binder, a: Buffer, b: Buffer, c: Buffer, shapes: Sequence[Shape], trans_a: bool, trans_b: bool
) -> None:
    """c = op(a) @ op(b) summed over the batch axes along which c's operand was broadcast."""
    sa, sb, sc = shapes
    batch = _broadcast(sa[:-2], sb[:-2])
    full = (*batch, *sc[-2:])
    if math.prod(full) == math.prod(sc):
        product(binder, a, b, c, (sa, sb, full), trans_a, trans_b)
        return
    whole = binder.scratch(full, float32 if c.dtype in HALVES else c.dtype)  # round once
    product(binder, a, b, whole, (sa, sb, full), trans_a, trans_b)
    bind_sum_to(binder, whole, c, sc)


def _as_matrices(x: Shape, y: Shape, out: Shape) -> tuple[Shape, Shape, Shape]:
    """Shapes of rank 2 or more: a vector X is a row, a vector Y a column."""
    rows, columns = ((1,) if len(x) == 1 else (out[-1 if len(y) == 1 else -2],)), ((1,) if len(y) == 1 else (out[-1],))
    batch = out[: len(out) - (len(x) > 1) - (len(y) > 1)]
    return (1, *x) if len(x) == 1 else x, (*y, 1) if len(y) == 1 else y, (*batch, *rows, *columns)


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))

