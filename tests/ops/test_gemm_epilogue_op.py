"""fused_gemm_epilogue and its gradient against formulas: transposes, ranks, activations, types, partial outputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import minigraph.ops  # noqa: F401
from minigraph.errors import MinigraphError, ShapeError
from minigraph.opdef import OPS
from minigraph.ops.matmul.gemm_epilogue import (
    fused_gemm_epilogue,
    fused_gemm_epilogue_grad,
    pack_mask,
    unpack_mask,
)
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.runtime.executor import Executor
from minigraph.types import float16, float64, tensor_type


def erf_gelu(z):
    return z * np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))), otypes=[float64])(z)


def tanh_gelu(z):
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


FORMULAS = {
    ("none", False): lambda z: z, ("relu", False): lambda z: np.where(z > 0, z, 0.0), ("gelu", False): erf_gelu,
    ("gelu", True): tanh_gelu,
}  # fmt: skip
TOLERANCES = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3}


def call(op_type, dtype, needs, arrays, **attrs):
    """Run one operator through a Program; {output slot: array}."""
    program, feeds = Program(), {}
    block = program.global_block()
    for slot, array in arrays.items():
        array = array.astype(dtype) if array.dtype.kind == "f" else array
        block.create_var(slot, type=tensor_type(array.shape, array.dtype), is_data=True)
        feeds[slot] = array
    outs = Builder(block).emit(op_type, needs=needs, **{s: block.var(s) for s in arrays}, **attrs)
    fetched = Executor().run(program, feed=feeds, fetch_list=[v for v in outs if v is not None])
    slots = [s for s, v in zip(block.ops[0].opdef.output_names, outs, strict=True) if v is not None]
    return dict(zip(slots, fetched, strict=True))


@pytest.mark.parametrize(("activation", "approximate"), FORMULAS)
@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "trans_x", "trans_y"),
    [((8, 4), False, False), ((4, 8), True, False), ((8, 4), False, True), ((4, 8), True, True),
     ((2, 2, 8, 4), False, False), ((2, 3, 4), False, True), ((1, 4), False, False), ((0, 4), False, False)],
)  # fmt: skip
def test_forward_op(activation, approximate, reserve, x_shape, trans_x, trans_y):
    for dtype, columns in itertools.product(TOLERANCES, (128, 3, 1)):
        check_forward(dtype, activation, approximate, reserve, x_shape, trans_x, trans_y, columns)


def check_forward(dtype, activation, approximate, reserve, x_shape, trans_x, trans_y, columns):
    rng = np.random.default_rng(3)
    X, Y, Bias = rng.normal(size=x_shape), rng.normal(size=(4, columns)) / 2, rng.normal(size=columns)
    X, Y, Bias = (a.astype(float16).astype(float64) for a in (X, Y, Bias))
    arrays = {"X": X, "Y": Y.T if trans_y else Y, "Bias": Bias}
    needs = ["ReserveSpace"] if reserve else ()
    found = call("fused_gemm_epilogue", dtype, needs, arrays, trans_x=trans_x, trans_y=trans_y,
                 activation=activation, approximate=approximate)  # fmt: skip
    z = (X.T if trans_x else X) @ Y + Bias
    tolerance = TOLERANCES[dtype] * max(1.0, np.max(np.abs(z), initial=0.0))
    np.testing.assert_allclose(found["Out"], FORMULAS[activation, approximate](z), rtol=0, atol=tolerance)
    assert ("ReserveSpace" in found) == (reserve and activation != "none")
    if reserve and activation == "gelu":
        np.testing.assert_allclose(found["ReserveSpace"], z, rtol=0, atol=tolerance)
    if reserve and activation == "relu":
        mask = found["ReserveSpace"]
        assert mask.dtype == np.uint8 and mask.shape == (*z.shape[:-1], 16 * -(-columns // 128))
        clear = np.abs(z) > tolerance
        np.testing.assert_array_equal(unpack_mask(mask, columns)[clear], (z > 0)[clear])
        assert not np.unpackbits(mask, axis=-1, bitorder="little")[..., columns:].any()


SLOPES = {"none": (False,), "relu_grad": (False,), "gelu_grad": (False, True)}
NEEDS = (
    ("DX", "DY", "DBias", "DXSums"), ("DXSums",), ("DX", "DY", "DBias"), ("DY", "DBias"), ("DY",), ("DX", "DY"),
    ("DX",), ("DBias",),
)  # fmt: skip


@pytest.mark.parametrize(("activation_grad", "approximate"), [(a, b) for a, bs in SLOPES.items() for b in bs])
@pytest.mark.parametrize(
    ("rank", "trans_x", "trans_y"),
    [(2, False, False), (2, True, False), (2, False, True), (2, True, True), (3, False, False), (4, False, True)],
)
def test_grad_op(activation_grad, approximate, rank, trans_x, trans_y):
    for dtype, needs in itertools.product(TOLERANCES, NEEDS):
        check_grad(dtype, needs, activation_grad, approximate, rank, trans_x, trans_y)


def check_grad(dtype, needs, activation_grad, approximate, rank, trans_x, trans_y):
    rng = np.random.default_rng(5)
    rows = {2: (6,), 3: (2, 3), 4: (1, 2, 3)}[rank]
    X, Y, DOut = (rng.normal(size=s).astype(float16).astype(float64) for s in ((*rows, 5), (5, 7), (*rows, 7)))
    Z = rng.normal(size=(*rows, 5)).astype(float16).astype(float64)
    if activation_grad == "relu_grad":
        slope, reserve = (Z > 0).astype(float64), Z > 0
    else:
        eps, form = 1e-6, tanh_gelu if approximate else erf_gelu
        slope, reserve = (form(Z + eps) - form(Z - eps)) / (2 * eps), Z
    if activation_grad == "none":
        slope = np.ones_like(Z)
    DX = slope * (DOut @ Y.T)
    DY = X.reshape(-1, 5).T @ DOut.reshape(-1, 7)
    DBias = DOut.reshape(-1, 7).sum(axis=0)
    expected = {"DX": DX.T if trans_x else DX, "DY": DY.T if trans_y else DY, "DBias": DBias}
    expected["DXSums"] = expected["DX"].reshape(-1, expected["DX"].shape[-1]).sum(axis=0)
    arrays = {"DOut": DOut, "X": X.T.copy() if trans_x else X, "Y": Y.T.copy() if trans_y else Y}
    if activation_grad != "none":
        reserve = np.ascontiguousarray(reserve.T) if trans_x else reserve
        arrays["ReserveSpace"] = pack_mask(reserve) if activation_grad == "relu_grad" else reserve
    found = call("fused_gemm_epilogue_grad", dtype, needs, arrays, trans_x=trans_x, trans_y=trans_y,
                 activation_grad=activation_grad, approximate=approximate)  # fmt: skip
    assert tuple(found) == needs
    noise = 1e-9 if activation_grad == "gelu_grad" else 0.0  # of the difference quotient
    for slot, array in found.items():
        tolerance = max(TOLERANCES[dtype], noise) * max(1.0, np.max(np.abs(expected[slot])))
        np.testing.assert_allclose(array, expected[slot], rtol=0, atol=tolerance, err_msg=slot)


@pytest.mark.parametrize(("x", "y", "b"), [((3, 0), (0, 2), 2), ((2, 3, 0), (0, 2), 2), ((3, 4), (4, 0), 0)])
def test_zero_sizes(x, y, b):
    arrays = {"X": np.ones(x), "Y": np.ones(y), "Bias": np.ones(b)}
    out = call("fused_gemm_epilogue", "float64", ["ReserveSpace"], arrays, activation="relu")["Out"]
    np.testing.assert_array_equal(out, np.ones((*x[:-1], b)))
    arrays = {"DOut": out, "X": np.ones(x), "Y": np.ones(y)}
    grads = call("fused_gemm_epilogue_grad", "float64", ["DX", "DY", "DBias"], arrays)
    assert [grads[s].shape for s in ("DX", "DY", "DBias")] == [x, y, (b,)]
    np.testing.assert_array_equal(grads["DBias"], np.full(b, float(np.prod(x[:-1]))))


def test_nan_passes_through_relu():
    """cuBLASLt's epilogue would turn it into 0 and hide a divergence."""
    arrays = {"X": np.array([[np.nan, 1.0]]), "Y": np.eye(2), "Bias": np.zeros(2)}
    out = call("fused_gemm_epilogue", "float32", (), arrays, activation="relu")["Out"]
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("shapes", "attrs", "fact"),
    [
        (((2, 3), (3, 4), (5,)), {}, "Bias has 5 elements, Y has 4 columns"),
        (((2, 3), (4, 5), (5,)), {}, "inner sizes differ"),
        (((2, 3), (1, 3, 4), (4,)), {}, "Y must be 2-D"),
        (((3,), (3, 4), (4,)), {}, "X must have rank 2 or more"),
        (((2, 3), (3, 4), (2, 4)), {}, r"Bias must be \[N\] or \[1, N\]"),
        (((2, 3), (3, 4), ()), {}, r"Bias must be \[N\] or \[1, N\]"),
        (((2, 3, 4), (4, 4), (4,)), {"trans_x": True}, "inner sizes differ: X axis 0 is 2, Y axis 0 is 4"),
        (((2, 3, 4), (4, 3), (4,)), {"trans_x": True, "trans_y": True}, "X axis 0 is 2, Y axis 1 is 3"),
        (((2, 3), (3, 4), (4,)), {"activation": "tanh"}, "is not none, relu or gelu"),
    ],
)
def test_bad_calls_are_refused_when_built(shapes, attrs, fact):
    arrays = {slot: np.zeros(s) for slot, s in zip(("X", "Y", "Bias"), shapes, strict=True)}
    with pytest.raises(MinigraphError, match=fact):
        call("fused_gemm_epilogue", "float32", (), arrays, **attrs)


