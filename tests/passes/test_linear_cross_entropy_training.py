"""A small language model learns with the fused last layer as it does without: curves within the spread of two seeds."""

from __future__ import annotations

import pytest

from minigraph.kernels.cpu import linear_cross_entropy as kernels
from tests.support.language_model import curve, distance


@pytest.mark.parametrize("written", [False, True], ids=["operator", "written"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_curves_lie_within_the_spread_of_two_seeds(dtype, written):
    plain, fused = (curve(3, dtype, on, written) for on in (False, True))
    spread = distance(plain, curve(4, dtype, False, written))
    assert plain[-5:].mean() < 0.75 * plain[0], "it learns"
    assert distance(plain, fused) < spread / 20
    assert abs(plain[-5:].mean() - fused[-5:].mean()) < spread


def test_a_gradient_of_one_chunk_only_is_outside(monkeypatch):
    """A planted defect: the last chunk's sums overwrite those of the others."""
    add = kernels._add_product
    plain = curve(3, "float32", False)
    spread = distance(plain, curve(4, "float32", False))
    monkeypatch.setattr(kernels, "_add_product", lambda total, a, b, first: add(total, a, b, first=True))
    assert distance(plain, curve(3, "float32", True)) > 2 * spread
