"""Arrays in equal pieces, one on each rank: what optimizers whose states are shared among the ranks need.

A piece is flat. Piece r of an array of n elements has ceil(n / nranks) of them, those from r times as many on; behind
the end it is zeros. A reference is what ranks compute that all have the same values, on rank 0.
"""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.kernels.pieces import piece, piece_size
from minigraph.opdef import Arrays, op
from minigraph.types import TensorType

TRAITS = {"collective", "side_effect"}
CPU, GPU = "minigraph.kernels.cpu.collectives", "collective.shards"


@op("Out*", traits=TRAITS, cpu=f"{CPU}:c_shards", gpu=GPU)
def c_shards(X: Arrays, *, nranks: int):
    """This rank's piece of each X; nothing is sent."""
    return [piece(x, 0, nranks) for x in X]


@c_shards.infer
def _(X, *, nranks):
    return _pieces(X, nranks)


@c_shards.samples
def _(rng):
    yield _some(rng), {"nranks": 1}


@op("Out*", traits=TRAITS, cpu=f"{CPU}:c_reduce_shards", gpu=GPU)
def c_reduce_shards(X: Arrays, *, nranks: int):
    """This rank's piece of the sum of each X over all ranks."""
    return [nranks * piece(x, 0, nranks) for x in X]


@c_reduce_shards.infer
def _(X, *, nranks):
    return _pieces(X, nranks)


@c_reduce_shards.samples
def _(rng):
    yield _some(rng), {"nranks": 1}


@op("Out*", traits=TRAITS, inplace={"Out": "Like"}, no_need_buffer={"Like"}, cpu=f"{CPU}:c_gather_shards", gpu=GPU)
def c_gather_shards(X: Arrays, Like: Arrays, *, nranks: int, out=None):
    """The arrays of which all ranks' X are the pieces, in the shapes of Like."""
    made = [np.tile(x, nranks)[: like.size].reshape(like.shape) for x, like in zip(X, Like, strict=True)]
    if not out or out[0] is None:
        return made
    for i, to in enumerate(out[0]):
        if to is not None:
            to[...] = made[i]
            made[i] = to
    return made


@c_gather_shards.infer
def _(X, Like, *, nranks):
    for i, (x, wanted) in enumerate(zip(X, _pieces(Like, nranks), strict=True)):
        require(wanted.accepts(x), f"X[{i}] is {x}, a piece of Like[{i}] for nranks={nranks} is {wanted}")
    return Like


@c_gather_shards.samples
def _(rng):
    (xs,) = _some(rng)
    yield ([x.reshape(-1) for x in xs], xs), {"nranks": 1}


def _pieces(X, nranks):
    require(nranks > 0, f"nranks is the number of ranks, 1 or more, not {nranks}", AttrError)
    for i, x in enumerate(X):
        require(x.is_float, f"X[{i}] must hold floats, holds {x}", DTypeError)
    return [TensorType((piece_size(x.size, nranks) if x.is_static else -1,), x.dtype) for x in X]


def _some(rng):
    return ([rng.normal(size=(2, 3)), rng.normal(size=()), rng.normal(size=(5,))],)
