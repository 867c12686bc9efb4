"""Normalisation and dropout."""

from __future__ import annotations

from typing import Any

from minigraph.errors import ShapeError, call_site, require
from minigraph.program import Variable
from minigraph.program.builder import builder_of
from minigraph.tensor.arguments import emit, ints, output_prefix, variable
from minigraph.types import normalize_axes, normalize_shape


def layer_norm(
    x: Variable, normalized_shape: Any, weight: Variable | None = None, bias: Variable | None = None,
    epsilon: float = 1e-5, name: str | None = None,
) -> Variable:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axes, of sizes `normalized_shape`.

    weight, bias  1-D with one element for each that is normalised together
    """
    x, sizes = variable(x, "layer_norm"), normalize_shape(normalized_shape)
    last = x.shape[x.ndim - len(sizes) :]
    if not sizes or len(sizes) > x.ndim or any(a not in (-1, b) for a, b in zip(last, sizes, strict=True)):
        raise ShapeError(
            f"x {x} does not end in normalized_shape {list(sizes)}", call="layer_norm", site=call_site()
        )
    g, prefix = builder_of(x), output_prefix("layer_norm", name)
    y, _, _ = g.layer_norm(x, weight, bias, begin_norm_axis=x.ndim - len(sizes), epsilon=epsilon, name=prefix)
    return y


def dropout(
    x: Variable, p: float = 0.5, axis: Any = None, training: bool = True, mode: str = "upscale_in_train",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """x with each element set to zero with probability p while training.

    axis  an int or list: elements are dropped together along the other axes
    mode  upscale_in_train: kept elements are divided by 1 - p, inference passes x through;
          downscale_in_infer: kept elements stay, inference multiplies by 1 - p
    `program.clone(for_test=True)` turns training off.
    """
    x, attrs = variable(x, "dropout"), {"p": p, "mode": mode, "is_test": not training}
    if axis is None:
        return emit("dropout", "dropout", x, name=name, **attrs)[0]
    kept = normalize_axes(ints(axis), x.ndim)
    shared = [a for a in range(x.ndim) if a not in kept]
    require(all(x.shape[a] != 0 for a in shared), f"dropout along an empty axis of {x}")
    g = builder_of(x)
    sample = g.slice(x, axes=shared, starts=[0] * len(shared), ends=[1] * len(shared)) if shared else x
    factors, _ = g.dropout(g.fill_any_like(sample, value=1.0), **attrs)
    return g.elementwise_mul(x, factors, name=output_prefix("dropout", name))
