"""Arithmetic on two operands, with NumPy broadcasting and its gradients.

A gradient is summed over the axes along which its operand was broadcast. Second order comes from
rules on the grad operators, in which `X_grad_grad` and `Y_grad_grad` are what flows into them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import AXIS, MIXED_TYPES
from minigraph.opdef import OpDef, op
from minigraph.types import TensorType, bool_, broadcast_shapes


def align(Y: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    """Y with axes of size 1 appended, so that its first axis meets axis `axis` of the other operand.

    axis=-1 is NumPy's rule, which aligns the last axes.
    """
    return Y if axis == -1 or Y.ndim >= ndim else Y.reshape(Y.shape + (1,) * (ndim - axis - Y.ndim))


def infer_binary(X: TensorType, Y: TensorType, *, axis: int = -1) -> TensorType:
    """The broadcast type of two operands of one data type."""
    if X.dtype != Y.dtype:
        raise MIXED_TYPES(f"X is {X.dtype}, Y is {Y.dtype}", hint="cast one of them")
    y = Y.shape
    if axis != -1 and Y.ndim < X.ndim:
        if not 0 <= axis <= X.ndim - Y.ndim:
            raise AXIS(f"axis {axis} does not place Y of rank {Y.ndim} inside X of rank {X.ndim}")
        y = y + (1,) * (X.ndim - axis - Y.ndim)
    return X.with_shape(broadcast_shapes(X.shape, y))


def infer_arithmetic(X: TensorType, Y: TensorType, *, axis: int = -1) -> TensorType:
    """The broadcast type of two numbers: truth values are no operands of arithmetic."""
    require(X.dtype != bool_, "X is bool", DTypeError, "cast it, or use a logical operator")
    return infer_binary(X, Y, axis=axis)


def sum_to(grad: np.ndarray, shape: tuple[int, ...], axis: int = -1) -> np.ndarray:
    """`grad` summed over the axes along which an operand of `shape` was broadcast.

    It is `grad` itself where there is nothing to sum.
    """
    if grad.shape == shape:
        return grad
    full = shape if axis == -1 or len(shape) >= grad.ndim else shape + (1,) * (grad.ndim - axis - len(shape))
    extra = grad.ndim - len(full)
    stretched = tuple(i for i, size in enumerate(full, extra) if size == 1 and grad.shape[i] != 1)
    return grad.sum(axis=(*range(extra), *stretched)).reshape(shape)


def destination(out: Any, like: np.ndarray) -> np.ndarray:
    """The planned array of the only output, or a new one like `like`."""
    return np.empty(like.shape, like.dtype) if out is None or out[0] is None else out[0]


def masked(values: np.ndarray, condition: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """`values` where `condition`, else 0.

    Bits times 0 or 1: exact for infinite values and NaN, which a product with 0 is not, and without
    the branches of np.where, which a random condition makes slow.
    """
    bits = np.dtype(f"i{values.dtype.itemsize}")
    result = np.multiply(values.view(bits), condition.view(np.int8), out=None if out is None else out.view(bits))
    return result.view(values.dtype) if out is None else out


def masked_to(
    grad: np.ndarray, condition: np.ndarray, shape: tuple[int, ...], axis: int, out: np.ndarray | None
) -> np.ndarray:
    """`grad` where `condition`, summed to `shape`."""
    if grad.shape == shape:
        return masked(grad, condition, out)
    return handed_on(masked(grad, condition), shape, axis, out)


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of both signs, away from zero."""
    return np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 2.0, shape))


OPERAND_SHAPES = (
    ((4, 3), (3,), -1), ((4, 3), (4,), 0), ((2, 3, 4), (3,), 1), ((3,), (2, 3), -1), ((2, 1, 3), (4, 1), -1),
    ((), (), -1), ((2, 3), (), -1), ((), (2,), -1), ((1,), (3,), -1), ((0, 3), (1, 3), -1), ((2, 0), (1,), -1),
)  # fmt: skip


