"""Operators on chosen values: limits, ties, NaN, nothing, ints."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.opdef import OPS
from minigraph.ops.elementwise.activation import LONG, positive_part
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support import gpu_stub, opcheck
from tests.support.halves import LARGE, ROUNDED
from tests.support.opcheck import Call, run_op


def gradients_of(op_type, *inputs, **attrs):
    """Gradients of the sum of the output for all inputs."""
    call = Call(OPS[op_type], 0, {}, OPS[op_type].bind_attrs(attrs))
    for slot, x in zip(OPS[op_type].inputs, inputs, strict=True):
        call.inputs[slot.name] = [np.asarray(x)]
    ones = {s: [np.ones(t.shape) for t in ts] for s, ts in opcheck.inferred_types(call).items()}
    return opcheck.program_gradients(call, ones, call.float_places)


@pytest.mark.parametrize("op_type", ["relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "softplus"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_activations_at_large_values(op_type, dtype):
    x = np.array([-1e4, -800, -90, 90, 800, 1e4], dtype)
    y = OPS[op_type].reference(x)  # without a warning: the test run turns warnings into errors
    grad_op = OPS[f"{op_type}_grad"]
    slopes = grad_op.reference(y if grad_op.input_names[0] == "Out" else x, np.ones_like(x))
    low, high = {
        "tanh": ([-1] * 3, [1] * 3), "sigmoid": ([0] * 3, [1] * 3), "leaky_relu": (x[:3] * x.dtype.type(0.02), x[3:]),
    }.get(op_type, ([0] * 3, x[3:]))  # fmt: skip
    np.testing.assert_allclose(y, [*low, *high], rtol=1e-15, atol=1e-35)
    slope = {"tanh": [0] * 6, "sigmoid": [0] * 6, "leaky_relu": [x.dtype.type(0.02)] * 3 + [1] * 3}
    np.testing.assert_allclose(slopes, slope.get(op_type, [0] * 3 + [1] * 3), rtol=1e-15, atol=1e-35)


def test_sigmoid_keeps_its_tail():
    np.testing.assert_allclose(run_op("sigmoid", [-40.0, -700.0]), np.exp([-40.0, -700.0]), rtol=1e-13)
    np.testing.assert_allclose(run_op("softplus", [-40.0, 40.0]), [np.exp(-40.0), 40.0], rtol=1e-13)


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [("relu", {}), ("leaky_relu", {}), ("gelu", {}), ("clip", {"min": 0.0, "max": 1.0}), ("reduce_max", {}),
     ("reduce_min", {}), ("reduce_sum", {}), ("sign", {}), ("abs", {}), ("cumsum", {})],
)  # fmt: skip
def test_nan_goes_through(op_type, attrs):
    assert np.isnan(run_op(op_type, [np.nan, 1.0], **attrs)).any()


def test_nan_wins_in_max_and_min():
    for op_type in ("elementwise_max", "elementwise_min"):
        assert np.isnan(run_op(op_type, [np.nan, 1.0], [1.0, np.nan])).all()


def test_relu_grad_of_an_infinite_gradient_is_zero_where_relu_is():
    np.testing.assert_array_equal(run_op("relu_grad", [0.0, 2.0], [np.inf, 3.0]), [0, 3])
    np.testing.assert_array_equal(run_op("relu_grad", [0.0, 2.0], [np.nan, np.inf]), [0, np.inf])


def test_ties():
    for op_type in ("elementwise_max", "elementwise_min"):
        x_grad, y_grad = gradients_of(op_type, [1.0, 2.0], [1.0, 2.0])
        np.testing.assert_array_equal(x_grad, [0, 0])
        np.testing.assert_array_equal(y_grad, [1, 1])
    for op_type in ("reduce_max", "reduce_min"):
        (grad,) = gradients_of(op_type, [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]], axis=1)
        np.testing.assert_allclose(grad, np.full((2, 3), 1 / 3), rtol=1e-15)
        (grad,) = gradients_of(op_type, [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]], axis=1, share=False)
        np.testing.assert_array_equal(grad, np.ones((2, 3)))
    np.testing.assert_array_equal(gradients_of("relu", [0.0])[0], [0])
    np.testing.assert_array_equal(gradients_of("abs", [0.0])[0], [0])
    np.testing.assert_array_equal(gradients_of("clip", [0.0, 0.5, 1.0, 2.0], min=0.0, max=1.0)[0], [0, 1, 0, 0])


def test_pow_at_zero():
    x_grad, y_grad = gradients_of("elementwise_pow", [0.0, 0.0, 0.0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(x_grad, [0, 1, 0])
    np.testing.assert_array_equal(y_grad, [0, 0, 0])
    np.testing.assert_array_equal(gradients_of("pow", [0.0], factor=0.0)[0], [0])
    np.testing.assert_array_equal(gradients_of("pow", [0.0, -2.0], factor=2.0)[0], [0, -4])


def test_reduce_prod_gradient_with_zeros():
    np.testing.assert_array_equal(gradients_of("reduce_prod", [2.0, 0.0, 3.0])[0], [0, 6, 0])
    np.testing.assert_array_equal(gradients_of("reduce_prod", [2.0, 0.0, 0.0])[0], [0, 0, 0])


def test_reductions_of_nothing():
    empty = np.zeros((2, 0), "float32")
    np.testing.assert_array_equal(run_op("reduce_sum", empty, axis=[1]), np.zeros(2, "float32"))
    np.testing.assert_array_equal(run_op("reduce_prod", empty, axis=[1]), np.ones(2, "float32"))
    assert np.isnan(run_op("reduce_mean", empty)).all()
    assert run_op("reduce_max", empty, axis=[0]).shape == (0,)


def test_reductions_of_ints_and_truth():
    for dtype in ("bool", "int8", "int32", "int64", "uint8"):
        total = run_op("reduce_sum", np.ones(300, dtype))
        assert (total, total.dtype) == (300, np.int64)
    assert run_op("reduce_max", np.array([3, 7], "int8")).dtype == np.int8
    assert run_op("cumsum", np.array([3, 7], "int32")).dtype == np.int32


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("dtype", LARGE)
def test_round_takes_halves_away_from_zero(dtype, device, fused, monkeypatch):
    if device == "GPU":
        if gpu_stub.cuda_host.COMPILER is None:
            pytest.skip("kernels on a CPU need g++")
        for name in ("why_not", "device_count", "runtime", "device_array"):
            monkeypatch.setattr(mg.cuda, name, getattr(mg.cuda, name))  # put back afterwards
        gpu_stub.install()
    cases = {**ROUNDED, **LARGE[dtype], np.nan: np.nan}
    x = mg.static.data("x", [len(cases)], dtype)
    y = mg.round(x * 1.0) * 1.0
    program = mg.static.default_main_program()
    if fused:
        program = mg.static.CompiledProgram(program, mg.static.BuildStrategy(fuse_elementwise=True))
        assert [op.type for op in program.program_for([y.name]).ops] == ["fused_elementwise"]
    fed = np.array(list(cases)).astype(mg.types.as_dtype(dtype))
    place = mg.CPUPlace() if device == "CPU" else mg.CUDAPlace(0)
    (found,) = mg.static.Executor(place).run(program, {"x": fed}, [y])
    expected = np.array(list(cases.values())).astype(mg.types.as_dtype(dtype))
    np.testing.assert_array_equal(found.astype(float), expected.astype(float))
    kept = ~np.isnan(expected.astype(float))
    np.testing.assert_array_equal(np.signbit(found.astype(float))[kept], np.signbit(expected.astype(float))[kept])


def test_clip_and_scale_of_ints():
    np.testing.assert_array_equal(run_op("clip", np.array([-5, 0, 5]), min=-1.0, max=3.0), [-1, 0, 3])
    np.testing.assert_array_equal(run_op("scale", np.array([1, -2], "int32"), scale=-2.0, bias=5.0), [3, 9])


def test_second_order_through_a_chain():
    """d2/dx2 of sum(tanh(x^2) / x) by rules applied twice, against differences of the first derivative."""
    block = Program().global_block()
    g = Builder(block)
    x = block.create_var("x", [3], "float64", is_data=True)
    (first,) = gradients([g.elementwise_div(g.tanh(g.square(x)), x)], [x])
    (second,) = gradients([first], [x])
    exe, scope, at = Executor(), Scope(), np.array([0.3, -0.8, 1.1])

    def slope(value):
        return exe.run(block.program, {"x": value}, [first], scope=scope)[0]

    (found,) = exe.run(block.program, {"x": at}, [second], scope=scope)
    np.testing.assert_allclose(found, (slope(at + 1e-5) - slope(at - 1e-5)) / 2e-5, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, LONG - 1), (7, LONG), (2, 5, LONG + 9)])
def test_a_row_of_zeros_gives_the_bits_that_a_number_gives(shape, dtype):
    numbers = [1.5, -1.5, 0, 9] if dtype == "int64" else [np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf, 1.5, -1.5]
    x = np.asarray(np.random.default_rng(13).choice(numbers, shape), dtype)
    assert positive_part(x).tobytes() == np.maximum(x, x.dtype.type(0)).tobytes()
    if x.ndim:
        assert positive_part(x, out=x) is x


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_nextafter_is_one_unit_in_the_last_place(dtype, on_a_gpu, monkeypatch):
    if on_a_gpu:
        if gpu_stub.cuda_host.COMPILER is None:
            pytest.skip("kernels on a CPU need g++")
        gpu_stub.installed(monkeypatch)
    x = np.array([1.0, 1.0, 1.0, 0.0, -0.0, -2.0, np.inf, np.nan, 1.0, 3.0], dtype)
    y = np.array([2.0, -np.inf, 1.0, 1.0, -1.0, -1.0, 0.0, 0.0, np.nan, 3.0], dtype)
    a, b = (mg.static.data(name, [10], dtype) for name in "xy")
    place = mg.CUDAPlace(0) if on_a_gpu else mg.CPUPlace()
    found = mg.static.Executor(place).run(feed={"x": x, "y": y}, fetch_list=[mg.nextafter(a, b), a.nextafter(b)])
    for own in found:
        assert own.dtype == dtype
        np.testing.assert_array_equal(own, np.nextafter(x, y))
