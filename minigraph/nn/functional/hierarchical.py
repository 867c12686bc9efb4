"""Hierarchical sigmoid: a class is the way to its leaf in a binary tree, one yes or no at each node."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, ShapeError, call_site, require
from minigraph.program import Variable
from minigraph.program.builder import whole
from minigraph.tensor import cast, floor_divide, maximum, reshape, sum, unsqueeze, where, zeros_like
from minigraph.tensor.arguments import variable
from minigraph.tensor.creation import assign, full
from minigraph.types import INTS

from .activation import softplus
from .linear import embedding


@whole
def hsigmoid_loss(
    input: Variable, label: Variable, num_classes: int, weight: Variable, bias: Variable | None = None,
    path_table: Variable | None = None, path_code: Variable | None = None, is_sparse: bool = False,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """-log P(label) for rows [N, D] of `input`, [N, 1], where P is a product of one sigmoid for each node of the way.

    label        class numbers, int [N] or [N, 1]
    weight, bias one row for each inner node, [num_classes - 1, D] and [num_classes - 1, 1]; those of `path_table`
    path_table   the nodes of each row's way, int [N, L] filled up with -1; None takes the complete binary tree
    path_code    which way it goes there: 1 is the side of a large input @ weight[node]; [N, L]
    is_sparse    has no effect: gradients are dense
    Paddle adds log(2) for each node that a way has less than the longest one, and cuts input @ weight at 40; here
    the probabilities of all classes add up to 1.
    Source: Morin and Bengio, Hierarchical Probabilistic Neural Network Language Model, AISTATS 2005.
    """
    call = "hsigmoid_loss"
    x, label = variable(input, call, "input"), variable(label, call, "label")
    weight = variable(weight, call, "weight")
    require((path_table is None) == (path_code is None), "path_table and path_code come together", AttrError)
    if x.ndim != 2 or weight.ndim != 2 or label.dtype not in INTS:
        raise ShapeError(
            f"input {x} and weight {weight} must be [N, D] and [nodes, D], label {label} int [N, 1]", call=call,
            site=call_site(),
        )  # fmt: skip
    if path_table is None or path_code is None:
        require(num_classes >= 2, f"num_classes must be at least 2, is {num_classes}", AttrError)
        nodes, codes = _tree(reshape(label, [-1, 1]), num_classes)
    else:
        nodes, codes = variable(path_table, call, "path_table"), variable(path_code, call, "path_code")
    known, nodes = nodes >= 0, maximum(nodes, zeros_like(nodes))
    score = sum(embedding(nodes, weight) * unsqueeze(x, 1), axis=-1)
    if bias is not None:
        score = score + sum(embedding(nodes, variable(bias, call, "bias")), axis=-1)
    loss = softplus(score) - cast(codes, score.dtype) * score
    return sum(where(known, loss, zeros_like(loss)), axis=1, keepdim=True)


def _tree(label: Variable, num_classes: int) -> tuple[Variable, Variable]:
    """The nodes of the ways to leaves [N, 1] of the complete tree, leaf upwards, -1 behind the root; the ways taken.

    A leaf is place num_classes + label of a heap whose root is 1: its parents are this halved again and again.
    """
    depth = int(2 * num_classes - 1).bit_length() - 1
    place = cast(label, "int64") + full([1], num_classes, "int64")
    halves = assign(2 ** np.arange(depth + 1, dtype=np.int64))
    ways = floor_divide(place, halves)  # the place itself, its parent, ... up to 0 above the root
    below, above = ways[:, :-1], ways[:, 1:]
    return above - 1, below - above * 2
