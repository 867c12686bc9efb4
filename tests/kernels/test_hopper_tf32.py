"""The kernel for TF32 products on Hopper without a GPU: where it is offered, its forms, refusals; no spills."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from minigraph.kernels.cuda.matmul import hopper_tf32
from minigraph.kernels.cuda.matmul.gemm import product as matrix_product
from minigraph.kernels.cuda.matmul.gemm_epilogue import (
    fused_gemm_epilogue,
    fused_gemm_epilogue_grad,
)
from minigraph.kernels.cuda.matmul.hopper_tf32 import (
    NAME,
    ROWS,
    WIDE,
    Tf32Tiling,
    bind,
    refusal,
    tiling_of,
)
from minigraph.kernels.cuda.record.binder import Binder, Device, blocks_for
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Choice, Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap
from minigraph.types import float32, uint8
from tests.support.products import product_of, ways_of

LAYER = 8192, 768, 768
FORWARD = {"activation": "relu", "approximate": False, "trans_x": False, "trans_y": False}
BACKWARD = {"activation_grad": "relu_grad", "approximate": False, "trans_x": False, "trans_y": False}


def floats(*shape, alignment=256):
    return Buffer(shape, float32, alignment=alignment)


def operands(shape, trans_a=False, trans_b=False, alignment=256):
    m, n, k = shape
    shapes = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n), (m, n)
    return [floats(*s, alignment=alignment) for s in shapes]


def binder_of(tf32=True, device=None):
    binder = Binder(device or Device(), tf32=tf32)
    binder.begin(0)
    return binder


def variants(shape, trans=(False, False), tf32=True, device=None, **around):
    binder = binder_of(tf32, device)
    return ways_of(hopper_tf32, binder, product_of(*operands(shape, *trans), shape, *trans, **around))


def test_where_it_is_offered_and_where_it_comes_first():
    for trans in itertools.product((False, True), repeat=2):
        assert variants(LAYER, trans)[0] == [NAME, "library"]
    assert variants((8192, 3072, 768))[0] == [NAME, "library"]  # more than one wave of blocks
    assert variants((8192, 3072, 768), (False, True))[0] == ["library", NAME]
    assert variants((8192, 3072, 768), (False, True), activation="relu")[0] == [NAME, "library"]
    assert variants((1024, 1024, 1024))[0] == ["library", NAME]
    assert variants((256, 1024, 1024)) == (["library"], [])
    assert variants(LAYER, tf32=False) == (["library"], [])
    assert variants(LAYER, device=Device("sm_80", 108)) == (["library"], [])
    assert variants(LAYER, device=Device("sm_100a", 148)) == (["library"], [])


@pytest.mark.parametrize(
    ("shape", "trans", "around", "why"),
    [((8192, 768, 770), (False, False), {}, "rows of A have 770 elements"),
     ((8192, 770, 768), (False, False), {}, "rows of B have 770"),
     ((8190, 768, 768), (True, False), {}, "rows of A have 8190"),
     ((4096, 744, 768), (False, True), {}, "744 columns, which is no multiple of 32"),
     ((8192, 768, 768), (True, False), {"sums": floats(8192), "sums_of_a": True}, "another operand"),
     ((8192, 768, 768), (True, True), {"sums": floats(768)}, "another operand")],
)  # fmt: skip
def test_refusals_are_told(shape, trans, around, why):
    names, notes = variants(shape, trans, **around)
    assert names == ["library"]
    assert why in notes[0][1] and NAME in notes[0][1]


def test_other_refusals():
    assert refusal(product_of(*operands((64, 64, 0)), (64, 64, 0))).endswith("is empty or too large")
    assert "between multiples of 16" in refusal(product_of(*operands((64, 64, 64), alignment=8), (64, 64, 64)))
    assert refusal(product_of(*operands((1, 4, 4)), (1, 4, 4))) is None


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("shape", [LAYER, (768, 768, 8192), (1, 4, 4), (100, 5000, 40), (4096, 4096, 4096)])
def test_forms_fit_the_device(shape, trans_a):
    device = Device()
    for whole in (False, True):
        tiling = tiling_of(binder_of(), shape, trans_a, whole)
        assert tiling.rows in ROWS and tiling.shared <= device.shared
        assert 1 <= tiling.split <= blocks_for(shape[2], 32) and not (whole and tiling.split > 1)


def test_few_tiles_share_sums():
    m, n, k = 768, 768, 8192
    tiling = tiling_of(binder_of(), (m, n, k), True, False)
    blocks = blocks_for(m, tiling.rows) * blocks_for(n, WIDE) * tiling.split
    assert tiling.split > 1 and 0.9 * Device().multiprocessors < blocks <= Device().multiprocessors


def test_a_slope_leaves_no_registers_for_the_most_rows_where_b_is_in_registers():
    shape = 8192, 768, 768
    for trans_b in (False, True):
        binder = binder_of()
        given = operands(shape, False, trans_b)
        bind(binder, product_of(*given, shape, False, trans_b, slope="gelu_tanh", kept=floats(8192, 768)))
        (launch,) = binder.calls
        rows = next(int(line.split()[2]) for line in launch.source.splitlines() if line.startswith("#define ROWS "))
        assert (rows < max(ROWS)) == (not trans_b)


def chosen_first(calls):
    """The calls that run where nothing is measured."""
    found = []
    for call in calls:
        found += chosen_first(next(iter(call.variants.values()))) if isinstance(call, Choice) else [call]
    return found


def test_a_layer_and_its_gradient_are_one_kernel_for_each_product():
    m, n, k = LAYER
    x, y, bias, out, bits = floats(m, k), floats(k, n), floats(n), floats(m, n), Buffer((m, n // 8), uint8)
    binder = binder_of()
    fused_gemm_epilogue(binder, {"X": x, "Y": y, "Bias": bias}, {"Out": out, "ReserveSpace": bits}, FORWARD)
    (launch,) = chosen_first(binder.calls)
    given = {id(b) for b in launch.args if isinstance(b, Buffer)}
    assert launch.function == "product" and given >= {id(bias), id(bits)}

    binder, d, dx, dy, dbias = binder_of(), floats(m, n), floats(m, k), floats(k, n), floats(n)
    outs = {"DX": dx, "DY": dy, "DBias": dbias}
    fused_gemm_epilogue_grad(binder, {"DOut": d, "X": x, "Y": y, "ReserveSpace": bits}, outs, BACKWARD)
    launches = chosen_first(binder.calls)
    assert all(isinstance(c, Launch) for c in launches)
    assert [c.function for c in launches] == ["product", "product", "join"]


@pytest.mark.parametrize(("form", "why"), [("gelu", "tanh form only"), ("gelu_tanh", "exact to 16 bits only")])
def test_gelu_and_its_slope_are_part_of_the_kernel_where_tf32_is_allowed(form, why):
    m, n, k = LAYER
    x, y, z, out, bias = floats(m, k), floats(k, n), floats(m, n), floats(m, n), floats(n)
    approximate = {"approximate": form == "gelu_tanh"}
    for tf32, calls in ((True, ["product"]), (False, ["BIAS", "pointwise"])):
        binder, attrs = binder_of(tf32), FORWARD | approximate | {"activation": "gelu"}
        fused_gemm_epilogue(binder, {"X": x, "Y": y, "Bias": bias}, {"Out": out, "ReserveSpace": z}, attrs)
        assert [getattr(c, "epilogue", None) or c.function for c in chosen_first(binder.calls)] == calls
        assert tf32 or why in binder.notes[0][1]
    for tf32, calls in ((True, ["product"]), (False, ["DEFAULT", "pointwise"])):
        binder, attrs = binder_of(tf32), BACKWARD | approximate | {"activation_grad": "gelu_grad"}
        ins = {"DOut": out, "X": floats(m, k), "Y": y, "ReserveSpace": floats(m, k)}
        fused_gemm_epilogue_grad(binder, ins, {"DX": floats(m, k)}, attrs)
        assert [getattr(c, "epilogue", None) or c.function for c in chosen_first(binder.calls)] == calls
        assert tf32 or why in binder.notes[0][1]


def test_what_is_added_to_is_no_reason_for_a_copy():
    binder, (x, y, out) = binder_of(), operands(LAYER, trans_b=True)
    matrix_product(binder, x, y, out, (x.shape, y.shape, out.shape), False, True, beta=1.0)
    (choice,) = binder.calls
    (launch,) = choice.variants[NAME]
    assert "#define ADD 1" in launch.source and launch.args[3] is out
    (gemm,) = choice.variants["product"]
    assert gemm.beta == 1.0


def test_tensor_maps_of_both_ways_to_store_an_operand():
    binder = binder_of()
    shape = 500, 800, 1236
    bind(binder, product_of(*operands(shape, True, True), shape, True, True), Tf32Tiling(128))
    a_map, b_map = (x for x in binder.calls[0].args if isinstance(x, TensorMap))
    assert (a_map.sizes, a_map.strides, a_map.box) == ((500, 1236, 1, 1), (500, 500, 500), (32, 32, 1, 1))
    assert (b_map.sizes, b_map.strides, b_map.box) == ((1236, 8, 4, 25), (4944, 1236, 39552), (32, 8, 2, 4))
    # box (x, g, h, w) of B is k x and row 32 w + 4 g + h: h = 0, 1 for the first piece of 64 rows, 2, 3 for the second
    rows = [32 * w + 4 * g + h for w in range(25) for h in range(4) for g in range(8)]
    assert sorted(rows) == list(range(800))
    at = np.arange(800 * 1236).reshape(800, 1236)
    w, h, g = 3, 2, 5
    assert at[32 * w + 4 * g + h, 7] == 7 + g * b_map.strides[0] + h * b_map.strides[1] + w * b_map.strides[2]


@pytest.mark.parametrize("around", [{"add": True}, {"slope": "gelu", "kept": floats(500, 800)}], ids=str)
def test_what_is_read_besides_is_loaded_exactly_by_columns_of_a_warp(around):
    binder, shape = binder_of(), (500, 800, 1236)
    a, b, out = operands(shape, False, True)
    bind(binder, product_of(a, b, out, shape, False, True, **around), Tf32Tiling(128))
    held = [x for x in binder.calls[0].args if isinstance(x, TensorMap)][2]
    assert held.buffer is around.get("kept", out) and held.exact
    assert (held.sizes, held.strides, held.box) == ((800, 500, 1, 1), (800, 800, 800), (32, 128, 1, 1))


def test_sums_are_those_of_exact_numbers():
    binder, shape = binder_of(), (768, 768, 8192)
    bind(binder, product_of(*operands(shape, True), shape, True, sums=floats(768)))
    a_map, b_map = (x for x in binder.calls[0].args if isinstance(x, TensorMap))
    assert b_map.exact and not a_map.exact
    split = tiling_of(binder, shape, True, False).split
    assert "#define COLUMNS 1" in binder.calls[0].source
    assert [b.shape for b in binder.scratches[0]] == [(split, 768 * 768), (split, 768)]
    join = binder.calls[1]
    assert join.function == "join" and join.grid[0] * 1024 >= 768 * 768 + 768 > (join.grid[0] - 1) * 1024


KINDS = {
    "plain": {}, "relu": {"bias": floats(512), "activation": "relu", "kept": Buffer((512, 64), uint8)},
    "mask": {"slope": "relu", "kept": Buffer((512, 64), uint8)}, "add": {"add": True}, "sums": {"sums": floats(512)},
    "gelu": {"bias": floats(512), "activation": "gelu", "kept": floats(512, 512)},
    "gelu of tanh": {"bias": floats(512), "activation": "gelu_tanh", "kept": floats(512, 512)},
    "slope": {"slope": "gelu", "kept": floats(512, 512)},
    "slope of tanh": {"slope": "gelu_tanh", "kept": floats(512, 512)},
}  # fmt: skip


@pytest.mark.kernels
@pytest.mark.parametrize("tiling", [Tf32Tiling(192), Tf32Tiling(128), Tf32Tiling(64, stages=5)], ids=str)
@pytest.mark.parametrize("trans", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_without_spills(kind, trans, tiling):
    pytest.importorskip("cuda.bindings.nvrtc")
    if (kind == "sums" and trans[1]) or (tiling.rows < 192 and kind not in ("plain", "sums", "add")):
        pytest.skip("refused, or registers are plenty")
    binder, shape = binder_of(), (512, 512, 512)
    tiling = tiling._replace(rows=160) if kind.startswith("slope") and not trans[1] else tiling  # as tiling_of has it
    bind(binder, product_of(*operands(shape, *trans), shape, *trans, **KINDS[kind]), tiling)
    launch = next(c for c in every_call(binder.calls) if c.function == "product")
    launch.check()
    cubin = compile_source(launch.source, "sm_90a")
    assert cubin.spilled_bytes == 0
    assert "C75" not in cubin.log, "wgmma runs one after the other"
