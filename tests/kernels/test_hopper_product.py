"""The kernel for large products: what it refuses, where it is offered and comes first; it compiles without spills."""

from __future__ import annotations

import pytest

from minigraph.kernels.cuda.matmul import gemm, gemm_epilogue, hopper_product
from minigraph.kernels.cuda.matmul.hopper_product import NAME, bind, pipeline_of, refusal
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Choice, Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.types import bfloat16, float16, float32, uint8
from tests.support.products import product_of, ways_of

LARGE = 8192, 4096, 4096
SHORT, LONG = (712, 1096, 584), (712, 1096, 1096)
KINDS = "product", "bias", "gelu", "erf", "erf alone", "slope", "slope of erf", "slope and totals"
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


def buffers(shape, trans_a=False, trans_b=False, dtype=bfloat16, alignment=256, out=None):
    m, n, k = shape
    shapes = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    return [*(Buffer(s, dtype, alignment=alignment) for s in shapes), Buffer((m, n), out or dtype)]


def around(kind, shape, dtype=bfloat16):
    """What is done around a product, by name."""
    m, n, _ = shape
    row, full, mask = Buffer((n,), dtype), Buffer((m, n), dtype), Buffer((m, -(-n // 128) * 16), uint8)
    return {
        "product": {}, "bias": {"bias": row}, "relu": {"bias": row, "activation": "relu", "kept": mask},
        "gelu": {"bias": row, "activation": "gelu_tanh", "kept": full},
        "erf": {"bias": row, "activation": "gelu", "kept": full}, "erf alone": {"bias": row, "activation": "gelu"},
        "where": {"slope": "relu", "kept": mask},
        "slope": {"slope": "gelu_tanh", "kept": full},
        "slope and totals": {"slope": "gelu_tanh", "kept": full, "totals": row},
        "slope of erf": {"slope": "gelu", "kept": full},
        "sums": {"sums": row},
    }[kind]  # fmt: skip


def binder_of(arch="sm_90a"):
    binder = Binder(Device(arch))
    binder.begin(0)
    return binder


@pytest.mark.parametrize(
    ("shape", "trans", "facts", "why"),
    [((64, 64, 0), (False, False), {}, "empty"),
     ((64, 64, 448), (False, False), {}, "a sum of 448 is over before the tile before it is written"),
     ((64, 64, 449), (True, False), {}, None),
     ((64, 64, 516), (False, False), {}, "rows of A have 1032 bytes"),
     ((63, 64, 512), (True, False), {}, "rows of A have 126 bytes"), ((63, 64, 512), (False, False), {}, None),
     ((64, 60, 512), (False, False), {}, "rows of B have 120 bytes"),
     ((64, 60, 512), (False, True), {}, "rows of the result have 120 bytes"),
     ((64, 64, 516), (True, True), {}, "rows of B have 1032 bytes"),
     ((64, 64, 512), (False, False), {"alignment": 8}, "A begins between multiples of 16 bytes"),
     ((64, 64, 512), (False, False), {"out": float32}, "the result is float32, A is bfloat16")],
)  # fmt: skip
def test_refusals(shape, trans, facts, why):
    found = refusal(product_of(*buffers(shape, *trans, **facts), shape, *trans))
    assert found is None if why is None else why in str(found)


def test_refusals_of_what_is_done_around():
    shape = 64, 64, 512
    operands = buffers(shape)
    assert refusal(product_of(*operands, shape, bias=Buffer((64,), bfloat16))) is None
    why = refusal(product_of(*operands, shape, bias=Buffer((64,), float32)))
    assert why == "the bias is float32, A is bfloat16"
    kept = Buffer((64, 64), bfloat16, alignment=2)
    assert "what is kept begins between" in refusal(product_of(*operands, shape, activation="gelu", kept=kept))


GELUS = ("gelu", "slope", "erf", "slope of erf")


def offered(shape=LARGE, arch="sm_90a", dtype=bfloat16, kind="gelu", trans_a=False):
    binder = binder_of(arch)
    operands, given = buffers(shape, trans_a, dtype=dtype), around(kind, shape, dtype)
    return ways_of(hopper_product, binder, product_of(*operands, shape, trans_a, **given))


def test_where_it_is_offered_and_where_it_comes_first():
    assert offered(arch="sm_80") == (["library"], [])
    assert offered(dtype=float32) == (["library"], [])
    assert offered((256, 1024, 1024)) == (["library"], [])
    names, notes = offered((8192, 4096, 4100))
    assert names == ["library"] and "left out: rows of A have 8200 bytes" in notes[0][1]
    assert offered() == ([NAME, "library"], [])
    assert offered(kind="product") == (["library", NAME], [])
    assert offered((1024, 4096, 8192))[0] == ["library", NAME]  # its tiles do not fill the GPU
    assert offered((2048, 4096, 4096))[0] == [NAME, "library"]  # twice, with a long sum
    found = {kind: offered(kind=kind, dtype=float16, trans_a=True)[0] for kind in (*KINDS, "relu", "where", "sums")}
    assert {kind for kind, names in found.items() if names[0] == NAME} == {*KINDS} - {"product", "bias"}
    assert {kind for kind, names in found.items() if NAME not in names} == {"relu", "where", "sums"}


def test_gelu_is_tried_for_smaller_products_than_a_bias():
    for kinds, names in (((*GELUS,), ["library", NAME]), (("bias", "product"), ["library"])):
        for kind in kinds:
            assert offered((4096, 3072, 768), kind=kind) == (names, [])
            assert offered((1024, 1024, 1024), kind=kind) == (["library"], [])


def test_gelu_comes_first_where_tiles_fill_a_gpu_three_times():
    for shape, first in (((8192, 3072, 768), True), ((32768, 2048, 512), True), ((4096, 3072, 768), False),
                         ((2048, 4096, 2048), False)):  # fmt: skip
        for kind in GELUS:
            names, _ = offered(shape, kind=kind)
            assert (names[0] == NAME) == first, (shape, kind)
    assert offered((2048, 4096, 4096), kind="erf")[0] == ["library", NAME]  # its tiles fill it twice


def gelu_layer(autotune=False, approximate=True, shape=LARGE):
    m, n, _ = shape
    x, w, out = buffers(shape)
    binder = binder_of()
    binder.autotune = autotune
    attrs = {"trans_x": False, "trans_y": False, "activation": "gelu", "approximate": approximate}
    outs = {"Out": out, "ReserveSpace": Buffer((m, n), bfloat16)}
    gemm_epilogue.fused_gemm_epilogue(binder, {"X": x, "Y": w, "Bias": Buffer((n,), bfloat16)}, outs, attrs)
    return binder


def test_a_remark_names_the_kernel_that_runs_but_where_times_will_tell():
    for approximate in (False, True):
        assert gelu_layer(approximate=approximate).notes == [(0, f"by the {NAME}")]
    assert gelu_layer(autotune=True).notes == []
    ((_, why),) = gelu_layer(approximate=False, shape=(4096, 3072, 768)).notes
    assert why == "gelu is a kernel after the bias epilogue: cuBLASLt has its tanh form only"


def launches(calls):
    return [c for c in every_call(calls) if isinstance(c, Launch) and c.function == "product"]


@pytest.mark.parametrize("approximate", [False, True])
def test_products_and_operators_offer_it(approximate):
    m, n, k = LARGE
    x, w, out = buffers(LARGE)
    z, bias = Buffer((m, n), bfloat16), Buffer((n,), bfloat16)
    binder = binder_of()
    gemm.matmul(binder, {"X": x, "Y": w}, {"Out": out}, {"trans_x": False, "trans_y": False})
    assert isinstance(binder.calls[0], Choice) and NAME in binder.calls[0].variants
    attrs = {"trans_x": False, "trans_y": False, "activation": "gelu", "approximate": approximate}
    binder = binder_of()
    ins = {"X": x, "Y": w, "Bias": bias}
    gemm_epilogue.fused_gemm_epilogue(binder, ins, {"Out": out, "ReserveSpace": z}, attrs)
    assert next(iter(binder.calls[0].variants)) == NAME
    assert len(launches(binder.calls[0].variants[NAME])) == 1
    binder = binder_of()
    attrs = {"trans_x": False, "trans_y": False, "activation_grad": "gelu_grad", "approximate": approximate}
    grads = {"DX": Buffer((m, k), bfloat16), "DY": Buffer((k, n), bfloat16), "DBias": bias}
    ins = {"DOut": out, "X": x, "Y": w, "ReserveSpace": Buffer((m, k), bfloat16)}
    gemm_epilogue.fused_gemm_epilogue_grad(binder, ins, grads, attrs)
    assert next(iter(binder.calls[0].variants)) == NAME
    products = next(c for c in binder.calls[1].variants["product and column sum"] if isinstance(c, Choice))
    assert list(products.variants) == ["product", NAME]


def test_blocks_are_no_more_than_the_last_round_needs():
    def blocks(shape):
        binder = binder_of()
        bind(binder, product_of(*buffers(shape), shape))
        return binder.calls[0].grid[0]

    assert blocks(LARGE) == 128  # 512 pairs of tiles in 8 rounds
    assert blocks((256, 256, 512)) == 2
    assert blocks((256 * 66, 256, 512)) == 132
    assert blocks((256 * 67, 256, 512)) == 68


def loops(kind):
    """Slices, and steps for a piece, by the length of the sum."""
    found = {}
    for k in (449, 768, 1024, 1984, 1985, 3009, 8192):
        shape = 8192, 4096, k
        found[k] = pipeline_of(product_of(*buffers(shape), shape, **around(kind, shape)))[:2]
    return found


def test_slices_are_spread_over_steps_but_not_over_more_than_there_are():
    assert loops("gelu") == {
        449: (8, 2), 768: (8, 2), 1024: (16, 4), 1984: (16, 4), 1985: (16, 8), 3009: (16, 12), 8192: (16, 12),
    }  # fmt: skip
    assert loops("slope") == {
        449: (8, 2), 768: (8, 3), 1024: (16, 4), 1984: (16, 7), 1985: (16, 8), 3009: (16, 12), 8192: (16, 12),
    }  # fmt: skip


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_without_spills(kind, trans_a, trans_b, dtype):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    binder = binder_of()
    for shape in (SHORT, LONG):
        operands = buffers(shape, trans_a, trans_b, dtype)
        bind(binder, product_of(*operands, shape, trans_a, trans_b, **around(kind, shape, dtype)))
    for launch in binder.calls:
        launch.check()
        assert launch.shared <= Device().shared
        cubin = compile_source(launch.source)
        assert cubin.spilled_bytes == 0 and "0 bytes stack frame" in cubin.log
        assert "serialized" not in cubin.log, "it waits for each wgmma"


def test_maps_show_operands_as_they_lie():
    for trans_a, trans_b in LAYOUTS:
        binder = binder_of()
        bind(binder, product_of(*buffers(SHORT, trans_a, trans_b), SHORT, trans_a, trans_b))
        a, b, out, _ = binder.calls[0].args[:4]
        m, n, k = SHORT
        assert (a.sizes[:2], a.box[1]) == (((m, k), 64) if trans_a else ((k, m), 128))
        assert (b.sizes[:2], b.box[1]) == (((k, n), 128) if trans_b else ((n, k), 64))
        assert (out.sizes[:2], out.box[:2]) == ((n, m), (64, 64))