def operands(rng):
    """Samples of all ways to broadcast."""
    for x, y, axis in OPERAND_SHAPES:
        yield (draw(rng, x), draw(rng, y)), {"axis": axis}


def function_of_two(name: str, ufunc: np.ufunc, doc: str, cuda: str, *traits: str) -> OpDef:
    """An operator that is one NumPy function of X and Y, with NumPy's broadcasting."""

    def apply(X, Y, *, out=None):
        return ufunc(X, Y, out=out[0] if out else None)

    apply.__name__, apply.__doc__ = name, doc
    return op(traits={"elementwise", *traits}, cuda=cuda)(apply)


@op(traits={"elementwise", "commutative"}, inplace={"Out": "X"}, cuda="X + Y")
def elementwise_add(X, Y, *, axis: int = -1, out=None):
    """X + Y with broadcasting; axis >= 0 aligns Y's first axis with that axis of X."""
    return np.add(X, align(Y, X.ndim, axis), out=out[0] if out else None)


def handed_on(grad: np.ndarray, shape: tuple[int, ...], axis: int, out: np.ndarray | None) -> np.ndarray:
    """`grad` summed to `shape`, in memory of its own unless `out` took over that of `grad`."""
    total = sum_to(grad, shape, axis)
    if out is None:
        return total.copy() if total is grad else total
    if not np.may_share_memory(total, out):
        np.copyto(out, total)
    return out


@op("X_grad?, Y_grad?", of=elementwise_add, traits={"pointwise"}, no_need_buffer={"X", "Y"},
    inplace={"X_grad": "Out_grad"}, copies={"X_grad": "Out_grad", "Y_grad": "Out_grad"},
    cuda={"X_grad": "Out_grad", "Y_grad": "Out_grad"})  # fmt: skip
def elementwise_add_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad summed to the shapes of X and Y; of X and Y only the shapes are used."""
    x_out, y_out = out or (None, None)
    return (
        handed_on(Out_grad, X.shape, -1, x_out) if "X_grad" in needs else None,
        handed_on(Out_grad, Y.shape, axis, y_out) if "Y_grad" in needs else None,
    )


@elementwise_add_grad.grad
def _(g, X, Y, X_grad_grad=None, Y_grad_grad=None, *, axis):
    return None, None, g.elementwise_add(_or_zeros(g, X_grad_grad, X), _or_zeros(g, Y_grad_grad, Y), axis=axis)


def _or_zeros(g: Any, grad: Any, like: Any) -> Any:
    return grad if grad is not None else g.fill_any_like(like, value=0.0)


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="X - Y")
def elementwise_sub(X, Y, *, axis: int = -1, out=None):
    """X - Y with broadcasting, as elementwise_add."""
    return np.subtract(X, align(Y, X.ndim, axis), out=out[0] if out else None)


@op("X_grad?, Y_grad?", of=elementwise_sub, traits={"pointwise"}, no_need_buffer={"X", "Y"},
    inplace={"X_grad": "Out_grad"}, copies={"X_grad": "Out_grad"},
    cuda={"X_grad": "Out_grad", "Y_grad": "-Out_grad"})  # fmt: skip
def elementwise_sub_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad and -Out_grad, summed to the shapes of X and Y."""
    x_out, y_out = out or (None, None)
    return (
        handed_on(Out_grad, X.shape, -1, x_out) if "X_grad" in needs else None,
        np.negative(sum_to(Out_grad, Y.shape, axis), out=y_out) if "Y_grad" in needs else None,
    )


@elementwise_sub_grad.grad
def _(g, X, Y, X_grad_grad=None, Y_grad_grad=None, *, axis):
    return None, None, g.elementwise_sub(_or_zeros(g, X_grad_grad, X), _or_zeros(g, Y_grad_grad, Y), axis=axis)


