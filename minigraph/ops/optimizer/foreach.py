"""Elementary operations on lists of arrays: one operator, and on a GPU one launch, for a whole list.

    foreach_mul(X=[a, b], Y=[c, d])   [a * c, b * d]
    foreach_mul(X=[a, b], Y=[s])      [a * s, b * s], s with one element
    foreach_mul(X=[a, b], y=0.5)      [a * 0.5, b * 0.5]; with reverse=True the number stands on the left

Y may have one element where X has many; results have the shape and type of X, in which they are
computed. Passes make these operators from parameter updates (passes/updates/foreach_optimizer_ops.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import CONFLICT, COUNT, MIXED_TYPES
from minigraph.opdef import Arrays, DTypeAttr, OpDef, op
from minigraph.types import FLOATS, TensorType, bool_, float64

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum}
UNARY = {"sqrt": np.sqrt, "abs": np.abs, "sign": np.sign}
FACTS: dict[str, Any] = {"traits": {"guarded", "in_place"}, "inplace": {"Out": "X"}, "gpu": "optimizer.foreach"}


def _binary(name: str, ufunc: Callable[..., Any]) -> OpDef:
    """Define foreach_<name>."""

    def reference(X: Arrays, Y: Arrays = None, *, y: float = 0.0, reverse: bool = False):  # type: ignore[assignment]
        others = [np.asarray(y)] * len(X) if Y is None else [Y[i % len(Y)] for i in range(len(X))]
        pairs = [(x, np.asarray(other, x.dtype).reshape(_seen(x, other))) for x, other in zip(X, others, strict=True)]
        return [ufunc(b, a) if reverse else ufunc(a, b) for a, b in pairs]

    reference.__name__ = f"foreach_{name}"
    reference.__doc__ = f"{ufunc.__name__} of each array of X and its partner: Y[i], the only one of Y, or y."
    made = op("Out*", cpu=f"minigraph.kernels.cpu.foreach:foreach_{name}", **FACTS)(reference)
    made.infer(_infer_binary)
    made.samples(_binary_samples)
    return made


def _seen(x: np.ndarray, other: np.ndarray) -> tuple[int, ...]:
    return x.shape if other.shape == x.shape else ()


def _infer_binary(X: list[TensorType], Y: list[TensorType] | None, *, y: float, reverse: bool) -> list[TensorType]:
    _check_floats(X)
    if Y is None:
        return list(X)
    require(y == 0, f"Y is given, and the number y={y}", CONFLICT)
    require(len(Y) in (1, len(X)), f"X lists {len(X)} arrays, Y {len(Y)}", COUNT)
    for i, x in enumerate(X):
        other = Y[i % len(Y)]
        fits = other.size in (1, -1) or (x.accepts(other) and x.dtype == other.dtype)
        require(fits, f"X[{i}] is {x}, its partner in Y is {other}", hint="same shape and type, or one element")
        require(other.dtype in FLOATS, f"Y must hold floats, holds {other}", DTypeError)
    return list(X)


def _binary_samples(rng: Any) -> Any:
    lists = [abs(rng.normal(size=s)) + 0.5 for s in ((4, 3), (5,), (), (0, 2))]
    others = [abs(rng.normal(size=s)) + 0.5 for s in ((4, 3), (1,), (), (0, 2))]
    yield (lists, others), {}
    yield (lists, [np.array([2.0])]), {"reverse": True}
    yield (lists,), {"y": 0.75}


def _unary(name: str, ufunc: Callable[..., Any]) -> OpDef:
    """Define foreach_<name>."""

    def reference(X: Arrays):
        return [ufunc(x) for x in X]

    reference.__name__ = f"foreach_{name}"
    reference.__doc__ = f"{ufunc.__name__} of each array of X."
    made = op("Out*", cpu=f"minigraph.kernels.cpu.foreach:foreach_{name}", **FACTS)(reference)
    made.infer(_infer_unary)
    made.samples(lambda rng: iter([(([abs(rng.normal(size=s)) + 0.5 for s in ((4, 3), (5,), ())],), {})]))
    return made


def _infer_unary(X: list[TensorType]) -> list[TensorType]:
    _check_floats(X)
    return list(X)


def _check_floats(X: list[TensorType]) -> None:
    for x in X:
        require(x.is_float, f"X must hold floats, holds {x}", DTypeError)
        require(x.dtype == X[0].dtype, f"X holds {X[0].dtype} and {x.dtype}", MIXED_TYPES)


for item in BINARY.items():
    _binary(*item)
for item in UNARY.items():
    _unary(*item)


@op("Out*", traits={"guarded"}, gpu="optimizer.foreach")
def foreach_cast(X: Arrays, *, dtype: DTypeAttr, out=None):
    """Each array of X in another float type."""
    return _copies(X, dtype, out)


def _copies(X: Arrays, dtype: np.dtype, out: Any) -> Arrays:
    planned = out[0] if out and out[0] is not None else [None] * len(X)
    copies = [np.empty(x.shape, dtype) if to is None else to for x, to in zip(X, planned, strict=True)]
    for x, to in zip(X, copies, strict=True):
        np.copyto(to, x, casting="unsafe")
    return copies


@foreach_cast.infer
def _(X, *, dtype):
    _check_floats(X)
    require(dtype in FLOATS, f"dtype must be a float, is {dtype}", DTypeError)
    return [x.with_dtype(dtype) for x in X]


@foreach_cast.samples
def _(rng):
    yield ([rng.normal(size=(4, 3)), rng.normal(size=()), rng.normal(size=7)],), {"dtype": "float32"}


@op("Out*", traits={"guarded", "in_place"}, inplace={"Out": "X"}, gpu="optimizer.foreach")
def foreach_where(Condition, X: Arrays, Y: Arrays, *, out=None):
    """X where the one bool Condition is true, Y otherwise."""
    return _copies(X if Condition.item() else Y, X[0].dtype, out)


@foreach_where.infer
def _(Condition, X, Y):
    _check_floats(X)
    one = Condition.dtype == bool_ and Condition.size in (1, -1)
    require(one, f"Condition must be one bool, is {Condition}", DTypeError)
    require(list(X) == list(Y), "X and Y must list arrays of the same shapes and types")
    return list(X)


@foreach_where.samples
def _(rng):
    lists = [[rng.normal(size=s) for s in ((4, 3), (5,), ())] for _ in range(2)]
    yield (np.array([True]), *lists), {}
    yield (np.array([False]), *lists), {}


@op("Out*", cpu="minigraph.kernels.cpu.optimizer:foreach_norm_ratio", gpu="optimizer.optimizer")
def foreach_norm_ratio(X: Arrays, Y: Arrays):
    """||X[i]|| / ||Y[i]|| as one float64 each, 1 where one of the norms is 0."""
    norms = [[np.sqrt(np.sum(a.astype(float) ** 2)) for a in pair] for pair in zip(X, Y, strict=True)]
    return [np.array([a / b if a > 0 and b > 0 else 1.0]) for a, b in norms]


@foreach_norm_ratio.infer
def _(X, Y):
    _check_floats(X)
    require(list(X) == list(Y), "X and Y must list arrays of the same shapes and types")
    return [TensorType((1,), float64) for _ in X]


@foreach_norm_ratio.samples
def _(rng):
    x, y = ([rng.normal(size=s) for s in ((4, 3), (5,))] for _ in range(2))
    yield ([*x, np.zeros(3)], [*y, np.ones(3)]), {}
