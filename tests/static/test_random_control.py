"""Random programs with branches and loops: the Executor, an interpreter, texts, passes and a stub GPU agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from minigraph.compiler.strategy import BuildStrategy
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.static import CompiledProgram
from tests import fuzz
from tests.gpu.control import CHUNK, PROGRAMS
from tests.support.grades import graded
from tests.support.random_control import random_control

pytestmark = pytest.mark.usefixtures("in_float64")

SEEDS = 60
NUDGES = 3
TOLERANCE = 1e-10


@pytest.mark.parametrize("first", graded(range(0, SEEDS, 10), now=lambda first: first == 0))
def test_random_programs_agree(first):
    for seed in range(first, first + 10):
        case = random_control(seed)
        assert first_difference(parse(case.text), case.program) is None, f"seed {seed}"
        expected = fuzz.expected(case)  # which compares with the interpreter
        compiled = CompiledProgram(case.program, BuildStrategy.all(verify="each_pass"))
        same(expected, fuzz.run(case, compiled), f"seed {seed} compiled")
        same(expected, fuzz.run(case, parse(case.text)), f"seed {seed} from its text")


@pytest.mark.parametrize("first", graded(range(0, PROGRAMS, CHUNK), now=lambda first: first < CHUNK))
def test_rounding_decides_nothing(first):
    """A GPU rounds in other places, which must not lead it into other branches."""
    for seed in range(first, first + CHUNK):
        case = random_control(seed)
        expected, numbers = fuzz.run(case, case.program), np.random.default_rng(seed)
        for _ in range(NUDGES):
            values, feeds = (
                {name: a * (1 + 1e-15 * numbers.normal(size=a.shape)) for name, a in arrays.items()}
                for arrays in (case.values, case.feeds)
            )
            same(expected, fuzz.run(replace(case, values=values, feeds=feeds), case.program), f"seed {seed} nudged")


def test_gradients_are_those_of_differences():
    for seed in range(SEEDS, SEEDS + 12):
        case = random_control(seed)
        loss, grads = case.fetches[0], [n for n in case.fetches if n.endswith("@GRAD")]
        if not grads:
            continue
        name = grads[0].removesuffix("@GRAD")
        found = fuzz.run(case, case.program)[f"{grads[0]}#0"]
        direction = np.cos(np.arange(9.0)).reshape(3, 3)
        at, step = case.values[name].copy(), 1e-6
        ends = []
        for sign in (1, -1):
            case.values[name] = at + sign * step * direction
            ends.append(fuzz.run(case, case.program)[f"{loss}#0"])
        slope = float(ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose((found * direction).sum(), slope, rtol=1e-5, atol=1e-7, err_msg=f"seed {seed}")


def same(expected, found, who):
    peak = max(float(np.abs(a).max(initial=0.0)) for a in expected.values())
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=TOLERANCE, atol=TOLERANCE * peak, err_msg=f"{who} {name}")
