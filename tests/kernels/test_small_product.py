"""The kernel for small products: layouts, tails and epilogues on the CPU; refusals; it compiles without spills."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from minigraph.kernels.cuda.matmul import product as products
from minigraph.kernels.cuda.matmul import registry, small_product
from minigraph.kernels.cuda.matmul.gemm import product as matrix_product
from minigraph.kernels.cuda.matmul.small_product import SmallTiling, bind, refusal, tiling_of
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Choice
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.ops.matmul.gemm_epilogue import pack_mask, unpack_mask
from minigraph.types import float32, uint8
from tests.kernels import test_gemm_variants
from tests.kernels.test_gemm_variants import assert_all_variants, numbers
from tests.support import cuda_host
from tests.support.cuda_host import COMPILER
from tests.support.grades import checkered, graded
from tests.support.products import product_of, ways_of

runs = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
SHAPES = (72, 84, 136), (1, 4, 4), (68, 132, 292)  # one tile and a bit; hardly anything; five steps of 32 and a bit
TILINGS = (
    SmallTiling(), SmallTiling(split=2), SmallTiling(split=4, stages=2), SmallTiling(64, 128, 2, 3, (1, 4)),
    SmallTiling(128, 64),
)  # fmt: skip
# Three stand for all: one operand taken for the other, or for what the other is not, shows.
LAYOUTS = graded([(False, False), (False, True), (True, False), (True, True)], now=lambda a, b: not (a and b))


def product(shape, trans_a, trans_b, tiling, rng, given=(), wanted=(), **around):
    """(A, B, inputs, outputs) of the kernel on small whole numbers, of which every sum is exact.

    given, wanted   arrays of the epilogue that it reads, and names of those that it writes
    """
    m, n, k = shape
    A, B = rng.integers(-4, 5, (m, k)).astype(float32), rng.integers(-4, 5, (k, n)).astype(float32)
    inputs = {"a": A.T.copy() if trans_a else A, "b": B.T.copy() if trans_b else B, **dict(given)}
    bits = around.get("activation") == "relu"
    shapes = {"kept": ((m, -(-n // 128) * 16), uint8) if bits else ((m, n), float32),
              "sums": ((m if around.get("sums_of_a") else n,), float32)}  # fmt: skip
    outputs = {"out": np.empty((m, n), float32)} | {name: np.empty(*shapes[name]) for name in wanted}

    def record(binder, ins, outs, attrs):
        buffers = {name: ins[name] for name, _ in given} | {name: outs[name] for name in wanted}
        bind(binder, product_of(ins["a"], ins["b"], outs["out"], shape, trans_a, trans_b, **buffers, **around), tiling)

    return A, B, inputs, cuda_host.run_bind(record, inputs, outputs, {})[0]


@runs
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_relu_and_mask(shape, trans_a, trans_b, tiling, rng):
    bias = rng.integers(-9, 10, shape[1]).astype(float32)
    A, B, _, made = product(shape, trans_a, trans_b, tiling, rng, [("bias", bias)], ["kept"], activation="relu")
    z = A @ B + bias
    np.testing.assert_array_equal(made["out"], np.maximum(z, 0))
    np.testing.assert_array_equal(made["kept"], pack_mask(z > 0))


@runs
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
def test_mask_applied(trans_a, trans_b, tiling, rng):
    where = rng.integers(0, 256, (136, 32)).astype(uint8)
    A, B, _, made = product((136, 200, 72), trans_a, trans_b, tiling, rng, [("kept", where)], slope="relu")
    np.testing.assert_array_equal(made["out"], (A @ B) * unpack_mask(where, 200))


@runs
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("of_a", [False, True])
def test_sums_of_columns(of_a, tiling, rng):
    A, B, _, made = product((132, 136, 200), True, False, tiling, rng, (), ["sums"], sums_of_a=of_a)
    np.testing.assert_array_equal(made["out"], A @ B)
    np.testing.assert_array_equal(made["sums"], A.sum(axis=1) if of_a else B.sum(axis=0))


@runs
@pytest.mark.parametrize("tiling", TILINGS[:2], ids=str)
def test_expressions_of_the_result_and_of_what_was_kept(tiling, rng, monkeypatch):
    monkeypatch.setattr(products, "activation_text", lambda activation: "X * C(2) + C(1)")
    monkeypatch.setattr(products, "slope_text", lambda activation: "X * X")
    shape = 68, 84, 72
    A, B, _, made = product(shape, False, False, tiling, rng, (), ["kept"], activation="gelu")
    np.testing.assert_array_equal(made["kept"], A @ B)
    np.testing.assert_array_equal(made["out"], 2 * (A @ B) + 1)
    before = rng.integers(-9, 10, shape[:2]).astype(float32)
    A, B, _, made = product(shape, False, True, tiling, rng, [("kept", before)], slope="gelu")
    np.testing.assert_array_equal(made["out"], (A @ B) * before**2)


@runs
def test_rounding_is_near_the_nearest_and_keeps_what_is_not_a_number(rng):
    x = rng.normal(size=(4, 64)).astype(float32)
    special = x.copy()
    special[:, 0] = np.inf, -np.inf, np.nan, np.float32(1 + 2**-10)

    def rounded(x):  # x times unit vectors is what the kernel makes of x
        return cuda_host.run_bind(
            lambda b, i, o, a: bind(b, product_of(i["a"], i["b"], o["out"], (4, 64, 64))),
            {"a": x, "b": np.eye(64, dtype=float32)}, {"out": np.empty((4, 64), float32)}, {},
        )[0]["out"]  # fmt: skip

    found = rounded(special)[:, 0]
    np.testing.assert_array_equal(found[[0, 1, 3]], special[[0, 1, 3], 0])
    assert np.isnan(found[2])
    found, wanted = rounded(x), x
    bits = wanted.view(np.uint32)
    nearest = ((bits + 0x1000) & 0xFFFFE000).view(float32)
    error, least = (np.sqrt(np.mean(((y - wanted) / wanted) ** 2)) for y in (found, nearest))
    assert least < error < 1.15 * least


@runs
@pytest.mark.parametrize("trans_y", [False, True])
@pytest.mark.parametrize("form", ["none", "relu", "gelu", "gelu tanh"])
def test_operators_offer_it(form, trans_y, rng, monkeypatch):
    """All variants of the fused operators compute the reference where TF32 is allowed; one of them is this kernel."""
    monkeypatch.setattr(test_gemm_variants, "Binder", partial(Binder, tf32=True))
    offered = []
    kernel = registry.row(small_product)
    seen = kernel._replace(bind=lambda binder, product: offered.append(product.epilogue) or bind(binder, product))
    others = [k for k in registry.KERNELS if k != kernel]
    monkeypatch.setattr(registry, "KERNELS", (*others, seen))
    monkeypatch.setattr(small_product, "COLUMNS", 0)
    activation, attrs = form.split()[0], {"trans_y": trans_y}
    X, Y, Bias = (numbers(rng, *s, dtype=float32) for s in ((36, 8), (20, 8) if trans_y else (8, 20), (20,)))
    needs = ("Out", "ReserveSpace") if activation != "none" else ("Out",)
    forward = {"activation": activation, "approximate": form.endswith("tanh"), **attrs}
    assert_all_variants("fused_gemm_epilogue", {"X": X, "Y": Y, "Bias": Bias}, needs, **forward)
    DOut, Z = numbers(rng, 36, 20, dtype=float32), numbers(rng, 36, 8, dtype=float32)
    inputs = {"DOut": DOut, "X": X, "Y": Y}
    if activation != "none":
        inputs["ReserveSpace"] = pack_mask(Z > 0) if activation == "relu" else Z
    kind = f"{activation}_grad" if activation != "none" else "none"
    backward = {"activation_grad": kind, "approximate": form.endswith("tanh"), **attrs}
    assert_all_variants("fused_gemm_epilogue_grad", inputs, ("DX", "DY", "DBias"), **backward)
    assert [e for e in offered if e.bias] and [e for e in offered if e.sums]
    assert activation == "none" or [e for e in offered if e.slope != "none"]


def buffers(shape, trans_a=False, trans_b=False, alignment=256):
    m, n, k = shape
    shapes = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n), (m, n)
    return [Buffer(s, float32, alignment=alignment) for s in shapes]


@pytest.mark.parametrize(
    ("shape", "trans", "alignment", "why"),
    [((64, 64, 30), (False, False), 256, "rows of A have 30 elements"),
     ((64, 30, 64), (False, True), 256, "rows of the result"),
     ((30, 64, 64), (True, False), 256, "rows of A have 30"), ((64, 30, 64), (False, False), 256, "rows of B have 30"),
     ((64, 64, 0), (False, False), 256, "empty"), ((64, 64, 64), (False, False), 8, "A begins between multiples of 16"),
     ((30, 64, 64), (False, False), 256, None)],
)  # fmt: skip
def test_refusals(shape, trans, alignment, why):
    found = refusal(product_of(*buffers(shape, *trans, alignment), shape, *trans))
    assert found is None if why is None else why in str(found)


def choice(shape, tf32=True, device=None):
    binder = Binder(device or Device(), tf32=tf32)
    binder.begin(0)
    return ways_of(small_product, binder, product_of(*buffers(shape), shape))


def test_where_it_is_offered_and_where_it_comes_first():
    kernel = small_product.NAME
    assert choice((256, 1024, 1024))[0] == [kernel, "library"]
    assert choice((256, 1024, 1024), tf32=False) == (["library"], [])
    assert choice((1024, 1024, 508))[0] == ["library", kernel]
    assert choice((8192, 4096, 8))[0] == ["library"]  # for products of few columns
    assert choice((8192, 768, 768), device=Device("sm_80", 108))[0] == ["library"]
    assert choice((256, 1024, 1024), device=Device("sm_80", 108))[0] == ["library", kernel]
    assert choice((256, 1024, 1024), device=Device("sm_75", 40))[0] == ["library"]
    names, notes = choice((256, 1023, 1024))
    assert names == ["library"] and "rows of B have 1023 elements" in notes[0][1]


@pytest.mark.parametrize("rows", [1, 4, 16, 20])
def test_weight_gradients_of_few_rows_need_no_library(rows):
    """Which takes tens of milliseconds to load, and memory to work in that a larger batch does not need."""
    shape, binder = (1024, 784, rows), Binder(tf32=True)
    binder.begin(0)
    names, _ = ways_of(small_product, binder, product_of(*buffers(shape, True), shape, True))
    assert names == [small_product.NAME, "library"]
    forward = choice((256, 1024, rows))[0]
    assert forward[0] == (small_product.NAME if rows > 16 else "library"), "few columns have a kernel of their own"


def test_sums_are_shared_where_tiles_are_few():
    hopper, ampere = Binder(), Binder(Device("sm_80", 108))
    shapes = (256, 1024, 1024), (1024, 1024, 256), (512, 768, 768), (64, 512, 512), (64, 512, 128)
    assert [tiling_of(hopper, s).split for s in shapes] == [2, 1, 2, 4, 1]
    assert tiling_of(ampere, (256, 1024, 1024)).split == 1


@pytest.mark.parametrize(
    ("kind", "arch"),
    checkered(["forward", "input gradient", "weight gradient", "gelu", "slope"], ["sm_80", "sm_90a"]),
)
def test_compiles_without_spills(kind, arch):
    pytest.importorskip("cuda.bindings.nvrtc")

    binder = Binder(Device(arch), tf32=True)
    binder.begin(0)
    shape = (1024, 1024, 256) if kind == "weight gradient" else (256, 1024, 1024)
    m, n, _ = shape
    row, mask, full = Buffer((n,), float32), Buffer((m, n // 8), uint8), Buffer((m, n), float32)
    trans = {"input gradient": (False, True), "slope": (False, True), "weight gradient": (True, False)}
    around = {
        "forward": {"bias": row, "activation": "relu", "kept": mask}, "input gradient": {"slope": "relu", "kept": mask},
        "weight gradient": {"sums": row}, "gelu": {"bias": row, "activation": "gelu", "kept": full},
        "slope": {"slope": "gelu_tanh", "kept": full},
    }[kind]  # fmt: skip
    trans_a, trans_b = trans.get(kind, (False, False))
    bind(binder, product_of(*buffers(shape, trans_a, trans_b), shape, trans_a, trans_b, **around))
    (launch,) = binder.calls
    launch.check()
    assert compile_source(launch.source, arch).spilled_bytes == 0


def test_products_that_may_not_round_know_nothing_of_it():
    binder = Binder()
    binder.begin(0)
    x, y, out = buffers((256, 1024, 1024))

    matrix_product(binder, x, y, out, (x.shape, y.shape, out.shape), False, False)
    assert not any(isinstance(c, Choice) for c in binder.calls)
    assert all(getattr(c, "function", "") != "product" for c in every_call(binder.calls))
