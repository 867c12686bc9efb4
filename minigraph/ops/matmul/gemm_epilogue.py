"""Matrix product with its epilogue: bias, activation, and what backward needs of it.

Semantics of Paddle PR #39437 with its gaps closed: the erf form of gelu kept apart from the tanh form, any N, partial
gradients. With trans_x the first axis of X is summed over, and all others are rows, as in Paddle 2.x; Paddle 3's types
say otherwise at ranks above 2, its kernel does not.

ReserveSpace, a typed part of the interface:
    relu   uint8[..., 16 * ceil(N / 128)]: bit j of a row, little-endian within its bytes, tells
           whether the pre-activation of column j is positive; bits past N are zero. This is
           cuBLASLt's RELU_AUX layout with a leading dimension of N rounded up to 128 bits.
    gelu   the pre-activation X @ Y + Bias, shape and dtype of Out
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, ShapeError, require
from minigraph.errors.kinds import INNER, MIXED_TYPES, RANK
from minigraph.kernels.cpu.product import Operands, prepared, product, products
from minigraph.kernels.cpu.strips import ProductEpilogue
from minigraph.opdef import for_arrays, op
from minigraph.ops.elementwise.activation import gelu, gelu_slope, positive_part
from minigraph.ops.elementwise.elementwise import masked
from minigraph.types import TensorType, uint8

from .matmul import as_rows, beside_products, gradient_jobs, matmul, transposed

MASK_BITS = 128  # columns of a mask row are padded to a multiple of this


def as_matrix(shape: tuple[int, ...], trans_x: bool) -> tuple[int, ...]:
    """The shape in which X is multiplied: [K, M] with trans_x, else its own."""
    if not trans_x or len(shape) == 2:
        return shape
    return shape[0], -1 if -1 in shape[1:] else math.prod(shape[1:])


def mask_bytes(columns: int) -> int:
    """Bytes of a row of a mask."""
    return -(-columns // MASK_BITS) * (MASK_BITS // 8)


def mask_type(out: TensorType) -> TensorType:
    """The type of relu's ReserveSpace for an output of type `out`."""
    columns = out.shape[-1]
    return TensorType((*out.shape[:-1], -1 if columns == -1 else mask_bytes(columns)), uint8)


