"""Weights applied to inputs: affine maps and rows of tables."""

from __future__ import annotations

from minigraph.program import Variable
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

    sparse is accepted; gradients are dense.
    """
    x, weight = variable(x, "embedding"), variable(weight, "embedding", "weight")
    return emit("embedding", "embedding", x, weight, padding_idx=padding_idx, name=name)


def one_hot(x: Variable, num_classes: int, name: str | None = None) -> Variable:
    """1 at the place of each class number of x along a new last axis, else 0, in the default data type."""
    x = variable(x, "one_hot")
    return emit("one_hot", "one_hot", x, depth=num_classes, dtype=default_dtype(), name=name)
