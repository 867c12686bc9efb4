"""Functions of tensors give Paddle's values, data types and shapes: recorded ones, and those of a Paddle here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from tests.tensor import paddle_cases
from tests.tensor.paddle_cases import CASES, RECORDED, VERSION

ANSWERS = json.loads(RECORDED.read_text())
NEAR = {"float64": 1e-10, "float32": 2e-6}

# Cases in which minigraph's answer is not Paddle's, on purpose, and why.
OTHERWISE: dict[str, str] = {
    "atan2 of ints": "Paddle computes it in float32 and calls it float64",
    "deg2rad": "Paddle rounds the factor to float32",
    "rad2deg": "Paddle rounds the factor to float32",
    "stanh": "Paddle rounds both factors to float32",
    "dist": "Paddle rounds 1 / p to float32",
    "norm three": "Paddle rounds 1 / p to float32",
    "kthvalue axis": "Paddle drops axis 0, which keepdim keeps",
    "quantile": "Paddle rounds the fraction to float32",
    "quantile all": "Paddle rounds the fraction to float32",
    "logit": "Paddle rounds eps to float32",
    "nan_to_num": "Paddle takes float32's largest number for float64, which is infinite there",
}


def assert_alike(found: list[np.ndarray], answers: list[dict[str, Any]]) -> None:
    assert len(found) == len(answers)
    for value, answer in zip(found, answers, strict=True):
        assert (value.dtype.name, list(value.shape)) == (answer["dtype"], list(answer["shape"]))
        expected = np.array(answer["values"], answer["dtype"]).reshape(answer["shape"])
        if answer["dtype"] in NEAR:
            near = NEAR[answer["dtype"]]
            np.testing.assert_allclose(value, expected, rtol=near, atol=near)
        else:
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", sorted(CASES.keys() - OTHERWISE.keys()))
def test_values_are_those_that_paddle_gave(name):
    assert_alike(paddle_cases.run(mg, name), ANSWERS[name])


def test_what_is_otherwise_is_so():
    for name in OTHERWISE:
        with pytest.raises(AssertionError):
            assert_alike(paddle_cases.run(mg, name), ANSWERS[name])


def test_every_case_was_recorded():
    assert CASES.keys() == ANSWERS.keys()
    assert not any("error" in answer for answer in ANSWERS.values())


@pytest.mark.parametrize("name", sorted(CASES))
def test_paddle_itself_says_so(name):
    paddle = pytest.importorskip("paddle", reason="Paddle is not installed")
    if paddle.__version__ != VERSION:
        pytest.skip(f"Paddle is {paddle.__version__}, not {VERSION}")
    paddle.enable_static()
    assert_alike(paddle_cases.run(paddle, name), ANSWERS[name])
