"""nn and static.nn against Paddle 2.6.2: recorded values, and Paddle itself where it is installed.

tests/support/paddle_cases.py has the programs and says how the values were recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from tests.support import paddle_cases

CASES = paddle_cases.cases()
RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("paddle_2_6_2.json").read_text(encoding="utf-8"))
FIRST_GRADIENT = 1  # place of a case's values: 0 the result, then the gradients of its float inputs

# Paddle keeps attributes and constants in float32, so 0.1, 1e-5 or selu's numbers are others than here.
EXACT, ROUNDED = 1e-12, 1e-8
LOOSE = {"selu": 1e-5, "nn.SELU": 1e-5, "normalize by 3": 1e-6}
HAS_ROUNDED = ("ardsigmoid", "ormalize", "full=True", "Norm", "_norm")

# Where Paddle contradicts its own documentation, or its result is that of a defect.
SLIPS = {
    "binary_cross_entropy_with_logits with weights": "pos_weight multiplies only log(1 + exp(-|x|)), not the loss",
    "static.nn.group_norm NHWC": "the gradient is wrong; the same numbers as NCHW have another one",
}
# Paddle gives labels no gradient, or only that of their factors; here it is the derivative, as for soft labels.
LABELS = ("kl_div", "nn.KLDivLoss", "binary_cross_entropy", "nn.BCE", "sigmoid_focal_loss", "nll_loss with weight")
# A slope at the place where two pieces meet, of which both are right: there Paddle takes the other one.
BORDERS = {"leaky_relu", "nn.LeakyReLU", "rrelu"}


@pytest.fixture(autouse=True)
def in_float64() -> None:
    mg.set_default_dtype("float64")


def tolerance(title: str) -> float:
    return LOOSE.get(title) or (ROUNDED if any(part in title for part in HAS_ROUNDED) else EXACT)


def assert_same(title: str, found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        if place > FIRST_GRADIENT and title.startswith(LABELS):
            continue
        if a is None or b is None:
            assert a is None, f"place {place}"
            assert b is None, f"place {place}"
            continue
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        if place == FIRST_GRADIENT and title in BORDERS:
            a, b = a[paddle_cases.X != 0], b[paddle_cases.X != 0]
        np.testing.assert_allclose(a, b, rtol=tolerance(title), atol=tolerance(title), err_msg=f"place {place}")


def test_every_case_is_recorded() -> None:
    assert RECORDED.keys() == CASES.keys()


@pytest.mark.parametrize("title", [title for title in CASES if title not in SLIPS])
def test_values_and_gradients_are_paddles(title: str) -> None:
    found = paddle_cases.values(mg, CASES[title])
    if isinstance(RECORDED[title], str):  # Paddle's error: tests/nn/test_losses.py has the formula
        return
    assert_same(title, found, RECORDED[title])


@pytest.mark.parametrize("title", SLIPS)
def test_slips_are_paddles_and_not_ours(title: str) -> None:
    """The gradients are the slopes; and Paddle's numbers are others, or the row can go."""
    call, arrays = CASES[title]
    found = paddle_cases.values(mg, CASES[title])
    with pytest.raises(AssertionError):
        assert_same(title, found, RECORDED[title])
    step = 1e-6
    shape = found[0].shape
    weights = (1 + np.arange(float(found[0].size)) % 5).reshape(shape) / 4 if shape else 1.0
    for place in np.ndindex(arrays[0].shape):
        values = []
        for sign in (1, -1):
            moved = arrays[0].copy()
            moved[place] += sign * step
            values.append(np.sum(weights * paddle_cases.values(mg, (call, (moved, *arrays[1:])))[0]))
        slope = (values[0] - values[1]) / (2 * step)
        if np.all(arrays[0][place] != 0):
            assert found[FIRST_GRADIENT][place] == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_pos_weight_weighs_the_whole_loss() -> None:
    x, y, w = paddle_cases.X, paddle_cases.YES, paddle_cases.WEIGHT
    loss = np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))
    (found, *_) = paddle_cases.values(mg, CASES["binary_cross_entropy_with_logits with weights"])
    np.testing.assert_allclose(found, np.sum(w * loss * (1 + y * (w - 1))), rtol=1e-13)


def test_paddle_itself_computes_what_is_recorded() -> None:
    paddle = pytest.importorskip("paddle", reason="Paddle 2.6.2 is not installed")
    if paddle.__version__ != "2.6.2":
        pytest.skip(f"this is Paddle {paddle.__version__}")
    paddle.enable_static()
    paddle.set_default_dtype("float64")
    for title, expected in RECORDED.items():
        if not isinstance(expected, str):
            for a, b in zip(paddle_cases.values(paddle, CASES[title]), expected, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=title)
