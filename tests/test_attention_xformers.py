"""The matrix of shapes, masks and tolerances of xFormers' tests on a CPU; gpu_attention_xformers.py has all of it."""

from __future__ import annotations

from itertools import product

import numpy as np
import opcheck
import pytest
from gpu_attention_xformers import FORWARD, MASKS, Shape, compare, masks_of, odd, random_shape

GRID: list[Shape] = [(1, m, n, 1, k, k) for m, n, k in product((32, 256), (32, 64, 256, 1024), (32, 128, 256))]
FEW = [(300, 32, n, 1, 32, 32) for n in (32, 64)]


@pytest.mark.parametrize("dtype", FORWARD)
@pytest.mark.parametrize("shapes", [GRID, FEW, list(odd())], ids=["grid", "large batch", "odd"])
def test_shapes(dtype, shapes):
    for shape, mask in zip(shapes, masks_of(shapes), strict=True):
        compare(dtype, shape, mask, opcheck.executed)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", FORWARD)
def test_random_shapes(dtype, mask):
    b, *shape = random_shape(np.random.default_rng(MASKS.index(mask)))
    compare(dtype, (min(b, 4), *shape), mask, opcheck.executed)
