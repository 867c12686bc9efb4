"""GPU checks: gradients as Paddle 2.6.2 finds them on a CPU, pruned runs, halves that are rounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import static
from minigraph.program import unique_name
from tests.gpu.check import PLACE, Check
from tests.support.gradient_programs import PROGRAMS, run
from tests.support.halves import LARGE, ROUNDED
from tests.support.pruned_runs import RUNS, X, net, with_passes

FIXTURES = Path(__file__).parents[1] / "program" / "fixtures"
RECORDED = json.loads((FIXTURES / "paddle_gradients.json").read_text(encoding="utf-8"))


def checks() -> Iterator[Check]:
    for passes in (False, True):
        kind = "passes" if passes else "plain"
        for name in PROGRAMS:
            yield Check(f"gradients/{name}/{kind}", partial(_gradients, name, passes), product=True)
        yield Check(f"prune/{kind}", partial(_pruned, passes), product=True)
    for dtype in LARGE:
        yield Check(f"round/{dtype}", partial(_rounded, dtype))


def _gradients(name: str, passes: bool) -> None:
    with unique_name.guard():
        found = run(mg, PROGRAMS[name], *[with_passes] * passes, place=PLACE)
    for array, expected in zip(found, RECORDED[name], strict=True):
        assert list(array.shape) == expected["shape"]
        np.testing.assert_allclose(array.ravel(), expected["values"], rtol=1e-11, atol=1e-12)


def _pruned(passes: bool) -> None:
    for targets, prune, expected, states in RUNS.values():
        n, exe, scope = net(), static.Executor(PLACE), static.Scope()
        exe.run(n.startup, scope=scope)
        found = exe.run(with_passes(n.main) if passes else n.main, {"x": X}, targets(n), scope=scope, use_prune=prune)
        np.testing.assert_allclose([np.ravel(a)[0] for a in found], expected, rtol=1e-12)
        np.testing.assert_allclose([scope.read("w")[0, 0], scope.read("b")[0]], states, rtol=1e-12)


def _rounded(dtype: str) -> None:
    cases, type = {**ROUNDED, **LARGE[dtype], np.nan: np.nan}, mg.types.as_dtype(dtype)
    x, expected = (np.array(list(values)).astype(type) for values in (cases, cases.values()))
    main = static.Program()
    with static.program_guard(main, static.Program()):
        y = mg.round(static.data("x", [len(cases)], dtype))
    (found,) = static.Executor(PLACE).run(main, {"x": x}, [y])
    assert np.array_equal(found.astype(float), expected.astype(float), equal_nan=True)
    assert (np.signbit(found.astype(float)) == np.signbit(expected.astype(float)))[:-1].all()