@op(traits={"elementwise", "commutative"}, inplace={"Out": "X"}, copies={"Out": ("X", "Y")}, cuda="X * Y")
def elementwise_mul(X, Y, *, axis: int = -1, out=None):
    """X * Y with broadcasting, as elementwise_add."""
    return np.multiply(X, align(Y, X.ndim, axis), out=out[0] if out else None)


def _product(grad: np.ndarray, factor: np.ndarray, shape: tuple[int, ...], axis: int, out: Any) -> np.ndarray:
    """grad * factor summed to `shape`; straight into `out` where nothing is to be summed."""
    if grad.shape == shape:
        return np.multiply(grad, factor, out=out)
    return sum_to(grad * factor, shape, axis)


@op("X_grad?, Y_grad?", of=elementwise_mul, read_for={"X": "Y_grad", "Y": "X_grad"}, inplace={"X_grad": "Out_grad"},
    traits={"pointwise"},
    copies={"X_grad": ("Y", "Out_grad"), "Y_grad": ("X", "Out_grad")},
    cuda={"X_grad": "Out_grad * Y", "Y_grad": "Out_grad * X"})  # fmt: skip
def elementwise_mul_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad * Y and Out_grad * X, summed to the shapes of X and Y."""
    x_out, y_out = out or (None, None)
    X_grad = Y_grad = None
    if "Y_grad" in needs:  # first, because X_grad may take over the memory of Out_grad
        Y_grad = _product(Out_grad, X, Y.shape, axis, y_out)
    if "X_grad" in needs:
        X_grad = _product(Out_grad, align(Y, X.ndim, axis), X.shape, -1, x_out)
    return X_grad, Y_grad


@elementwise_mul_grad.grad
def _(g, X, Y, Out_grad, X_grad_grad=None, Y_grad_grad=None, *, axis):
    into_x, into_y = _or_zeros(g, X_grad_grad, X), _or_zeros(g, Y_grad_grad, Y)
    X_grad, _ = g.elementwise_mul_grad(X, into_y, Out_grad, axis=axis, needs=["X_grad"])
    _, Y_grad = g.elementwise_mul_grad(into_x, Y, Out_grad, axis=axis, needs=["Y_grad"])
    to_out = g.elementwise_add(g.elementwise_mul(into_x, Y, axis=axis), g.elementwise_mul(X, into_y, axis=axis))
    return X_grad, Y_grad, to_out


@op(traits={"elementwise"}, inplace={"Out": "X"}, cuda="X / Y")
def elementwise_div(X, Y, *, axis: int = -1, out=None):
    """X / Y of floats, with broadcasting as elementwise_add."""
    return np.divide(X, align(Y, X.ndim, axis), out=out[0] if out else None)


@elementwise_div.infer
def _(X, Y, *, axis):
    require(
        X.is_float, f"X is {X.dtype}, a quotient of ints is no int", DTypeError,
        "cast both to a float type, or floor(cast(X) / cast(Y))",
    )  # fmt: skip
    return infer_binary(X, Y, axis=axis)


@op("X_grad?, Y_grad?", of=elementwise_div, no_need_buffer={"X"}, read_for={"Out": "Y_grad"}, traits={"pointwise"},
    inplace={"X_grad": "Out_grad"},
    cuda={"X_grad": "Out_grad / Y", "Y_grad": "-(Out_grad / Y * Out)"})  # fmt: skip
def elementwise_div_grad(X, Y, Out, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad / Y and -Out_grad * Out / Y, summed to the shapes of X and Y."""
    x_out = out[0] if out and X.shape == Out_grad.shape else None
    quotient = np.divide(Out_grad, align(Y, Out_grad.ndim, axis), out=x_out)
    return (
        sum_to(quotient, X.shape) if "X_grad" in needs else None,
        sum_to(-(quotient * Out), Y.shape, axis) if "Y_grad" in needs else None,
    )


