"""Linear layer and cross entropy without the scores of all rows: products and one kernel for each chunk of rows.

    slab[C, V] = X W + Bias      the product writes the scores of C rows
    loss_and_gradient            reads them, writes Loss, and in their place their gradient times DLoss
    DBias                        column sums of the slab, those of several chunks summed at the end
    DX = slab W^T                a product for the rows of the chunk; a copy of W in 16 bits may end here
    DW += X^T slab               a product that adds to its result; the first chunk's overwrites it

Where DX lies in X's memory, these two change places.

Sums over chunks are float32 for 16-bit operands unless asked otherwise, so results do not depend on the chunks. A DW
of 16 bits is written by the product where one chunk has all rows; else it is rounded from float32 sums when the last
chunk's scores are gone. Nothing else of the size of W or of all scores is written or read, and nothing is known on the
host but shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from minigraph.kernels.chunks import Chunking, chunk_of
from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise, compute_type
from minigraph.kernels.cuda.elementwise.reduce import bind_column_sum, power_of_two
from minigraph.kernels.cuda.matmul.gemm import HALVES
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer, owner
from minigraph.kernels.cuda.record.compile import full_source, read_source
from minigraph.types import float32, float64

from .loss import no_class

PACK_BYTES = 16
THREADS = 1024  # of the long rows that a multiprocessor works on
UNROLL = 4  # packs that a thread has under way
RESERVED = 4 * 1024  # bytes of shared memory of a block besides the packs it keeps

Slots = Mapping[str, Any]


class Chunk(NamedTuple):
    """Some rows: which, how many, and the buffers that belong to them."""

    start: int
    rows: int

    def of(self, buffer: Buffer | None, width: int = 1) -> Any:
        """These rows of a buffer that has `width` elements for each row."""
        if buffer is None:
            return None
        return buffer.view((self.rows, width), offset=self.start * width * buffer.dtype.itemsize)


def fused_linear_cross_entropy(binder: Binder, ins: Slots, outs: Slots, attrs: Mapping[str, Any]) -> None:
    """Loss, and what else is wanted."""
    x, w, trans_w = ins["X"], ins["W"], attrs["trans_w"]
    dx, dw, dbias = outs.get("DX"), outs.get("DW"), outs.get("DBias")
    rows, inner = math.prod(x.shape[:-1]), x.shape[-1]
    classes = w.shape[0 if trans_w else 1]
    if rows == 0:
        for buffer in (b for b in (dw, dbias) if b is not None):
            binder.zero(buffer)
        return
    rounded = dw is not None and dw.dtype in HALVES and attrs["accumulate_dtype"] != dw.dtype
    how = Chunking(attrs["chunk_bytes"], attrs["chunk_rows"])
    step, _ = chunk_of(rows, inner, classes, x.dtype.itemsize, how, rounded, dbias is not None)
    chunks = [Chunk(start, min(step, rows - start)) for start in range(0, rows, step)]
    slab = binder.scratch((step, classes), x.dtype)
    sums = dbias
    if dbias is not None and len(chunks) > 1:
        sums = binder.scratch((len(chunks), classes), float32 if x.dtype in HALVES else x.dtype)
    total = dw
    if dw is not None and rounded and len(chunks) > 1:
        total = binder.scratch(dw.shape, float32)
    over = dx is not None and owner(dx) is owner(x)
    for number, chunk in enumerate(chunks):
        part, d = chunk.of(x, inner), slab.view((chunk.rows, classes))
        _scores(binder, part, w, ins.get("Bias"), d, trans_w)
        _loss_and_gradient(binder, d, chunk, ins, outs, attrs)
        if sums is not None:  # before DW takes memory
            offset = number * classes * sums.dtype.itemsize if sums is not dbias else 0
            bind_column_sum(binder, d, sums.view((classes,), offset=offset))
        _gradients(binder, d, part, w, chunk.of(dx, inner), total, trans_w, first=number == 0, over=over)
    if dw is not None and total is not None and total is not dw:
        bind_pointwise(binder, {"Out": dw}, {"X": total}, {"Out": "X"})
    if sums is not None and dbias is not None and sums is not dbias:
        bind_column_sum(binder, sums, dbias)


fused_linear_cross_entropy_grad = fused_linear_cross_entropy  # without Loss; the products are the same


def _gradients(
    binder: Binder, d: Buffer, x: Buffer, w: Buffer, dx: Buffer | None, total: Buffer | None, trans_w: bool,
    first: bool, over: bool,
) -> None:  # fmt: skip
    """DX of a chunk, and what it adds to DW: in this order, unless DX lies where X does."""

    def rows() -> None:
        if dx is not None:
            binder.gemm(d, w, dx, trans_b=not trans_w, m=d.shape[0], n=x.shape[1], k=d.shape[1])

    def sums() -> None:
        if total is not None:
            a, b = (d, x) if trans_w else (x, d)
            binder.gemm(a, b, total, trans_a=True, beta=0.0 if first else 1.0, m=a.shape[1], n=b.shape[1], k=d.shape[0])

    for record in (sums, rows) if over else (rows, sums):
        record()


def _scores(binder: Binder, x: Buffer, w: Buffer, bias: Buffer | None, z: Buffer, trans_w: bool) -> None:
    """z = x @ w + bias."""
    facts: dict[str, Any] = {"m": z.shape[0], "n": z.shape[1], "k": x.shape[1], "trans_b": trans_w}
    if bias is None:
        return binder.gemm(x, w, z, **facts)

    def with_epilogue() -> None:
        binder.gemm(x, w, z, epilogue="BIAS", bias=bias, **facts)

    def with_kernel() -> None:
        binder.gemm(x, w, z, **facts)
        bind_pointwise(binder, {"Out": z}, {"X": z, "Bias": bias}, {"Out": "X + Bias"})

    binder.choose({"epilogue of bias": with_epilogue, "product and kernel": with_kernel})


def _loss_and_gradient(
    binder: Binder, z: Buffer, chunk: Chunk, ins: Slots, outs: Slots, attrs: Mapping[str, Any]
) -> None:
    """The kernel on rows: outputs of a number for each row, and d(Loss * DLoss + Square * DSquare)/dz in z's place."""
    label = chunk.of(ins["Label"])
    seed, square_seed = (chunk.of(ins.get(slot)) for slot in ("DLoss", "DSquare"))
    loss, z_loss, prediction, square = (
        chunk.of(outs.get(slot)) for slot in ("Loss", "ZLoss", "Prediction", "Square")
    )
    cap, smoothing, classes = attrs["softcap"], attrs["label_smoothing"], z.shape[1]
    writes = any(outs.get(slot) is not None for slot in ("DX", "DW", "DBias"))
    width = math.gcd(classes, PACK_BYTES // z.dtype.itemsize)  # so that packs begin where rows do
    packs = classes // width
    bytes_of_pack = width * z.dtype.itemsize
    rooms = {n: (binder.device.shared // n - RESERVED) // bytes_of_pack for n in (2, 1)}
    blocks = 2 if writes and packs <= rooms[2] else 1  # where two rows are kept, one is read while another is written
    kept = min(packs, rooms[blocks]) if writes else 0
    most = THREADS // blocks // (2 if z.dtype == float64 else 1)  # float64 takes more registers
    threads = min(most, max(32, power_of_two(blocks_for(packs, UNROLL))))
    facts = {
        "T": CUDA_TYPES[z.dtype], "C": compute_type(z.dtype), "L": CUDA_TYPES[label.dtype],
        "S": CUDA_TYPES[(seed or z).dtype], "Q": CUDA_TYPES[(square_seed or z).dtype],
        "WIDTH": width, "THREADS": threads, "BLOCKS": blocks, "UNROLL": UNROLL,
        "SEEDED": int(seed is not None), "SQUARE_SEEDED": int(square_seed is not None),
        "SQUARED": int(square is not None), "TOKEN_SCALED": int(attrs["token_scaling"]),
        "LOSS": int(loss is not None), "Z_LOSS": int(z_loss is not None),
        "ARGMAX": int(prediction is not None), "WRITES": int(writes), "CAPPED": int(cap is not None),
        "CAP": f"C({cap or 1.0!r})", "SMOOTH": int(smoothing > 0), "SMOOTHING": f"C({smoothing!r})",
        "SQUARE": f"C({attrs['z_loss']!r})",
    }  # fmt: skip
    defines = tuple((key, str(value)) for key, value in facts.items())
    source = full_source("rows/scores.cuh", defines) + read_source("rows/linear_cross_entropy.cu")
    binder.launch_source(
        source, "loss_and_gradient", chunk.rows, threads, z, i64(classes), i64(kept), label, seed or label,
        square_seed or label, loss or label, z_loss or label, prediction or label, square or label,
        i64(attrs["ignore_index"]), i64(chunk.start),
        *binder.report(no_class(classes, attrs)), shared=kept * bytes_of_pack,
    )  # fmt: skip
