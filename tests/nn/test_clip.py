"""Gradient clipping on gradients of chosen values."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (names bfloat16)
import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError
from minigraph.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor

A, B = np.array([[3.0, -4.0]]), np.array(12.0)  # norms 5 and 12, together 13


def clipped(clip, grads, free=(), dtypes=("float64", "float64")):
    """The clipped values of gradients; those whose index is in `free` have need_clip=False."""
    main = Program()
    block = main.global_block()
    pairs, feed = [], {}
    for i, (grad, dtype) in enumerate(zip(grads, dtypes, strict=True)):
        p = block.create_parameter(f"p{i}", grad.shape, dtype, need_clip=i not in free)
        g = block.create_var(f"g{i}", grad.shape, dtype, is_data=True)
        feed[f"g{i}"] = grad.astype(g.dtype)
        pairs.append((p, g))
    result = clip(pairs)
    assert [p for p, _ in result] == [p for p, _ in pairs]
    assert [(g.shape, g.dtype) for _, g in result] == [(g.shape, g.dtype) for _, g in pairs]
    return Executor().run(main, feed, [g for _, g in result], scope=Scope())


def test_global_norm():
    a, b = clipped(ClipGradByGlobalNorm(6.5), [A, B])
    np.testing.assert_allclose(a, A / 2, rtol=1e-15)
    np.testing.assert_allclose(b, B / 2, rtol=1e-15)


def test_global_norm_leaves_small_gradients_as_they_are():
    for limit in (13.0, 20.0):
        a, b = clipped(ClipGradByGlobalNorm(limit), [A, B])
        np.testing.assert_array_equal(a, A)
        np.testing.assert_array_equal(b, B)


def test_parameters_that_need_no_clip_are_left_out_of_the_norm():
    a, b = clipped(ClipGradByGlobalNorm(2.5), [A, B], free=[1])
    np.testing.assert_allclose(a, A / 2, rtol=1e-15)
    np.testing.assert_array_equal(b, B)
    a, b = clipped(ClipGradByGlobalNorm(2.5), [A, B], free=[0, 1])
    np.testing.assert_array_equal(a, A)
    np.testing.assert_array_equal(b, B)


def test_norm_of_each():
    a, b = clipped(ClipGradByNorm(6.0), [A, B])
    np.testing.assert_array_equal(a, A)
    np.testing.assert_allclose(b, 6.0, rtol=1e-15)
    a, b = clipped(ClipGradByNorm(1.0), [A, B], free=[1])
    np.testing.assert_allclose(a, A / 5, rtol=1e-15)
    np.testing.assert_array_equal(b, B)


def test_values():
    a, b = clipped(ClipGradByValue(2.0), [A, B])
    np.testing.assert_array_equal(a, [[2.0, -2.0]])
    np.testing.assert_array_equal(b, 2.0)
    a, b = clipped(ClipGradByValue(max=5.0, min=-1.0), [A, B], free=[1])
    np.testing.assert_array_equal(a, [[3.0, -1.0]])
    np.testing.assert_array_equal(b, B)
    a, _ = clipped(ClipGradByValue(5.0, min=3.5), [A, B])
    np.testing.assert_array_equal(a, [[3.5, 3.5]])


def test_bounds_that_are_set_in_any_order_are_looked_at_when_they_are_used():
    clip = mg.nn.ClipGradByValue(1.0)
    clip.min = 2.0
    with static.program_guard(static.Program(), static.Program()):
        w = static.create_parameter([2], "float32")
        with pytest.raises(AttrError, match=r"min 2.0 is greater than max 1.0"):
            mg.optimizer.SGD(0.1, grad_clip=clip).minimize(mg.mean(w * w))
        clip.max = 3.0
        assert mg.optimizer.SGD(0.1, grad_clip=clip).minimize(mg.mean(w * w))


def test_zero_gradients_stay_zero():
    for clip in (ClipGradByGlobalNorm(1.0), ClipGradByNorm(1.0), ClipGradByValue(1.0)):
        a, b = clipped(clip, [A * 0, B * 0])
        np.testing.assert_array_equal(a, A * 0)
        np.testing.assert_array_equal(b, 0)


def test_types_may_differ_and_16_bit_squares_do_not_overflow():
    big = np.full((4,), 300.0)  # squares 90000 exceed float16
    a, b = clipped(ClipGradByGlobalNorm(60.0), [big, np.array([0.0])], dtypes=("float16", "float64"))
    np.testing.assert_allclose(a.astype("float64"), 30.0, rtol=1e-3)
    assert a.dtype == "float16"
    assert b.dtype == "float64"
    a, _ = clipped(ClipGradByNorm(60.0), [big, B], dtypes=("bfloat16", "float32"))
    np.testing.assert_allclose(a.astype("float64"), 30.0, rtol=1e-2)


def test_empty_gradients():
    a, b = clipped(ClipGradByGlobalNorm(6.0), [np.zeros((0, 3)), B])
    assert a.shape == (0, 3)
    np.testing.assert_allclose(b, 6.0)
    assert ClipGradByNorm(1.0)([]) == []


def test_pairs_without_gradient_are_dropped():
    block = Program().global_block()
    p = block.create_parameter("p", (2,))
    assert ClipGradByNorm(1.0)([(p, None)]) == []


def test_operators_stand_in_the_order_of_paddle():
    main = Program()
    g = Builder(main.global_block())
    grads = [g.fill_constant(shape=(2,), value=1.0) for _ in range(2)]
    params = [main.global_block().create_parameter(None, (2,)) for _ in range(2)]
    ClipGradByGlobalNorm(1.0)(list(zip(params, grads, strict=True)))
    assert [op.type for op in main.ops[2:]] == [
        "squared_l2_norm", "squared_l2_norm", "sum", "fill_constant", "sqrt", "elementwise_max", "elementwise_div",
        "elementwise_mul", "elementwise_mul",
    ]  # fmt: skip


@pytest.mark.parametrize(("make", "fact"), [
    (lambda: ClipGradByGlobalNorm(0), "clip_norm must be a number > 0, is 0"),
    (lambda: ClipGradByGlobalNorm(-1.0), "clip_norm must be a number > 0, is -1.0"),
    (lambda: ClipGradByNorm(float("nan")), "clip_norm must be a number, is nan"),
    (lambda: ClipGradByNorm("a"), "clip_norm must be a number, is 'a'"),
    (lambda: ClipGradByValue(-1.0), "max must be > 0 where min is not given, is -1.0"),
    (lambda: ClipGradByValue(1.0, 2.0), "min 2.0 is greater than max 1.0"),
    (lambda: ClipGradByValue(None), "max must be a number, is None"),
])  # fmt: skip
def test_bad_limits_are_named(make, fact):
    with pytest.raises(AttrError, match=fact):
        make()
