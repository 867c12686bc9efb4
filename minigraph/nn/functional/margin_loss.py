"""Losses that ask for a margin between what belongs together and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import RANK
from minigraph.program import Variable
from minigraph.tensor import mean, minimum, pow, sqrt, square, sum, where
from minigraph.tensor.arguments import as_type

from .activation import relu
from .distance import pairwise_distance
from .loss import picked
from .reduction import same_shapes, with_reduction

TINY = 1e-11  # of a squared length below a cosine, Paddle's number


@with_reduction
def margin_ranking_loss(
    input: Variable, other: Variable, label: Variable, margin: float = 0.0, reduction: str = "mean",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """max(0, margin - label * (input - other)); label 1: input should be larger, -1: other should be."""
    loss = label * (other - input)
    return relu(loss + margin if margin else loss)


@with_reduction
def hinge_embedding_loss(
    input: Variable, label: Variable, margin: float = 1.0, reduction: str = "mean", name: str | None = None
) -> Variable:
    """Of distances `input`: themselves where label is 1, max(0, margin - input) where it is -1, else 0."""
    same_shapes("hinge_embedding_loss", input=input, label=label)
    return where(label == 1, input, where(label == -1, relu(margin - input), 0.0))


@with_reduction
def cosine_embedding_loss(
    input1: Variable, input2: Variable, label: Variable, margin: float = 0, reduction: str = "mean",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Of the cosine c between rows of [N, D] (or two vectors): 1 - c for label 1, max(0, c - margin) for -1, else 0.

    label  [N]
    """
    call = "cosine_embedding_loss"
    same_shapes(call, input1=input1, input2=input2)
    if label.ndim != 1 or not 1 <= input1.ndim <= 2:
        raise RANK(
            f"label {label} must be 1-D, and input1 {input1} 1-D or 2-D", call=call, site=call_site()
        )
    lengths = (sum(square(input1), axis=-1) + TINY) * (sum(square(input2), axis=-1) + TINY)
    cosine = sum(input1 * input2, axis=-1) / sqrt(lengths)
    return where(label == 1, 1 - cosine, where(label == -1, relu(cosine - margin), 0.0))


@with_reduction
def triplet_margin_with_distance_loss(
    input: Variable, positive: Variable, negative: Variable, distance_function: Callable[..., Variable] | None = None,
    margin: float = 1.0, swap: bool = False, reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """max(0, distance(input, positive) - distance(input, negative) + margin)

    distance_function  of two Variables, pairwise_distance for None
    swap               the smaller one of distance(input, negative) and distance(positive, negative) counts
    Paddle 2.6.2 cannot build this in static mode: it asks for the values of the distances.
    """
    call = "triplet_margin_with_distance_loss"
    return _triplet(call, (input, positive, negative), distance_function or pairwise_distance, margin, swap)


@with_reduction
def triplet_margin_loss(
    input: Variable, positive: Variable, negative: Variable, margin: float = 1.0, p: float = 2,
    epsilon: float = 1e-6, swap: bool = False, reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """max(0, d(input, positive) - d(input, negative) + margin), d the p-norm of the difference + epsilon.

    input, positive, negative  [N, D]
    swap  the smaller one of d(input, negative) and d(positive, negative) counts
    """

    def distance(x: Variable, y: Variable) -> Variable:
        return pairwise_distance(x, y, p, epsilon)

    return _triplet("triplet_margin_loss", (input, positive, negative), distance, margin, swap)


def _triplet(
    call: str, triple: tuple[Variable, Variable, Variable], distance: Callable[..., Any], margin: float, swap: bool
) -> Variable:
    require(margin >= 0, f"margin must not be negative, is {margin}", AttrError)
    x, positive, negative = triple
    same_shapes(call, input=x, positive=positive, negative=negative)
    near, far = distance(x, positive), distance(x, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return relu(near - far + margin)


@with_reduction
def multi_margin_loss(
    input: Variable, label: Variable, p: int = 1, margin: float = 1.0, weight: Variable | None = None,
    reduction: str = "mean", name: str | None = None,
) -> Variable:  # fmt: skip
    """The mean over the other classes j of max(0, weight[y] * (margin - input[y] + input[j]))^p, y the label.

    input   scores [N, C]; label [N], class numbers; weight [C]
    The mean divides by C, as Paddle's does. With a weight w Paddle takes w * margin^p away for the label's own term,
    which is (w * margin)^p: the two differ where p is not 1. Here the term is left out exactly.
    """
    call = "multi_margin_loss"
    if input.ndim != 2 or input.shape[1] < 1:
        raise RANK(f"input must be [N, C] with known C, is {input}", call=call, site=call_site())
    own, mine = picked(input, label, 1)
    gap = margin - own + input
    if weight is not None:
        gap = gap * sum(where(mine, as_type(weight, input.dtype), 0.0), axis=1, keepdim=True)
    return mean(where(mine, 0.0, pow(relu(gap), p)), axis=1)


__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip
