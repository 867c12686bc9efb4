"""minigraph gives what Paddle 2.6.2 gave (recorded); where Paddle is installed, that is what it gives."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import minigraph
from tests.paddle.programs import (
    SUBJECTS,
    differences,
    fresh,
    programs,
    recorded,
    result,
    rounding,
    slips,
)

CASES = [(subject, name) for subject in SUBJECTS for name in programs(subject)]


def against_paddle(subject: str, name: str, folder: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Paddle's programs may do what minigraph warns of
        own = result(programs(subject)[name], minigraph, folder)
    return differences(own, recorded(subject)[name], rounding(subject, name))


@pytest.mark.parametrize(("subject", "name"), [(s, n) for s, n in CASES if n not in slips(s)])
def test_values_are_those_of_paddle(subject: str, name: str, tmp_path: Path):
    assert against_paddle(subject, name, tmp_path) == []


@pytest.mark.parametrize(("subject", "name"), [(s, n) for s in SUBJECTS for n in slips(s)])
def test_slips_of_paddle_are_still_there(subject: str, name: str, tmp_path: Path):
    """Where values differ on purpose they do, or the row can go."""
    assert against_paddle(subject, name, tmp_path) != []


def test_what_is_recorded_is_what_the_programs_give():
    for subject in SUBJECTS:
        assert recorded(subject).keys() == programs(subject).keys()
        assert slips(subject).keys() <= programs(subject).keys()


def test_a_difference_is_seen():
    assert differences({"a": [1.0, {"b": 2}]}, {"a": [1.0, {"b": 2}]}) == []
    others: list[Any] = [{"a": [1.0, {"b": 3}]}, {"a": [1.1, {"b": 2}]}, {"a": [1.0]}, {"a": [1, {"b": 2}]}, {}]
    for other in others:
        assert differences(other, {"a": [1.0, {"b": 2}]}) != []
    exact = {"type": "float64", "values": [1.0]}
    assert differences({"type": "float64", "values": [1.0 + 1e-8]}, exact) != []
    assert differences({"type": "float64", "values": [1.0 + 1e-8]}, exact, near=1e-6) == []
    assert differences({"type": "float32", "values": [1.0]}, exact) != []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_is_recorded_is_what_paddle_gives(subject: str, tmp_path: Path):
    """Where Paddle 2.6.2 is installed."""
    paddle = pytest.importorskip("paddle", exc_type=ImportError)
    if paddle.__version__ != "2.6.2":
        pytest.skip(f"this is Paddle {paddle.__version__}")
    paddle.enable_static()
    for name, run in programs(subject).items():
        with fresh(paddle), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = result(run, paddle, tmp_path)
        assert differences(found, recorded(subject)[name]) == [], name
