"""A bucket: many arrays that ranks reduce together."""

from __future__ import annotations

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.opdef import Arrays, op
from minigraph.types import as_dtype

from .collective import CPU, GPU, TRAITS, check_sum


@op(
    "Out*", traits=TRAITS | {"in_place", "one_piece"}, inplace={"Out": "X"}, cpu=f"{CPU}:c_allreduce_coalesced",
    gpu=GPU,
)  # fmt: skip
def c_allreduce_coalesced(X: Arrays, *, sent: str = "auto", lifted=False):
    """The sum of each X over all ranks, on each of them; all of one type, which travel as one array.

    sent   the type in which they travel, "auto" is their own
    """
    return [np.array(x) if sent == "auto" or lifted else x.astype(as_dtype(sent)).astype(x.dtype) for x in X]


@c_allreduce_coalesced.infer
def _(X, *, sent):
    for i, x in enumerate(X):
        check_sum(x)
        require(x.dtype == X[0].dtype, f"X[0] is {X[0].dtype}, X[{i}] is {x.dtype}", DTypeError, "cast one of them")
    if sent != "auto":
        fits = X[0].is_float and X[0].with_dtype(as_dtype(sent)).is_float
        require(fits, f"{X[0].dtype} cannot travel as {sent}", DTypeError, "floats travel as another type of floats")
    return X


@c_allreduce_coalesced.grad
def _(g, Out_grad, *, sent):
    return g.c_allreduce_coalesced(Out_grad, sent=sent)


@c_allreduce_coalesced.samples
def _(rng):
    yield ([rng.normal(size=(2, 3)), rng.normal(size=()), rng.normal(size=(0, 4)), rng.normal(size=(5,))],), {}
    yield ([rng.normal(size=(2, 3)), rng.normal(size=(4,))],), {"sent": "float64"}
