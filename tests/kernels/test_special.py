"""kernels/special.py against 50-digit arithmetic and Python's own functions."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from statistics import NormalDist

import numpy as np
import pytest

from minigraph.kernels.special import (
    BLOCK,
    CENTRAL,
    central_normal_quantile,
    normal_cdf,
    normal_pdf,
)

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")


def exact_tail(x: float) -> Decimal:
    """Phi(-|x|) by its power series (|x| < 6) or its continued fraction, in 50 digits."""
    a = abs(Decimal(x))
    half = (-a * a / 2).exp()
    density = half / (2 * PI).sqrt()
    if a < 6:
        term = total = a
        n = 1
        while term > total.scaleb(-52):
            n += 2
            term = term * a * a / n
            total += term
        return Decimal("0.5") - density * total
    fraction = Decimal(0)
    for k in range(300, 0, -1):
        fraction = k / (a + fraction)
    return density / (a + fraction)


@pytest.fixture(scope="module")
def points() -> list[float]:
    rng = np.random.default_rng(0)
    xs = np.concatenate([np.linspace(-12, 12, 481), rng.normal(size=400), rng.uniform(-37, 0, size=100), [-1e-9, 1e-9]])
    return [float(np.float32(x)) for x in xs]  # exact in both types


@pytest.fixture(scope="module")
def exact(points: list[float]) -> list[Decimal]:
    with localcontext() as context:
        context.prec = 50
        return [1 - exact_tail(x) if x > 0 else exact_tail(x) for x in points]


def errors(values: np.ndarray, exact: list[Decimal]) -> np.ndarray:
    return np.array([float(Decimal(float(v)) - e) for v, e in zip(values, exact, strict=True)])


def test_the_reference_agrees_with_math_erfc(points, exact):
    for x, e in zip(points, exact, strict=True):
        assert math.isclose(math.erfc(-x / math.sqrt(2)) / 2, e, rel_tol=4e-16 * max(x * x, 1))


def test_normal_cdf_in_float64(points, exact):
    error = np.abs(errors(normal_cdf(np.array(points)), exact))
    assert error.max() < 3e-16
    lower = np.array(points) < 0
    assert (error[lower] / np.array([float(e) for e in exact])[lower]).max() < 2e-15


def test_normal_cdf_in_float32(points, exact):
    x = np.array(points, np.float32)
    values = normal_cdf(x)
    assert values.dtype == np.float32
    error = np.abs(errors(values, exact))
    assert error.max() < 1.2e-7
    tail = (x < 0) & (x > -12)
    assert (error[tail] / np.array([float(e) for e in exact])[tail]).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_special_values(dtype):
    with np.errstate(under="ignore"):
        values = normal_cdf(np.array([-np.inf, -1e30, -0.0, 0.0, 1e30, np.inf, np.nan], dtype))
        density = normal_pdf(np.array([-np.inf, 0.0, np.inf, np.nan], dtype))
    assert values[:6].tolist() == [0, 0, 0.5, 0.5, 1, 1]
    assert np.isnan(values[6])
    assert density[[0, 2]].tolist() == [0, 0]
    assert np.isnan(density[3])


def test_normal_pdf():
    x = np.linspace(-8, 8, 101)
    expected = [NormalDist().pdf(v) for v in x]
    np.testing.assert_allclose(normal_pdf(x), expected, rtol=1e-14)
    np.testing.assert_allclose(normal_pdf(x.astype(np.float32)), expected, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (BLOCK,), (BLOCK + 1,), (3, BLOCK - 5)])
@pytest.mark.parametrize("function", [normal_cdf, normal_pdf])
def test_shapes_and_blocks(function, shape):
    x = np.random.default_rng(1).normal(size=shape)
    values = function(x)
    assert values.shape == shape
    one_by_one = [function(np.array([v]))[0] for v in x.reshape(-1)[-7:]]
    assert values.reshape(-1)[-7:].tolist() == one_by_one
    kept = x.copy() if shape else np.array(x)
    assert function(kept, out=kept) is kept
    np.testing.assert_array_equal(kept, values)


def test_non_contiguous_input():
    x = np.random.default_rng(1).normal(size=(6, 5))
    np.testing.assert_array_equal(normal_cdf(x.T[::2]), normal_cdf(np.ascontiguousarray(x.T[::2])))


def test_central_normal_quantile():
    q = np.linspace(-CENTRAL, CENTRAL, 1001)
    expected = np.array([NormalDist().inv_cdf(0.5 + v) for v in q])
    np.testing.assert_allclose(central_normal_quantile(q), expected, rtol=1e-13, atol=1e-15)
