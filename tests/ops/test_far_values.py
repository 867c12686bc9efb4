"""Functions of two operands, hardswish and a loss where a number on the way would overflow or be 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minigraph as mg
from minigraph import static

SIDES = [3e200, -3e200, 3e-200, -3e-200, 1e-300, 2.0, -0.5, 0.0]
PAIRS = [(x, y) for x in SIDES for y in SIDES if x or y]
WIDE = np.longdouble


def _slopes(function: Callable, x: np.ndarray, y: np.ndarray, passes: bool) -> list[np.ndarray]:
    """function(x, y) and its gradients."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        a, b = static.data("x", x.shape, "float64"), static.data("y", y.shape, "float64")
        a.stop_gradient = b.stop_gradient = False
        out = function(a, b)
        fetches = [out, *static.gradients(out, [a, b])]
    source = static.CompiledProgram(main, static.BuildStrategy.all()) if passes else main
    return static.Executor().run(source, {"x": x, "y": y}, fetches)


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "all"])
def test_distances_and_angles_of_huge_and_tiny_sides(passes: bool) -> None:
    x, y = (np.array(side) for side in zip(*PAIRS, strict=True))
    size = np.hypot(x.astype(WIDE), y.astype(WIDE))
    hypot, angle = (_slopes(f, x, y, passes) for f in (mg.hypot, mg.atan2))
    for found, expected in zip(hypot, (size, x / size, y / size), strict=True):
        np.testing.assert_allclose(found, expected.astype("float64"), rtol=1e-12)
    for found, expected in zip(angle[1:], (y / size / size, -x / size / size), strict=True):
        np.testing.assert_allclose(found, expected.astype("float64"), rtol=1e-12)


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "all"])
def test_logaddexp_of_equal_and_infinite_values(passes: bool) -> None:
    x = np.array([1.0, -0.0, 800.0, -800.0, 1.0, np.inf, -np.inf, np.inf, -np.inf])
    y = np.array([1.0, 0.0, 800.0, -800.0, 3.0, 1.0, 1.0, np.inf, -np.inf])
    found = _slopes(mg.logaddexp, x, y, passes)
    np.testing.assert_allclose(found[0], np.logaddexp(x.astype(WIDE), y.astype(WIDE)).astype("float64"), rtol=1e-12)
    own = np.array([0.5] * 4 + [1 / (1 + np.exp(2.0)), 1.0, 0.0])
    np.testing.assert_allclose(found[1][:7], own, rtol=1e-12)
    np.testing.assert_allclose(found[2][:7], 1 - own, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_hardswish_of_large_values_is_what_it_was_given(dtype: str) -> None:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        out = mg.nn.functional.hardswish(static.data("x", [3], dtype))
    x = np.array([3, 0.5, 1], dtype) * np.array([1, np.finfo(dtype).max, np.finfo(dtype).max], dtype)
    (found,) = static.Executor().run(main, {"x": x}, [out])
    np.testing.assert_array_equal(found, x)


def test_the_error_function_keeps_the_sign_of_zero() -> None:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        out = mg.erf(static.data("x", [2], "float64"))
    (found,) = static.Executor().run(main, {"x": np.array([-0.0, 0.0])}, [out])
    assert np.signbit(found).tolist() == [True, False]


@pytest.mark.parametrize("passes", [False, True], ids=["plain", "all"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_gradient_of_a_cross_entropy_at_right_probabilities_of_0_and_1(dtype: str, passes: bool) -> None:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        p, label = static.data("p", [4], dtype), static.data("label", [4], dtype)
        p.stop_gradient = False
        (slope,) = static.gradients(mg.nn.functional.binary_cross_entropy(p, label, reduction="none"), [p])
    source = static.CompiledProgram(main, static.BuildStrategy.all()) if passes else main
    feed = {"p": np.array([0, 1, 2.0**-24, 0.5], dtype), "label": np.array([0, 1, 0, 1], dtype)}
    (found,) = static.Executor().run(source, feed, [slope])
    np.testing.assert_allclose(found, [0, 0, 1, -2], rtol=1e-3)
