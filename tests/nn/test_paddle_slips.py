"""Where Paddle's numbers are those of a defect (SLIPS of tests/paddle), ours follow the definition."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from tests.paddle import function_programs, nn_programs
from tests.paddle.cases import Gradients, varied
from tests.paddle.nn_programs import WEIGHT, YES, X
from tests.paddle.programs import fresh

CASES = nn_programs.CASES | function_programs.CASES
SLIPS = nn_programs.SLIPS | function_programs.SLIPS


def values(case: Gradients) -> list[np.ndarray]:
    with fresh(mg):
        return [v for v in case(mg) if v is not None]


@pytest.mark.parametrize("title", SLIPS)
def test_gradients_are_the_slopes(title: str) -> None:
    case = CASES[title]
    x, step = case.arrays[0], 1e-6
    out, gradient, *_ = values(case)
    weights = varied(out.shape) if out.shape else 1.0
    for place in zip(*np.nonzero(x), strict=True):
        totals = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            totals.append(np.sum(weights * values(Gradients(case.call, (moved, *case.arrays[1:]), case.of))[0]))
        assert gradient[place] == pytest.approx((totals[0] - totals[1]) / (2 * step), rel=1e-6, abs=1e-7)


def test_pos_weight_weighs_the_whole_loss() -> None:
    loss = np.maximum(X, 0) - X * YES + np.log1p(np.exp(-np.abs(X)))
    (found, *_) = values(CASES["binary_cross_entropy_with_logits with weights"])
    np.testing.assert_allclose(found, np.sum(WEIGHT * loss * (1 + YES * (WEIGHT - 1))), rtol=1e-13)