@elementwise_div_grad.grad
def _(g, X, Y, Out, Out_grad, X_grad_grad=None, Y_grad_grad=None, *, axis):
    into_x, into_y = _or_zeros(g, X_grad_grad, X), _or_zeros(g, Y_grad_grad, Y)
    to_grad = g.elementwise_div(g.elementwise_sub(into_x, g.elementwise_mul(Out, into_y, axis=axis)), Y, axis=axis)
    _, Y_grad = g.elementwise_div_grad(to_grad, Y, to_grad, Out_grad, axis=axis, needs=["Y_grad"])
    to_out = g.elementwise_mul(Out_grad, g.elementwise_div(into_y, Y), axis=axis)
    return None, Y_grad, g.scale(to_out, scale=-1.0), to_grad


@op(traits={"elementwise", "reports"}, inplace={"Out": "X"}, cuda="power(X, Y)", gpu="elementwise.elementwise")
def elementwise_pow(X, Y, *, axis: int = -1, out=None):
    """X ** Y with broadcasting as elementwise_add; ints to negative powers are refused."""
    return np.power(X, align(Y, X.ndim, axis), out=out[0] if out else None)


@op("X_grad?, Y_grad?", of=elementwise_pow, traits={"pointwise"}, cuda={
    "X_grad": "Out_grad * (Y == C(0) ? C(0) : Y * power(X, Y - C(1)))",
    "Y_grad": "Out_grad * power(X, Y) * log(X == C(0) && Y >= C(0) ? C(1) : X)",
})
def elementwise_pow_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad")):
    """Out_grad * Y * X^(Y-1) and Out_grad * X^Y * log(X), summed to the shapes of X and Y.

    Limits that floating point would spoil: X_grad is 0 where Y = 0, Y_grad is 0 where X = 0 and Y >= 0.
    """
    y = align(Y, X.ndim, axis)
    X_grad = Y_grad = None
    if "X_grad" in needs:
        slope = np.where(y == 0, y * 0, y * np.power(X, y - 1))
        X_grad = sum_to(Out_grad * slope, X.shape)
    if "Y_grad" in needs:
        base = np.where((X == 0) & (y >= 0), np.ones_like(X), X)
        Y_grad = sum_to(Out_grad * np.power(X, y) * np.log(base), Y.shape, axis)
    return X_grad, Y_grad


@elementwise_pow_grad.grad
def _(g, X, Y, Out_grad, X_grad_grad=None, Y_grad_grad=None, *, axis):
    """Those of a * Y * X^(Y-1) + b * log(X) * X^Y; a and b are Out_grad * X_grad_grad and Out_grad * Y_grad_grad."""
    less, both, parts = g.scale(Y, bias=-1.0), ["X_grad", "Y_grad"], []
    lower = g.elementwise_pow(X, less, axis=axis)
    if X_grad_grad is not None:
        a = g.elementwise_mul(Out_grad, X_grad_grad)
        to_x, to_y = g.elementwise_pow_grad(X, less, g.elementwise_mul(a, Y, axis=axis), axis=axis, needs=both)
        _, of_factor = g.elementwise_mul_grad(lower, Y, a, axis=axis, needs=["Y_grad"])
        to_out = g.elementwise_mul(g.elementwise_mul(lower, Y, axis=axis), X_grad_grad)
        parts.append((to_x, g.sum([to_y, of_factor]), to_out))
    if Y_grad_grad is not None:
        power, log = g.elementwise_pow(X, Y, axis=axis), g.log(X)
        b = g.elementwise_mul(Out_grad, Y_grad_grad, axis=axis)
        to_x, to_y = g.elementwise_pow_grad(X, Y, g.elementwise_mul(b, log), axis=axis, needs=both)
        of_log, _ = g.elementwise_mul_grad(X, lower, b, needs=["X_grad"])
        to_out = g.elementwise_mul(g.elementwise_mul(power, log), Y_grad_grad, axis=axis)
        parts.append((g.sum([to_x, of_log]), to_y, to_out))
    return parts[0] if len(parts) == 1 else tuple(g.sum(list(pair)) for pair in zip(*parts, strict=True))


