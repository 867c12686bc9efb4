"""Layer normalisation."""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import Rows, op
from minigraph.types import TensorType, bfloat16, float16, float32, normalize_axis


def product(sizes: tuple[int, ...]) -> int:
    """The number of elements, -1 where a size is unknown."""
    return -1 if -1 in sizes and 0 not in sizes else math.prod(sizes)


def rows_of(x: np.ndarray, begin_norm_axis: int) -> np.ndarray:
    """x as [rows, elements that are normalised together]."""
    sizes = x.shape[: begin_norm_axis % x.ndim], x.shape[begin_norm_axis % x.ndim :]
    return x.reshape(math.prod(sizes[0]), math.prod(sizes[1]))


def _first_normalised(attrs, ndim):
    return attrs["begin_norm_axis"] % ndim


STATISTICS, PARAMETERS = frozenset({"Mean", "Variance"}), frozenset({"Scale", "Bias"})


@op("Y, Mean, Variance", traits={"norm"}, gpu="rows.norm",
    rows=Rows(_first_normalised, STATISTICS, PARAMETERS, statistics=STATISTICS))  # fmt: skip
def layer_norm(X, Scale=None, Bias=None, *, begin_norm_axis: int = 1, epsilon: float = 1e-5, out=None):
    """(X - mean) / sqrt(variance + epsilon) * Scale + Bias over the axes from begin_norm_axis on.

    Scale and Bias are 1-D with one element for each normalised one, as in Paddle (in ONNX they have
    the shape of the normalised axes). The variance is the biased one. Mean and Variance are 1-D with
    one element per row; they are float32 where X is a 16-bit float. ONNX returns 1 / sqrt(variance
    + epsilon) instead of Variance, and normalises the last axis by default.
    Source: Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450.
    """
    x, (Y, Mean, Variance) = rows_of(X, begin_norm_axis), out or (None, None, None)
    mean = x.mean(axis=1, out=Mean)
    centred = np.subtract(x, mean[:, None], out=None if Y is None else rows_of(Y, begin_norm_axis))
    variance = np.square(centred).mean(axis=1, out=Variance)
    return _normalised(centred, variance, Scale, Bias, epsilon).reshape(X.shape), mean, variance


def _normalised(centred, variance, Scale, Bias, epsilon):
    """Y of rows less their mean, in place."""
    y = centred
    y *= (1 / np.sqrt(variance + y.dtype.type(epsilon)))[:, None]
    if Scale is not None:
        y *= Scale
    if Bias is not None:
        y += Bias
    return y


@layer_norm.cuda_rows
def _(r):
    x = r.read("X")
    r.total("sum", x)
    r.lines.append(f"const C mean = sum / C({r.n});")
    r.total("squares", f"({x} - mean) * ({x} - mean)")
    epsilon = r.literal(r.attrs["epsilon"])
    r.lines.append(f"const C variance = squares / C({r.n}), inverse = C(1) / sqrt(variance + {epsilon});")
    _write_y(r, x)
    r.once("Mean", "mean")
    r.once("Variance", "variance")


def _write_y(r, x):
    """Y from `mean` and `inverse`."""
    scale, bias = r.read("Scale"), r.read("Bias")
    r.each("Y", f"({x} - mean) * inverse" + f" * {scale}" * bool(scale) + f" + {bias}" * bool(bias))


def _read_statistics(r):
    """`mean` and `inverse` of a row whose statistics are inputs."""
    mean, variance, epsilon = r.read("Mean"), r.read("Variance"), r.literal(r.attrs["epsilon"])
    r.lines.append(f"const C mean = {mean}, inverse = C(1) / sqrt({variance} + {epsilon});")


@layer_norm.infer
def _(X, Scale, Bias, *, begin_norm_axis, epsilon):
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require(epsilon > 0, f"epsilon must be positive, is {epsilon}", AttrError)
    axis = normalize_axis(begin_norm_axis, X.ndim, "begin_norm_axis")
    size = product(X.shape[axis:])
    statistics = float32 if X.dtype in (float16, bfloat16) else X.dtype
    for name, t in (("Scale", Scale), ("Bias", Bias)):
        if t is None:
            continue
        require(t.dtype in (X.dtype, statistics), f"{name} is {t.dtype}, X is {X.dtype}", MIXED_TYPES)
        require(
            t.ndim == 1 and (t.shape[0] == size or -1 in (t.shape[0], size)),
            f"{name} must be {t.with_shape((size,))}, one element for each of X's axes from {axis} on; is {t}",
        )
    rows = TensorType((product(X.shape[:axis]),), statistics)
    return X, rows, rows


@layer_norm.samples
def _(rng):
    yield (rng.normal(size=(4, 6)), rng.normal(size=(6,)), rng.normal(size=(6,))), {}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(4,)), rng.normal(size=(4,))), {"begin_norm_axis": -1}
    yield (rng.normal(size=(2, 3, 4)), rng.normal(size=(12,))), {}
    yield (rng.normal(size=(2, 6)), None, rng.normal(size=(6,))), {"epsilon": 1e-3}
    yield (rng.normal(size=(6,)),), {"begin_norm_axis": 0}
    yield (rng.normal(size=(0, 6)), rng.normal(size=(6,)), rng.normal(size=(6,))), {}


