"""Matrix product and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import INNER, MIXED_TYPES, RANK
from minigraph.kernels.chunks import Beside, workspace
from minigraph.kernels.cpu.product import product, products
from minigraph.opdef import DTypeAttr, op
from minigraph.ops.elementwise.elementwise import sum_to
from minigraph.types import FLOATS, TensorType, broadcast_shapes, float32

Job = tuple[np.ndarray, np.ndarray, tuple[int, ...], np.ndarray | None]  # a product: operands, shape to give, out


def beside_products(types: Any, attrs: Any) -> Beside:
    """The workspace of the largest product, each of which is a result; of two gradients one needs X, the other Y."""
    gradients = [(grad, x) for grad, x in (("X_grad", "X"), ("Y_grad", "Y"), ("DX", "X"), ("DY", "Y")) if grad in types]
    results = [types[slot] for slot in ("Out", *dict(gradients)) if slot in types]
    library = workspace(max(t.least_bytes // t.dtype.itemsize for t in results)) if results else 0
    return Beside(0, library, tuple(gradients) if len(gradients) > 1 else ())


def transposed(x: np.ndarray, transpose: bool) -> np.ndarray:
    """The last two axes swapped; a vector has nothing to swap."""
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def as_rows(x: np.ndarray) -> np.ndarray:
    """All leading axes as one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@op("Out", gpu="matmul.gemm", beside=beside_products)
def matmul(X, Y, *, trans_x: bool = False, trans_y: bool = False, out_dtype: DTypeAttr | None = None, out=None):
    """X @ Y with NumPy's rules: 1-D operands are vectors, leading axes broadcast as batch.

    trans_x, trans_y  swap the last two axes of an operand of rank 2 or more first
    out_dtype         type of Out: that of X (None), or float32, for 16-bit operands the type of their sums
    """
    x, y, result = transposed(X, trans_x), transposed(Y, trans_y), out[0] if out else None
    if out_dtype is not None and out_dtype != X.dtype:
        return product(x, y).astype(out_dtype)
    if x.ndim > 2 and y.ndim == 2 and x.flags.c_contiguous:  # one product over all rows, not a batch of them
        rows = None if result is None else as_rows(result)
        return product(as_rows(x), y, out=rows).reshape(*x.shape[:-1], y.shape[-1])
    return product(x, y, out=result)


@matmul.infer
def _(X: TensorType, Y: TensorType, *, trans_x, trans_y, out_dtype=None):
    require(X.ndim >= 1 and Y.ndim >= 1, "a 0-d operand has no rows to multiply", RANK)
    if X.dtype != Y.dtype:  # no `require`: to write its text takes longer than all the rest
        raise MIXED_TYPES(f"X is {X.dtype}, Y is {Y.dtype}", hint="cast one of them")
    if out_dtype is not None and out_dtype != X.dtype and (out_dtype != float32 or X.dtype not in FLOATS):
        also = " or float32" if X.dtype in FLOATS - {float32} else ""
        raise MIXED_TYPES(
            f"out_dtype is {out_dtype}, the product of {X.dtype} can be {X.dtype}{also}", hint="cast Out"
        )
    x, y = list(X.shape), list(Y.shape)
    x_axis = -2 if trans_x and X.ndim > 1 else -1
    y_axis = -1 if (trans_y and Y.ndim > 1) or Y.ndim == 1 else -2
    if x[x_axis] != y[y_axis] and -1 not in (x[x_axis], y[y_axis]):
        raise INNER(
            f"inner sizes differ: X axis {x_axis} is {x[x_axis]}, Y axis {y_axis} is {y[y_axis]}",
            hint="transpose Y" if Y.ndim > 1 and x[x_axis] == y[-3 - y_axis] else None,
        )
    rows = [] if X.ndim == 1 else [x[-1] if trans_x else x[-2]]
    columns = [] if Y.ndim == 1 else [y[-2] if trans_y else y[-1]]
    batch = broadcast_shapes(tuple(x[:-2]), tuple(y[:-2]), last=-3)
    return TensorType((*batch, *rows, *columns), out_dtype or X.dtype)


def inner_size(X: TensorType, trans_x: bool) -> int:
    """Products that each element of X @ Y is the sum of."""
    return X.shape[-2 if trans_x and X.ndim > 1 else -1]


@matmul.flops
def _(types, attrs):
    return 2 * types["Out"].size * inner_size(types["X"], attrs["trans_x"])


@matmul.grad
def _(g, X, Y, Out_grad, *, trans_x, trans_y, out_dtype):
    """Both operands of a product have one type: Out_grad is rounded to that of X first."""
    if Out_grad.dtype != X.dtype:
        Out_grad = g.cast(Out_grad, dtype=X.dtype)
    return g.matmul_grad(X, Y, Out_grad, trans_x=trans_x, trans_y=trans_y)


