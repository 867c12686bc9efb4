"""Softmax, cross entropy, layer normalisation and embedding: values, gradients and what they refuse."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from minigraph.errors import AttrError, DTypeError, KernelError, ShapeError
from minigraph.opdef import OPS
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support.opcheck import run_op


def run(build, feeds, frozen=(), types=None):
    """Values of the variables that build(g, **data variables) returns; names in `frozen` stop gradients."""
    block = Program().global_block()
    variables = {
        name: block.create_var(
            name, (types or {}).get(name, x.shape), x.dtype, is_data=True, stop_gradient=name in frozen
        )
        for name, x in feeds.items()
    }
    targets = build(Builder(block), **variables)
    return Executor().run(block.program, feeds, targets, scope=Scope())


def cross_entropy(logits, label, **attrs):
    """Softmax, Loss and the gradient of sum(Loss * weights), weights 1, 2, 3, ..."""

    def build(g, x, y):
        softmax, loss = g.softmax_with_cross_entropy(x, y, **attrs)
        weights = g.reshape(g.arange(start=1.0, end=loss.type.size + 1.0, dtype=x.dtype), shape=loss.shape)
        return softmax, loss, gradients([g.elementwise_mul(loss, weights)], [x])[0]

    return run(build, {"x": logits, "y": label})


def exact_loss(row, label):
    """log(sum(exp(row))) - row[label] in exact arithmetic up to the final logarithm."""
    highest = max(row)
    rest = sum(Fraction(math.exp(v - highest)) for v in row if v != highest)
    number = sum(v == highest for v in row)
    return (highest - row[label]) + math.log(number) + math.log1p(float(rest / number))


# Softmax


def test_softmax_of_large_scores():
    x = np.array([[1e4, 1e4 - 1, -1e4], [-1e308, 0, 1e308]])
    e = math.exp(-1)
    np.testing.assert_allclose(run_op("softmax", x), [[1 / (1 + e), e / (1 + e), 0], [0, 0, 1]], rtol=1e-15)
    np.testing.assert_allclose(
        run_op("log_softmax", x), [[-math.log1p(e), -1 - math.log1p(e), -2e4 - math.log1p(e)], [-2e308, -1e308, 0]],
        rtol=1e-15,
    )  # fmt: skip


@pytest.mark.parametrize("op_type", ["softmax", "log_softmax"])
def test_masked_rows(op_type):
    inf = math.inf
    found = run_op(op_type, np.array([[0.0, -inf, 0.0], [-inf, -inf, -inf], [1.0, math.nan, 0.0]]))
    half = {"softmax": [0.5, 0, 0.5], "log_softmax": [-math.log(2), -inf, -math.log(2)]}[op_type]
    np.testing.assert_allclose(found[0], half, rtol=1e-15)
    assert np.isnan(found[1:]).all(), "a row that is -inf throughout gives NaN, as in NumPy"


def test_softmax_second_derivative(rng):
    x, v, h = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), 1e-5

    def first(values, op_type):
        return run(lambda g, x, v: gradients([g.emit(op_type, x, axis=0)], [x], [v]), {"x": values, "v": v})[0]

    def second(g, x, v, op_type):
        (grad,) = gradients([g.emit(op_type, x, axis=0)], [x], [v])
        return gradients([g.elementwise_mul(grad, v)], [x])

    for op_type in ("softmax", "log_softmax"):
        (found,) = run(lambda g, x, v, op_type=op_type: second(g, x, v, op_type), {"x": x, "v": v})
        for at in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[at] = h
            slope = ((first(x + step, op_type) - first(x - step, op_type)) * v).sum() / (2 * h)
            assert found[at] == pytest.approx(slope, abs=1e-8)


# Cross entropy


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_loss_of_large_scores_is_exact(dtype):
    rows = [[1e4, -1e4, 0.0], [1e4, 1e4, 1e4 - 2], [-1e4, -1e4 + 30, -1e4], [3.0, 1.0, -2.0]]
    label = np.array([[1], [2], [0], [0]])
    softmax, loss, grad = cross_entropy(np.array(rows, dtype), label)
    expected = [[exact_loss(row, y[0])] for row, y in zip(rows, label, strict=True)]
    np.testing.assert_allclose(loss, expected, rtol=4 * np.finfo(dtype).eps)
    assert np.isfinite(grad).all()
    np.testing.assert_allclose(softmax.sum(axis=1), 1, rtol=4 * np.finfo(dtype).eps)


def test_masked_classes():
    logits = np.array([[0.0, -math.inf, 0.0]])
    _, loss, grad = cross_entropy(logits, np.array([[2]]))
    np.testing.assert_allclose(loss, [[math.log(2)]])
    np.testing.assert_allclose(grad, [[0.5, 0, -0.5]])
    assert cross_entropy(logits, np.array([[1]]))[1] == math.inf
    _, loss, grad = cross_entropy(logits, np.array([[0.25, 0.0, 0.75]]), soft_label=True)
    np.testing.assert_allclose(loss, [[math.log(2)]])
    np.testing.assert_allclose(grad, [[0.25, 0, -0.25]])


def test_an_infinite_gradient_of_the_loss_keeps_its_signs():
    """As an overflowed loss scale: (Softmax - one_hot) * Loss_grad, not one infinity less another."""
    feeds = {"y": np.array([[1], [-100]]), "p": np.full((2, 3), 0.25), "d": np.full((2, 1), math.inf)}
    (found,) = run(lambda g, y, p, d: [g.softmax_with_cross_entropy_grad(y, p, d)], feeds)
    assert found.tolist() == [[math.inf, -math.inf, math.inf], [0, 0, 0]]


@pytest.mark.parametrize("ignore_index", [-100, -1, 1, 7, 300])
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_ignored_rows(rng, ignore_index, axis):
    logits = rng.normal(size=(6, 4))
    label = np.array([0, ignore_index, 2, 3, ignore_index, 2])
    kept = label != ignore_index
    logits[1] = math.nan  # whatever an ignored row holds
    x = logits if axis else np.ascontiguousarray(logits.T)
    softmax, loss, grad = cross_entropy(x, np.expand_dims(label, axis), ignore_index=ignore_index, axis=axis)
    _, same_loss, same_grad = cross_entropy(x, label, ignore_index=ignore_index, axis=axis)
    np.testing.assert_array_equal(loss, same_loss)
    np.testing.assert_array_equal(grad, same_grad)
    assert loss.shape == ((6, 1) if axis else (1, 6))
    loss, grad, softmax = loss.reshape(-1), grad if axis else grad.T, softmax if axis else softmax.T
    assert (loss[~kept] == 0).all()
    assert (grad[~kept] == 0).all()
    for i in np.flatnonzero(kept):
        assert loss[i] == pytest.approx(exact_loss(logits[i], label[i]), rel=1e-14)
        expected = (softmax[i] - np.eye(4)[label[i]]) * (i + 1)
        np.testing.assert_allclose(grad[i], expected, rtol=1e-13, atol=1e-16)


def test_all_rows_ignored(rng):
    _, loss, grad = cross_entropy(rng.normal(size=(3, 4)), np.full((3, 1), -100))
    assert (loss == 0).all()
    assert (grad == 0).all()


def test_hard_and_soft_labels_agree(rng):
    logits, label = rng.normal(size=(5, 4)), rng.integers(0, 4, size=(5, 1))
    hard, soft = cross_entropy(logits, label), cross_entropy(logits, np.eye(4)[label[:, 0]], soft_label=True)
    for a, b in zip(hard, soft, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("int_dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_label_types(rng, int_dtype):
    logits, label = rng.normal(size=(5, 4)), rng.integers(0, 4, size=(5, 1))
    for a, b in zip(cross_entropy(logits, label.astype(int_dtype)), cross_entropy(logits, label), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("label", "attrs", "message"),
    [
        ([[0], [4], [1]], {}, r"label 4 of row 1 is not a class in \[0, 4\) and not ignore_index -100"),
        ([[0], [1], [-1]], {}, r"label -1 of row 2 is not a class in \[0, 4\)"),
        ([0, -100, 9], {"ignore_index": 9}, r"label -100 of row 1 is not a class in \[0, 4\) and not ignore_index 9"),
    ],
)
def test_labels_out_of_range(rng, label, attrs, message):
    with pytest.raises(KernelError, match=message) as caught:
        cross_entropy(rng.normal(size=(3, 4)), np.array(label), **attrs)
    assert "softmax_with_cross_entropy(Logits=x: f64[3,4]" in str(caught.value)


def test_the_row_of_a_bad_label_has_all_its_axes(rng):
    label = np.zeros((2, 1, 3), np.int64)
    label[1, 0, 2] = 5
    with pytest.raises(KernelError, match=r"label 5 of row \[1, 2\]"):
        cross_entropy(rng.normal(size=(2, 5, 3)), label, axis=1)


@pytest.mark.parametrize("soft_label", [False, True])
def test_cross_entropy_hessian(rng, soft_label):
    x, v, h = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), 1e-5
    label = rng.uniform(size=(4, 3)) if soft_label else np.array([[0], [-100], [2], [1]])

    def first(g, x, v, y):
        loss = g.softmax_with_cross_entropy(x, y, soft_label=soft_label)[1]
        return gradients([g.square(loss)], [x])

    def second(g, x, v, y):
        return gradients([g.elementwise_mul(first(g, x, v, y)[0], v)], [x])

    feeds = {"x": x, "v": v, "y": label}
    (found,) = run(second, feeds)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = h
        above, below = (run(first, {**feeds, "x": x + s})[0] for s in (step, -step))
        assert found[at] == pytest.approx(((above - below) * v).sum() / (2 * h), abs=1e-8)


@pytest.mark.parametrize(
    ("logits", "label", "dtype", "attrs", "error", "phrase"),
    [
        ([4, 3], [4, 1], "float32", {}, DTypeError, "Label must hold class numbers, is float32"),
        ([4, 3], [4, 3], "int64", {}, ShapeError, "with size 1 at axis 1, or without that axis; is i64[4,3]"),
        ([4, 3], [5, 1], "int64", {}, ShapeError, "with size 1 at axis 1"),
        ([4, 3], [4, 1, 1], "int64", {}, ShapeError, "with size 1 at axis 1"),
        ([4, 3], [4, 2], "float32", {"soft_label": True}, ShapeError, "soft Label must have Logits' shape [4, 3]"),
        ([4, 3], [4, 3], "float64", {"soft_label": True}, DTypeError, "soft Label is float64, Logits is float32"),
        ([4, 3], [4, 1], "int64", {"axis": 2}, ShapeError, "axis 2 is out of range for rank 2"),
        ([4, 0], [4, 1], "int64", {}, ShapeError, "Logits axis 1 has size 0"),
        ([], [], "int64", {}, ShapeError, "a scalar has no axes"),
    ],
)
def test_bad_cross_entropy(logits, label, dtype, attrs, error, phrase):
    block = Program().global_block()
    x, y = block.create_var("x", logits, "float32"), block.create_var("y", label, dtype)
    with pytest.raises(error) as caught:
        Builder(block).softmax_with_cross_entropy(x, y, **attrs)
    assert phrase in str(caught.value)


@pytest.mark.parametrize("op_type", ["softmax", "log_softmax"])
def test_bad_softmax(op_type):
    block = Program().global_block()
    g = Builder(block)
    with pytest.raises(DTypeError, match="X must be a float, is int64"):
        g.emit(op_type, block.create_var("i", [3], "int64"))
    with pytest.raises(ShapeError, match="X axis 1 has size 0, there is nothing to normalise"):
        g.emit(op_type, block.create_var("x", [3, 0], "float32"))


# Layer normalisation


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_layer_norm_of_shifted_rows(rng, dtype):
    """A mean a thousand times the deviation costs digits of the input, not of the method."""
    x = (rng.normal(size=(8, 256)) + 1000).astype(dtype)
    wide = x.astype(np.longdouble)
    mean, variance = wide.mean(axis=1), wide.var(axis=1)
    y, m, v = run(lambda g, x: g.layer_norm(x), {"x": x})
    tolerance = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(m.astype(float), mean.astype(float), rtol=tolerance)
    np.testing.assert_allclose(v.astype(float), variance.astype(float), rtol=1000 * tolerance)
    expected = (wide - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    np.testing.assert_allclose(y.astype(float), expected.astype(float), atol=1000 * tolerance)


@pytest.mark.parametrize("frozen", [(), ("scale",), ("bias",), ("scale", "bias"), ("x",), ("x", "scale")])
def test_frozen_inputs_do_not_change_the_other_gradients(rng, frozen):
    """Paddle's gradient of X is wrong when Scale has stop_gradient."""
    feeds = {"x": rng.normal(size=(4, 6)), "scale": rng.normal(size=6), "bias": rng.normal(size=6),
             "w": rng.normal(size=(4, 6))}  # fmt: skip
    wanted = [name for name in ("x", "scale", "bias") if name not in frozen]

    def build(g, x, scale, bias, w):
        loss = g.elementwise_mul(g.layer_norm(x, scale, bias)[0], w)
        return gradients([loss], [{"x": x, "scale": scale, "bias": bias}[n] for n in wanted])

    found = dict(zip(wanted, run(build, feeds, frozen=(*frozen, "w")), strict=True))
    everything = ("x", "scale", "bias")

    def whole(g, x, scale, bias, w):
        return gradients([g.elementwise_mul(g.layer_norm(x, scale, bias)[0], w)], [x, scale, bias])

    expected = dict(zip(everything, run(whole, feeds), strict=True))
    for name in wanted:
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_allclose(expected["bias"], feeds["w"].sum(axis=0), rtol=1e-13)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
def test_layer_norm_statistics_of_16_bit_floats(rng, low):
    x = rng.normal(size=(4, 64)).astype(low)
    y, mean, variance = run(lambda g, x: g.layer_norm(x, begin_norm_axis=-1), {"x": x})
    assert (y.dtype, mean.dtype, variance.dtype) == (x.dtype, np.float32, np.float32)
    wide = x.astype(float)
    np.testing.assert_allclose(mean, wide.mean(axis=1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(variance, wide.var(axis=1), rtol=1e-5)
    feeds = {"x": x, "scale": np.ones(64, np.float32)}  # master weights may stay float32
    (grad,) = run(lambda g, x, scale: gradients([g.layer_norm(x, scale)[0]], [scale]), feeds)
    assert grad.dtype == np.float32


def test_layer_norm_of_unknown_sizes(rng):
    x = rng.normal(size=(2, 3, 4))
    block = Program().global_block()
    v = block.create_var("x", [None, 3, None], "float64", is_data=True)
    y, mean, _ = Builder(block).layer_norm(v, begin_norm_axis=2)
    assert (y.shape, mean.shape) == ((-1, 3, -1), (-1,))
    found, rows = Executor().run(block.program, {"x": x}, [y, mean])
    assert found.shape == x.shape
    np.testing.assert_allclose(rows, x.mean(axis=2).reshape(-1), rtol=1e-14)


@pytest.mark.parametrize(
    ("x", "scale", "attrs", "error", "phrase"),
    [
        ("f32[4,6]", "f32[4]", {}, ShapeError, "Scale must be f32[6]"),
        ("f32[4,2,3]", "f32[2,3]", {}, ShapeError, "one element for each of X's axes from 1 on"),
        ("f32[4,6]", "f64[6]", {}, DTypeError, "Scale is float64, X is float32"),
        ("f32[4,6]", "f32[6]", {"begin_norm_axis": 2}, ShapeError, "begin_norm_axis 2 is out of range for rank 2"),
        ("f32[4,6]", "f32[6]", {"epsilon": 0.0}, AttrError, "epsilon must be positive, is 0.0"),
        ("f32[4,6]", "f32[6]", {"epsilon": math.nan}, AttrError, "epsilon must be positive, is nan"),
        ("i64[4,6]", "f32[6]", {}, DTypeError, "X must be a float, is int64"),
    ],
)
def test_bad_layer_norm(x, scale, attrs, error, phrase):
    block = Program().global_block()
    a, b = (
        block.create_var(name, [int(s) for s in text[4:-1].split(",")], text[:3])
        for name, text in (("x", x), ("scale", scale))
    )
    with pytest.raises(error) as caught:
        Builder(block).layer_norm(a, b, **attrs)
    assert phrase in str(caught.value)


# Embedding


def test_embedding_padding_row(rng):
    ids, w = np.array([[1, 3], [3, 0]]), rng.normal(size=(4, 2))
    for padding_idx in (3, -1):

        def build(g, ids, w, padding_idx=padding_idx):
            out = g.embedding(ids, w, padding_idx=padding_idx)
            return [out, *gradients([out], [w])]

        out, grad = run(build, {"ids": ids, "w": w})
        np.testing.assert_array_equal(out, np.where((ids == 3)[..., None], 0, w[ids]))
        np.testing.assert_array_equal(grad, [[1, 1], [1, 1], [0, 0], [0, 0]])


@pytest.mark.parametrize("bad", [-1, 4])
def test_embedding_ids_out_of_range(rng, bad):
    with pytest.raises(KernelError, match=rf"id {bad} is out of range \[0, 4\)"):
        run_op("embedding", np.array([0, bad, 2]), rng.normal(size=(4, 2)))


def test_bad_embedding():
    block = Program().global_block()
    ids, w = block.create_var("ids", [3], "int64"), block.create_var("w", [4, 2], "float32")
    g = Builder(block)
    with pytest.raises(DTypeError, match="Ids must hold integers, is float32"):
        g.embedding(w, w)
    with pytest.raises(ShapeError, match=r"W must be \[rows, width\], is i64\[3\]"):
        g.embedding(ids, ids)
    with pytest.raises(ShapeError, match=r"padding_idx 4 is no row of W, it must lie in \[-4, 4\)"):
        g.embedding(ids, w, padding_idx=4)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("int_dtype", ["int64", "uint8"])
def test_embedding_gradient_of_many_equal_ids(rng, width, int_dtype):
    ids, rows = rng.integers(0, 7, size=(20, 50)).astype(int_dtype), rng.normal(size=(20, 50, width))
    expected = np.zeros((9, width))
    np.add.at(expected, ids, rows)
    found = OPS["embedding_grad"](ids, np.zeros((9, width)), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
