"""The key of an operator's random numbers as a value, for two operators that need the same numbers."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.opdef import op
from minigraph.ops.elementwise.random import keyed
from minigraph.types import TensorType, int64


@op("Key", traits={"random", "nondifferentiable"}, gpu="attention.attention")
def random_key(*, seed: int = 0, rng=(0, 0, 0)):
    """(seed, this operator's number, step) as i64[3]; a seed other than 0 replaces the program's.

    Attention and its gradient both read it and draw the same dropout mask from it. They are functions
    of their inputs thereby, and the random operator is this one.
    """
    words = np.array([word % 2**64 for word in keyed(rng, seed)], np.uint64)
    return words.view(int64)


@random_key.infer
def _(*, seed):
    require(seed >= 0, f"a seed is not negative, got {seed}", AttrError)
    return TensorType((3,), int64)


@random_key.samples
def _(rng):
    yield (), {}
    yield (), {"seed": 2**40 + 5}
