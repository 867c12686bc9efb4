"""Weights applied to inputs: affine maps and rows of tables."""

from __future__ import annotations

import numpy as np

from minigraph.errors import call_site
from minigraph.errors.kinds import RANK
from minigraph.program import Parameter, Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.tensor.arguments import emit, output_prefix, variable


@whole
def linear(x: Variable, weight: Variable, bias: Variable | None = None, name: str | None = None) -> Variable:
    """x @ weight + bias; weight is [in, out], x [..., in], bias [out]."""
    x, weight = variable(x, "linear"), variable(weight, "linear", "weight")
    prefix, g = output_prefix("linear", name), builder_of(x)
    product = g.matmul(x, weight, name=prefix)
    return product if bias is None else g.elementwise_add(product, variable(bias, "linear", "bias"), name=prefix)


def embedding(
    x: Variable, weight: Variable, padding_idx: int | None = None, sparse: bool = False, name: str | None = None
) -> Variable:
    """The rows of `weight` at the int positions x; rows at padding_idx are zero and have no gradient.

    sparse  lets Adam with lazy_mode leave rows alone that no id names; gradients are dense
    """
    x, weight = variable(x, "embedding"), variable(weight, "embedding", "weight")
    if sparse and isinstance(weight, Parameter):
        weight.sparse = True
    return emit("embedding", "embedding", x, weight, padding_idx=padding_idx, name=name)


def one_hot(x: Variable, num_classes: int, name: str | None = None) -> Variable:
    """1 at the place of each class number of x along a new last axis, else 0, in the default data type."""
    return one_hot_as(variable(x, "one_hot"), num_classes, default_dtype(), name)


def one_hot_as(x: Variable, num_classes: int, dtype: np.dtype, name: str | None = None) -> Variable:
    """one_hot in a data type of the caller's choice."""
    return emit("one_hot", "one_hot", x, depth=num_classes, dtype=dtype, name=name)


@whole
def bilinear(
    x1: Variable, x2: Variable, weight: Variable, bias: Variable | None = None, name: str | None = None
) -> Variable:
    """out[n, s] = sum over i, j of x1[n, i] * weight[s, i, j] * x2[n, j], plus bias[s].

    x1  [N, I]; x2 [N, J]; weight [S, I, J]; bias [1, S] or [S]
    """
    x, y = variable(x1, "bilinear", "x1"), variable(x2, "bilinear", "x2")
    w = variable(weight, "bilinear", "weight")
    g, prefix = builder_of(x), output_prefix("bilinear", name)
    if (x.ndim, y.ndim, w.ndim) != (2, 2, 3):
        raise RANK(f"x1 {x} and x2 {y} must be 2-D, weight {w} 3-D", call="bilinear", site=call_site())
    size, first, second = w.shape
    rows = g.reshape(g.transpose(w, perm=(1, 0, 2)), shape=(first, size * second))
    partial = g.reshape(g.matmul(x, rows), shape=(-1, size, second))
    out = g.reduce_sum(g.elementwise_mul(partial, g.unsqueeze(y, axes=[1])), axis=[2], name=prefix)
    return out if bias is None else g.elementwise_add(out, variable(bias, "bilinear", "bias"), name=prefix)