def pack_mask(positive: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Booleans [..., N] as bits in rows padded to MASK_BITS; `mask` is zero, and gets them."""
    bits = np.packbits(positive, axis=-1, bitorder="little")
    if mask is None:
        mask = np.zeros((*positive.shape[:-1], mask_bytes(positive.shape[-1])), np.uint8)
    mask[..., : bits.shape[-1]] = bits
    return mask


def unpack_mask(mask: np.ndarray, columns: int) -> np.ndarray:
    """The booleans [..., columns] of a packed mask."""
    return np.unpackbits(mask, axis=-1, count=columns, bitorder="little").view(np.bool_)


@op("Out, ReserveSpace?", gpu="matmul.gemm_epilogue", beside=beside_products)
def fused_gemm_epilogue(
    X, Y, Bias, *, trans_x: bool = False, trans_y: bool = False, activation: str = "none",
    approximate: bool = False, needs=("Out", "ReserveSpace"), out=None,
):  # fmt: skip
    """activation(X @ Y + Bias) with activation none, relu or gelu.

    X            [..., K] of rank 2 or more; [K, ...] with trans_x
    Y            [K, N], or [N, K] with trans_y
    Bias         [N] or [1, N]
    approximate  the tanh form of gelu
    Out          [..., N]; ReserveSpace (see the top of this file) only on demand and with an
                 activation
    """
    Out, _ = out or (None, None)
    shape = (*(X.shape[1:] if trans_x else X.shape[:-1]), Bias.shape[-1])
    one = _product(X, Y, Bias, out, trans_x, trans_y, activation, needs)
    z, mask = product(*one).reshape(shape), one[3].mask
    if activation == "gelu":
        return gelu(z, approximate=approximate, out=[Out]), z
    return z, mask if mask is None else mask.reshape((*shape[:-1], mask.shape[-1]))


def _left(X: np.ndarray, trans_x: bool) -> np.ndarray:
    """X as the matrix that is multiplied."""
    return transposed(X.reshape(as_matrix(X.shape, True)), True) if trans_x else as_rows(X)


def _product(
    X: np.ndarray, Y: np.ndarray, Bias: np.ndarray, out: Any, trans_x: bool, trans_y: bool, activation: str,
    needs: Collection[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, ProductEpilogue]:  # fmt: skip
    """The product, and what follows on it."""
    x, bias, relu = _left(X, trans_x), np.ascontiguousarray(Bias).reshape(-1), activation == "relu"
    Out, reserve = out or (None, None)
    mask, to = None, reserve if activation == "gelu" else Out
    if relu and "ReserveSpace" in needs:
        mask = np.zeros((len(x), mask_bytes(len(bias))), np.uint8) if reserve is None else as_rows(reserve)
        mask.fill(0)

    def follow(z: np.ndarray) -> None:
        np.add(z, bias, out=z)
        if mask is not None:
            pack_mask(z > 0, mask)
        if relu:
            positive_part(z, out=z)

    rows = None if to is None else as_rows(to)
    return x, transposed(Y, trans_y), rows, ProductEpilogue(follow, bias, relu, mask)


@for_arrays(fused_gemm_epilogue)
def _(X, Y, Bias, *, trans_x, trans_y, activation, approximate, needs, out, moving):
    one = _product(X, Y, Bias, out, trans_x, trans_y, activation, needs)
    run, (x, y, _, epilogue) = prepared([one]), one
    if run is None or not _show((x, y, epilogue.bias), (X, Y, Bias)) or not {*moving} <= {"X"}:
        return None

    def step(X: np.ndarray | None = None) -> None:
        if X is not None:
            run.replace(0, 0, _left(X, trans_x))
        if epilogue.mask is not None:  # machine code writes no bits behind the columns
            epilogue.mask.fill(0)
        run()
        if activation == "gelu":
            gelu(out[1], approximate=approximate, out=[out[0]])

    return step


def _show(views: Sequence[np.ndarray | None], arrays: Sequence[np.ndarray | None]) -> bool:
    """Whether each view shows one of the arrays, and is no copy of what these hold now."""
    return all(
        view is None or any(x is not None and np.may_share_memory(view, x) for x in arrays) for view in views
    )


def _product_type(X: TensorType, Y: TensorType, trans_x: bool, trans_y: bool) -> TensorType:
    inner = X.shape[0], Y.shape[1 if trans_y else 0]
    if trans_x and -1 not in inner and inner[0] != inner[1]:  # X is multiplied in another shape
        raise INNER(f"inner sizes differ: X axis 0 is {inner[0]}, Y axis {1 if trans_y else 0} is {inner[1]}")
    out = matmul.infer_function(X.with_shape(as_matrix(X.shape, trans_x)), Y, trans_x=trans_x, trans_y=trans_y)
    return out.with_shape((*X.shape[1:], out.shape[-1])) if trans_x else out


@fused_gemm_epilogue.flops
def _(types, attrs):
    X, Out = types["X"], types["Out"]
    inner = X.shape[0] if attrs["trans_x"] else X.shape[-1]
    return 2 * Out.size * inner + Out.size * (1 + (attrs["activation"] != "none"))


def _check_operands(X: TensorType, Y: TensorType) -> None:
    """X has rows, Y is a matrix. Texts of errors are written where there is one: they take longer than the rest."""
    if Y.ndim != 2:
        raise RANK(f"Y must be 2-D, is {Y}")
    if X.ndim < 2:
        raise RANK(f"X must have rank 2 or more, is {X}")
    if not X.is_float:
        raise DTypeError(f"X must be a float, is {X.dtype}")


@fused_gemm_epilogue.infer
def _(X, Y, Bias, *, trans_x, trans_y, activation, approximate):
    _check_operands(X, Y)
    if Bias.ndim != 1 and (Bias.ndim != 2 or Bias.shape[0] not in (1, -1)):
        raise RANK(f"Bias must be [N] or [1, N], is {Bias}")
    if Bias.dtype != X.dtype:
        raise MIXED_TYPES(f"Bias is {Bias.dtype}, X is {X.dtype}")
    require(
        activation in ("none", "relu", "gelu"), f"activation {activation!r} is not none, relu or gelu", AttrError
    )
    out = _product_type(X, Y, trans_x, trans_y)
    columns, bias = out.shape[-1], Bias.shape[-1]
    require(columns == bias or -1 in (columns, bias), f"Bias has {bias} elements, Y has {columns} columns", INNER)
    return out, {"none": None, "relu": mask_type(out), "gelu": out}[activation]


@fused_gemm_epilogue.grad
def _(g, X, Y, Bias, Out, ReserveSpace, Out_grad, ReserveSpace_grad=None, *, trans_x, trans_y, activation, approximate):
    product = {"trans_x": trans_x, "trans_y": trans_y}
    if activation == "relu":
        Out_grad = g.relu_grad(Out, Out_grad)
    elif activation == "gelu":
        if ReserveSpace is None:  # not kept: compute the pre-activation again
            ReserveSpace, _ = g.fused_gemm_epilogue(X, Y, Bias, **product)
        Out_grad = g.gelu_grad(ReserveSpace, Out_grad, approximate=approximate)
        if ReserveSpace_grad is not None:  # the pre-activation has readers of its own
            Out_grad = g.sum([Out_grad, ReserveSpace_grad])
    needs = g.among(X="DX", Y="DY", Bias="DBias")
    DX, DY, DBias, _ = g.fused_gemm_epilogue_grad(Out_grad, X, Y, needs=needs, **product)
    if DBias is not None and Bias.type.ndim == 2:
        DBias = g.reshape(DBias, shape=[1, -1])
    return DX, DY, DBias


@fused_gemm_epilogue.samples
def _(rng):
    for x, n in [((4, 8), 128), ((2, 3, 8), 5), ((1, 1), 1), ((0, 3), 4), ((3, 8), 130)]:
        for activation in ("none", "relu", "gelu"):
            inputs = rng.normal(size=x), rng.normal(size=(x[-1], n)), rng.normal(size=n)
            yield inputs, {"activation": activation, "approximate": n == 5}
    yield (rng.normal(size=(8, 4)), rng.normal(size=(6, 8)), rng.normal(size=6)), {"trans_x": True, "trans_y": True}
    for activation in ("relu", "gelu"):
        inputs = rng.normal(size=(4, 2, 1, 3)), rng.normal(size=(4, 9)), rng.normal(size=(1, 9))
        yield inputs, {"trans_x": True, "activation": activation}


@op(
    "DX?, DY?, DBias?, DXSums?", read_for={"X": "DY", "Y": ("DX", "DXSums")}, gpu="matmul.gemm_epilogue",
    beside=beside_products,
)  # fmt: skip
def fused_gemm_epilogue_grad(
    DOut, X, Y, ReserveSpace: Any = None, *, trans_x: bool = False, trans_y: bool = False,
    activation_grad: str = "none", approximate: bool = False, needs=("DX", "DY", "DBias"), out=None,
):  # fmt: skip
    """Gradients of X @ Y + Bias, and through the activation whose output X is.

    DX     DOut @ Y^T, times the activation's derivative if activation_grad is relu_grad or
           gelu_grad; ReserveSpace is then that of the operator that computed X
    DY     X^T @ DOut over all rows       DBias  the sum of DOut over all rows
    DXSums the sum of DX over all axes but the last: the gradient of the bias of the layer before
    """
    wanted = _gradients(DOut, X, Y, ReserveSpace, trans_x, trans_y, activation_grad, needs, out)
    found = dict(zip(wanted, products(list(wanted.values())), strict=True))
    DX = found["DX"].reshape(X.shape) if "DX" in found else None
    beside = {slot: one[3] for slot, one in wanted.items()}
    DBias, DXSums = _rest(DX, beside, DOut, ReserveSpace, activation_grad, approximate, needs, out)
    return DX if "DX" in needs else None, found.get("DY"), DBias, DXSums


def _gradients(
    DOut: np.ndarray, X: np.ndarray, Y: np.ndarray, ReserveSpace: Any, trans_x: bool, trans_y: bool,
    activation_grad: str, needs: Collection[str], out: Any,
) -> dict[str, Operands]:  # fmt: skip
    """The products, with relu's mask on DX and the sums for DBias beside DY, where their rows and columns fit."""
    DX_out, DY_out, DBias_out, _ = out or (None, None, None, None)
    slots = [slot for slot, own in (("X_grad", {"DX", "DXSums"}), ("Y_grad", {"DY"})) if own & {*needs}]
    x, d = X.reshape(as_matrix(X.shape, True)) if trans_x else as_rows(X), as_rows(DOut)
    outs = DX_out if DX_out is None else DX_out.reshape(x.shape), DY_out
    jobs, beside = gradient_jobs(x, Y, d, trans_x, trans_y, slots, outs), dict[str, ProductEpilogue]()
    if activation_grad == "relu_grad" and x.shape == as_rows(X).shape:  # rows of the product are those of the mask
        mask = np.ascontiguousarray(as_rows(ReserveSpace))
        beside["X_grad"] = ProductEpilogue(lambda DX: masked(DX, unpack_mask(mask, DX.shape[1]), out=DX), mask=mask)
    if "DBias" in needs and not trans_y:
        sums = np.empty(d.shape[1:], d.dtype) if DBias_out is None else DBias_out
        beside["Y_grad"] = ProductEpilogue(lambda _: np.sum(d, axis=0, out=sums), sums=sums)
    return {f"D{slot[0]}": (a, b, to, beside.get(slot)) for slot, (a, b, _, to) in jobs.items()}


def _rest(
    DX: np.ndarray | None, beside: Mapping[str, ProductEpilogue | None], DOut: np.ndarray, ReserveSpace: Any,
    activation_grad: str, approximate: bool, needs: Collection[str], out: Any,
) -> tuple[np.ndarray | None, np.ndarray | None]:  # fmt: skip
    """(DBias, DXSums), and DX times the derivative of the activation, by NumPy where nothing `beside` products did."""
    _, _, DBias_out, DXSums_out = out or (None, None, None, None)
    if DX is not None and activation_grad == "relu_grad" and beside["DX"] is None:
        masked(DX, unpack_mask(ReserveSpace, DX.shape[-1]).reshape(DX.shape), out=DX)
    elif DX is not None and activation_grad == "gelu_grad":
        np.multiply(DX, gelu_slope(ReserveSpace, approximate), out=DX)
    rows, DBias, DXSums = tuple(range(DOut.ndim - 1)), None, None
    if "DBias" in needs:
        sums = beside.get("DY")
        DBias = np.sum(DOut, axis=rows, out=DBias_out) if sums is None else sums.sums
    if DX is not None and "DXSums" in needs:
        DXSums = np.sum(DX, axis=rows, out=DXSums_out)
    return DBias, DXSums


@for_arrays(fused_gemm_epilogue_grad)
def _(DOut, X, Y, ReserveSpace=None, *, trans_x, trans_y, activation_grad, approximate, needs, out, moving):
    wanted = _gradients(DOut, X, Y, ReserveSpace, trans_x, trans_y, activation_grad, needs, out)
    run, slots = prepared([*wanted.values()]), [*wanted]
    read = [x for a, b, _, beside in wanted.values() for x in (a, b, None if beside is None else beside.mask)]
    if run is None or not _show(read, (DOut, X, Y, ReserveSpace)) or not {*moving} <= {"X"}:
        return None
    DX = out[0].reshape(X.shape) if "DX" in wanted else None
    beside = {slot: one[3] for slot, one in wanted.items()}

    def step(X: np.ndarray | None = None) -> None:
        if X is not None:
            x = _left(X, trans_x)
            run.replace(slots.index("DY"), int(trans_y), x if trans_y else x.T)
        run()
        _rest(DX, beside, DOut, ReserveSpace, activation_grad, approximate, needs, out)

    return step


@fused_gemm_epilogue_grad.flops
def _(types, attrs):
    X, DOut = types["X"], types["DOut"]
    product = 2 * DOut.size * (X.shape[0] if attrs["trans_x"] else X.shape[-1])
    besides = DOut.size * ("DBias" in types) + X.size * ((attrs["activation_grad"] != "none") + ("DXSums" in types))
    return product * (("DX" in types) + ("DY" in types)) + besides


@fused_gemm_epilogue_grad.infer
def _(DOut, X, Y, ReserveSpace, *, trans_x, trans_y, activation_grad, approximate):
    _check_operands(X, Y)
    if X.ndim != DOut.ndim:
        raise RANK(f"DOut and X must have one rank, are {DOut} and {X}")
    out = _product_type(X, Y, trans_x, trans_y)
    if not out.accepts(DOut) and not DOut.accepts(out):
        raise ShapeError(f"DOut must be {out}, is {DOut}")
    known = ("none", "relu_grad", "gelu_grad")
    require(activation_grad in known, f"activation_grad {activation_grad!r} is not one of {known}", AttrError)
    if activation_grad == "none":
        require(ReserveSpace is None, "ReserveSpace is given but activation_grad is none")
    else:
        wanted = mask_type(X) if activation_grad == "relu_grad" else X
        require(ReserveSpace is not None, f"{activation_grad} needs ReserveSpace")
        if not wanted.accepts(ReserveSpace) and not ReserveSpace.accepts(wanted):
            raise ShapeError(f"ReserveSpace of {activation_grad} must be {wanted}, is {ReserveSpace}")
    return X, Y, TensorType((out.shape[-1],), X.dtype), TensorType((X.shape[-1],), X.dtype)


@fused_gemm_epilogue_grad.samples
def _(rng):
    def normal(*shape):
        return rng.normal(size=shape)

    yield (normal(4, 6), normal(4, 8), normal(8, 6)), {}
    yield (normal(2, 3, 6), normal(2, 3, 8), normal(6, 8)), {"trans_y": True}
    yield (normal(4, 6), normal(8, 4), normal(8, 6)), {"trans_x": True}
    yield (normal(4, 6), normal(8, 4), normal(6, 8)), {"trans_x": True, "trans_y": True}
    yield (normal(2, 3, 6), normal(4, 2, 3), normal(4, 6)), {"trans_x": True}
    yield (normal(2, 3, 6), normal(4, 2, 3), normal(6, 4)), {"trans_x": True, "trans_y": True}
    yield (normal(0, 6), normal(0, 8), normal(8, 6)), {}
    mask = pack_mask(normal(4, 130) > 0)
    yield (normal(4, 6), normal(4, 130), normal(130, 6), mask), {"activation_grad": "relu_grad"}
    for approximate in (False, True):
        attrs = {"activation_grad": "gelu_grad", "approximate": approximate}
        yield (normal(4, 6), normal(4, 8), normal(8, 6), normal(4, 8)), attrs
