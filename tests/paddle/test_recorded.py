"""minigraph gives what Paddle 2.6.2 gave (recorded); where Paddle is installed, that is what it gives."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import minigraph
from tests.paddle.programs import SUBJECTS, programs, recorded, result

CASES = [(subject, name) for subject in SUBJECTS for name in programs(subject)]


def differences(own: Any, expected: Any, at: str = "") -> list[str]:
    """Where two results differ by more than rounding of float32."""
    if isinstance(expected, dict) and isinstance(own, dict):
        if own.keys() != expected.keys():
            return [f"{at}: keys {sorted(own)} != {sorted(expected)}"]
        return [d for key in expected for d in differences(own[key], expected[key], f"{at}.{key}")]
    if isinstance(expected, list) and isinstance(own, list):
        if len(own) != len(expected):
            return [f"{at}: {own} != {expected}"]
        return [d for i, pair in enumerate(zip(own, expected, strict=True)) for d in differences(*pair, f"{at}[{i}]")]
    if isinstance(expected, float) and isinstance(own, float):
        close = math.isclose(own, expected, rel_tol=1e-5, abs_tol=1e-6)
        return [] if close or (math.isnan(own) and math.isnan(expected)) else [f"{at}: {own} != {expected}"]
    return [] if type(own) is type(expected) and own == expected else [f"{at}: {own!r} != {expected!r}"]


@pytest.mark.parametrize(("subject", "name"), CASES)
def test_values_are_those_of_paddle(subject: str, name: str, tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Paddle's programs may do what minigraph warns of
        own = result(programs(subject)[name], minigraph, tmp_path)
    assert differences(own, recorded(subject)[name]) == []


def test_nothing_is_recorded_that_no_program_gives():
    for subject in SUBJECTS:
        assert recorded(subject).keys() == programs(subject).keys()


def test_a_difference_is_seen():
    assert differences({"a": [1.0, {"b": 2}]}, {"a": [1.0, {"b": 2}]}) == []
    for other in ({"a": [1.0, {"b": 3}]}, {"a": [1.1, {"b": 2}]}, {"a": [1.0]}, {"a": [1, {"b": 2}]}, {}):
        assert differences(other, {"a": [1.0, {"b": 2}]}) != []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_is_recorded_is_what_paddle_gives(subject: str, tmp_path: Path):
    """Where Paddle 2.6.2 is installed."""
    paddle = pytest.importorskip("paddle", exc_type=ImportError)
    paddle.enable_static()
    for name, run in programs(subject).items():
        main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
        guards = paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard()
        with guards[0], guards[1], paddle.static.scope_guard(scope):
            assert differences(result(run, paddle, tmp_path), recorded(subject)[name]) == [], name
