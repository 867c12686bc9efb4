"""Random programs in 16 bits: every pass finds what it finds in float32 and changes nothing but by rounding."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pytest

from minigraph import static
from minigraph.compiler.validate import EPSILON, distance, evaluate
from minigraph.types import FLOATS, as_dtype, float64
from tests.fuzz import FLAGS, STEPS_OF
from tests.support.grades import graded
from tests.support.mixed_programs import LEVELS, MixedProgram, mixed_program

TOGETHER = tuple(f for f in FLAGS if STEPS_OF[f].in_all)
EXACT = tuple(f for f in FLAGS if f != "constant_folding")  # which rounds constants as the program does
PROGRAMS = 30
TYPES = list(itertools.product(["O1", "O2"], ["float16", "bfloat16"]))


def compiled(net: MixedProgram, flags: tuple[str, ...]) -> static.CompiledProgram:
    return static.CompiledProgram(net.program, static.BuildStrategy(**dict.fromkeys(flags, True)))


def run(net: MixedProgram, target: object) -> dict[str, np.ndarray]:
    scope, given = static.Scope(), net.given()
    for name in net.values:
        scope.write(name, given[name])
    feeds = {name: given[name] for name in net.feeds}
    with np.errstate(all="ignore"):
        return dict(zip(net.results, static.Executor().run(target, feeds, net.results, scope=scope), strict=True))


@lru_cache(PROGRAMS)
def exact(seed: int) -> Mapping[str, np.ndarray]:
    """Values and gradients in float64 of the program before it is cast."""
    net = mixed_program(seed)
    given = {n: a.astype(float64) if a.dtype in FLOATS else a for n, a in net.given().items()}
    return evaluate(net.program, given)


HALF, WHOLE = range(PROGRAMS // 2), range(PROGRAMS)
CASES = [(*LEVELS[0], HALF), (*LEVELS[4], HALF), *((*level, WHOLE) for level in LEVELS)]


@pytest.mark.parametrize(("level", "dtype", "seeds"), graded(CASES, now=lambda *case: case[2] is HALF), ids=str)
def test_no_pass_changes_what_is_computed(level: str, dtype: str, seeds: range) -> None:
    """In float64, where casts round nothing, passes alone and all together give values and gradients of before."""
    compared, fired = 0, set()
    for seed in seeds:
        net = mixed_program(seed, level, dtype)
        given = {n: a.astype(float64) if a.dtype in FLOATS else a for n, a in net.given().items()}
        before, text = evaluate(net.program, given), str(net.program)
        for flags in (tuple(f for f in TOGETHER if f in EXACT), *((f,) for f in EXACT)):
            target = compiled(net, flags)
            program = target.program_for(net.results)
            if len(flags) == 1:
                if str(program) == text:
                    continue
                fired.update(flags)
            after = evaluate(program, given)
            for name in net.results:
                assert distance(before[name], after[name]) < 1e-9, f"seed {seed}: {name} by {' '.join(flags)}"
                compared += 1
    assert compared > 10 * len(seeds)
    assert fired >= {"fuse_elementwise", "dead_code_elimination", "fuse_grad_accumulation", "remove_redundant_cast",
                     "remove_redundant_transpose", "common_subexpression_elimination", "fuse_foreach"}  # fmt: skip
    assert "fuse_gemm_epilogue" in fired or level == "OD"


@pytest.mark.parametrize(("level", "dtype"), graded(TYPES, now=lambda *case: case in (TYPES[0], TYPES[3])))
def test_fused_programs_err_no_more_than_unfused_ones(level: str, dtype: str) -> None:
    """Against float64 of the program before it was cast: of each program the largest relative error, and of all of
    them the root of the mean square, are at most twice those of the same casts without passes.

    One value may be off by luck: some roundings of it are allowed beside.
    """
    epsilon, sums = EPSILON[as_dtype(dtype)], np.zeros(3)
    for seed in range(PROGRAMS):
        net = mixed_program(seed, level, dtype)
        off, on = (_errors(net, run(net, t), seed) for t in (net.program, compiled(net, TOGETHER)))
        assert on.max() <= 2 * off.max() + 8 * epsilon, f"seed {seed}"
        sums += len(off), (off**2).sum(), (on**2).sum()
    count, plain, fused = sums
    assert count > 5 * PROGRAMS and plain > count * (epsilon / 8) ** 2
    assert fused <= 4 * plain


def _errors(net: MixedProgram, found: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Of each float result the largest error relative to its largest element."""
    errors = [0.0]
    for name in net.results:
        want, value = np.asarray(exact(seed)[name]), found[name]
        if value.dtype in FLOATS and want.size:
            assert np.isfinite(value.astype(float)).all(), f"seed {seed}: {name}"
            errors.append(np.abs(value.astype(float) - want).max() / (np.abs(want).max() or 1.0))
    return np.array(errors)


@pytest.mark.parametrize(("level", "dtype"), graded(LEVELS[:4], now=lambda *case: case in (LEVELS[0], LEVELS[3])))
def test_linear_layers_are_fused_as_often_as_in_float32(level: str, dtype: str) -> None:
    """Programs of nothing but linear layers and activations: no cast stands inside an epilogue."""
    seen = 0
    for seed in range(2 * PROGRAMS):
        plain = mixed_program(seed)
        if not plain.plain or plain.refusal:
            continue
        counts = []
        for net in (plain, mixed_program(seed, level, dtype)):
            types = [op.type for op in compiled(net, ("fuse_gemm_epilogue",)).program_for(net.results).ops]
            counts.append({t: types.count(t) for t in ("fused_gemm_epilogue", "fused_gemm_epilogue_grad", "matmul")})
        assert counts[0] == counts[1], f"seed {seed}"
        seen += counts[0]["fused_gemm_epilogue"]
    assert seen > 20
