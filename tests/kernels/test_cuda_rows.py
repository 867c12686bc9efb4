"""Kernels that reduce, scan and normalise, run on a CPU: long rows, pieces, columns, and special values."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.record.binder import Device, i64
from minigraph.kernels.cuda.record.compile import full_source
from minigraph.opdef import OPS
from minigraph.types import TensorType, float16, float32, float64
from tests.support.cuda_host import COMPILER, Bound, build, run_bind
from tests.support.grades import checkered, graded
from tests.support.opcheck import Call, apply, inferred_types, type_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

WIDE = Device(multiprocessors=16)  # few rows are cut into pieces
NARROW = Device(multiprocessors=1, shared=64 * 1024)  # a block takes a row, of which a part fits shared memory


@pytest.fixture
def check():
    """Notes what is to be checked; at the end of the test the kernels of all are built together, and run.

    `size` is how large the sums of absolute terms are, by which errors are measured.
    """
    noted = []

    def note(name, inputs, attrs, dtype=float64, device=WIDE, wanted=None, in_place=None, size=1.0):
        opdef = OPS[name]
        given = {s.name: [np.asarray(x)] for s, x in zip(opdef.inputs, inputs, strict=False) if x is not None}
        call = Call(opdef, 0, given, opdef.bind_attrs(attrs)).as_dtype(dtype)
        types = {slot: t for slot, (t,) in inferred_types(call).items() if wanted is None or slot in wanted}
        ins = {s.name: call.inputs[s.name][0] if s.name in call.inputs else None for s in opdef.inputs}
        outs = {s.name: types.get(s.name) for s in opdef.outputs}
        bound = Bound(opdef.gpu_bind, ins, outs, call.attrs, in_place, device=device, unread=opdef.unread([*types]))
        noted.append((bound, call, wanted, {float64: 1e-14, float32: 1e-6, float16: 1e-3}[dtype], size))

    yield note
    build([kernel for bound, *_ in noted for kernel in bound.kernels])
    for bound, call, wanted, unit, size in noted:
        found, fault = bound.run()
        exact = {s: x for s, (x,) in apply(call.opdef.reference, call.as_dtype(float64)).items()}
        assert not fault.any()
        found = {s: x for s, x in found.items() if x is not None}
        assert found.keys() == (exact.keys() if wanted is None else set(wanted))
        for slot, x in found.items():
            if x.dtype.kind in "iub":
                np.testing.assert_array_equal(x, exact[slot])
            else:
                np.testing.assert_allclose(x.astype(float), exact[slot], rtol=2 * unit, atol=unit * size, err_msg=slot)


AXES = [
    ((3000, 5), (0,)), ((1, 20001), (1,)), ((2, 3000, 7), (1,)), ((7, 2, 3000), (0, 2)), ((33, 1025), (1,)),
    ((300, 260), (0,)), ((3, 5001), (1,)), ((2, 2100, 12), (1,)), ((40, 3, 50), (0, 1)), ((600, 4, 3), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_reductions(check, shape, axis, rng):
    x = rng.normal(size=shape)
    size = np.abs(x).sum(axis=axis).max()
    for dtype in (float64, float16):
        check("reduce_sum", (x,), {"axis": axis}, dtype, size=size)
        check("reduce_max", (x,), {"axis": axis, "keepdim": True}, dtype)
    check("reduce_mean", (x,), {"axis": axis}, float32)
    check("reduce_prod", (1 + 0.01 * x,), {"axis": axis}, size=1000)
    check("reduce_sum", (rng.integers(-99, 99, shape).astype("int8"),), {"axis": axis})
    check("reduce_min", (rng.random(shape) < 0.9,), {"axis": axis})


@pytest.mark.parametrize(("shape", "axis"), [case for case in AXES if len(case[1]) == 1])
def test_positions_and_running_sums(check, shape, axis, rng):
    x = np.round(rng.normal(size=shape), 1)  # with equal elements
    for name in ("arg_max", "arg_min"):
        check(name, (x,), {"axis": axis[0]}, float32)
        with_nan = x.copy()
        with_nan.reshape(-1)[x.size // 2 :: 97] = np.nan
        check(name, (with_nan,), {"axis": axis[0]})
    for exclusive in (False, True):
        for reverse in (False, True):
            attrs = {"axis": axis[0], "exclusive": exclusive, "reverse": reverse}
            check("cumsum", (x,), attrs, size=np.abs(x).sum(axis).max())
            check("cumsum", (rng.integers(-9, 9, shape),), attrs)


@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_gradients_of_reductions(check, shape, axis, rng):
    x, d = rng.normal(size=shape), rng.normal(size=np.sum(np.zeros(shape), axis).shape)
    check("reduce_max_grad", (np.round(x), np.round(x).max(axis), d), {"axis": axis})
    check("reduce_prod_grad", (1 + 0.01 * x, d), {"axis": axis}, size=1000)
    narrow = tuple(1 if i in axis else s for i, s in enumerate(shape))
    size = 4 * np.prod([shape[a] for a in axis])
    for dtype in (float64, float16):
        check("elementwise_mul_grad", (x, rng.normal(size=narrow), rng.normal(size=shape)), {}, dtype, size=size)


ROWS = [
    ((5, 10), 1, WIDE), ((3, 1001), -1, WIDE), ((2, 4096), -1, WIDE), ((3, 26001), -1, WIDE), ((3, 26001), -1, NARROW),
    ((2, 50, 40), 1, WIDE), ((1, 300, 3), 1, WIDE), ((3, 5, 64), 1, WIDE), ((200, 129), 0, WIDE), ((1, 1), 0, WIDE),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "row"), checkered([float64, float16], ROWS), ids=str)
def test_softmax_and_cross_entropy(check, row, dtype, rng):
    shape, axis, device = row
    x, d, at = 3 * rng.normal(size=shape), rng.normal(size=shape), {"axis": axis}
    row = tuple(1 if i == axis % len(shape) else s for i, s in enumerate(shape))
    label = rng.integers(0, shape[axis], row)
    label.reshape(-1)[-1] = -100
    soft = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    check("softmax", (x,), at, dtype, device, in_place={"Out": "X"})
    check("log_softmax", (x,), at, dtype, device)
    check("softmax_grad", (soft, d), at, dtype, device, in_place={"X_grad": "Out_grad"})
    check("log_softmax_grad", (np.log(soft), d), at, dtype, device, size=10)
    check("softmax_with_cross_entropy", (x, label), at, dtype, device, in_place={"Softmax": "Logits"}, size=10)
    check("softmax_with_cross_entropy", (x, label), at, dtype, device, wanted=["Loss"], size=10)
    check("softmax_with_cross_entropy", (x, label), at, dtype, device, wanted=["Softmax"])
    attrs = {"soft_label": True, **at}
    check("softmax_with_cross_entropy", (x, soft), attrs, dtype, device, size=30)
    loss_grad = rng.normal(size=row)
    check("softmax_with_cross_entropy_grad", (label, soft, loss_grad), at, dtype, device)
    check("softmax_with_cross_entropy_grad", (soft, soft, loss_grad), attrs, dtype, device)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e38])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_rows_of_special_values(check, value, axis, dtype, rng):
    x = rng.normal(size=(4, 6))
    x[0, 1] = value
    x[1, :] = x[:, 3] = value
    check("softmax", (x,), {"axis": axis}, dtype)
    check("log_softmax", (x,), {"axis": axis}, dtype)
    label = rng.integers(0, x.shape[axis], (1, 6) if axis == 0 else (4, 1))
    check("softmax_with_cross_entropy", (x, label), {"axis": axis}, dtype)


POWERS = """
extern "C" __global__ void powers(const float* x, float* y, i64 n) {
    const i64 i = i64(blockIdx.x) * 32 + threadIdx.x;
    if (i < n) y[i] = exponential(x[i]);
}
"""


def test_powers_of_e_in_float_keep_what_a_rounded_product_leaves_out(rng):
    some = -np.abs(rng.normal(size=3000) * 20)
    x = np.concatenate((some, [0, -86, -1e-8, -104, -1e38, -np.inf, np.nan])).astype("f4")
    source = full_source("rows/scores.cuh", (("T", "float"), ("C", "float"))) + POWERS

    def bind(binder, ins, outs, attrs):
        binder.launch_source(source, "powers", -(-x.size // 32), 32, ins["X"], outs["Y"], i64(x.size))

    found = run_bind(bind, {"X": x}, {"Y": TensorType(x.shape, float32)}, {})[0]["Y"]
    exact, normal = np.exp(x.astype(float)), x > -87
    np.testing.assert_allclose(found[normal], exact[normal], rtol=3e-7)
    assert found[3000] == 1
    np.testing.assert_array_equal(found[-4:], [0, 0, 0, np.nan])


def test_impossible_class_of_weight_zero(check, rng):
    x, weights = rng.normal(size=(3, 5)), rng.random((3, 5))
    x[0, 2], weights[0, 2] = -np.inf, 0
    check("softmax_with_cross_entropy", (x, weights), {"soft_label": True})


@pytest.mark.parametrize("label", [-1, 7, 2**40])
def test_wrong_label_is_reported_and_its_row_is_left_out(label, rng):
    x = rng.normal(size=(4, 7))
    labels = np.array([[1], [2], [label], [6]])
    for name, inputs in (
        ("softmax_with_cross_entropy", (x, labels)),
        ("softmax_with_cross_entropy_grad", (labels, x, np.ones((4, 1)))),
    ):
        opdef = OPS[name]
        outs = {s.name: None for s in opdef.outputs}
        names = [s.name for s in opdef.inputs]
        good = np.where(labels == label, -100, labels)
        exact = opdef.reference(*[good if i is labels else i for i in inputs], **opdef.bind_attrs({}))
        exact = exact if isinstance(exact, tuple) else (exact,)
        outs |= {s.name: type_of(e) for s, e in zip(opdef.outputs, exact, strict=True)}
        found, fault = run_bind(opdef.gpu_bind, dict(zip(names, inputs, strict=True)), outs, opdef.bind_attrs({}))
        assert fault[0] == 1
        assert fault[2:].tolist() == [label, 2]
        for slot, e in zip(opdef.outputs, exact, strict=True):
            np.testing.assert_allclose(found[slot.name], e, rtol=1e-13, atol=1e-13)


LAYERS = (40, 7), (33, 256), (70, 600), (9, 1024), (5, 4100), (3, 8192), (2, 17000), (400, 40), (5, 1001)


@pytest.mark.parametrize(
    ("dtype", "rows", "n"),
    graded(
        ((dtype, *sizes) for dtype in (float64, float32, float16) for sizes in LAYERS),
        now=lambda dtype, rows, n: dtype == float32 or n in (7, 600, 1001, 4100),
    ),
    ids=str,
)
def test_layer_norm(check, dtype, rows, n, rng):
    x, d, device = 2 * rng.normal(size=(rows, n)) + 1, rng.normal(size=(rows, n)), Device(multiprocessors=2)
    scale, bias, mean, variance = rng.normal(size=n), rng.normal(size=n), x.mean(1), x.var(1)
    check("layer_norm", (x, scale, bias), {}, dtype, device, size=10)
    check("layer_norm", (x,), {}, dtype, device, wanted=["Y"], size=10)
    whole = (x, mean, variance, d, scale, bias)
    check("layer_norm_grad", whole, {}, dtype, device, size=10 + 4 * rows)
    check("layer_norm_grad", whole, {}, dtype, device, wanted=["X_grad"], size=10)
    check("layer_norm_grad", whole, {}, dtype, device, wanted=["Scale_grad"], size=10 + 4 * rows)
    statistics = rng.normal(size=rows), rng.normal(size=rows)
    check("layer_norm_grad", (x, mean, variance, d, None, None, *statistics), {}, dtype, device, size=10)


def test_integer_power_that_is_negative_is_reported():
    attrs = OPS["elementwise_pow"].bind_attrs({})
    x, y = np.array([[3, 2], [-2, 5]]), np.array([2, -1])
    bind = OPS["elementwise_pow"].gpu_bind
    out, fault = run_bind(bind, {"X": x, "Y": y}, {"Out": type_of(x)}, attrs)
    assert fault[0] == 1
    assert fault[2:].tolist() == [-1, 1]
    assert out["Out"][:, 0].tolist() == [9, 4]


@pytest.mark.parametrize("n", [50, 300])
def test_a_fused_gradient_rounds_no_worse(n, rng):
    """Over many rows the errors of layer_norm_grad are as large in a fused kernel as in its own."""
    x, d = (rng.uniform(-1.5, 1.5, (20000 // n, n)).astype(float32) for _ in range(2))
    scale = rng.uniform(-1.5, 1.5, n).astype(float32)
    mean, variance = x.mean(axis=1), x.var(axis=1)
    opdef, attrs = OPS["layer_norm_grad"], {"begin_norm_axis": 1, "epsilon": 1e-5}
    ins = {"X": x, "Mean": mean, "Variance": variance, "Y_grad": d, "Scale": scale, "Bias": scale}
    types = [type_of(v) for v in (x, scale, scale)]
    outs = dict(zip(("X_grad", "Scale_grad", "Bias_grad"), types, strict=True))
    alone, _ = run_bind(opdef.gpu_bind, ins, outs, attrs)
    slots = ", ".join(f"{slot}=x{i}" for i, slot in enumerate(ins))
    body = {"body": (f"y0, y1, y2 = layer_norm_grad({slots}) {{epsilon=1e-05}}",)}
    fused, _ = run_bind(OPS["fused_elementwise"].gpu_bind, {"X": [*ins.values()]}, {"Out": types}, body)
    exact, _, _ = opdef.reference(*(v.astype(float64) for v in ins.values()), **attrs, needs={"X_grad"})
    peaks = np.abs(exact).max(axis=1, keepdims=True)
    before, after = (np.sqrt(np.mean(((v - exact) / peaks) ** 2)) for v in (alone["X_grad"], fused["Out"][0]))
    assert 0 < after < 1.03 * before