@op("Y", gpu="rows.norm", rows=Rows(_first_normalised, STATISTICS, PARAMETERS))
def layer_norm_again(
    X, Mean, Variance, Scale=None, Bias=None, *, begin_norm_axis: int = 1, epsilon: float = 1e-5, out=None
):  # fmt: skip
    """layer_norm's Y from its X and the Mean and Variance that it gave.

    recompute_norms emits it in backward, so that Y is not kept; the gradient of layer_norm reads the same values.
    """
    Y = out[0] if out else None
    x, to = rows_of(X, begin_norm_axis), None if Y is None else rows_of(Y, begin_norm_axis)
    centred = np.subtract(x, Mean[:, None], out=to)
    return _normalised(centred, Variance, Scale, Bias, epsilon).reshape(X.shape)


@layer_norm_again.cuda_rows
def _(r):
    _read_statistics(r)
    _write_y(r, r.read("X"))


@layer_norm_again.samples
def _(rng):
    x = rng.normal(size=(4, 6))
    yield (x, x.mean(axis=1), x.var(axis=1), rng.normal(size=(6,)), rng.normal(size=(6,))), {}
    yield (x, x.mean(axis=1), x.var(axis=1)), {"begin_norm_axis": -1, "epsilon": 1e-3}
    x = rng.normal(size=(2, 3, 4))
    yield (x, x.mean(axis=2).ravel(), x.var(axis=2).ravel(), None, rng.normal(size=(4,))), {"begin_norm_axis": 2}


@op(
    "X_grad?, Scale_grad?, Bias_grad?", of=layer_norm, no_need_buffer={"Bias"}, gpu="rows.norm",
    rows=Rows(_first_normalised, STATISTICS | {"Mean_grad", "Variance_grad"}, PARAMETERS,
              frozenset({"Scale_grad", "Bias_grad"})),
)  # fmt: skip
def layer_norm_grad(
    X, Mean, Variance, Y_grad, Scale=None, Bias=None, Mean_grad=None, Variance_grad=None, *,
    begin_norm_axis: int = 1, epsilon: float = 1e-5, needs=("X_grad", "Scale_grad", "Bias_grad"),
    out=None,
):  # fmt: skip
    """Gradients of layer_norm; with n = (X - Mean) / sqrt(Variance + epsilon) and d = Y_grad * Scale

    X_grad = (d - mean(d) - n * mean(d * n)) / sqrt(Variance + epsilon), Scale_grad = sum(Y_grad * n),
    Bias_grad = sum(Y_grad). What reaches Mean and Variance themselves is added to X_grad. Of Bias
    only the shape is used.
    """
    x, d = rows_of(X, begin_norm_axis), rows_of(Y_grad, begin_norm_axis)
    X_out, Scale_out, Bias_out = out or (None, None, None)
    X_grad = Scale_grad = Bias_grad = None
    if "Bias_grad" in needs and Bias is not None:
        Bias_grad = d.sum(axis=0, out=Bias_out)
    inverse = (1 / np.sqrt(Variance + X.dtype.type(epsilon)))[:, None]
    n = x - Mean[:, None]
    n *= inverse
    if "Scale_grad" in needs and Scale is not None:
        Scale_grad = (d * n).sum(axis=0, out=Scale_out)
    if "X_grad" in needs:
        d = d * Scale if Scale is not None else d
        to = None if X_out is None else rows_of(X_out, begin_norm_axis)
        X_grad = np.subtract(d, d.mean(axis=1, keepdims=True), out=to)
        X_grad -= n * (d * n).mean(axis=1, keepdims=True)
        X_grad *= inverse
        size = X.dtype.type(max(x.shape[1], 1))
        if Mean_grad is not None:
            X_grad += (Mean_grad / size)[:, None]
        if Variance_grad is not None:
            X_grad += n / inverse * (2 * Variance_grad / size)[:, None]
        X_grad = X_grad.reshape(X.shape)
    return X_grad, Scale_grad, Bias_grad


@layer_norm_grad.cuda_rows
def _(r):
    x, dy, scale, n = r.read("X"), r.read("Y_grad"), r.read("Scale"), f"C({r.n})"
    _read_statistics(r)
    h, d = f"(({x} - mean) * inverse)", f"({dy} * {scale})" if scale else dy
    if "Scale_grad" in r.outs:
        r.lines.append(f"ALL if (VALID(i)) {r.outs['Scale_grad']}[i] += {dy} * {h};")
    if "Bias_grad" in r.outs:
        r.lines.append(f"ALL if (VALID(i)) {r.outs['Bias_grad']}[i] += {dy};")
    if "X_grad" not in r.outs:
        return
    r.totals({"sum": d, "product": f"{d} * {h}"})
    mean_grad, variance_grad = r.read("Mean_grad"), r.read("Variance_grad")
    constant = f"-(sum / {n}) * inverse" + f" + {mean_grad} / {n}" * bool(mean_grad)
    slope = f"-(product / {n}) * inverse * inverse" + f" + C(2) * {variance_grad} / {n}" * bool(variance_grad)
    r.lines.append(f"const C constant = {constant}, slope = {slope};")
    # Linear in d and in x - mean, as the kernel in rows/norm.cu: (d - sum - h * product) * inverse rounds d twice more.
    r.each("X_grad", f"{d} * inverse + (({x} - mean) * slope + constant)")


@layer_norm_grad.samples
def _(rng):
    x, d = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    rows = x.mean(axis=1), x.var(axis=1), d
    yield (x, *rows, rng.normal(size=(6,)), rng.normal(size=(6,))), {}
    yield (x, *rows), {}
    yield (x, *rows, None, None, rng.normal(size=(4,)), rng.normal(size=(4,))), {"begin_norm_axis": -1}
