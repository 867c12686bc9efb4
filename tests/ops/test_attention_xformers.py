"""The matrix of shapes, masks and tolerances of xFormers' tests on a CPU; gpu_attention_xformers.py has all of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.attention_xformers import FORWARD, MASKS, compare, grid, odd, random_shape
from tests.support import opcheck
from tests.support.grades import checkered

CASES = {
    **{f"keys {keys}": list(grid(keys)) for keys in (32, 64, 256, 1024)}, "odd": list(odd()),
    "large batch": [((300, 32, keys, 1, 32, 32), "causal") for keys in (32, 64)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), checkered(CASES, FORWARD))
def test_shapes(dtype, name):
    for shape, mask in CASES[name]:
        compare(dtype, shape, mask, opcheck.executed)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", FORWARD)
def test_random_shapes(dtype, mask):
    b, *shape = random_shape(np.random.default_rng(MASKS.index(mask)))
    compare(dtype, (min(b, 4), *shape), mask, opcheck.executed)