def test_an_output_that_was_made_without_a_shape_is_refused_with_the_shape():
    """Paddle sets it when the operator is appended; types do not change here."""
    block = Program().global_block()
    inputs = {"X": block.create_var("X", [2, 3], "float32"), "Y": block.create_var("Y", [3, 4], "float32")}
    inputs["Bias"], out = block.create_var("Bias", [4], "float32"), block.create_var("Out", dtype="float32")
    with pytest.raises(ShapeError, match=r"does not fit[^?]*hint: create_var\(shape=\[2, 4\], \.\.\.\)"):
        block.append_op("fused_gemm_epilogue", inputs, {"Out": out})


def test_masks_and_pre_activations_are_not_mixed_up():
    """ReserveSpace is typed: relu's mask cannot feed gelu's gradient, nor the other way round."""
    d, x, y = np.zeros((4, 6)), np.zeros((4, 8)), np.zeros((8, 6))
    for kind, reserve in (("gelu_grad", pack_mask(x > 0)), ("relu_grad", x)):
        with pytest.raises(ShapeError, match="ReserveSpace of"):
            call("fused_gemm_epilogue_grad", "float64", ["DX"], {"DOut": d, "X": x, "Y": y, "ReserveSpace": reserve},
                 activation_grad=kind)  # fmt: skip


