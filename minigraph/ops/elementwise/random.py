"""Random values: initialisers and dropout, by counter-based random numbers.

The numbers are a function of (seed, the operator's number in its program, step, element): the same
whether operators are fused, reordered or replayed. kernels/philox.py documents the layout.
"""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.errors.kinds import UNKNOWN_SIZE
from minigraph.kernels import philox
from minigraph.opdef import DTypeAttr, Ints, op
from minigraph.types import FLOATS, TensorType, float32, float64, normalize_shape

DROPOUT_MODES = ("upscale_in_train", "downscale_in_infer")


def keyed(rng: philox.Rng, seed: int) -> philox.Rng:
    """An operator's own seed, where it is not 0, replaces the program's."""
    return (seed, *rng[1:]) if seed else rng


def computed(dtype: np.dtype) -> np.dtype:
    """The type in which values are returned; 16-bit ones are rounded from float32 by the caller."""
    return dtype if dtype in (float32, float64) else float32


def infer_random(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> TensorType:
    known = -1 not in normalize_shape(shape)
    require(known, f"every size of a random array must be known, got {list(shape)}", UNKNOWN_SIZE)
    require(dtype in FLOATS, f"random numbers are floats, not {dtype}", DTypeError)
    require(seed >= 0, f"a seed is not negative, got {seed}", AttrError)
    return TensorType(shape, dtype)


def require_finite(**values: float) -> None:
    for name, value in values.items():
        require(math.isfinite(value), f"{name} must be finite, is {value}", AttrError)


@op(traits={"random", "nondifferentiable"}, gpu="elementwise.random")
def uniform_random(
    *, shape: Ints, min: float = -1.0, max: float = 1.0, dtype: DTypeAttr = float32, seed: int = 0, rng=(0, 0, 0)
):  # fmt: skip
    """Uniform numbers in [min, max)."""
    return philox.uniform(keyed(rng, seed), shape, min, max, computed(dtype)).astype(dtype, copy=False)


@uniform_random.infer
def _(*, shape, min, max, dtype, seed):
    require_finite(min=min, max=max)
    require(min <= max, f"min {min} is greater than max {max}", AttrError)
    return infer_random(shape, dtype, seed)


@uniform_random.samples
def _(rng):
    yield (), {"shape": (3, 5)}
    yield (), {"shape": (), "min": 2.0, "max": 2.5, "dtype": "float64"}
    yield (), {"shape": (0, 2), "seed": 7}


def _infer_normal(*, shape, mean, std, dtype, seed):
    require_finite(mean=mean, std=std)
    require(std >= 0, f"std must not be negative, is {std}", AttrError)
    return infer_random(shape, dtype, seed)


@op(traits={"random", "nondifferentiable"}, gpu="elementwise.random")
def gaussian_random(
    *, shape: Ints, mean: float = 0.0, std: float = 1.0, dtype: DTypeAttr = float32, seed: int = 0, rng=(0, 0, 0)
):  # fmt: skip
    """Normal numbers with the given mean and standard deviation."""
    return philox.normal(keyed(rng, seed), shape, mean, std, computed(dtype)).astype(dtype, copy=False)


gaussian_random.infer(_infer_normal)


@gaussian_random.samples
def _(rng):
    yield (), {"shape": (3, 5)}
    yield (), {"shape": (), "mean": 2.0, "std": 0.1, "dtype": "float64"}
    yield (), {"shape": (0, 2), "seed": 7}


@op(traits={"random", "nondifferentiable"}, no_need_buffer={"X"}, gpu="elementwise.random")
def gaussian_random_like(X, *, mean: float = 0.0, std: float = 1.0, seed: int = 0, rng=(0, 0, 0)):
    """Normal numbers with the given mean and standard deviation in X's shape and type."""
    return philox.normal(keyed(rng, seed), X.shape, mean, std, computed(X.dtype)).astype(X.dtype, copy=False)


@gaussian_random_like.infer
def _(X, *, mean, std, seed):
    require_finite(mean=mean, std=std)
    require(std >= 0, f"std must not be negative, is {std}", AttrError)
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require(seed >= 0, f"a seed is not negative, got {seed}", AttrError)
    return X


@gaussian_random_like.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=()),), {"mean": 2.0, "std": 0.1, "seed": 7}
    yield (np.zeros((0, 2)),), {}


@op(traits={"random", "nondifferentiable"}, gpu="elementwise.random")
def truncated_gaussian_random(
    *, shape: Ints, mean: float = 0.0, std: float = 1.0, dtype: DTypeAttr = float32, seed: int = 0, rng=(0, 0, 0)
):  # fmt: skip
    """Normal numbers given that they lie within 2 std of the mean."""
    return philox.truncated_normal(keyed(rng, seed), shape, mean, std, computed(dtype)).astype(dtype, copy=False)


truncated_gaussian_random.infer(_infer_normal)


@truncated_gaussian_random.samples
def _(rng):
    yield (), {"shape": (3, 5)}
    yield (), {"shape": (7,), "mean": 2.0, "std": 0.1, "dtype": "float64"}
    yield (), {"shape": (0, 2), "seed": 7}


def dropout_scale(p: float, mode: str) -> float:
    """The factor on kept elements in training."""
    return 1 / (1 - p) if mode == "upscale_in_train" and p < 1 else 1.0


