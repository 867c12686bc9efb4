"""Large products of 16-bit floats on Hopper, with what happens around them in one kernel: hopper_product.cu.

With gelu, in either form, or with its slope they take less time than cuBLASLt's epilogue or its product and a kernel
behind that: bench/results/gpu_gelu.json has both by sizes. A product alone takes what cuBLASLt takes.
"""

from __future__ import annotations

from typing import NamedTuple

from minigraph.kernels.cuda.elementwise.reduce import bind_column_sum
from minigraph.kernels.cuda.record.binder import Binder, blocks_for, i32, i64
from minigraph.kernels.cuda.record.buffer import CUDA_TYPES, Buffer
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap, hopper_source, wgmma
from minigraph.types import bfloat16, float16, float32

from .product import GELU, Product

NAME = "kernel for large products"
TILE = 256  # columns, and rows of the two blocks that load together
STEP, BOX = 64, 64  # of the sum; rows of a box whose rows run along m or n
ROWS = 64  # of a tile, whose numbers in a column a warp adds up
THREADS = 384
STAGE_BYTES, PIECE_BYTES = 48 << 10, 8 << 10
PIECES = 4  # of a tile, on its way
ALIGNED = 16  # bytes: of addresses and rows
LEAST = 1 << 35  # multiply-adds from which it is tried, and comes first
NARROW = 8  # with gelu it is tried from an eighth on
ROUNDS = 3  # of tiles on all multiprocessors, from which it comes first with gelu: 4 to 19 % faster then
SLICES, SPREAD = (16, 8), 3
SHORT, FEW = 16, 4  # steps of a sum up to which bands are narrow: 4 % faster with gelu, 2 % with its slope
FILES = "matmul/hopper_product.cuh", "matmul/hopper_product.cu"


class TileLoop(NamedTuple):
    """How a product is worked off.

    slices   in which a finished tile is: not more than a tile has steps
    piece    steps of the next tile for each of its four pieces: one is taken away before another needs its room
    stages   steps along the sum that are on their way to shared memory
    group    tiles across a band: what runs at one time shares rows and columns
    """

    slices: int
    piece: int
    stages: int = 4
    group: int = 8

    @property
    def shared(self) -> int:
        """Bytes: room to align, stages, two pieces of each warpgroup, a bias, barriers."""
        return 1024 + STAGE_BYTES * self.stages + 4 * PIECE_BYTES + 2 * TILE + 16 * self.stages + 64


def name(product: Product) -> str:
    return NAME


def offered(binder: Binder, product: Product) -> bool:
    """Large products of 16-bit floats with bias, gelu or its slope; other epilogues are left to other kernels."""
    around = product.epilogue
    suits = not around.add and around.sums is None and "relu" not in (around.activation, around.slope)
    hopper = binder.device.arch.startswith("sm_90")
    least = LEAST // NARROW if _gelu(product) else LEAST
    return suits and hopper and product.a.dtype in (float16, bfloat16) and product.work >= least


