"""Linear layer and cross entropy in one operator: the head of a language model without its scores.

Loss is one number for each row. Means, weights, masks and loss scales are operators on these numbers,
and what autodiff makes of them arrives as DLoss: one number for each row again, on the device, by which the
gradients are multiplied before they are rounded. Where it is known before the loss is, the operator gives loss and
gradients at once (passes/last_layer/fuse_linear_cross_entropy.py); otherwise its gradient computes the scores again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import CONFLICT, EMPTY, INNER, MIXED_TYPES, RANK
from minigraph.kernels.chunks import Beside, Chunking, chunk_of, workspace
from minigraph.opdef import DTypeAttr, op
from minigraph.types import INTS, TensorType, float32, int64

from .loss import class_numbers, kept_rows

CPU = "minigraph.kernels.cpu.linear_cross_entropy"
OUTPUTS = ("Loss", "ZLoss", "Prediction", "DX", "DW", "DBias", "Square")


def _beside(types: Any, attrs: Any) -> Beside:
    """Scores of a chunk, sums that are rounded, a workspace for each product; the first runs before DW is there."""
    x, dw = types["X"], types.get("DW")
    inner, classes = types["W"].shape[::-1] if attrs["trans_w"] else types["W"].shape
    rows = abs(math.prod(x.shape[:-1]))
    rounded = dw is not None and dw.dtype.itemsize == 2 and attrs["accumulate_dtype"] != dw.dtype
    how = Chunking(attrs["chunk_bytes"], attrs["chunk_rows"])
    sizes = abs(inner), abs(classes), x.dtype.itemsize
    step, own = chunk_of(rows, *sizes, how, rounded, "DBias" in types)
    once, sums = step >= rows, 0 if dw is None else dw.least_bytes
    library = workspace(max(step * inner * ("DX" in types), inner * classes * (dw is not None)))
    library = max(library, workspace(step * classes) - (sums if once else 0))
    return Beside(own, library, (("DW", "W"),) if sums and once else ())


@op(
    "Loss, ZLoss?, Prediction?, DX?, DW?, DBias?, Square?", traits={"reports", "in_place"}, inplace={"DX": "X"},
    frees={"DX": "W"}, cpu=f"{CPU}:forward", gpu="rows.linear_cross_entropy", beside=_beside,
)  # fmt: skip
def fused_linear_cross_entropy(
    X, W, Label, Bias=None, DLoss=None, DSquare=None, *, trans_w: bool = False, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, token_scaling: bool = False,
    accumulate_dtype: DTypeAttr | None = None, grad_dtype: DTypeAttr | None = None,
    chunk_bytes: int | None = None, chunk_rows: int | None = None, needs=OUTPUTS,
):  # fmt: skip
    """Loss = lse - (1 - label_smoothing) * z[Label] - label_smoothing * mean(z) + z_loss * lse^2, of each row.

    z = X @ W + Bias, with softcap z = softcap * tanh((X @ W + Bias) / softcap); lse = log(sum(exp(z))).

    X       [..., H] of rank 2 or more; W [H, V], or [V, H] with trans_w; Bias [V], all of one float type
    Label   [...] or [..., 1], class numbers; rows with ignore_index have Loss 0 and no gradient
    DLoss   [..., 1] of Loss' or X's type, by which the gradients of the rows are multiplied; absent 1
    Loss    [..., 1], float32 where X has 16 bits; a label that is no class is a KernelError
    ZLoss, Prediction   its last term, and argmax(z); append_backward refuses a loss that depends on ZLoss
    token_scaling       multiplies Loss and ZLoss of a row by exp(z[Label] - lse), a constant for gradients
    Square, DSquare     lse^2 of every row, [..., 1] as Loss, ignored rows too: for a z-loss that is written out, whose
            gradients flow through it; and by what its gradients are multiplied, absent 0
    DX, DW, DBias       gradients of sum(Loss * DLoss + Square * DSquare), which have none themselves. The chunks of
            DW and DBias are added up in accumulate_dtype, float32 for 16-bit X unless another one is given; both have
            that type, or X's where grad_dtype says so
    chunk_bytes         rows are taken in chunks whose z fills so many bytes at most, by default those of 4096
            rows and 512 MiB; all at once where their sums would take more memory than that saves
    chunk_rows          so many rows are taken at a time, whatever memory that takes; not beside chunk_bytes
    """
    values = _plain(
        X, W, Label, Bias, DLoss, DSquare, trans_w, ignore_index, label_smoothing, z_loss, softcap, token_scaling
    )
    return tuple(v if name in ("Loss", *needs) else None for name, v in zip(OUTPUTS, values, strict=True))


@op(
    "DX?, DW?, DBias?", traits={"reports", "in_place"}, inplace={"DX": "X"}, frees={"DX": "W"},
    cpu=f"{CPU}:backward", gpu="rows.linear_cross_entropy", beside=_beside,
)  # fmt: skip
def fused_linear_cross_entropy_grad(
    X, W, Label, DLoss, Bias=None, DSquare=None, *, trans_w: bool = False, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None, token_scaling: bool = False,
    accumulate_dtype: DTypeAttr | None = None, grad_dtype: DTypeAttr | None = None,
    chunk_bytes: int | None = None, chunk_rows: int | None = None, needs=OUTPUTS,
):  # fmt: skip
    """DX, DW and DBias of fused_linear_cross_entropy, whose scores are computed once more."""
    values = _plain(
        X, W, Label, Bias, DLoss, DSquare, trans_w, ignore_index, label_smoothing, z_loss, softcap, token_scaling
    )
    return tuple(v if name in needs else None for name, v in zip(OUTPUTS[3:6], values[3:6], strict=True))


@fused_linear_cross_entropy.flops
def _(types, attrs):
    return _products(types, attrs)


@fused_linear_cross_entropy_grad.flops
def _(types, attrs):
    return _products(types, attrs)


def _products(types: Any, attrs: Any) -> int:
    """The scores, and a product for each of DX and DW."""
    classes = types["W"].shape[0 if attrs["trans_w"] else 1]
    return 2 * types["X"].size * classes * (1 + ("DX" in types) + ("DW" in types))


def _plain(
    X: np.ndarray, W: np.ndarray, Label: np.ndarray, Bias: np.ndarray | None, DLoss: np.ndarray | None,
    DSquare: np.ndarray | None, trans_w: bool, ignore_index: int, label_smoothing: float, z_loss: float,
    softcap: float | None, token_scaling: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """All outputs by the formulas, with the scores of all rows at once."""
    w = W.T if trans_w else W
    z, slope = X @ w, np.ones((), X.dtype)
    if Bias is not None:
        z = z + Bias
    if softcap is not None:
        t = np.tanh(z / softcap)
        z, slope = softcap * t, 1 - t * t
    classes = z.shape[-1]
    numbers = class_numbers(Label, z.ndim, -1).astype(np.intp, copy=False)
    kept = kept_rows(numbers, classes, ignore_index)
    kept = np.ones(numbers.shape, np.bool_) if kept is None else kept
    target = np.eye(classes, dtype=z.dtype)[np.where(kept, numbers, 0)] * (1 - label_smoothing)
    target += label_smoothing / classes
    kept = kept[..., None]
    top = z.max(axis=-1, keepdims=True)
    lse = top + np.log(np.exp(z - top).sum(axis=-1, keepdims=True))
    own = np.where(target == 0, 0, target * z).sum(axis=-1, keepdims=True)  # a class of weight 0 may have -inf
    scaling, seed = np.ones((), z.dtype), np.ones((), z.dtype) if DLoss is None else DLoss
    if token_scaling:
        label = np.where(kept, numbers[..., None], 0)
        scaling = np.where(kept, np.exp(np.take_along_axis(z, label, axis=-1) - lse), 0)
        seed = seed * scaling
    ZLoss = np.where(kept, z_loss * lse**2, 0) * scaling
    Loss = np.where(kept, lse - own, 0) * scaling + ZLoss
    p = np.exp(z - lse)
    d = np.where(kept, (p * (1 + 2 * z_loss * lse) - target) * slope * seed, 0)
    if DSquare is not None:
        d += np.where(DSquare == 0, 0, p * (2 * lse * DSquare) * slope)  # an ignored row may have -inf
    count = numbers.size
    rows, d_rows = X.reshape(count, X.shape[-1]), d.reshape(count, classes)
    DW = d_rows.T @ rows if trans_w else rows.T @ d_rows
    DBias = None if Bias is None else d_rows.sum(axis=0)
    return Loss, ZLoss, z.argmax(axis=-1)[..., None], d @ w.T, DW, DBias, lse**2


def _check_bias(Bias: TensorType, X: TensorType, classes: int) -> None:
    require(Bias.ndim == 1, f"Bias must be 1-D, is {Bias}", RANK)
    require(Bias.dtype == X.dtype, f"Bias is {Bias.dtype}, X is {X.dtype}", MIXED_TYPES)
    require(
        Bias.shape[0] == classes or -1 in (Bias.shape[0], classes),
        f"Bias has {Bias.shape[0]} elements, W has {classes} classes", INNER,
    )


def _check_chunks(chunk_bytes: int | None, chunk_rows: int | None) -> None:
    for name, size in (("chunk_bytes", chunk_bytes), ("chunk_rows", chunk_rows)):
        require(size is None or size > 0, f"{name} {size} is not positive", AttrError)
    require(
        chunk_bytes is None or chunk_rows is None,
        f"chunk_bytes {chunk_bytes} and chunk_rows {chunk_rows} say the same in two ways", CONFLICT, "give one",
    )  # fmt: skip


@fused_linear_cross_entropy.infer
def _(
    X: TensorType, W: TensorType, Label: TensorType, Bias: TensorType | None, DLoss: TensorType | None,
    DSquare: TensorType | None, *, trans_w, ignore_index, label_smoothing, z_loss, softcap, token_scaling,
    accumulate_dtype, grad_dtype, chunk_bytes, chunk_rows,
):  # fmt: skip
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require(X.ndim >= 2, f"X must have rank 2 or more, is {X}", RANK)
    require(W.ndim == 2, f"W must be 2-D, is {W}", RANK)
    require(W.dtype == X.dtype, f"X is {X.dtype}, W is {W.dtype}", MIXED_TYPES, "cast one of them")
    inner, classes = W.shape[::-1] if trans_w else W.shape
    require(
        X.shape[-1] == inner or -1 in (X.shape[-1], inner),
        f"inner sizes differ: X axis {X.ndim - 1} is {X.shape[-1]}, W axis {int(trans_w)} is {inner}", INNER,
        hint="set trans_w" if X.shape[-1] == classes and not trans_w else None,
    )
    require(classes != 0, f"W has no classes, is {W}", EMPTY)
    require(inner != 0, f"W has no rows to multiply, is {W}", EMPTY)
    require(Label.dtype in INTS, f"Label must hold class numbers, is {Label.dtype}", DTypeError, "cast it to int64")
    rows = X.shape[:-1]
    require(
        any(Label.accepts(TensorType(shape, Label.dtype)) for shape in (rows, (*rows, 1))),
        f"Label must have the shape {list(rows)} of X's rows, or with size 1 behind it; is {Label}",
    )
    if Bias is not None:
        _check_bias(Bias, X, classes)
    require(0 <= label_smoothing <= 1, f"label_smoothing {label_smoothing} is not in [0, 1]", AttrError)
    require(0 <= z_loss < np.inf, f"z_loss {z_loss} is not in [0, inf)", AttrError)
    require(softcap is None or 0 < softcap < np.inf, f"softcap {softcap} is not in (0, inf)", AttrError)
    _check_chunks(chunk_bytes, chunk_rows)
    short = X.dtype.itemsize == 2
    require(
        accumulate_dtype is None or accumulate_dtype == X.dtype or (short and accumulate_dtype == float32),
        f"accumulate_dtype is {accumulate_dtype}, X is {X.dtype}", DTypeError,
        "it is X's type, or float32 where X has 16 bits",
    )  # fmt: skip
    require(
        grad_dtype is None or grad_dtype == X.dtype, f"grad_dtype is {grad_dtype}, X is {X.dtype}", DTypeError,
        "it is X's type, or absent",
    )  # fmt: skip
    loss = TensorType((*rows, 1), float32 if short else X.dtype)
    for name, seed in (("DLoss", DLoss), ("DSquare", DSquare)):
        fits = seed is None or any(loss.with_dtype(t).accepts(seed) for t in (loss.dtype, X.dtype))
        require(fits, f"{name} must be {loss}, is {seed}")
    own = grad_dtype or accumulate_dtype or loss.dtype
    bias = None if Bias is None else Bias.with_dtype(own)
    return loss, loss, loss.with_dtype(int64), X, W.with_dtype(own), bias, loss


@fused_linear_cross_entropy_grad.infer
def _(X, W, Label, DLoss, Bias, DSquare, **attrs):
    return fused_linear_cross_entropy.infer_function(X, W, Label, Bias, DLoss, DSquare, **attrs)[3:6]


@fused_linear_cross_entropy.grad
def _(g, X, W, Label, Bias, Loss_grad=None, Square_grad=None, **attrs):
    needs = g.among(X="DX", W="DW", Bias="DBias")
    if X.type.dtype.itemsize == 2:  # a gradient has the type of its variable
        attrs["grad_dtype"] = X.type.dtype
    if Loss_grad is None:
        Loss_grad = g.fill_any_like(Square_grad, value=0)
    DX, DW, DBias = g.fused_linear_cross_entropy_grad(X, W, Label, Loss_grad, Bias, Square_grad, needs=needs, **attrs)
    return DX, DW, None, DBias


@fused_linear_cross_entropy.samples
def _(rng):
    for x, v, trans_w, bias, label, seeded, attrs in [
        ((4, 3), 5, False, False, [0, 4, -100, 2], False, {}),
        ((4, 3), 5, True, True, [[0], [4], [1], [2]], True, {"ignore_index": 1}),
        ((2, 3, 4), 7, True, False, [[0, 6, 1], [2, -100, 5]], True, {"label_smoothing": 0.1, "z_loss": 0.01}),
        ((2, 2, 4), 6, False, True, [[[0], [1]], [[2], [5]]], False, {"softcap": 2.0, "chunk_rows": 3}),
        ((5, 4), 130, True, True, [0, 7, 129, -1, 3], True,
         {"softcap": 3.0, "label_smoothing": 0.2, "z_loss": 0.02, "ignore_index": -1, "chunk_bytes": 2500}),
        ((3, 2), 1, False, False, [0, 0, -100], False, {}), ((2, 3), 4, False, True, [-100, -100], False, {}),
        ((0, 3), 4, True, True, np.zeros((0, 1), np.int64), False, {}),
    ]:  # fmt: skip
        given, w = rng.normal(size=x), rng.normal(size=(v, x[-1]) if trans_w else (x[-1], v))
        rows = given.reshape(-1, x[-1])
        (w if trans_w else w.T)[(3 + 7 * np.arange(len(rows))) % v] += 2 * rows  # ahead: 16 bits predict it, too
        seeds = [rng.normal(size=(*x[:-1], 1)) if seeded else None for _ in range(2)]
        inputs = given, w, np.array(label), rng.normal(size=v) if bias else None, *seeds
        yield inputs, {"trans_w": trans_w, **attrs}


@fused_linear_cross_entropy_grad.samples
def _(rng):
    attrs = {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 2.0, "chunk_bytes": 80}
    for x, w, label, bias, scaled in [
        ((4, 3), (3, 5), [0, 4, -100, 2], 5, False), ((2, 2, 3), (5, 3), [[0, 4], [2, 2]], None, False),
        ((4, 3), (3, 5), [0, 4, -100, 2], 5, True),
    ]:  # fmt: skip
        inputs = [rng.normal(size=s) for s in (x, w, (*x[:-1], 1))]
        inputs.insert(2, np.array(label))
        square = None if bias is None else rng.normal(size=(*x[:-1], 1))
        inputs += [None if bias is None else rng.normal(size=bias), square]
        yield tuple(inputs), {"trans_w": w[0] == 5, "token_scaling": scaled, **attrs}