@op("Out, Mask", traits={"random", "pointwise"}, gpu="elementwise.random")
def dropout(
    X, *, p: float = 0.5, mode: str = "upscale_in_train", is_test: bool = False, seed: int = 0,
    rng=(0, 0, 0), needs=("Out", "Mask"), out=None,
):  # fmt: skip
    """X with each element set to zero with probability p; Mask (uint8) is 1 where it was kept.

    mode     upscale_in_train: kept elements are divided by 1 - p; inference passes X through.
             downscale_in_infer: kept elements stay as they are; inference multiplies X by 1 - p.
    is_test  inference: nothing is dropped, Mask is all ones
    A dropped element is zero even where X is infinite or NaN (ONNX multiplies by the mask). ONNX's
    Dropout is inference by default and its mask is bool; its training is upscale_in_train.
    """
    result = out[0] if out else None
    if is_test:
        factor = 1 - p if mode == "downscale_in_infer" else 1.0
        Mask = np.ones(X.shape, np.uint8) if "Mask" in needs else None
        return np.multiply(X, X.dtype.type(factor), out=result), Mask
    Mask = philox.keep_mask(keyed(rng, seed), X.shape, p)
    return masked(X, Mask, p, mode, result), Mask


def masked(x: np.ndarray, mask: np.ndarray, p: float, mode: str, out: np.ndarray | None) -> np.ndarray:
    """x scaled as in training where the mask is 1, zero elsewhere."""
    scaled = np.asarray(np.multiply(x, x.dtype.type(dropout_scale(p, mode)), out=out))
    np.copyto(scaled, 0, where=mask == 0)
    return scaled


@dropout.infer
def _(X, *, p, mode, is_test, seed):
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require(0 <= p <= 1, f"p must lie in [0, 1], is {p}", AttrError)
    require(mode in DROPOUT_MODES, f"mode {mode!r} is none of {', '.join(DROPOUT_MODES)}", AttrError)
    require(seed >= 0, f"a seed is not negative, got {seed}", AttrError)
    return X, X.with_dtype(np.uint8)


@dropout.grad
def _(g, Mask, Out_grad, *, p, mode, is_test, seed):
    if is_test:
        return g.scale(Out_grad, scale=1 - p if mode == "downscale_in_infer" else 1.0)
    return g.dropout_grad(Mask, Out_grad, p=p, mode=mode)


@dropout.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {"p": 0.3}
    yield (rng.normal(size=(4, 3)),), {"p": 0.3, "mode": "downscale_in_infer"}
    yield (rng.normal(size=(4, 3)),), {"p": 0.3, "mode": "downscale_in_infer", "is_test": True}
    yield (rng.normal(size=(4, 3)),), {"is_test": True}
    yield (rng.normal(size=(4, 3)),), {"p": 0.0}
    yield (rng.normal(size=(4, 3)),), {"p": 1.0}
    yield (rng.normal(size=()),), {"seed": 3}
    yield (rng.normal(size=(0, 3)),), {}


def _dropout_slope(attrs):
    return f"Mask ? Out_grad * C({dropout_scale(attrs['p'], attrs['mode'])!r}) : C(0)"


@op(
    "X_grad", traits={"pointwise"}, inplace={"X_grad": "Out_grad"}, cuda=_dropout_slope, gpu="elementwise.random"
)  # fmt: skip
def dropout_grad(Mask, Out_grad, *, p: float = 0.5, mode: str = "upscale_in_train", out=None):
    """Out_grad scaled as X was, zero where Mask is 0."""
    return masked(Out_grad, Mask, p, mode, out[0] if out else None)


@dropout_grad.infer
def _(Mask, Out_grad, *, p, mode):
    return Out_grad


@dropout_grad.grad
def _(g, Mask, X_grad_grad, *, p, mode):
    return None, g.dropout_grad(Mask, X_grad_grad, p=p, mode=mode)


@dropout_grad.samples
def _(rng):
    yield (rng.integers(0, 2, size=(4, 3)).astype(np.uint8), rng.normal(size=(4, 3))), {"p": 0.3}
    yield (np.zeros((2,), np.uint8), rng.normal(size=(2,))), {"p": 1.0, "mode": "downscale_in_infer"}


@op(traits={"random", "nondifferentiable"}, no_need_buffer={"X"}, gpu="elementwise.random")
def uniform_random_like(
    X, *, min: float = 0.0, max: float = 1.0, test_value: float | None = None, is_test: bool = False, seed: int = 0,
    rng=(0, 0, 0),
):  # fmt: skip
    """Uniform numbers in [min, max) in X's shape and type.

    test_value  in inference (is_test) every element is this; None draws there, too
    """
    if is_test and test_value is not None:
        return np.full(X.shape, test_value, X.dtype)
    return philox.uniform(keyed(rng, seed), X.shape, min, max, computed(X.dtype)).astype(X.dtype, copy=False)


@uniform_random_like.infer
def _(X, *, min, max, test_value, is_test, seed):
    require(X.is_float, f"X must be a float, is {X.dtype}", DTypeError)
    require_finite(min=min, max=max)
    require(min <= max, f"min {min} is greater than max {max}", AttrError)
    require(seed >= 0, f"a seed is not negative, got {seed}", AttrError)
    return X


@uniform_random_like.samples
def _(rng):
    yield (rng.normal(size=(4, 3)),), {}
    yield (rng.normal(size=()),), {"min": 2.0, "max": 2.5, "seed": 7}
    yield (rng.normal(size=(4, 3)),), {"test_value": 0.25, "is_test": True}
    yield (np.zeros((0, 2)),), {"test_value": 0.25}
