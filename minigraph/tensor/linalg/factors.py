"""Factors of matrices: triangular, orthogonal and diagonal ones."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ShapeError, require
from minigraph.errors.kinds import NOT_OFFERED, RANK, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole

from ..arguments import emit, output_prefix, variable
from ..manipulation import transpose
from ..math import cast, matmul, mean
from ..pieces import slice


def known_sizes(x: Variable, call: str) -> tuple[int, int]:
    """Rows and columns of the matrices of x, which the number of operators depends on."""
    require(x.ndim >= 2, f"x must hold matrices in its last two axes, is {x}", RANK)
    rows, columns = x.shape[-2:]
    require(-1 not in (rows, columns), f"{call}: the sizes of matrices must be known, x is {x}", UNKNOWN_SIZE)
    return rows, columns


def swapped(x: Variable) -> Variable:
    """The last two axes swapped."""
    return transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def cholesky(x: Variable, upper: bool = False, name: str | None = None) -> Variable:
    """L with L @ L^T = x, or with `upper` U with U^T @ U = x; x is symmetric, only that triangle of it is read.

    A matrix that is not positive definite is a KernelError.
    """
    return emit("cholesky", "cholesky", variable(x, "cholesky"), upper=upper, name=name)


def lu(
    x: Variable, pivot: bool = True, get_infos: bool = False, name: str | None = None
) -> tuple[Variable, ...]:  # fmt: skip
    """(L and U of P @ L @ U = x in one array, pivots int32 counted from 1); L has 1 on its diagonal.

    get_infos  also 0 for each matrix, or the number, from 1, of the first 0 on U's diagonal, int32
    """
    x = variable(x, "lu")
    require(pivot, "without pivots there may be no LU; pivot must be True", AttrError)
    pair = emit("lu", "lu", x, name=name)
    return (*pair, _first_zero(pair[0])) if get_infos else pair


@whole
def _first_zero(packed: Variable) -> Variable:
    g = builder_of(packed)
    rows, columns = known_sizes(packed, "lu")
    size, last = min(rows, columns), packed.ndim - 1
    square = slice(packed, [last - 1, last], [0, 0], [size, size])
    unit = g.cast(g.equal(g.unsqueeze(g.arange(end=size), axes=[1]), g.arange(end=size)), dtype=packed.dtype)
    zero = g.equal(g.reduce_sum(g.elementwise_mul(square, unit), axis=[last]), g.fill_constant(value=0.0,
                   dtype=packed.dtype))  # fmt: skip
    number = g.where(zero, g.arange(start=1, end=size + 1, dtype="int32"),
                     g.fill_constant(value=size + 1, dtype="int32"))  # fmt: skip
    first = g.reduce_min(number, axis=[last - 1])
    found = g.elementwise_mul(first, g.cast(first <= size, dtype="int32"))
    return found if packed.ndim > 2 else g.reshape(found, shape=[1])  # as in Paddle


@whole
def lu_unpack(
    x: Variable, y: Variable, unpack_ludata: bool = True, unpack_pivots: bool = True, name: str | None = None
) -> tuple[Variable | None, Variable | None, Variable | None]:  # fmt: skip
    """P, L and U with P @ L @ U the matrix whose `lu` is (x, y); None for what is not asked."""
    x, y = variable(x, "lu_unpack"), variable(y, "lu_unpack", "y")
    rows, columns = known_sizes(x, "lu_unpack")
    g, last, size = builder_of(x), x.ndim - 1, min(rows, columns)
    P = g.pivots_to_matrix(y, rows=rows, dtype=x.dtype) if unpack_pivots else None
    if not unpack_ludata:
        return P, None, None
    left = slice(x, [last], [0], [size])
    unit = g.tril_triu(g.tril_triu(g.fill_any_like(left, value=1.0)), lower=False)
    L = g.elementwise_add(g.tril_triu(left, diagonal=-1), unit)
    return P, L, g.tril_triu(slice(x, [last - 1], [0], [size]), lower=False)


def qr(x: Variable, mode: str = "reduced", name: str | None = None) -> Any:
    """Q with orthonormal columns and R, upper triangular, with Q @ R = x; only R with mode="r"."""
    x = variable(x, "qr")
    require(mode in ("reduced", "r"), f"mode {mode!r} is none of reduced, r", AttrError,
            "a complete Q: qr of mg.concat([x, mg.eye(rows)], -1)")  # fmt: skip
    q, r = emit("qr", "qr", x, name=name)
    return r if mode == "r" else (q, r)


def _upper(UPLO: str) -> bool:
    require(UPLO in ("L", "U"), f"UPLO {UPLO!r} is neither 'L' nor 'U'", AttrError)
    return UPLO == "U"


def eigh(x: Variable, UPLO: str = "L", name: str | None = None) -> tuple[Variable, Variable]:
    """The eigenvalues of symmetric matrices, rising, and eigenvectors in columns.

    UPLO  the triangle of x that is read, "L" or "U"
    """
    return emit("eigh", "eigh", variable(x, "eigh"), upper=_upper(UPLO), name=name)


def eigvalsh(x: Variable, UPLO: str = "L", name: str | None = None) -> Variable:
    """The eigenvalues of symmetric matrices, rising; as eigh."""
    return emit("eigvalsh", "eigh", variable(x, "eigvalsh"), upper=_upper(UPLO), name=name)[0]


def svd(
    x: Variable, full_matrices: bool = False, name: str | None = None
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """U, S, VH with x = U @ diag(S) @ VH, the singular values S falling."""
    require(not full_matrices, "full_matrices=True is not here", NOT_OFFERED,
            "U and VH of full_matrices=False span what x does")  # fmt: skip
    return emit("svd", "svd", variable(x, "svd"), name=name)


@whole
def pca_lowrank(
    x: Variable, q: int | None = None, center: bool = True, niter: int = 2, name: str | None = None
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """The q largest singular values of x and their vectors: U, S, V with x near U @ diag(S) @ V^T.

    q       6 for None, or what x has
    center  the mean of the rows is taken from x first
    niter   unused: the values are exact, where Paddle's come from random projections
    """
    x = variable(x, "pca_lowrank")
    rows, columns = known_sizes(x, "pca_lowrank")
    q = min(6, rows, columns) if q is None else q
    require(0 <= q <= min(rows, columns), f"q {q} is not in [0, {min(rows, columns)}]", AttrError)
    centred = x - mean(x, -2, keepdim=True) if center else x
    u, s, vh = svd(centred)
    last = x.ndim - 1
    v = slice(swapped(vh), [last], [0], [q])
    return slice(u, [last], [0], [q]), slice(s, [last - 1], [0], [q]), v


@whole
def householder_product(x: Variable, tau: Variable, name: str | None = None) -> Variable:
    """The first columns of H_1 @ H_2 @ ..., with H_i = 1 - tau[i] v v^T and v from column i of x.

    v has 1 in place i, what x has below it, and 0 above; x [..., m, n], m >= n, tau [..., k].
    """
    x, tau = variable(x, "householder_product"), variable(tau, "householder_product", "tau")
    rows, columns = known_sizes(x, "householder_product")
    count = tau.shape[-1]
    require(rows >= columns >= count >= 0, f"x is {x}, tau is {tau}: rows >= columns >= tau's size", ShapeError)
    g, last = builder_of(x), x.ndim - 1
    unit = g.tril_triu(g.tril_triu(g.fill_any_like(x, value=1.0)), lower=False)
    vectors = g.elementwise_add(g.tril_triu(x, diagonal=-1), unit)
    out = unit
    for i in reversed(range(count)):
        v = slice(vectors, [last], [i], [i + 1])
        factor = g.unsqueeze(slice(tau, [tau.ndim - 1], [i], [i + 1]), axes=[last])
        out = g.elementwise_sub(out, v * factor * matmul(v, out, transpose_x=True))
    return g.assign(out, name=output_prefix("householder_product", name))


@whole
def matrix_rank(x: Variable, tol: Any = None, hermitian: bool = False, name: str | None = None) -> Variable:
    """How many singular values are larger than `tol`, int32.

    tol        a number or a Variable; None: the largest one, times the larger size, times the step of x's type
    hermitian  x is symmetric: the sizes of eigenvalues
    """
    x = variable(x, "matrix_rank")
    g = builder_of(x)
    s = g.abs(eigvalsh(x)) if hermitian else svd(x)[1]
    if tol is None:
        largest = g.reduce_max(s, axis=[-1], keepdim=True)
        tol = largest * (max(known_sizes(x, "matrix_rank")) * STEPS[x.dtype.name])
    elif isinstance(tol, Variable):
        tol = cast(tol, x.dtype)
        tol = g.unsqueeze(tol, axes=[tol.ndim])
    count = g.reduce_sum(cast(s > tol, "int64"), axis=[-1])
    return g.cast(count, dtype="int32", name=output_prefix("matrix_rank", name))


STEPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # from 1 to the next

__all__ = [
    "cholesky", "eigh", "eigvalsh", "householder_product", "lu", "lu_unpack", "matrix_rank", "pca_lowrank", "qr",
    "svd",
]  # fmt: skip