def preferred(binder: Binder, product: Product) -> bool:
    """With gelu or its slope, where its tiles fill a GPU: once if the sum is long and the library has the form."""
    m, n, k = product.shape
    rounds, form = blocks_for(m, TILE // 2) * blocks_for(n, TILE) / binder.device.multiprocessors, _gelu(product)
    if form is None or rounds >= ROUNDS:
        return form is not None
    return form != "gelu" and rounds >= 1 and product.work >= LEAST and k > STEP * (SLICES[0] - 1)


def _gelu(product: Product) -> str | None:
    """The form of gelu that it has, or whose slope; None without."""
    around = product.epilogue
    return next((form for form in (around.activation, around.slope) if form in GELU), None)


def adds_up(product: Product) -> bool:
    """Behind gelu's slope, where the numbers are in registers anyway."""
    return product.epilogue.slope in GELU


def refusal(product: Product) -> str | None:
    """Why this kernel cannot compute the product, or None."""
    if (wrong := product.refused_size()) is not None:
        return wrong
    around, dtype = product.epilogue, product.a.dtype
    operands = {"A": product.a, "B": product.b, "the result": product.out, "the bias": around.bias,
                "what is kept": around.kept}  # fmt: skip
    for name, buffer in operands.items():
        if buffer is not None and buffer.dtype != dtype:
            return f"{name} is {buffer.dtype}, A is {dtype}"
        if buffer is not None and buffer.alignment % ALIGNED:
            return f"{name} begins between multiples of {ALIGNED} bytes"
    if product.shape[2] <= STEP * (SLICES[-1] - 1):
        return f"a sum of {product.shape[2]} is over before the tile before it is written"
    for name, _, row in product.stored_rows:
        if row * dtype.itemsize % ALIGNED:
            return f"rows of {name} have {row * dtype.itemsize} bytes, which is no multiple of {ALIGNED}"
    return None


def pipeline_of(product: Product) -> TileLoop:
    """The one with most slices, spread as far as was measured to help, in bands of the width that was.

    With gelu's slope pieces are spread evenly: their slices are longer, and x comes from memory before each.
    """
    steps = blocks_for(product.shape[2], STEP)
    slices = next(s for s in SLICES if steps >= s)
    if product.epilogue.slope in GELU:
        piece = min(SPREAD * slices // PIECES, steps // PIECES)
    else:
        piece = min(SPREAD, steps // slices) * slices // PIECES
    return TileLoop(slices, piece, group=FEW if steps <= SHORT else TileLoop._field_defaults["group"])


def bind(binder: Binder, product: Product, pipeline: TileLoop | None = None) -> None:
    """Record the product with its bias, gelu, or gelu's slope, before which it is rounded."""
    m, n, k = product.shape
    a, b, out, around = product.a, product.b, product.out, product.epilogue
    pipeline = pipeline or pipeline_of(product)
    tiles_m, tiles_n = blocks_for(m, TILE), blocks_for(n, TILE)
    rounds = blocks_for(tiles_m * tiles_n, binder.device.multiprocessors // 2)
    from_a = _map(a, m, k, BOX) if product.trans_a else _map(a, k, m, TILE // 2)
    from_b = _map(b, k, n, TILE // 2) if product.trans_b else _map(b, n, k, BOX)
    to = _map(out, n, m, BOX)
    parts = binder.scratch((blocks_for(m, ROWS), n), float32) if adds_up(product) and around.totals else None
    binder.launch_source(
        _source(product, pipeline), "product", 2 * blocks_for(tiles_m * tiles_n, rounds), THREADS, from_a, from_b, to,
        _map(around.kept, n, m, BOX) if around.kept else to, around.bias or a, i32(n), i32(blocks_for(k, STEP)),
        i32(pipeline.piece), i32(tiles_m), i32(tiles_n), i32(tiles_m * tiles_n), parts or i64(0), i32(m),
        shared=pipeline.shared,
    )  # fmt: skip
    if parts is not None and around.totals is not None:
        bind_column_sum(binder, parts, around.totals)


def _source(product: Product, pipeline: TileLoop) -> str:
    """The kernel's text for one pipeline and epilogue."""
    around, dtype = product.epilogue, "bf16" if product.a.dtype == bfloat16 else "f16"
    by_rows, by_columns = not product.trans_b, product.trans_a
    defines = {
        "T": CUDA_TYPES[product.a.dtype], "PTX_T": f'"{dtype}"', "A_BY_K": int(not by_columns),
        "B_BY_K": int(not by_rows), "MULTIPLY": "wgmma_ss" + "_at" * by_columns + "_bt" * by_rows,
        "SLICES": pipeline.slices, "STAGES": pipeline.stages, "GROUP": pipeline.group,
        "BIAS": int(around.bias is not None), "KEEP": int(around.activation != "none" and around.kept is not None),
        "TANH": int(_gelu(product) == "gelu_tanh"),  # which has a shorter way
        "SUMS": int(adds_up(product) and around.totals is not None), **around.texts(),
    }  # fmt: skip
    instruction = wgmma(TILE, dtype, b_by_rows=by_rows, a_by_columns=by_columns, steps=4)  # BK is 64
    return hopper_source((instruction,), tuple((key, str(value)) for key, value in defines.items()), FILES)


def _map(buffer: Buffer, columns: int, rows: int, box: int) -> TensorMap:
    return TensorMap(buffer, (columns, rows, 1, 1), (columns, rows * columns, rows * columns), box)
