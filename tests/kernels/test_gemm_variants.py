"""Every variant that a product's operator records computes the reference: kernels on the CPU, products by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.matmul import narrow_product, registry
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.calls import Choice, Launch
from minigraph.opdef import OPS
from minigraph.types import as_dtype, bfloat16, float16, float32, float64
from tests.support import cuda_host, gpu_stub, opcheck
from tests.support.cuda_host import COMPILER, Memory
from tests.support.grades import checkered
from tests.support.products import product_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

BOUND = {float64: 1e-12, float32: 2e-6, float16: 4e-3, bfloat16: 3e-2}  # of ||difference|| / ||result||


def bound(op_type, inputs, needs, attrs, in_place=None):
    """(binder, memory, output buffers) of an operator on arrays; all memory is laid out and holds garbage."""
    opdef, memory, binder = OPS[op_type], Memory(), Binder()
    attrs = opdef.bind_attrs(attrs)
    binder.begin(0)
    ins = {s: None for s in opdef.input_names}
    for slot, x in inputs.items():
        ins[slot] = buffer_of(memory, x)
    types = opdef.infer_types({s: [opcheck.type_of(x)] for s, x in inputs.items()}, attrs)
    outs = {
        s: None if s not in needs else ins[in_place[s]] if in_place and s in in_place
        else buffer_of(memory, opcheck.poisoned(types[s][0])) for s in opdef.output_names
    }  # fmt: skip
    opdef.gpu_bind(binder, ins, outs, attrs)
    for scratch in binder.scratches[0]:
        if scratch.dtype != np.uint8:
            memory.put(scratch)
    return binder, memory, outs


def buffer_of(memory, x):
    made = gpu_stub.Buffer(x.shape, x.dtype)
    memory.put(made, x)
    return made


def run(binder, memory, variant):
    launcher = gpu_stub.StubLauncher(gpu_stub.StubRuntime(), variant=variant)
    calls = [one for call in binder.calls for one in call.runnable(launcher)]
    cuda_host.build(launcher.kernels)
    for one in calls:
        one()
    memory.check()


def assert_all_variants(op_type, inputs, needs, **attrs):
    """Each choice takes its first variant, then its second, ...; how many there are at most."""
    exact = {s: x if x.dtype == np.uint8 else x.astype(float) for s, x in inputs.items()}
    opdef, dtype = OPS[op_type], next(iter(inputs.values())).dtype
    injected = {"needs": frozenset(needs)} if "needs" in opdef.injected else {}
    results = opdef(**exact, **opdef.bind_attrs(attrs), **injected)
    results = results if isinstance(results, tuple) else (results,)
    expected = {s: r for s, r in zip(opdef.output_names, results, strict=True) if s in needs}
    choices = [c for c in bound(op_type, inputs, needs, attrs)[0].calls if isinstance(c, Choice)]
    count = max([len(c.variants) for c in choices], default=1)
    for variant in range(count):
        binder, memory, outs = bound(op_type, inputs, needs, attrs)
        run(binder, memory, variant)
        for slot, wanted in expected.items():
            found = memory.arrays[outs[slot]]
            if found.dtype == np.uint8:
                np.testing.assert_array_equal(found, wanted)
                continue
            error = np.linalg.norm(found.astype(float) - wanted)
            assert error <= BOUND[dtype] * np.linalg.norm(wanted), f"{slot} of variant {variant} is off by {error}"
    return count


def numbers(rng, *shape, dtype):
    """Numbers that all types hold exactly, no zeros."""
    return ((np.round(rng.normal(size=shape) * 8) + 0.5) / 8).astype(dtype)


@pytest.mark.parametrize(
    ("form", "keep", "columns", "dtype"),
    checkered(["none", "relu", "gelu", "gelu tanh"], [False, True], [8, 13, 24], [float64, bfloat16]),
    ids=str,
)
def test_forward(form, keep, columns, dtype, rng):
    activation = form.split()[0]
    X, Y, Bias = (numbers(rng, *s, dtype=dtype) for s in ((5, 6), (6, columns), (columns,)))
    needs = ("Out", "ReserveSpace") if keep and activation != "none" else ("Out",)
    attrs = {"activation": activation, "approximate": form.endswith("tanh")}
    count = assert_all_variants("fused_gemm_epilogue", {"X": X, "Y": Y, "Bias": Bias}, needs, **attrs)
    library = form == "relu" or (form == "gelu tanh" and dtype == bfloat16 and (columns != 13 or not keep))
    assert count == 2 + library + (columns <= 16)


SIZES = (1, 70, 8), (16, 3, 200), (24, 5, 8), (10, 2, 17)  # columns, rows, inner


@pytest.mark.parametrize(
    ("case", "trans_y", "dtype"),
    checkered(
        [
            *((form, *sizes) for sizes in SIZES for form in ("none", "relu")),
            *((form, columns, 5, 8) for columns in (6, 24) for form in ("gelu", "gelu tanh")),
        ],
        [False, True],
        [float64, bfloat16],
    ),
    ids=str,
)
def test_backward(case, trans_y, dtype, rng):
    form, columns, rows, inner = case
    shapes = (rows, columns), (rows, inner), (columns, inner) if trans_y else (inner, columns), (rows, inner)
    DOut, X, Y, Z = (numbers(rng, *s, dtype=dtype) for s in shapes)
    inputs, activation = {"DOut": DOut, "X": X, "Y": Y}, form.split()[0]
    if activation != "none":
        pack = gpu_stub.pack_mask
        inputs["ReserveSpace"] = pack(Z.astype(float) > 0) if activation == "relu" else Z
    attrs = {"activation_grad": f"{activation}_grad" if activation != "none" else "none", "trans_y": trans_y,
             "approximate": form.endswith("tanh")}  # fmt: skip
    count = assert_all_variants("fused_gemm_epilogue_grad", inputs, ("DX", "DY", "DBias", "DXSums"), **attrs)
    assert count == 2 + (columns <= 16)


@pytest.mark.parametrize(
    ("rows", "columns", "first"),
    [(1024, 512, ("product and kernel", "epilogue of the bias gradient")),
     (65536, 512, ("kernel for large products", "product and column sum")),
     (20480, 512, ("epilogue of gelu's derivative", "product and column sum")),
     (256, 10, ("product and kernel", "kernel for 10 columns")),
     (256, 16, ("product and kernel", "epilogue of the bias gradient")),
     (4096, 10, ("product and kernel", "kernel for 10 columns"))],
)  # fmt: skip
def test_what_runs_without_a_measurement(rows, columns, first):
    """It hangs on sizes; the other variants stay for who measures."""
    shapes = {"DOut": (rows, columns), "X": (rows, 512), "Y": (512, columns), "ReserveSpace": (rows, 512)}
    outs = {"DX": (rows, 512), "DY": (512, columns), "DBias": (columns,)}
    ins, outs = ({s: gpu_stub.Buffer(shape, bfloat16) for s, shape in slots.items()} for slots in (shapes, outs))
    binder = Binder()
    binder.begin(0)
    attrs = OPS["fused_gemm_epilogue_grad"].bind_attrs({"activation_grad": "gelu_grad", "approximate": True})
    OPS["fused_gemm_epilogue_grad"].gpu_bind(binder, ins, outs, attrs)
    assert tuple(next(iter(c.variants)) for c in binder.calls) == first
    assert [len(c.variants) for c in binder.calls] == [2 + (rows > 20000), 2 + (columns <= 16)]


@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, -1.0, 2.0])
@pytest.mark.parametrize("columns", [128, 13])
def test_relu_and_its_mask_in_one_kernel(value, columns, rng):
    X, Y, Bias = np.zeros((3, 4), np.float32), np.zeros((4, columns), np.float32), np.full(columns, value, np.float32)
    inputs, needs = {"X": X, "Y": Y, "Bias": Bias}, ("Out", "ReserveSpace")
    binder, memory, outs = bound("fused_gemm_epilogue", inputs, needs, {"activation": "relu"})
    assert "relu_mask" in {c.function for c in every_call(binder.calls) if isinstance(c, Launch)}
    run(binder, memory, 1)
    np.testing.assert_array_equal(memory.arrays[outs["Out"]], np.full((3, columns), np.maximum(value, 0)))
    np.testing.assert_array_equal(
        memory.arrays[outs["ReserveSpace"]], gpu_stub.pack_mask(np.full((3, columns), value > 0))
    )


@pytest.mark.parametrize(
    ("rows", "columns", "forward", "weights"),
    [(256, 10, True, True), (4096, 10, False, True), (256, 16, False, False), (256, 1, True, True),
     (4096, 1, False, False)],
)  # fmt: skip
def test_where_kernels_for_few_columns_come_first(rows, columns, forward, weights):
    x, w, out = (buffer_of(Memory(), np.empty(s, float32)) for s in ((rows, 64), (64, columns), (rows, columns)))
    assert narrow_product.preferred(Binder(), product_of(x, w, out, (rows, columns, 64))) == forward
    gradient = product_of(x, out, w, (64, columns, rows), True)
    assert narrow_product.preferred(Binder(), gradient) == weights


PRODUCTS = [((5, 40), (40, 3)), ((2, 3, 40), (40, 10)), ((70, 3), (3, 40)), ((300, 1), (1, 16)), ((5, 40), (40, 24))]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("trans_y", [False, True])
@pytest.mark.parametrize(("x", "y"), PRODUCTS)
def test_products_with_few_columns(x, y, trans_y, dtype, rng):
    X, Y = numbers(rng, *x, dtype=dtype), numbers(rng, *(y[::-1] if trans_y else y), dtype=dtype)
    D = numbers(rng, *x[:-1], y[1], dtype=dtype)
    few = min(y[1], x[-1]) <= 16
    assert assert_all_variants("matmul", {"X": X, "Y": Y}, ("Out",), trans_y=trans_y) == 1 + few
    count = assert_all_variants(
        "matmul_grad", {"X": X, "Y": Y, "Out_grad": D}, ("X_grad", "Y_grad"), trans_y=trans_y
    )
    assert count == 1 + few


@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
@pytest.mark.parametrize(("inner", "columns", "trans_y"), [(20, 10, False), (17, 3, True), (260, 1, False)])
def test_a_weight_gradient_of_many_rows_is_summed_in_pieces(inner, columns, trans_y, dtype, rng, monkeypatch):
    monkeypatch.setattr(narrow_product, "FEW", 64)
    shapes = (700, columns), (700, inner), (columns, inner) if trans_y else (inner, columns)
    inputs = dict(zip(("DOut", "X", "Y"), (numbers(rng, *s, dtype=dtype) for s in shapes), strict=True))
    binder, *_ = bound("fused_gemm_epilogue_grad", inputs, ("DY", "DBias"), {"trans_y": trans_y})
    calls = [c for c in every_call(binder.calls) if isinstance(c, Launch) and c.function == "weight_grad"]
    assert calls[0].args[2].shape == (2, inner * columns), "one piece"
    assert_all_variants("fused_gemm_epilogue_grad", inputs, ("DY", "DBias"), trans_y=trans_y)
    del inputs["DOut"]
    inputs["Out_grad"] = numbers(rng, 700, columns, dtype=dtype)
    assert_all_variants("matmul_grad", inputs, ("Y_grad",), trans_y=trans_y)


# float32 from 16-bit operands


SHAPES = [((3, 40), (40, 5)), ((2, 3, 40), (40, 5)), ((2, 1, 3, 40), (4, 40, 5)), ((40,), (40,))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("x", "y"), SHAPES)
def test_a_product_in_float32_is_not_rounded_to_16_bits(x, y, dtype, rng):
    X, Y = rng.normal(size=x).astype(as_dtype(dtype)), rng.normal(size=y).astype(as_dtype(dtype))
    exact = X.astype(float) @ Y.astype(float)
    call = opcheck.Call(OPS["matmul"], 0, {"X": [X], "Y": [Y]}, OPS["matmul"].bind_attrs({"out_dtype": "float32"}))
    (out,) = opcheck.executed(call)["Out"]
    binder, memory, outs = bound("matmul", {"X": X, "Y": Y}, ("Out",), {"out_dtype": "float32"})
    run(binder, memory, 0)
    for found in (out, memory.arrays[outs["Out"]]):
        assert found.dtype == float32
        np.testing.assert_allclose(found, exact, rtol=2e-6, atol=2e-6)


def test_other_operands_are_rounded_after_the_product(rng):
    X, Y = rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    binder, memory, outs = bound("matmul", {"X": X, "Y": Y}, ("Out",), {"out_dtype": "float32"})
    run(binder, memory, 0)
    np.testing.assert_array_equal(memory.arrays[outs["Out"]], (X @ Y).astype(float32))


ACCUMULATED = [
    ((3, 40), (40, 5), (3, 5), False, False), ((2, 40, 3), (2, 40, 5), (3, 5), True, False),
    ((2, 3, 40), (2, 5, 40), (3, 5), False, True), ((2, 3, 40), (40, 5), (2, 3, 5), False, False),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "kept"), [("bfloat16", "float32"), ("float16", "float16"), ("float64", "float64")])
@pytest.mark.parametrize(("x", "y", "acc", "trans_x", "trans_y"), ACCUMULATED)
@pytest.mark.parametrize("in_place", [False, True])
def test_products_are_added_up(x, y, acc, trans_x, trans_y, dtype, kept, in_place, rng):
    X, Y = (rng.normal(size=s).astype(as_dtype(dtype)) for s in (x, y))
    Acc = rng.normal(size=acc).astype(as_dtype(kept))
    attrs = {"trans_x": trans_x, "trans_y": trans_y}
    exact = OPS["matmul_accumulate"](*(a.astype(float) for a in (X, Y, Acc)), **attrs)
    inputs = {"X": X, "Y": Y, "Acc": Acc}
    call = opcheck.Call(OPS["matmul_accumulate"], 0, {s: [a] for s, a in inputs.items()}, attrs)
    (out,) = opcheck.executed(call)["Out"]
    binder, memory, outs = bound(
        "matmul_accumulate", inputs, ("Out",), attrs, {"Out": "Acc"} if in_place else None
    )
    run(binder, memory, 0)
    for found in (out, memory.arrays[outs["Out"]]):
        assert found.dtype == Acc.dtype
        assert np.linalg.norm(found.astype(float) - exact) <= BOUND[Acc.dtype] * np.linalg.norm(exact)


def test_a_weight_gradient_is_one_product_onto_the_accumulator():
    """Of all rows of all batches; nothing is copied or summed apart."""
    types = {"X": ((8, 64, 16), bfloat16), "Y": ((8, 64, 32), bfloat16), "Acc": ((16, 32), float32)}
    ins = {s: gpu_stub.Buffer(shape, dtype) for s, (shape, dtype) in types.items()}
    binder = Binder()
    binder.begin(0)
    OPS["matmul_accumulate"].gpu_bind(binder, ins, {"Out": ins["Acc"]}, {"trans_x": True, "trans_y": False})
    (call,) = binder.calls
    assert (call.m, call.n, call.k, call.beta, call.batch) == (16, 32, 512, 1.0, 1)
    assert call.c.owner is ins["Acc"]


def test_a_new_kernel_is_a_file_and_a_row(monkeypatch):
    """A kernel that only this test knows is recorded first for what it is offered for, and named by a remark."""

    class doubling:
        name = staticmethod(lambda product: "kernel of this test")
        offered = staticmethod(lambda binder, product: product.epilogue.activation == "relu")
        refusal = staticmethod(lambda product: "five rows" if product.shape[0] == 5 else None)
        preferred = staticmethod(lambda binder, product: True)
        bind = staticmethod(lambda binder, product: binder.zero(product.out))

    monkeypatch.setattr(registry, "KERNELS", (registry.row(doubling), *registry.KERNELS))
    for rows, first, remark in (
        (5, "epilogue of bias and relu", "the kernel of this test is left out: five rows"),
        (6, "kernel of this test", "by the kernel of this test"),
    ):
        inputs = {"X": np.ones((rows, 40)), "Y": np.ones((40, 24)), "Bias": np.ones(24)}
        binder, *_ = bound("fused_gemm_epilogue", inputs, ("Out",), {"activation": "relu"})
        (choice,) = binder.calls
        assert next(iter(choice.variants)) == first and binder.notes == [(0, remark)]
