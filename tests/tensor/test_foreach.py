"""mg.foreach: values against NumPy, gradients against differences, `out`, and one clear error for each bad call."""

from __future__ import annotations

import math

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError
from minigraph.program import Program, program_guard
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram

SHAPES = [(2, 3), (1,), (0, 2), (5,)]
f = mg.foreach

CASES = {
    "add": (lambda x, y: f.add(x, y, alpha=0.5), lambda x, y: x + 0.5 * y),
    "add a number": (lambda x, y: f.add(x, 2), lambda x, y: x + 2),
    "sub": (lambda x, y: f.sub(x, y, alpha=2.0), lambda x, y: x - 2 * y),
    "mul": (lambda x, y: f.mul(x, y), lambda x, y: x * y),
    "mul by numbers": (lambda x, y: f.mul(x, [1, 2, 3, 4.5]), None),
    "div": (lambda x, y: f.div(x, y), lambda x, y: x / y),
    "div by a number": (lambda x, y: f.div(x, 3.0), lambda x, y: x / 3.0),
    "addcmul": (lambda x, y: f.addcmul(x, y, y, value=0.3), lambda x, y: x + 0.3 * y * y),
    "addcdiv": (lambda x, y: f.addcdiv(x, x, y, value=0.3), lambda x, y: x + 0.3 * x / y),
    "lerp": (lambda x, y: f.lerp(x, y, 0.25), lambda x, y: x + 0.25 * (y - x)),
    "lerp by a Variable": (lambda x, y: f.lerp(x, y, y[1]), None),
    "sqrt": (lambda x, y: f.sqrt(y), lambda x, y: np.sqrt(y)),
    "abs": (lambda x, y: f.abs(x), lambda x, y: np.abs(x)),
    "sign": (lambda x, y: f.sign(x), lambda x, y: np.sign(x)),
    "zero": (lambda x, y: f.zero(x), lambda x, y: 0 * x),
    "norm 1": (lambda x, y: f.norm(x, 1), lambda x, y: np.abs(x).sum()),
    "norm 2": (lambda x, y: f.norm(x), lambda x, y: np.sqrt((x * x).sum())),
    "norm inf": (lambda x, y: f.norm(x, math.inf), lambda x, y: np.abs(x).max(initial=0)),
}


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for s in SHAPES], [abs(rng.normal(size=s)) + 0.5 for s in SHAPES]


def built(function, dtype="float64", trained=False):
    """(program, names of the results, gradients of the sum of their squares by name of x, name of the sum)"""
    main = Program()
    with program_guard(main, Program()):
        block = main.global_block()
        x, y = ([block.create_parameter(f"{n}{i}", s, dtype) for i, s in enumerate(SHAPES)] for n in "xy")
        results = function(x, y)
        names, loss = [r.name for r in results], None
        for r in results if trained else ():
            term = mg.sum(mg.cast(r * r, "float64"))
            loss = term if loss is None else loss + term
        pairs = mg.static.append_backward(loss) if loss is not None else []
        grads = {p.name: g.name for p, g in pairs if g is not None}
    return main, names, grads, loss.name if loss is not None else ""


