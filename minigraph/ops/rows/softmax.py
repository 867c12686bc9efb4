"""Softmax and its logarithm."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import EMPTY
from minigraph.opdef import Rows, op
from minigraph.types import TensorType, normalize_axis


def require_scores(name: str, X: TensorType, axis: int) -> int:
    """X is a float array with something along `axis`, which is returned counted from the front."""
    require(X.is_float, f"{name} must be a float, is {X.dtype}", DTypeError)
    place = normalize_axis(axis, X.ndim)
    require(X.shape[place] != 0, f"{name} axis {place} has size 0, there is nothing to normalise", EMPTY)
    return place


def last_axis(attrs, ndim):
    """The first axis of rows where `axis` is the last one."""
    return ndim - 1 if attrs["axis"] % ndim == ndim - 1 else None


ROWS = Rows(last_axis)


@op(inplace={"Out": "X"}, gpu="rows.softmax", rows=ROWS)
def softmax(X, *, axis: int = -1, out=None):
    """exp(X) / sum of exp(X) along `axis`, computed from X - max(X).

    A row that is -inf throughout gives NaN, as in NumPy and ONNX. The default axis is the last one
    as in Paddle and in ONNX since opset 13.
    """
    out = np.subtract(X, X.max(axis=axis, keepdims=True), out=out[0] if out else None)
    np.exp(out, out=out)
    return np.divide(out, out.sum(axis=axis, keepdims=True), out=out)


@softmax.cuda_rows
def _(r):
    x = r.read("X")
    r.total("most", x, "max")
    r.lines.append(f"C e[N]; ALL e[i] = exp({x} - most);")
    r.total("sum", "e[i]")
    r.each("Out", "e[i] / sum")


@softmax.infer
def _(X, *, axis):
    require_scores("X", X, axis)
    return X


@softmax.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=(4, 3)),), {"axis": 0}
    yield (rng.normal(size=(2, 4, 3)),), {"axis": 1}
    yield (rng.normal(size=(4, 1)),), {}
    yield (rng.normal(size=(5,)),), {}
    yield (rng.normal(size=(0, 3)),), {}


@op("X_grad", of=softmax, inplace={"X_grad": "Out_grad"}, gpu="rows.softmax", rows=ROWS)
def softmax_grad(Out, Out_grad, *, axis: int = -1, out=None):
    """Out * (Out_grad - sum(Out * Out_grad) along axis)"""
    total = (Out * Out_grad).sum(axis=axis, keepdims=True)
    out = np.subtract(Out_grad, total, out=out[0] if out else None)
    return np.multiply(out, Out, out=out)


@softmax_grad.cuda_rows
def _(r):
    r.total("product", f"{r.read('Out')} * {r.read('Out_grad')}")
    r.each("X_grad", f"{r.read('Out')} * ({r.read('Out_grad')} - product)")


@softmax_grad.infer
def _(Out, Out_grad, *, axis):
    require(Out.is_float, f"Out must be a float, is {Out}", DTypeError)
    return Out


@softmax_grad.grad
def _(g, Out, Out_grad, X_grad_grad, *, axis):
    """With h = X_grad_grad: to Out h * (Out_grad - sum(Out * Out_grad)) - Out_grad * sum(Out * h)."""
    centred = g.elementwise_sub(
        Out_grad, g.reduce_sum(g.elementwise_mul(Out, Out_grad), axis=(axis,), keepdim=True)
    )
    inner = g.reduce_sum(g.elementwise_mul(Out, X_grad_grad), axis=(axis,), keepdim=True)
    to_out = g.elementwise_sub(g.elementwise_mul(X_grad_grad, centred), g.elementwise_mul(Out_grad, inner))
    return to_out, g.softmax_grad(Out, X_grad_grad, axis=axis)


@op(inplace={"Out": "X"}, gpu="rows.softmax", rows=ROWS)
def log_softmax(X, *, axis: int = -1, out=None):
    """log(softmax(X)) = X - log(sum of exp(X) along axis), without log(0)."""
    out = np.subtract(X, X.max(axis=axis, keepdims=True), out=out[0] if out else None)
    return np.subtract(out, np.log(np.exp(out).sum(axis=axis, keepdims=True)), out=out)


@log_softmax.cuda_rows
def _(r):
    x = r.read("X")
    r.total("most", x, "max")
    r.total("sum", f"exp({x} - most)")
    r.lines.append("const C logarithm = log(sum);")
    r.each("Out", f"{x} - most - logarithm")


@log_softmax.infer
def _(X, *, axis):
    require_scores("X", X, axis)
    return X


@log_softmax.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=(2, 4, 3)),), {"axis": 1}
    yield (rng.normal(size=(4, 1)),), {}
    yield (rng.normal(size=(0, 3)),), {"axis": -1}


@op("X_grad", of=log_softmax, gpu="rows.softmax", rows=ROWS)
def log_softmax_grad(Out, Out_grad, *, axis: int = -1, out=None):
    """Out_grad - exp(Out) * sum(Out_grad) along axis"""
    scaled = np.exp(Out, out=out[0] if out else None)
    np.multiply(scaled, Out_grad.sum(axis=axis, keepdims=True), out=scaled)
    return np.subtract(Out_grad, scaled, out=scaled)


@log_softmax_grad.cuda_rows
def _(r):
    r.total("sum", r.read("Out_grad"))
    r.each("X_grad", f"{r.read('Out_grad')} - exp({r.read('Out')}) * sum")


@log_softmax_grad.infer
def _(Out, Out_grad, *, axis):
    require(Out.is_float, f"Out must be a float, is {Out}", DTypeError)
    return Out


@log_softmax_grad.grad
def _(g, Out, Out_grad, X_grad_grad, *, axis):
    """With h = X_grad_grad and P = exp(Out): to Out -h * P * sum(Out_grad), to Out_grad h - sum(h * P)."""
    weighted = g.elementwise_mul(X_grad_grad, g.exp(Out))
    total = g.reduce_sum(Out_grad, axis=(axis,), keepdim=True)
    to_out = g.scale(g.elementwise_mul(weighted, total), scale=-1.0)
    return to_out, g.elementwise_sub(X_grad_grad, g.reduce_sum(weighted, axis=(axis,), keepdim=True))
