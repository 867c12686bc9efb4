"""GPU checks of check_nan_inf: the first operator that gives NaN or infinity is named, and nothing is changed.

The functions take an Executor, so that tests/runtime/test_check_nan_inf.py runs them on a CPU, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.errors import KernelError, NonFiniteError
from minigraph.opdef import OPS
from minigraph.program import Program, Variable, program_guard
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.program.unique_name import guard
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import FLOATS
from tests.gpu.check import PLACE, Check, GpuExecutor, each
from tests.gpu.faults import Net
from tests.support import opcheck
from tests.support.opcheck import Call
from tests.support.update_nets import LEVELS, OPTIMIZERS, Clip

DTYPES = ("float32", "bfloat16")
PLANTED = (np.nan, np.inf, -np.inf)
Make = Callable[[], Executor]


def checks() -> Iterator[Check]:
    for name in op_types():
        run = partial(planted, name, GpuExecutor)
        yield Check(f"nan/{name}", run, sanitize=name in ("relu", "layer_norm"), product=True)
    on_device = partial(Executor, PLACE)
    for run in PROGRAMS:
        yield Check(f"nan/{run.__name__}", partial(run, on_device), product=True)
    yield Check("nan/large", partial(large, on_device))
    yield Check("nan/off_is_free", off_is_free)


def op_types() -> list[str]:
    """Operators whose samples have floats to plant something in; of those that run a block, its operators are named."""
    plain = (t for t, opdef in OPS.items() if opdef.samples_function and "control" not in opdef.traits)
    return [t for t in plain if any(_calls(t))]


def _calls(op_type: str) -> list[Call]:
    return [c for c in opcheck.samples(OPS[op_type]) if c.float_places]


@contextmanager
def checking(on: bool = True) -> Iterator[None]:
    """The flag inside the block."""
    before = mg.get_flags("FLAGS_check_nan_inf")
    mg.set_flags({"FLAGS_check_nan_inf": on})
    try:
        yield
    finally:
        mg.set_flags(before)


# one operator


def planted(op_type: str, make: Make, dtypes: Sequence[str] = DTYPES, most: int | None = None) -> None:
    """NaN and both infinities in each float input of the samples: refused just as its results deserve.

    most  samples, the first ones
    """
    each(
        (f"{call} {dtype} {place} {value}", partial(_planted, one, place, value))
        for dtype in dtypes
        for call in _calls(op_type)[:most]
        for one in [_One(call.for_gpu(dtype), make())]
        for place in [None, *call.float_places]
        for value in (PLANTED if place is not None and dtype == "float32" else PLANTED[:1])
    )


class _One:
    """A program of one call, which is run with other inputs as often as wanted."""

    def __init__(self, call: Call, exe: Executor) -> None:
        with guard():
            self.program, _, self.outputs = opcheck.built(call)
        self.program.random_seed = 5
        self.call, self.exe = call, exe

    def run(self, call: Call) -> dict[str, np.ndarray] | NonFiniteError:
        names = [v.name for vs in self.outputs.values() for v in vs]
        try:
            found = self.exe.run(self.program, opcheck.feed_of(call), names, scope=Scope())
        except NonFiniteError as problem:
            return problem
        return dict(zip(names, found, strict=True))


def _planted(one: _One, place: tuple[str, int] | None, value: float) -> None:
    call = one.call.with_inputs(np.array)
    if place is not None:
        x = call.inputs[place[0]][place[1]]
        x.reshape(-1)[-1:] = value
    with checking(False), np.errstate(all="ignore"):
        plain = one.run(call)
    assert isinstance(plain, dict)
    wanted = _wanted(call, one.outputs, plain)
    with checking():
        found = one.run(call)
    if wanted is None:
        assert isinstance(found, dict), f"refused: {found}"
        same = all(
            found[name].tobytes() == x.tobytes() for name, x in plain.items() if "random" not in call.opdef.traits
        )
        assert same, "the results are others"
        return
    assert isinstance(found, NonFiniteError), f"not refused: {wanted}"
    told = found.operator, found.variable, found.index, found.step
    assert told == (call.opdef.type, *wanted, 0), f"{told}, not {wanted}"


def _wanted(
    call: Call, outputs: dict[str, list[Variable]], results: dict[str, np.ndarray]
) -> tuple[str, tuple[int, ...]] | None:
    """(output, index) that must be named, from the results themselves."""
    unread = call.opdef.unread(call.opdef.output_names)
    read = [x for slot, xs in call.inputs.items() if slot not in unread for x in xs if x.dtype in FLOATS]
    words = {n: repr(v) for n, v in call.attrs.items() if v != call.opdef.attrs[n].default}
    for slot, variables in outputs.items():
        for v in variables:
            x = results[v.name]
            if x.dtype not in FLOATS:
                continue
            x = x.astype("float64")
            wrong = np.isnan(x)
            for infinity, word in ((np.inf, r"(?<!-)\b(inf|Infinity)"), (-np.inf, r"-(inf|Infinity)")):
                given = any((r.astype("float64") == infinity).any() for r in read)
                said = any(re.search(word, w) for w in words.values()) or slot == "LogSumExp"
                wrong |= (x == infinity) & (not given and not said)
            if wrong.any():
                return v.name, tuple(int(i) for i in np.argwhere(wrong)[0])
    return None


# programs


class Trained:
    """Net of gpu_faults with floats that can go wrong in many places."""

    def __init__(self, optimizer: Any = None, dtype: str = "float32") -> None:
        self.main, self.startup = Program("main"), Program("startup")
        self.main.random_seed = self.startup.random_seed = 3
        with guard(), program_guard(self.main, self.startup):
            mg.set_default_dtype(dtype)
            x, label = mg.static.data("x", [8, 16], dtype), mg.static.data("label", [8, 1], "int64")
            weight = mg.static.data("weight", [8, 1], dtype)
            hidden = mg.nn.functional.gelu(mg.nn.Linear(16, 24)(x))
            rooted = mg.sqrt(mg.mean(mg.square(hidden), axis=1, keepdim=True))
            scores = mg.nn.Linear(24, 4)(hidden / rooted)
            loss = mg.mean(mg.nn.functional.cross_entropy(scores, label, reduction="none") * mg.log(weight))
            (optimizer or OPTIMIZERS["AdamW"]()).minimize(loss)
            block = self.main.global_block()
            for b in (block, self.startup.global_block()):
                b.create_var("count", [1], "int64", persistable=True, stop_gradient=True)
            first = self.startup.global_block().var("count")
            g0, g = Builder(self.startup.global_block()), Builder(block)
            g0.fill_constant(shape=(1,), value=0, dtype="int64", out={"Out": first})
            g.scale(block.var("count"), bias=1.0, out={"Out": block.var("count")})
            mg.log(mg.mean(x) + 10.0)  # after the update
            mg.set_default_dtype("float32")
        self.loss, self.dtype = loss.name, dtype

    def feed(self, number: int, **bad: float) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(number)
        feed = {
            "x": rng.normal(size=(8, 16)).astype(mg.types.as_dtype(self.dtype)),
            "label": rng.integers(0, 4, (8, 1)),
            "weight": rng.uniform(1, 2, (8, 1)).astype(mg.types.as_dtype(self.dtype)),
        }
        for name, value in bad.items():
            feed[name][3:4] = value
        return feed


def kept(scope: Scope) -> dict[str, bytes]:
    return {name: scope.read(name).tobytes() for name in scope.list_names()}


BAD = ({"weight": 0.0}, {"weight": -1.0}, {"weight": np.nan}, {"x": np.inf}, {"x": np.nan}, {"x": -1e30})


def nothing_changes(make: Make, made: Trained | None = None, strategies: Any = None) -> None:
    """Good runs among bad ones leave what they leave alone; each bad one is told with its step."""
    made = made or Trained()
    for strategy in strategies or (BuildStrategy(), BuildStrategy.all()):
        flags = {f: getattr(strategy, f) for f in vars(strategy) if not f.startswith("_")}
        checked = CompiledProgram(made.main, BuildStrategy(**(flags | {"check_nan_inf": True})))
        plain = CompiledProgram(made.main, BuildStrategy(**flags))
        exe, scope, other = make(), Scope(), Scope()
        for s in (scope, other):
            exe.run(made.startup, scope=s)
        good = 0
        for bad in (None, *BAD[:2], None, None, *BAD[2:], None):
            before = kept(scope)
            if bad is None:
                for program, s in ((checked, scope), (plain, other)):
                    fetched = exe.run(program, made.feed(good), [made.loss, "count", "linear_0.w_0"], scope=s)
                    assert fetched[1].tolist() == [good + 1]
                    assert fetched[2].tobytes() == s.read("linear_0.w_0").tobytes()
                good += 1
                assert scope.read("count").tolist() == [good]
                continue
            problem = refused(exe, checked, made.feed(good, **bad), [made.loss], scope)
            assert problem.step == good, f"{bad}: step {problem.step}, not {good}"
            assert kept(scope) == before, f"{bad} changed the Scope"
            assert scope.steps[made.main.origin] == good
        a, b = kept(scope), kept(other)
        assert a.keys() == b.keys()
        for name in a:
            one, two = (s.read(name).astype("float64") for s in (scope, other))
            assert np.allclose(one, two, rtol=1e-2 if made.dtype != "float32" else 1e-5, atol=1e-5), name


def refused(exe: Executor, program: Any, feed: Any, fetches: Any, scope: Scope) -> NonFiniteError:
    """The error of a run that must have one."""
    try:
        exe.run(program, feed, fetches, scope=scope)
    except NonFiniteError as problem:
        return problem
    raise AssertionError("not refused")


def who_is_named(make: Make) -> None:
    """The first operator of the program, whatever the order of kernels is."""
    made, exe, scope = Trained(), make(), Scope()
    exe.run(made.startup, scope=scope)
    program = CompiledProgram(made.main, BuildStrategy(check_nan_inf=True))
    wanted = (("log", "-inf at [3, 0]"), ("log", "nan at [3, 0]"), ("log", "nan at [3, 0]"))
    for round_ in range(3):  # one by one, captured, launched
        for bad, (op_type, where) in zip(BAD, wanted, strict=False):
            problem = late(exe, program, made.feed(1, **bad), scope)
            assert problem.operator == op_type and where in problem.fact, f"{round_} {bad}: {problem}"
            assert "mg.log(weight)" in str(problem), problem
        for value in (np.nan, np.inf):
            problem = late(exe, program, made.feed(1, x=value), scope)
            assert problem.operator == "matmul", problem
            assert f"X=x is {value} at [3, 0]" in problem.fact, problem


def late(exe: Executor, program: Any, feed: Any, scope: Scope) -> NonFiniteError:
    """The error of a run without fetches, raised when the Scope is read."""
    try:
        exe.run(program, feed, [], scope=scope)
        scope.look_at_faults()
    except NonFiniteError as problem:
        return problem
    raise AssertionError("not refused")


def gradients_only(make: Make) -> None:
    """A loss that is finite and a gradient that is not."""
    main = Program("main")
    with guard(), program_guard(main, Program()):
        x = mg.static.data("x", [4])
        x.stop_gradient = False
        w = main.global_block().create_parameter("w", (4,), "float32")
        loss = mg.sum(mg.sqrt(w * x))
        OPTIMIZERS["SGD"]().minimize(loss)
    exe, scope = make(), Scope()
    scope.write("w", np.array([1, 4, 0, 9], "float32"))
    scope.write("learning_rate_0", np.array([0.1], "float32"))
    with checking():
        problem = refused(exe, main, {"x": np.ones(4, "float32")}, [loss], scope)
    assert problem.operator == "elementwise_div" and "@GRAD" in problem.variable and problem.index == (2,), problem
    assert scope.read("w").tolist() == [1, 4, 0, 9]


def states(make: Make, names: Sequence[str] = tuple(OPTIMIZERS)) -> None:
    """NaN in a parameter, and in a state of each optimizer, at all levels."""
    each((f"{name} {level}", partial(_states, make, name, level)) for name in names for level in LEVELS)


def _states(make: Make, name: str, level: str | None) -> None:
    made = Trained(OPTIMIZERS[name]())
    exe, scope = make(), Scope()
    exe.run(made.startup, scope=scope)
    program = CompiledProgram(made.main, BuildStrategy(check_nan_inf=True, **({level: True} if level else {})))
    exe.run(program, made.feed(0), [made.loss], scope=scope)
    floats = [n for n in scope.list_names() if scope.read(n).dtype in FLOATS and scope.read(n).ndim == 2]
    assert floats
    for variable in floats:
        good = scope.read(variable)
        bad = good.copy()
        bad[1, 2] = np.nan
        scope.write(variable, bad)
        before = kept(scope)
        problem = refused(exe, program, made.feed(1), [made.loss], scope)
        assert problem.step == 1 and kept(scope) == before
        assert f"={variable} is nan at [1, 2]" in problem.fact, problem
        assert "in the Scope" in str(problem) and "one by one" not in str(problem), problem
        scope.write(variable, good)
    exe.run(program, made.feed(1), [made.loss], scope=scope)


def masks(make: Make) -> None:
    """Deliberate infinities pass: fed, constant, in attributes; not what comes of them where they hide everything."""
    main = Program("main")
    with guard(), program_guard(main, Program()):
        x, mask = mg.static.data("x", [3, 4]), mg.static.data("mask", [3, 4])
        hidden = mg.full([3, 4], float("-inf"))
        seen = mg.where(mask < 0, hidden, x) + mask
        p = mg.nn.functional.softmax(seen)
        out = mg.sum(p)
    feed = {"x": np.ones((3, 4), "float32"), "mask": np.zeros((3, 4), "float32")}
    feed["mask"][:, 1] = -np.inf
    for strategy in (BuildStrategy(), BuildStrategy.all()):
        strategy.check_nan_inf = True
        program, exe = CompiledProgram(main, strategy), make()
        (found,) = exe.run(program, feed, [out], scope=Scope())
        assert abs(found - 3) < 1e-6
        all_hidden = feed | {"mask": np.full((3, 4), -np.inf, "float32")}
        problem = refused(exe, program, all_hidden, [out], Scope())
        assert "is nan at [0, 0]" in problem.fact, problem
        assert "softmax" in problem.fact + problem.operator, problem


def low_precision(make: Make) -> None:
    """What float32 holds, 16 bits do not; and a float16 constant."""
    main = Program("main")
    with guard(), program_guard(main, Program()):
        halves = [mg.square(mg.cast(mg.static.data("x", [5]), t)) for t in ("float16", "bfloat16")]
    for i, value in enumerate((300.0, 1e20)):
        x = np.array([1, 2, -value, 3, value], "float32")
        with checking():
            exe = make()
            problem = refused(exe, main, {"x": x}, [halves[i]], Scope())
        assert (problem.operator, problem.index) == ("square" if i == 0 else "cast", (2,)), problem


def beside_bad_indices(make: Make) -> None:
    """An index out of range is told as such, and NaN in the same program as such."""
    made, exe, scope = Net(OPTIMIZERS["AdamW"](grad_clip=Clip(0.5))), make(), Scope()
    exe.run(made.startup, scope=scope)
    program = CompiledProgram(made.main, BuildStrategy(check_nan_inf=True))
    for number, kind in enumerate((0, 1, 0, 2, 0, 2, 1, 0)):
        before, said = kept(scope), None
        try:
            exe.run(program, made.feed(number, kind), [made.loss], scope=scope)
        except KernelError as problem:
            said = type(problem)
        assert said is (KernelError if kind else None), said
        assert (kind != 0) == (kept(scope) == before)


def arithmetic(make: Make) -> None:
    """log(0), 0 / 0, sqrt(-1), 1 / 0, overflow: each is told with its kind and its line."""
    for name, function, kind in (
        ("log", lambda x: mg.log(x), "-inf"), ("elementwise_div", lambda x: x / x, "nan"),
        ("sqrt", lambda x: mg.sqrt(x - 1.0), "nan"), ("elementwise_div", lambda x: (x + 1.0) / x, "inf"),
        ("exp", lambda x: mg.exp(x - 1.0 + 1e9), "inf"),
    ):  # fmt: skip
        main = Program("main")
        with guard(), program_guard(main, Program()):
            out = mg.mean(function(mg.static.data("x", [3, 2])))
        x = np.ones((3, 2), "float32")
        x[1:, 1] = 0
        with checking():
            problem = refused(make(), main, {"x": x}, [out], Scope())
        assert problem.operator == name and f"is {kind} at [{0 if name == 'exp' else 1}, " in problem.fact, problem
        assert "all inputs are finite" in problem.fact and "lambda x" in str(problem), problem


PROGRAMS = (
    arithmetic, nothing_changes, who_is_named, gradients_only, states, masks, low_precision, beside_bad_indices,
)  # fmt: skip


def large(make: Make) -> None:
    """Positions beyond what one wave of blocks reads at once."""
    main = Program("main")
    with guard(), program_guard(main, Program()):
        out = mg.log(mg.static.data("x", [3, 1 << 22]))
    x = np.ones((3, 1 << 22), "float32")
    x[1, 77777:] = 0
    x[2, 5] = -1
    with checking():
        problem = refused(make(), main, {"x": x}, [out], Scope())
    assert problem.index == (1, 77777), problem
    assert f"1 nan, {(1 << 22) - 77777} -inf" in problem.fact, problem


def off_is_free() -> None:
    """Without the flag a plan has not one call more than ever, with it none that it does not need."""
    made = Trained()
    exe, scope = Executor(PLACE), Scope()
    exe.run(made.startup, scope=scope)

    def calls() -> list[str]:
        exe.run(made.main, made.feed(0), [made.loss], scope=scope)
        plan = next(reversed(exe._plans.values()))
        return [getattr(c, "function", type(c).__name__) for _, c in plan.bound.binder.running()]

    first = calls()
    with checking():
        checked = calls()
    assert calls() == first and not {"scan", "judge"} & {*first}
    assert {"scan", "judge"} <= {*checked}
