"""Programs with branches and loops that are the same text for Paddle and for minigraph.

`python tests/support/control_cases.py > tests/static/control_flow_paddle_2_6_2.json` with a Python that has Paddle
2.6.2 records what Paddle computes, in float64: the results, and the gradients of the sum of the squares of the float
ones with respect to the float inputs and the parameter. A case runs in a process of its own: some end Paddle's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

X = np.array([[-1.5, 0.5, 2.0], [0.25, -0.75, 1.0]])
UP, DOWN = X, -X  # whose sums are 1.5 and -1.5
WEIGHT = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]])


def weight(p: Any) -> Any:
    """A parameter with known values."""
    attr = p.ParamAttr(name="w", initializer=p.nn.initializer.Assign(WEIGHT))
    return p.static.create_parameter([2, 3], "float64", attr=attr)


def written(p: Any, x: Any) -> Any:
    total = p.full([1], 5.0, "float64")

    def add() -> None:
        p.assign(total + 1.0, total)

    p.static.nn.cond(p.sum(x) > 0, add, lambda: None)
    return total + 0.0


def state(p: Any, x: Any) -> Any:
    count = p.static.create_global_var([1], 3.0, "float64", persistable=True)

    def add() -> None:
        p.assign(count * 2.0, count)

    p.static.nn.cond(p.sum(x) > 0, add, None)
    return count + 0.0


def inner_parameter(p: Any, x: Any) -> Any:
    return p.static.nn.cond(p.sum(x) > 0, lambda: x * weight(p), lambda: x - 1.0)


def in_branch(p: Any, x: Any) -> Any:
    def inner() -> Any:
        return p.static.nn.cond(p.max(x) > 1.75, lambda: x * x, lambda: x * 3.0)

    return p.static.nn.cond(p.sum(x) > 0, inner, lambda: p.tanh(x))


def nested_structures(p: Any, x: Any) -> Any:
    made = p.static.nn.cond(
        p.sum(x) > 0, lambda: {"a": x * x, "b": [x + 1.0, (x,)]}, lambda: {"a": x, "b": [x * 2.0, (x * 3.0,)]}
    )
    return [made["a"], made["b"][0], made["b"][1][0]]


def branches() -> dict[str, Callable[..., Any]]:
    """Each with X and with -X, so that both branches run."""
    return {
        "one result": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: x * x, lambda: x * 3.0),
        "predicate [1]": lambda p, x: p.static.nn.cond(p.sum(x, keepdim=True).reshape([1]) > 0, lambda: x * x,
                                                       lambda: x + 3.0),
        "two results": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: (x * x, x + 1.0), lambda: (x, x * 2.0)),
        "a list and a tuple": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: [x * x, x], lambda: (x, x)),
        "dicts in lists": nested_structures,
        "sizes differ": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: x[:1] * x[:1], lambda: x * 3.0),
        "the input itself": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: x, lambda: x * x),
        "no gradient in one": lambda p, x: p.static.nn.cond(
            p.sum(x) > 0, lambda: p.full([2, 3], 2.0, "float64"), lambda: x * x),
        "a parameter in one": lambda p, x: _of(weight(p), lambda w: p.static.nn.cond(
            p.sum(x) > 0, lambda: x * w * w, lambda: p.tanh(x))),
        "a parameter made inside": inner_parameter,
        "numbers": lambda p, x: p.static.nn.cond(p.sum(x) > 0, lambda: 1, lambda: 2),
        "a variable outside is written": written,
        "a state is written": state,
        "a branch in a branch": in_branch,
        "case": lambda p, x: p.static.nn.case(
            [(p.sum(x) > 100, lambda: x), (p.sum(x) > 0, lambda: x * x)], default=lambda: x + 2.0),
        "case without default": lambda p, x: p.static.nn.case(
            [(p.sum(x) > 100, lambda: x), (p.sum(x) > 30, lambda: x * x)]),
    }  # fmt: skip


def _of(value: Any, function: Callable[[Any], Any]) -> Any:
    return function(value)


def switches() -> dict[str, Case]:
    """switch_case for several numbers."""
    forms: dict[str, Callable[[Any, Any], Any]] = {
        "dict": lambda p, x: {1: lambda: x, 3: lambda: x * x},
        "pairs": lambda p, x: [(3, lambda: x * x), (2, lambda: x + 2.0)],
        "list": lambda p, x: [lambda: x * x, lambda: x + 2.0],
    }
    made: dict[str, Case] = {}
    for form, functions in forms.items():
        for number in (0, 1, 2, 3, -1, 7):
            index = np.array([number])
            made[f"switch {form} {number}"] = (
                lambda p, x, i, f=functions: p.static.nn.switch_case(i, f(p, x)), (X, index))  # fmt: skip
            made[f"switch {form} {number} default"] = (
                lambda p, x, i, f=functions: p.static.nn.switch_case(i, f(p, x), lambda: x * 5.0), (X, index)
            )  # fmt: skip
    return made


def loops() -> dict[str, Case]:
    """while_loop; Paddle writes over loop_vars, so each begins with copies."""

    def counted(p: Any, rounds: int, body: Callable[..., Any], *values: Any) -> Any:
        i = p.full([1], 0, "int64")
        result = p.static.nn.while_loop(
            lambda i, *v: i < rounds, lambda i, *v: [i + 1, *body(*v)], [i, *(v * 1.0 for v in values)]
        )
        return result[1:]

    def until(p: Any, x: Any) -> Any:
        return p.static.nn.while_loop(lambda x: p.sum(x * x) < 500.0, lambda x: [x * 1.5], [x * 1.0])

    def sizes(p: Any, x: Any) -> Any:
        return p.static.nn.while_loop(
            lambda i, x: i < 3, lambda i, x: [i + 1, p.concat([x, x * 0.5], 0)], [p.full([1], 0, "int64"), x * 1.0]
        )[1]

    def two(p: Any, x: Any) -> Any:
        return counted(p, 4, lambda a, b: [a + b, a * 0.5], x, x * 2.0)

    return {
        "rounds": (lambda p, x: counted(p, 3, lambda v: [v * v * 0.5], x), (X,)),
        "no round": (lambda p, x: counted(p, 0, lambda v: [v * v], x), (X,)),
        "a parameter in each round": (
            lambda p, x: _of(weight(p), lambda w: counted(p, 3, lambda v: [p.tanh(v * w)], x)), (X,)),
        "two values": (two, (X,)),
        "as long as it is small": (until, (X,)),
        "an outer value": (lambda p, x: counted(p, 3, lambda v: [v * x], x + 1.0), (X,)),
        "dict": (lambda p, x: p.static.nn.while_loop(
            lambda i, x: i < 3, lambda i, x: [i + 1, {"a": x["a"] * 2.0}], [p.full([1], 0, "int64"), {"a": x * 1.0}]
        )[1]["a"], (X,)),
    }  # fmt: skip


def cases() -> dict[str, Case]:
    both = {
        f"{name}, {which}": (call, (x,)) for name, call in branches().items()
        for which, x in (("true", UP), ("false", DOWN))
    }  # fmt: skip
    return both | switches() | loops()


def build(p: Any, case: Case) -> tuple[Any, Any, list[Any]]:
    """(main program, startup program, what is fetched); None for a gradient that is not there."""
    call, arrays = case
    main, startup = p.static.Program(), p.static.Program()
    with p.static.program_guard(main, startup):
        inputs = [p.static.data(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
        floats = [v for v, a in zip(inputs, arrays, strict=True) if a.dtype.kind == "f"]
        for v in floats:
            v.stop_gradient = False
        found = call(p, *inputs)
        outs = list(found) if isinstance(found, (list, tuple)) else [found]
        squares = [p.sum(o * o) for o in outs if "float64" in str(o.dtype).lower() or "FP64" in str(o.dtype)]
        starts = [*floats, *main.all_parameters()]
        grads = p.static.gradients([sum(squares[1:], squares[0])], starts) if squares else []
    return main, startup, [*outs, *(grads if any(g is not None for g in grads) else [])]


def values(p: Any, case: Case) -> list[Any]:
    """The results and the gradients, None where there is none; `p` is paddle or minigraph."""
    main, startup, wanted = build(p, case)
    exe = p.static.Executor(p.CPUPlace())
    exe.run(startup)
    feed = {f"x{i}": a for i, a in enumerate(case[1])}
    found = iter(exe.run(main, feed=feed, fetch_list=[v for v in wanted if v is not None]))
    return [None if v is None else next(found) for v in wanted]


def record_one(title: str) -> None:
    """Print what Paddle computes for one case."""
    import paddle  # pyright: ignore[reportMissingImports]

    paddle.enable_static()
    paddle.set_default_dtype("float64")
    found = values(paddle, cases()[title])
    json.dump([None if a is None else np.asarray(a).tolist() for a in found], sys.stdout)


def record() -> None:
    """Write what Paddle computes for all cases; one in which it fails has the last line of its error."""
    found: dict[str, Any] = {}
    for title in cases():
        run = subprocess.run([sys.executable, __file__, title], capture_output=True, text=True, check=False)
        answer = run.stdout.strip().split("\n")[-1]
        found[title] = json.loads(answer) if run.returncode == 0 else f"fails: {run.stderr.strip()[-200:]}"
    json.dump(found, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


if __name__ == "__main__":
    record_one(sys.argv[1]) if len(sys.argv) > 1 else record()