@matmul.samples
def _(rng):
    for x, y in [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,)), ((3, 4), (4,)),
                 ((4,), (2, 4, 3)), ((0, 4), (4, 5)), ((3, 0), (0, 2)), ((1, 1), (1, 1))]:  # fmt: skip
        yield (rng.normal(size=x), rng.normal(size=y)), {}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 5))), {"trans_x": True}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4))), {"trans_y": True}
    yield (rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 5, 4))), {"trans_x": True, "trans_y": True}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5))), {"out_dtype": "float32"}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(4, 5))), {"trans_x": True, "out_dtype": "float32"}


@op("X_grad?, Y_grad?", read_for={"X": "Y_grad", "Y": "X_grad"}, gpu="matmul.gemm", beside=beside_products)
def matmul_grad(X, Y, Out_grad, *, trans_x: bool = False, trans_y: bool = False, needs=("X_grad", "Y_grad"), out=None):
    """Gradients of X @ Y: Out_grad @ Y^T and X^T @ Out_grad, summed over broadcast batch axes."""
    return gradients(X, Y, Out_grad, trans_x, trans_y, needs, out or (None, None))


def gradients(
    X: np.ndarray, Y: np.ndarray, Out_grad: np.ndarray, trans_x: bool, trans_y: bool, needs: Sequence[str],
    out: Sequence[Any],
) -> tuple[np.ndarray | None, np.ndarray | None]:  # fmt: skip
    """What matmul_grad gives."""
    jobs = gradient_jobs(X, Y, Out_grad, trans_x, trans_y, needs, out)
    results = dict(zip(jobs, _products(list(jobs.values())), strict=True))
    return results.get("X_grad"), results.get("Y_grad")


def gradient_jobs(
    X: np.ndarray, Y: np.ndarray, Out_grad: np.ndarray, trans_x: bool, trans_y: bool, needs: Sequence[str],
    out: Sequence[Any],
) -> dict[str, Job]:  # fmt: skip
    """The product that each gradient is, before batches are summed."""
    x, y = transposed(X, trans_x), transposed(Y, trans_y)
    x = x[None, :] if X.ndim == 1 else x
    y = y[:, None] if Y.ndim == 1 else y
    d = Out_grad.reshape((*Out_grad.shape[: Out_grad.ndim - (X.ndim > 1) - (Y.ndim > 1)], x.shape[-2], y.shape[-1]))
    jobs: dict[str, Job] = {}
    x_out, y_out = out
    if "X_grad" in needs:
        first, second = (y, transposed(d, True)) if trans_x and X.ndim > 1 else (d, transposed(y, True))
        jobs["X_grad"] = first, second, X.shape, x_out
    if "Y_grad" in needs:
        if y.ndim == 2 and x.ndim > 2:  # one product over all rows instead of a batch and a sum
            x, d = as_rows(x), as_rows(d)
        first, second = (transposed(d, True), x) if trans_y and Y.ndim > 1 else (transposed(x, True), d)
        jobs["Y_grad"] = first, second, Y.shape, y_out
    return jobs


def _products(jobs: list[Job]) -> list[np.ndarray]:
    """a @ b of each, brought to the shape of the operand whose gradient it is."""
    direct = [
        (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]) == shape
        for a, b, shape, _ in jobs
    ]
    wanted = [(a, b, out if d else None, None) for (a, b, _, out), d in zip(jobs, direct, strict=True)]
    return [r if d else _brought(r, job[2]) for r, d, job in zip(products(wanted), direct, jobs, strict=True)]


def _brought(result: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return sum_to(result.reshape((*result.shape[:-2], shape[0])), shape)
    return sum_to(result, shape)


@matmul_grad.flops
def _(types, attrs):
    products = ("X_grad" in types) + ("Y_grad" in types)
    return 2 * products * types["Out_grad"].size * inner_size(types["X"], attrs["trans_x"])


@matmul_grad.grad
def _(g, X, Y, Out_grad, X_grad_grad=None, Y_grad_grad=None, *, trans_x, trans_y):
    """Out_grad enters both products: d(X_grad) meets Y, d(Y_grad) meets X."""
    X_grad = Y_grad = to_out = None
    if X_grad_grad is not None:
        _, Y_grad = g.matmul_grad(X_grad_grad, Y, Out_grad, trans_x=trans_x, trans_y=trans_y, needs=["Y_grad"])
        to_out = g.matmul(X_grad_grad, Y, trans_x=trans_x, trans_y=trans_y)
    if Y_grad_grad is not None:
        X_grad, _ = g.matmul_grad(X, Y_grad_grad, Out_grad, trans_x=trans_x, trans_y=trans_y, needs=["X_grad"])
        other = g.matmul(X, Y_grad_grad, trans_x=trans_x, trans_y=trans_y)
        to_out = other if to_out is None else g.sum([to_out, other])
    return X_grad, Y_grad, to_out


@matmul_grad.samples
def _(rng):
    yield (rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(3, 5))), {}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(2, 3, 5))), {}
    both = {"trans_x": True, "trans_y": True}
    yield (rng.normal(size=(4, 3)), rng.normal(size=(5, 4)), rng.normal(size=(3, 5))), both