def test_relu_gradient_in_the_epilogue_is_exact_for_infinite_values():
    """As relu_grad: what the mask drops is 0, also where the product is infinite."""
    mask = pack_mask(np.array([[True, False, False]]))
    inputs = np.array([[np.inf]]), np.ones((1, 3)), np.ones((3, 1)), mask
    DX, *_ = OPS["fused_gemm_epilogue_grad"](*inputs, activation_grad="relu_grad", needs=("DX",))
    assert np.array_equal(DX, [[np.inf, 0.0, 0.0]])


@pytest.mark.parametrize("trans_y", [False, True])
def test_with_trans_x_all_axes_but_the_first_are_rows(trans_y, rng):
    """Paddle's case MTM of its unit test of this operator: X [4, 2, 2, 8] gives [2, 2, 8, 128]."""
    x, y, b = rng.normal(size=(4, 2, 2, 8)), rng.normal(size=(4, 128)), rng.normal(size=128)
    arrays = {"X": x, "Y": y.T if trans_y else y, "Bias": b}
    out, _ = fused_gemm_epilogue.reference(*arrays.values(), trans_x=True, trans_y=trans_y, activation="relu")
    exact = np.maximum(np.einsum("kabc,kn->abcn", x, y) + b, 0)
    np.testing.assert_allclose(out, exact, rtol=1e-12, atol=1e-12)
    d = rng.normal(size=exact.shape)
    dx, dy, db, _ = fused_gemm_epilogue_grad.reference(d, x, arrays["Y"], trans_x=True, trans_y=trans_y)
    np.testing.assert_allclose(dx, np.einsum("abcn,kn->kabc", d, y), rtol=1e-12, atol=1e-12)
    exact = np.einsum("kabc,abcn->kn", x, d)
    np.testing.assert_allclose(dy, exact.T if trans_y else exact, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(db, d.sum((0, 1, 2)), rtol=1e-12, atol=1e-12)
