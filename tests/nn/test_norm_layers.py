"""Batch normalisation from step to step, and what norms refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import AttrError, MinigraphError, ShapeError
from minigraph.nn import functional as F

RNG = np.random.default_rng(3)
BATCHES = [RNG.normal(1.5, 2.0, size=(6, 3, 4)) for _ in range(4)]
MOMENTUM, EPSILON = 0.75, 1e-5


class Net:
    """A normalised batch, and its mean square times a weight, trained."""

    def __init__(self, dtype: str = "float64", evaluated: bool = False, **options: Any) -> None:
        mg.set_default_dtype("float64" if dtype == "float64" else "float32")
        self.main, self.startup = static.Program(), static.Program()
        self.dtype, self.scope = dtype, static.Scope()
        with mg.base.unique_name.guard(), static.program_guard(self.main, self.startup):
            x = static.data("x", [None, 3, 4], dtype)
            self.layer = nn.BatchNorm1D(3, MOMENTUM, EPSILON, **options)
            if evaluated:
                self.layer.eval()
            self.out = self.layer(x)
            self.loss = mg.mean(mg.square(mg.cast(self.out, "float64") + 0.25))
            self.test = self.main.clone(for_test=True)
            mg.optimizer.SGD(0.5).minimize(self.loss)
        self.exe = static.Executor(mg.CPUPlace())
        self.exe.run(self.startup, scope=self.scope)

    def run(self, program: Any, batch: np.ndarray) -> np.ndarray:
        return self.exe.run(program, feed={"x": batch.astype(self.dtype)}, fetch_list=[self.out], scope=self.scope)[0]

    def kept(self) -> tuple[np.ndarray, np.ndarray]:
        values = self.main.state_dict(scope=self.scope)
        return values[self.layer._mean.name], values[self.layer._variance.name]


def normal(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return (x - mean[:, None]) / np.sqrt(variance[:, None] + EPSILON)


@pytest.mark.parametrize("fused", [False, True])
def test_running_averages(fused: bool) -> None:
    net = Net()
    program: Any = net.main
    if fused:
        program = static.CompiledProgram(net.main, build_strategy=static.BuildStrategy.all())
    mean, variance = np.zeros(3), np.ones(3)
    weight, bias = np.ones(3), np.zeros(3)
    for batch in BATCHES:
        m, v = batch.mean((0, 2)), batch.var((0, 2))
        h = normal(batch, m, v)
        expected = h * weight[:, None] + bias[:, None]
        np.testing.assert_allclose(net.run(program, batch), expected, rtol=1e-11, atol=1e-12)
        mean, variance = MOMENTUM * mean + (1 - MOMENTUM) * m, MOMENTUM * variance + (1 - MOMENTUM) * v
        slope = 2 * (expected + 0.25) / batch.size
        weight, bias = weight - 0.5 * (slope * h).sum((0, 2)), bias - 0.5 * slope.sum((0, 2))
        np.testing.assert_allclose(net.kept(), (mean, variance), rtol=1e-12)


def test_a_test_clone_uses_the_averages_and_leaves_them() -> None:
    net = Net()
    for batch in BATCHES:
        net.run(net.main, batch)
    before = net.kept()
    values = net.main.state_dict(scope=net.scope)
    weight, bias = (values[p.name] for p in (net.layer.weight, net.layer.bias) if p is not None)
    for _ in range(2):
        found = net.run(net.test, BATCHES[0])
        expected = normal(BATCHES[0], *before) * weight[:, None] + bias[:, None]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(net.kept(), before)


def test_eval_and_global_statistics_leave_the_averages() -> None:
    for options in ({"use_global_stats": True}, {"evaluated": True}):
        net = Net(**options)
        found = net.run(net.main, BATCHES[0])
        np.testing.assert_allclose(found, BATCHES[0] / np.sqrt(1 + EPSILON), rtol=1e-12)
        np.testing.assert_array_equal(net.kept(), (np.zeros(3), np.ones(3)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_16_bits_have_statistics_of_32(dtype: str) -> None:
    net, exact = Net(dtype), BATCHES[0] + 30  # a mean of 30 leaves few bits for the differences
    found = net.run(net.main, exact)
    x = exact.astype(mg.types.as_dtype(dtype)).astype("float64")
    expected = normal(x, x.mean((0, 2)), x.var((0, 2)))
    assert found.dtype == mg.types.as_dtype(dtype)
    assert net.kept()[0].dtype == np.float32
    error = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(found.astype("float64"), expected, atol=error)


def test_averages_are_not_trained_and_stand_in_the_state() -> None:
    net = Net()
    assert list(net.layer.state_dict()) == ["weight", "bias", "_mean", "_variance"]
    assert not net.layer._mean.trainable
    assert all(v.persistable for v in net.layer.state_dict().values())
    with static.scope_guard(net.scope):
        net.layer.set_state_dict({"_mean": np.full(3, 2.0)})
    np.testing.assert_array_equal(net.kept()[0], np.full(3, 2.0))


def test_spectral_norm_divides_by_the_largest_singular_value() -> None:
    mg.set_default_dtype("float64")
    matrix = RNG.normal(size=(4, 2, 3))
    for dim in (0, 1):
        main, startup = static.Program(), static.Program()
        main.random_seed = startup.random_seed = 3
        with static.program_guard(main, startup):
            x = static.data("x", matrix.shape, "float64")
            x.stop_gradient = False
            out = static.nn.spectral_norm(x, dim=dim, power_iters=200)
            weights = RNG.normal(size=matrix.shape)
            (grad,) = static.gradients([mg.sum(out * weights)], [x])
        exe = static.Executor(mg.CPUPlace())
        exe.run(startup)
        value, slope = exe.run(main, feed={"x": matrix}, fetch_list=[out, grad])
        rows = np.moveaxis(matrix, dim, 0).reshape(matrix.shape[dim], -1)
        u, s, v = np.linalg.svd(rows, full_matrices=False)
        np.testing.assert_allclose(value, matrix / s[0], rtol=1e-10)
        outer = np.moveaxis(np.outer(u[:, 0], v[0]).reshape(np.moveaxis(matrix, dim, 0).shape), 0, dim)
        exact = weights / s[0] - np.sum(weights * matrix) / s[0] ** 2 * outer
        np.testing.assert_allclose(slope, exact, rtol=1e-8, atol=1e-10)


def layers() -> Any:
    x = static.data("x", [None, 4, 3])
    running = static.data("r", [5])
    yield ShapeError, "rank 4, is", lambda: nn.BatchNorm2D(4)(x)
    yield ShapeError, "rank 3, is", lambda: nn.InstanceNorm1D(4)(static.data("y", [2, 4]))
    yield ShapeError, "one element for each of the channels", lambda: F.batch_norm(x, running, running)
    yield AttrError, "data_format 'NXC' is none", lambda: F.batch_norm(x, running, running, data_format="NXC")
    yield AttrError, "epsilon must be positive", lambda: F.batch_norm(x, running, running, epsilon=0.0)
    yield MinigraphError, "momentum must be a number", lambda: nn.BatchNorm1D(4, momentum=x)(x)
    yield AttrError, r"momentum must lie in \[0, 1\]", lambda: nn.BatchNorm1D(4, momentum=2.0)(x)
    yield ShapeError, "no channels in 3 groups", lambda: nn.GroupNorm(3, 4)(x)
    yield AttrError, "data_layout 'NC' is not", lambda: static.nn.batch_norm(x, data_layout="NC")
    yield AttrError, "activation of batch_norm 'rely' does not exist", lambda: static.nn.batch_norm(x, act="rely")
    yield AttrError, "must both be False", lambda: static.nn.instance_norm(x, param_attr=False)
    yield ShapeError, "must be known", lambda: static.nn.layer_norm(x, begin_norm_axis=0)
    yield AttrError, "dim 2 is not 0 or 1", lambda: static.nn.spectral_norm(running.reshape([5, 1]), dim=2)
    yield AttrError, "mode 'some' is not", lambda: static.nn.prelu(x, "some")
    yield AttrError, "prelu needs a weight", lambda: static.nn.prelu(x, "all", param_attr=False)
    yield ShapeError, "must be 2-D", lambda: static.nn.bilinear_tensor_product(x, x, 2)
    yield AttrError, r"size must be \[rows, width\]", lambda: static.nn.embedding(x, [3])


def test_slopes_of_prelu_have_paddles_shapes() -> None:
    mg.set_default_dtype("float32")
    with static.program_guard(static.Program("slopes"), static.Program()):
        x, y = static.data("x", [None, 3, 4, 5]), static.data("y", [None, 3])
        static.nn.prelu(x, "all")
        static.nn.prelu(x, "channel")
        static.nn.prelu(x, "channel", data_format="NHWC")
        static.nn.prelu(x, "element")
        static.nn.prelu(y, "channel")
        shapes = [p.shape for p in static.default_main_program().all_parameters()]
    assert shapes == [(1,), (1, 3, 1, 1), (1, 1, 1, 5), (1, 3, 4, 5), (1, 3)]


@pytest.mark.parametrize("number", range(17))
def test_what_does_not_fit_is_refused(number: int) -> None:
    mg.set_default_dtype("float32")
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        error, message, call = list(layers())[number]
        with pytest.raises(error, match=message):
            call()
        assert main.ops == [] or main.ops[-1].type == "reshape"
