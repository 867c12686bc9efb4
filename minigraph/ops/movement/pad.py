"""Borders around tensors."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import NO_NUMBERS
from minigraph.opdef import Ints, Number, op
from minigraph.types import INTS, bool_

FAR = 2**62  # an end behind every axis


@op(gpu="movement.pad")
def pad(X, *, paddings: Ints, value: Number = 0.0):
    """X with `value` around it: paddings holds two numbers for each axis, before X and behind it."""
    pairs = list(zip(paddings[::2], paddings[1::2], strict=True))
    return np.pad(X, pairs, constant_values=np.asarray(value).astype(X.dtype)) if pairs else np.array(X)


@pad.infer
def _(X, *, paddings, value):
    require(len(paddings) == 2 * X.ndim, f"paddings holds {len(paddings)} numbers, X is {X}", AttrError)
    require(min(paddings, default=0) >= 0, f"paddings {list(paddings)} has a negative number", AttrError,
            "mg.slice takes a part")  # fmt: skip
    limits = np.iinfo(X.dtype) if X.dtype in INTS else None
    fits = limits is None or (limits.min <= value <= limits.max and value == int(value))
    require(fits and (X.dtype != bool_ or value in (0, 1)), f"{value} is no {X.dtype}", NO_NUMBERS)
    pairs = zip(X.shape, paddings[::2], paddings[1::2], strict=True)
    return X.with_shape(-1 if size == -1 else before + size + after for size, before, after in pairs)


@pad.grad
def _(g, Out_grad, *, paddings, value):
    starts = paddings[::2]
    ends = [-after if after else FAR for after in paddings[1::2]]
    return g.slice(Out_grad, axes=range(len(starts)), starts=starts, ends=ends)


@pad.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {"paddings": (1, 2, 0, 3)}
    yield (rng.normal(size=(2, 3, 2)),), {"paddings": (0, 0, 2, 1, 1, 0), "value": 1.5}
    yield (rng.normal(size=(3,)),), {"paddings": (0, 0), "value": 2.0}
    yield (rng.normal(size=()),), {"paddings": ()}
    yield (rng.normal(size=(0, 2)),), {"paddings": (1, 1, 0, 1), "value": -1.0}
    yield (np.arange(6, dtype=np.int32).reshape(2, 3),), {"paddings": (1, 0, 0, 1), "value": 7}
