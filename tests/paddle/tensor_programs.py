"""Functions of tensors: values, data types and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.paddle.cases import Case

NAN, INF = float("nan"), float("inf")
X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75]])
Y = np.array([[1.5, 2.0, 0.5], [-1.0, 4.0, 1.25]])
SMALL = np.array([[0.5, -0.25], [0.0, 0.875]])
POSITIVE = np.array([[0.5, 1.5], [2.0, 7.25]])
ODD = np.array([1.0, NAN, INF, -INF, -0.5])
I = np.array([[3, -2, 7], [0, 5, -1]])  # noqa: E741
J = np.array([[2, 2, -3], [1, 4, 6]])
T = np.array([[True, False, True], [False, False, True]])


CASES: dict[str, Case] = {}


def case(name: str, build: Callable[..., Any], *arrays: Any) -> None:
    """Add a case; several of one function are told apart by words after its name."""
    assert name not in CASES, name
    CASES[name] = Case(build, tuple(np.asarray(a) for a in arrays))


def named(name: str, *arrays: Any, **arguments: Any) -> None:
    """Add a case that is one call of the function `name` (before a blank) on the arrays."""
    function = name.split()[0]
    case(name, lambda p, *x: getattr(p, function)(*x, **arguments), *arrays)


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

# Pieces and orders

named("slice", CUBE, axes=[0, 2], starts=[0, -3], ends=[1, 9])
named("strided_slice", CUBE, axes=[2], starts=[3], ends=[-9], strides=[-2])
named("crop", A, shape=[1, -1], offsets=[1, 1])
named("chunk", A, chunks=3, axis=1)
named("unbind", A, axis=1)
named("unstack", A)
named("flip", CUBE, axis=[0, -1])
named("reverse", A, axis=0)
named("rot90", A)
named("rot90 back", A, k=-1)
named("rot90 twice", CUBE, k=2, axes=[1, 2])
named("roll", A, shifts=4)
named("roll axes", A, shifts=[1, -1], axis=[0, 1])
named("t", A)
named("moveaxis", CUBE, source=[0, 1], destination=[2, 0])
named("unflatten", A, axis=1, shape=[3, -1])
named("broadcast_to", A, shape=[2, 2, 3])
named("expand_as", A, CUBE[0, :3, 0] + A)
case("broadcast_tensors", lambda p, x, y: p.broadcast_tensors([x, y]), A, np.array([[1.0], [2.0]]))
case("meshgrid", lambda p, x, y: p.meshgrid(x, y), np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0]))
for _name in ("shape", "numel", "rank", "is_empty", "clone"):
    named(_name, A)
case("add_n", lambda p, x, y: p.add_n([x, y]), A, A * 2)
case("increment", lambda p, x: p.increment(p.assign(x), 2.0), np.array([1.0]))
case("to_tensor", lambda p, x: p.to_tensor([[1, 2], [3, 4]], dtype="float64"), A)

# Products

named("mm", A, A.T)
named("bmm", CUBE, CUBE.transpose(0, 2, 1))
named("mv", A, [1.0, 2.0, 3.0])
named("dot", [1.0, 2.0], [3.0, 4.0])
named("dot of ints", [1, 2], [3, 4])
named("dot rows", A, A)
named("outer", [1.0, 2.0], [3.0, 4.0, 5.0])
named("inner", CUBE, CUBE[0])
named("addmm", np.ones((2, 2)), A, A.T, beta=0.5, alpha=2.0)
named("kron", [1.0, 2.0], [[1.0, 1.0], [2.0, 0.0]])

# Reductions

GAPS = np.array([[3.0, 1.0, NAN, 2.0], [1.0, 1.0, 0.0, 5.0]])
named("all", T, axis=1)
named("all of ints", I)
named("any", T, axis=0, keepdim=True)
named("amax", CUBE, axis=[0, 2])
named("amin", CUBE, axis=1)
named("allclose", X, X + 1e-9)
named("equal_all", X, X)
named("equal_all no", X, Y)
named("count_nonzero", A, axis=0)
named("nansum", GAPS, axis=1)
named("nanmean", GAPS, axis=1, keepdim=True)
for _name in ("std", "var"):
    named(_name, X)
    named(f"{_name} biased", X, axis=1, unbiased=False, keepdim=True)
    named(f"{_name} of one", np.array([3.0]))
named("logsumexp", X, axis=1)
named("logsumexp all", X, keepdim=True)
named("logsumexp large", np.array([1000.0, 1000.5]))
named("norm", X)
named("norm one", X, p=1, axis=1)
named("norm inf", X, p=INF, axis=0)
named("norm least", X, p=-INF, axis=0)
named("norm three", X, p=3, axis=1, keepdim=True)
named("norm count", A, p=0, axis=1)
named("norm fro", X, p="fro", axis=[0, 1])
named("dist", X, Y, p=3)
named("dist largest", X, Y, p=INF)

# Grids and diagonals

case("linspace", lambda p, x: [p.linspace(0, 10, 4), p.linspace(3, 10, 1), p.linspace(0, 10, 4, "int32")], A)
case("logspace", lambda p, x: p.logspace(0, 3, 4), A)
case("eye", lambda p, x: [p.eye(2, 3), p.eye(2, dtype="int64")], A)
case("tril_indices", lambda p, x: [p.tril_indices(3, 3, 0), p.tril_indices(2, 4, 1)], A)
case("triu_indices", lambda p, x: [p.triu_indices(2, 3, 1), p.triu_indices(3, 3, -1)], A)
named("diag", [1.0, 2.0], offset=-1, padding_value=5)
named("diag above", [1.0, 2.0], offset=2)
named("diag of a matrix", A, offset=1)
named("diag_embed", A, offset=1)
named("diag_embed axes", A, offset=-1, dim1=0, dim2=2)
named("diagonal", CUBE, offset=1, axis1=0, axis2=2)
named("diagonal below", A, offset=-1)
named("diagflat", A, offset=1)
named("trace", CUBE, offset=-1, axis1=1, axis2=2)

# Order

S = np.array([[3.0, 1.0, NAN, 2.0], [1.0, 4.0, 0.0, 5.0]])
FEW = np.array([[1, 2, 2, 3, 3], [5, 5, 1, 1, 2]])
for _name in ("sort", "argsort"):
    named(_name, S)
    named(f"{_name} down", S, axis=0, descending=True)
named("topk", S, k=2)
named("topk smallest", S, k=1, axis=0, largest=False)
named("kthvalue", S, k=2)
named("kthvalue axis", S, k=2, axis=0, keepdim=True)
named("mode", FEW)
named("mode axis", FEW, axis=0, keepdim=True)
named("median", X)
named("median axis", S, axis=1)
named("median of ints", np.array([1, 2, 3, 4]))
named("median keepdim", X, keepdim=True)
named("quantile", X, q=[0.3, 0.5], axis=1)
named("quantile all", X, q=0.7, keepdim=True)
named("quantile nan", S, q=0.5, axis=1)
case("searchsorted", lambda p, r, x: p.searchsorted(r, x, right=True), np.array([1.0, 3.0, 5.0]), A)
case("searchsorted rows", lambda p, r, x: p.searchsorted(r, x), np.array([[1.0, 3.0, 5.0], [0.0, 3.0, 4.0]]), A)
case("bucketize", lambda p, x, r: p.bucketize(x, r, out_int32=True), A, np.array([1.0, 3.0, 5.0]))
named("histogram", [1, 2, 1], bins=4, min=0, max=3)
named("histogram range", np.array([1.0, 2.0, 1.0, 7.0], "float32"), bins=4)
named("diff", [1, 4, 9, 16], n=2)
case("diff more", lambda p, x, y: p.diff(x, axis=0, prepend=y), A, A[:1])

SLIPS = {
    "atan2 of ints": "Paddle computes it in float32 and calls it float64",
    "deg2rad": "Paddle rounds the factor to float32",
    "rad2deg": "Paddle rounds the factor to float32",
    "stanh": "Paddle rounds both factors to float32",
    "dist": "Paddle rounds 1 / p to float32",
    "norm three": "Paddle rounds 1 / p to float32",
    "kthvalue axis": "Paddle drops axis 0, which keepdim keeps",
    "quantile": "Paddle rounds the fraction to float32",
    "quantile all": "Paddle rounds the fraction to float32",
    "logit": "Paddle rounds eps to float32",
    "nan_to_num": "Paddle takes float32's largest number for float64, which is infinite there",
}
