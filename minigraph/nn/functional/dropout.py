"""Dropout, of elements, of channels, and after selu."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import EMPTY, RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor import where
from minigraph.tensor.arguments import as_type, emit, ints, output_prefix, variable
from minigraph.types import float32, normalize_axes

from .activation import SELU_ALPHA, SELU_SCALE

MODES = ("upscale_in_train", "downscale_in_infer")


def dropout(
    x: Variable, p: float | Variable = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """x with each element set to zero with probability p while training.

    p     also a float Variable of one number, fed or computed
    axis  an int or list: elements are dropped together along the other axes
    mode  upscale_in_train: kept elements are divided by 1 - p, inference passes x through;
          downscale_in_infer: kept elements stay, inference multiplies by 1 - p
    `program.clone(for_test=True)` turns training off. With p = 0 it is x itself, as in Paddle: no operator.
    """
    x = variable(x, "dropout")
    require(mode in MODES, f"mode must be {' or '.join(MODES)}, is {mode!r}", AttrError)
    if p == 0:
        return x
    attrs = {"p": p, "mode": mode, "is_test": not training}
    if axis is None:
        return emit("dropout", "dropout", x, name=name, **attrs)[0]
    kept = normalize_axes(ints(axis), x.ndim)
    shared = [a for a in range(x.ndim) if a not in kept]
    require(all(x.shape[a] != 0 for a in shared), f"dropout along an empty axis of {x}", EMPTY)
    g = builder_of(x)
    sample = g.slice(x, axes=shared, starts=[0] * len(shared), ends=[1] * len(shared)) if shared else x
    factors, _ = g.dropout(g.fill_any_like(sample, value=1.0), **attrs)
    return g.elementwise_mul(x, factors, name=output_prefix("dropout", name))


def dropout2d(
    x: Variable, p: float = 0.5, training: bool = True, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """x [N, C, H, W], or NHWC, with whole channels of samples set to zero with probability p while training."""
    return _of_channels("dropout2d", x, p, training, data_format, ("NCHW", "NHWC"), name)


def dropout3d(
    x: Variable, p: float = 0.5, training: bool = True, data_format: str = "NCDHW", name: str | None = None
) -> Variable:
    """x [N, C, D, H, W], or NDHWC, with whole channels of samples set to zero with probability p while training."""
    return _of_channels("dropout3d", x, p, training, data_format, ("NCDHW", "NDHWC"), name)


def _of_channels(
    call: str, x: Variable, p: float, training: bool, data_format: str, formats: tuple[str, str], name: str | None
) -> Variable:
    rank = len(formats[0])
    if data_format not in formats:
        raise AttrError(f"data_format {data_format!r} is not {' or '.join(formats)}", call=call, site=call_site())
    if variable(x, call).ndim != rank:
        raise RANK(f"x must have rank {rank}, is {x}", call=call, site=call_site())
    return dropout(x, p, [0, 1 if data_format[1] == "C" else rank - 1], training, name=name)


@whole
def alpha_dropout(x: Variable, p: float = 0.5, training: bool = True, name: str | None = None) -> Variable:
    """Dropout after selu: what is dropped becomes selu's lowest value, and mean 0 and variance 1 stay as they are.

    Source: Klambauer and others, Self-Normalizing Neural Networks, arXiv:1706.02515.
    """
    require(0 <= p <= 1, f"p must lie in [0, 1], is {p}", AttrError)
    x = variable(x, "alpha_dropout")
    if p == 1:
        return builder_of(x).scale(x, scale=0.0) if training else x
    low = -SELU_ALPHA * SELU_SCALE
    factor = ((1 - p) * (1 + p * low**2)) ** -0.5
    drawn = builder_of(x).uniform_random_like(as_type(x, float32), test_value=2.0, is_test=not training)
    dropped = where(drawn >= p, x, low) * factor - factor * low * p
    return where(drawn > 1.0, x, dropped)  # numbers that are drawn are below 1