@op("Out", traits={"in_place"}, gpu="matmul.gemm", inplace={"Out": "Acc"}, beside=beside_products)
def matmul_accumulate(X, Y, Acc, *, trans_x: bool = False, trans_y: bool = False, out=None):
    """Acc + X @ Y: what a gradient is added up with, in place; in float32 also from 16-bit operands.

    X, Y   of rank 2 or more, as in matmul
    Acc    shape of the product; or a matrix where X and Y have the same batch axes: the product is
           summed over these. Type of X, or float32 where X has 16 bits
    """
    x, y = transposed(X, trans_x), transposed(Y, trans_y)
    if Acc.ndim == 2 < x.ndim:
        x, y = _joined(x), _joined(np.swapaxes(y, -1, -2)).T
    return np.add(Acc, product(x, y), out=out[0] if out else None)


def _joined(x: np.ndarray) -> np.ndarray:
    """[..., M, K] -> [M, ... * K]: the sum over batches becomes one over columns."""
    return np.moveaxis(x, -2, 0).reshape(x.shape[-2], math.prod(x.shape[:-2]) * x.shape[-1])


@matmul_accumulate.flops
def _(types, attrs):
    X, Y = types["X"], types["Y"]
    return 2 * X.size * Y.shape[-2 if attrs["trans_y"] else -1] + types["Acc"].size


@matmul_accumulate.infer
def _(X: TensorType, Y: TensorType, Acc: TensorType, *, trans_x, trans_y):
    require(X.ndim >= 2 and Y.ndim >= 2, f"X and Y must have rank 2 or more, are {X} and {Y}", RANK)
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    result = matmul.infer_function(X, Y, trans_x=trans_x, trans_y=trans_y)
    require(
        Acc.dtype == X.dtype or (Acc.dtype == float32 and X.dtype.itemsize == 2), f"Acc is {Acc.dtype}, X is {X.dtype}",
        MIXED_TYPES, "Acc has the type of X, or float32 where X has 16 bits",
    )  # fmt: skip
    if Acc.ndim == 2 < result.ndim:
        batches = [t.with_shape(t.shape[:-2]) for t in (X, Y)]
        require(
            batches[0].accepts(batches[1]) or batches[1].accepts(batches[0]),
            f"Acc is a matrix, so the batch axes of X and Y must be the same, are {X} and {Y}",
        )
        result = result.with_shape(result.shape[-2:])
    result = result.with_dtype(Acc.dtype)
    require(result.accepts(Acc) or Acc.accepts(result), f"Acc must be {result}, is {Acc}")
    return Acc


@matmul_accumulate.grad
def _(g, X, Y, Acc, Out_grad, *, trans_x, trans_y):
    X_grad = Y_grad = None
    Acc_grad = g.assign(Out_grad) if "Acc" in g.needs else None
    D = Out_grad if Out_grad.dtype == X.dtype else g.cast(Out_grad, dtype=X.dtype)
    if not Acc.ndim == 2 < X.ndim:
        X_grad, Y_grad = g.matmul_grad(X, Y, D, trans_x=trans_x, trans_y=trans_y)
        return X_grad, Y_grad, Acc_grad
    if "X" in g.needs:  # D is the gradient of every batch
        X_grad = g.matmul(Y, D, trans_x=trans_y, trans_y=True) if trans_x else g.matmul(D, Y, trans_y=not trans_y)
    if "Y" in g.needs:
        Y_grad = g.matmul(D, X, trans_x=True, trans_y=trans_x) if trans_y else g.matmul(X, D, trans_x=not trans_x)
    return X_grad, Y_grad, Acc_grad


@matmul_accumulate.samples
def _(rng):
    def normal(*shape):
        return rng.normal(size=shape)

    for x, y, acc, trans_x, trans_y in [
        ((3, 4), (4, 5), (3, 5), False, False), ((4, 3), (4, 5), (3, 5), True, False),
        ((2, 3, 4), (5, 4), (2, 3, 5), False, True), ((2, 4, 3), (2, 4, 5), (3, 5), True, False),
        ((2, 3, 4), (2, 4, 5), (3, 5), False, False), ((2, 1, 4, 3), (2, 1, 5, 4), (3, 5), True, True),
        ((2, 3, 4), (2, 5, 4), (3, 5), False, True), ((0, 3), (0, 5), (3, 5), True, False),
        ((0, 4, 3), (0, 4, 5), (3, 5), True, False),
    ]:  # fmt: skip
        yield (normal(*x), normal(*y), normal(*acc)), {"trans_x": trans_x, "trans_y": trans_y}
