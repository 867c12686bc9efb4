"""Calls that minigraph and Paddle 2.6.2 must answer alike. What Paddle said is in paddle_2_6_2.json.

    python -m tests.tensor.paddle_cases     # writes that file; in an environment that has Paddle 2.6.2

A case is a function of the library and of Variables, and the arrays that are fed. This file imports NumPy alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).with_name("paddle_2_6_2.json")
VERSION = "2.6.2"

Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]
CASES: dict[str, Case] = {}

NAN, INF = float("nan"), float("inf")
X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
Y = np.array([[1.5, 2.0, 0.5], [-1.0, 4.0, 1.25]])
SMALL = np.array([[0.5, -0.25], [0.0, 0.875]])
POSITIVE = np.array([[0.5, 1.5], [2.0, 7.25]])
ODD = np.array([1.0, NAN, INF, -INF, -0.5])
I = np.array([[3, -2, 7], [0, 5, -1]])  # noqa: E741
J = np.array([[2, 2, -3], [1, 4, 6]])
T = np.array([[True, False, True], [False, False, True]])


def case(name: str, build: Callable[..., Any], *arrays: Any) -> None:
    """Add a case; several of one function are told apart by words after its name."""
    assert name not in CASES, name
    CASES[name] = build, tuple(np.asarray(a) for a in arrays)


def named(name: str, *arrays: Any, **arguments: Any) -> None:
    """Add a case that is one call of the function `name` (before a blank) on the arrays."""
    function = name.split()[0]
    case(name, lambda p, *x: getattr(p, function)(*x, **arguments), *arrays)


def run(library: Any, name: str) -> list[np.ndarray]:
    """What `library`, in static mode, computes for a case."""
    build, arrays = CASES[name]
    main = library.static.Program()
    with library.static.program_guard(main, library.static.Program()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [library.static.data(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
        made = build(library, *given)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        feed = {f"x{i}": a for i, a in enumerate(arrays)}
        return library.static.Executor(library.CPUPlace()).run(main, feed=feed, fetch_list=made)


# Functions of one number

for _name in ("acos", "asin", "atanh", "erfinv"):
    named(_name, SMALL)
for _name in ("atan", "asinh", "cosh", "sinh", "tan", "expm1", "erf", "trunc", "frac", "sgn", "neg", "deg2rad",
              "rad2deg", "stanh", "angle", "round", "abs", "ceil", "floor", "sign", "square", "sin", "cos", "tanh",
              "exp"):  # fmt: skip
    named(_name, X)
for _name in ("acosh", "log2", "log10", "lgamma", "digamma", "log", "log1p", "sqrt", "rsqrt", "reciprocal"):
    named(_name, POSITIVE + 0.75)
for _name in ("exp", "expm1", "log", "log2", "log10", "log1p"):
    named(f"{_name} of ints", np.abs(I) + 1)
for _name in ("isnan", "isinf", "isfinite", "nan_to_num"):
    named(_name, ODD)
named("round halves", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]))
named("polygamma", POSITIVE, n=2)
named("erfinv ends", np.array([-1.0, 0.0, 1.0]))
named("digamma below 0", np.array([-0.5, -3.25]))
named("nan_to_num numbers", ODD, nan=1.0, posinf=2.0, neginf=-3.0)
case("logit", lambda p, x: p.logit(x, eps=0.2), np.array([0.1, 0.5, 0.95]))

# Functions of two

named("atan2", X, Y)
named("atan2 of ints", I, J)
named("fmax", np.array([NAN, 1.0, 2.0]), np.array([2.0, NAN, 3.0]))
named("fmin", np.array([NAN, 1.0, 2.0]), np.array([2.0, NAN, 3.0]))
named("floor_divide", X, Y)
named("floor_divide of ints", I, J)
named("floor_divide inexact", np.array([1.0, 6.0]), np.array([0.1, 0.1]))
named("remainder", X, Y)
named("mod of ints", I, J)
named("floor_mod", I, J)
named("gcd", I * 6, J * 4)
named("lcm", I, J)
named("hypot", X, Y)
named("logaddexp", X, Y)
named("heaviside", np.array([-1.0, 0.0, 2.0]), np.array([0.5, 0.5, 0.5]))
named("ldexp", I, J)
named("lerp", X, Y, weight=0.25)
named("lerp by variable", X, Y, Y)
for _name in ("and", "or", "xor"):
    named(f"bitwise_{_name}", I, J)
    named(f"bitwise_{_name} of bools", T, ~T)
named("bitwise_not", I)
named("bitwise_not of bools", T)
named("isclose", np.array([1.0, NAN, INF, 2.0]), np.array([1.0 + 1e-9, NAN, INF, 2.1]))
named("isclose nan", np.array([1.0, NAN]), np.array([1.0 + 1e-9, NAN]), equal_nan=True)

# Operators

case("x // y", lambda p, x, y: x // y, I, J)
case("x % y", lambda p, x, y: x % y, X, Y)
case("x // 2", lambda p, x: x // 2, I)
case("x % 2.5", lambda p, x: x % 2.5, I)
case("x & y", lambda p, x, y: [x & y, x | y, x ^ y, ~x], I, J)
case("a & b", lambda p, x, y: [x & y, x | y, x ^ y, ~x], T, ~T)

# Picking and putting by position

A = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(24.0).reshape(2, 3, 4)
named("index_select", CUBE, [2, 0, 0], axis=1)
named("gather_nd", CUBE, [[[1, 2], [0, 0]]])
named("gather_nd whole", A, [[1, 2], [0, 1]])
named("scatter", np.ones((3, 2)), [2, 1, 0, 1], np.arange(8.0).reshape(4, 2))
named("scatter sums", np.ones((3, 2)), [2, 1, 1], np.arange(6.0).reshape(3, 2), overwrite=False)
named("scatter_nd", [[1], [1], [0]], [1.0, 2.0, 3.0], shape=[3])
named("scatter_nd_add", A, [[1, 1], [1, 1], [0, 2]], [5.0, 6.0, 7.0])
named("scatter_nd_add rows", A, [[1], [1]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
named("take_along_axis", A, [[0], [2]], axis=1)
named("take_along_axis broadcast", CUBE, [[[2], [0]]], axis=1)
named("put_along_axis", A, [[0], [2]], [[9.0], [9.0]], axis=1)
named("put_along_axis variable", A, [[0, 0], [2, 1]], [[1.0, 2.0], [3.0, 4.0]], axis=1)
named("put_along_axis add", A, [[0, 0], [2, 1]], [[1.0, 2.0], [3.0, 4.0]], axis=1, reduce="add")
named("index_sample", A, [[0, 1], [2, 2]])
case("index_add", lambda p, x, i, v: p.index_add(x, i, 1, v), A, [0, 0], np.ones((2, 2)))
case("index_put", lambda p, x, i, j, v: p.index_put(x, (i, j), v), A, [0, 1], [1, 2], [7.0, 8.0])
case("index_put add", lambda p, x, i, v: p.index_put(x, (i,), v, accumulate=True), A, [1, 1], A)
case("index_fill", lambda p, x, i: p.index_fill(x, i, 1, 5.0), A, [0])
case("masked_fill", lambda p, x: p.masked_fill(x, x > 2, 7.0), A)
named("take", A, [0, -1, 5])
named("take wrap", A, [0, -7, 8], mode="wrap")
named("take clip", A, [0, -7, 8], mode="clip")
case("multiplex", lambda p, x, y, i: p.multiplex([x, y], i), A, A + 10, np.array([[1], [0]], "int32"))
named("repeat_interleave", A, repeats=2, axis=1)
named("repeat_interleave flat", A, repeats=2)


def record() -> None:
    """Write what the Paddle that is installed says of every case."""
    import paddle

    assert paddle.__version__ == VERSION, paddle.__version__
    paddle.enable_static()
    answers: dict[str, Any] = {}
    for name in CASES:
        try:
            values = run(paddle, name)
        except Exception as problem:
            answers[name] = {"error": type(problem).__name__}
            print(name, problem)
            continue
        answers[name] = [{"dtype": v.dtype.name, "shape": v.shape, "values": v.reshape(-1).tolist()} for v in values]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    record()