def run(program, names, x, y, dtype="float64", **flags):
    scope = Scope()
    for n, values in (("x", x), ("y", y)):
        for i, a in enumerate(values):
            scope.write(f"{n}{i}", a.astype(dtype))
    return Executor().run(CompiledProgram(program, BuildStrategy(**flags)), {}, names, scope=scope)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, formula = CASES[name]
    main, names, grads, loss = built(function, trained=name not in ("sign", "zero"))
    x, y = arrays()
    plain = run(main, [*names, *grads.values()], x, y)
    fused = run(main, [*names, *grads.values()], x, y, fuse_foreach=True, verify="each_pass")
    for a, b in zip(plain, fused, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)
    if formula is not None:
        for found, a, b in zip(fused, x, y, strict=False):
            np.testing.assert_allclose(found, formula(a, b), rtol=1e-12)
    by_name = dict(zip(grads, fused[len(names) :], strict=True))
    step = 1e-6
    for n in by_name.keys() & {"x0", "y0", "x1", "y1"}:
        for at in np.ndindex(by_name[n].shape):
            ends = []
            for sign in (1, -1):
                values = {"x": [a.copy() for a in x], "y": [a.copy() for a in y]}
                values[n[0]][int(n[1])][at] += sign * step
                ends.append(run(main, [loss], values["x"], values["y"])[0].item())
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(by_name[n][at], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("mul by numbers", "lerp by a Variable")])
def test_each_function_is_one_operator_for_each_step(name):
    main, names, _, _ = built(CASES[name][0])
    compiled = CompiledProgram(main, BuildStrategy(fuse_foreach=True))
    kinds = [op.type for op in compiled.program_for(names).ops if op.role == "forward"]
    assert kinds[0] in ("foreach_elementwise", "foreach_p_norm", "fill_constant")
    assert sum(k in ("foreach_elementwise", "foreach_p_norm") for k in kinds) >= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_low_precision_is_as_near_as_without_the_pass(dtype):
    x, y = arrays()
    for name, (function, formula) in CASES.items():
        if formula is None:
            continue
        main, names, _, _ = built(function, dtype)
        low = [[_rounded(a, dtype) for a in v] for v in (x, y)]
        exact = [np.asarray(formula(a, b)) for a, b in zip(*low, strict=True)]
        plain = run(main, names, *low, dtype=_dtype(dtype))
        fused = run(main, names, *low, dtype=_dtype(dtype), fuse_foreach=True)
        for e, p, q in zip(exact, plain, fused, strict=True):
            worst = np.max(abs(p.astype(float) - e), initial=0)
            assert np.max(abs(q.astype(float) - e), initial=0) <= 2 * worst + 1e-12, name


def _dtype(name):
    return {"float16": mg.float16, "bfloat16": mg.bfloat16, "float32": mg.float32}[name]


def _rounded(a, dtype):
    return a.astype(_dtype(dtype)).astype(float)


def test_out_is_written_after_all_are_computed():
    main = Program()
    with program_guard(main):
        p, q = (main.global_block().create_var(n, (3,), "float64", persistable=True) for n in "pq")
        f.add([p, q], [q, p], out=[p, q])
    for flags in ({}, {"fuse_foreach": True}):
        scope = Scope()
        scope.write("p", np.arange(3.0))
        scope.write("q", np.ones(3))
        Executor().run(CompiledProgram(main, BuildStrategy(**flags)), {}, [], scope=scope)
        for n in "pq":
            np.testing.assert_array_equal(scope.read(n), np.arange(3.0) + 1)


BAD = {
    "xs is an empty list": lambda x, y: f.add([], []),
    "xs must be a list of Variables": lambda x, y: f.sqrt(x[0]),
    r"xs\[1\] must be a Variable, is a float": lambda x, y: f.sqrt([x[0], 1.0]),
    "xs lists 4 Variables, ys lists 3": lambda x, y: f.add(x, y[:3]),
    "xs lists 4 Variables, ys lists 2": lambda x, y: f.mul(x, [1.0, 2.0]),
    r"ys is an empty list": lambda x, y: f.mul(x, []),
    r"xs\[0\] is x0: f64\[2,3\], ys\[0\] is y3: f64\[5\]": lambda x, y: f.mul(x, y[::-1]),
    r"weight is y3: f64\[5\], beside lists may stand one Variable of one element": lambda x, y: f.lerp(x, y, y[3]),
    "ys must be a list of Variables, a Variable or a number, is a str": lambda x, y: f.mul(x, "2"),
    "alpha must be a number": lambda x, y: f.add(x, y, alpha=x[1]),
    "ord must be 1, 2 or inf, is an int: 3": lambda x, y: f.norm(x, 3),
    "xs lists 4 Variables, out lists 1": lambda x, y: f.sqrt(x, out=x[:1]),
    "out lists x0 twice": lambda x, y: f.sqrt([x[0], x[0]], out=[x[0], x[0]]),
    r"xs\[0\] is x3: f64\[5\], ys\[0\] is .*: f32\[5\]": lambda x, y: f.add([x[3]], [mg.cast(x[3], "float32")]),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_calls_leave_the_program_as_it_was(said):
    main = Program()
    with program_guard(main):
        block = main.global_block()
        x, y = ([block.create_parameter(f"{n}{i}", s, "float64") for i, s in enumerate(SHAPES)] for n in "xy")
        with pytest.raises(MinigraphError, match=said) as caught:
            BAD[said](x, y)
    assert "foreach." in str(caught.value) and "test_foreach.py" in str(caught.value)
    assert [op.type for op in main.ops] in ([], ["cast"])