@op(traits={"elementwise", "commutative"}, inplace={"Out": "X"}, cuda="max_nan(X, Y)")
def elementwise_max(X, Y, *, axis: int = -1, out=None):
    """The larger of X and Y, NaN where one is NaN; broadcasting as elementwise_add."""
    return np.maximum(X, align(Y, X.ndim, axis), out=out[0] if out else None)


@op("X_grad?, Y_grad?", of=elementwise_max, traits={"pointwise"},
    cuda={"X_grad": "Y < X ? Out_grad : C(0)", "Y_grad": "Y < X ? C(0) : Out_grad"})  # fmt: skip
def elementwise_max_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad goes to X where X > Y, else to Y: a tie belongs to Y, as in Paddle."""
    return _chosen(align(Y, X.ndim, axis) < X, X, Y, Out_grad, axis, needs, out)


@elementwise_max_grad.grad
def _(g, X, Y, X_grad_grad=None, Y_grad_grad=None, *, axis):
    return None, None, _choose(g, g.greater_than(X, Y, axis=axis), X, Y, X_grad_grad, Y_grad_grad, axis)


@op(traits={"elementwise", "commutative"}, inplace={"Out": "X"}, cuda="min_nan(X, Y)")
def elementwise_min(X, Y, *, axis: int = -1, out=None):
    """The smaller of X and Y, NaN where one is NaN; broadcasting as elementwise_add."""
    return np.minimum(X, align(Y, X.ndim, axis), out=out[0] if out else None)


@op("X_grad?, Y_grad?", of=elementwise_min, traits={"pointwise"},
    cuda={"X_grad": "Y > X ? Out_grad : C(0)", "Y_grad": "Y > X ? C(0) : Out_grad"})  # fmt: skip
def elementwise_min_grad(X, Y, Out_grad, *, axis: int = -1, needs=("X_grad", "Y_grad"), out=None):
    """Out_grad goes to X where X < Y, else to Y: a tie belongs to Y, as in Paddle."""
    return _chosen(align(Y, X.ndim, axis) > X, X, Y, Out_grad, axis, needs, out)


@elementwise_min_grad.grad
def _(g, X, Y, X_grad_grad=None, Y_grad_grad=None, *, axis):
    return None, None, _choose(g, g.less_than(X, Y, axis=axis), X, Y, X_grad_grad, Y_grad_grad, axis)


def _chosen(
    of_x: np.ndarray, X: np.ndarray, Y: np.ndarray, Out_grad: np.ndarray, axis: int, needs: Any, out: Any
) -> Any:  # fmt: skip
    """Out_grad where X was chosen and where Y was, summed to their shapes."""
    x_out, y_out = out or (None, None)
    return (
        masked_to(Out_grad, of_x, X.shape, -1, x_out) if "X_grad" in needs else None,
        masked_to(Out_grad, ~of_x, Y.shape, axis, y_out) if "Y_grad" in needs else None,
    )


def _choose(g: Any, of_x: Any, X: Any, Y: Any, X_part: Any, Y_part: Any, axis: int) -> Any:
    """X_part where X was chosen, else Y_part."""
    zeros = g.fill_any_like(X, value=0.0)
    Y_part = g.elementwise_add(zeros, _or_zeros(g, Y_part, Y), axis=axis)  # Y_part with the rank of X
    return g.where(of_x, zeros if X_part is None else X_part, Y_part)


for _op in (elementwise_add, elementwise_sub, elementwise_mul, elementwise_pow, elementwise_max, elementwise_min):
    _op.infer(infer_arithmetic)

for _op in (elementwise_add, elementwise_sub, elementwise_mul, elementwise_div, elementwise_max, elementwise_min):
    _op.samples(operands)


@elementwise_pow.samples
def _(rng):
    for (X, Y), attrs in operands(rng):
        yield (np.abs(X), Y), attrs
    yield (np.array([-2, 0, 3]), np.array([3, 0, 2])), {}
