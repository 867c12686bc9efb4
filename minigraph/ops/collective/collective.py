"""Collectives, with Paddle's names: what all ranks of a group compute together.

A reference is what ranks compute that all have the same values; on one rank, what it computes alone. A gradient is that
of the sum of all ranks' targets. All ranks must run the same collectives in the same order, which is why each has the
trait side_effect: no pass takes one away, computes it twice or on constants.
"""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, DTypeError, require
from minigraph.opdef import op
from minigraph.types import bool_, int16

TRAITS = {"collective", "side_effect"}
CPU, GPU = "minigraph.kernels.cpu.collectives", "collective.collective"


@op(traits=TRAITS | {"in_place"}, inplace={"Out": "X"}, cpu=f"{CPU}:c_allreduce_sum", gpu=GPU)
def c_allreduce_sum(X, *, out=None):
    """The sum of X over all ranks, on each of them."""
    if not out:
        return np.array(X)
    out[0][...] = X
    return out[0]


@c_allreduce_sum.infer
def _(X):
    check_sum(X)
    return X


@c_allreduce_sum.grad
def _(g, Out_grad):
    return g.c_allreduce_sum(Out_grad)


@c_allreduce_sum.samples
def _(rng):
    for shape in ((3, 4), (), (0, 2)):
        yield (rng.normal(size=shape),), {}


@op(traits=TRAITS, cpu=f"{CPU}:c_reduce_sum", gpu=GPU)
def c_reduce_sum(X, *, root: int = 0):
    """The sum of X over all ranks on rank `root`; zeros on the others."""
    return np.array(X)


@c_reduce_sum.infer
def _(X, *, root):
    check_sum(X)
    return _of_root(X, root)


@c_reduce_sum.grad
def _(g, Out_grad, *, root):
    return g.c_broadcast(Out_grad, root=root)


@c_reduce_sum.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {"root": 0}


@op(traits=TRAITS, cpu=f"{CPU}:c_broadcast", gpu=GPU)
def c_broadcast(X, *, root: int = 0):
    """X of rank `root`, on all ranks."""
    return np.array(X)


@c_broadcast.infer
def _(X, *, root):
    return _of_root(X, root)


@c_broadcast.grad
def _(g, Out_grad, *, root):
    return g.c_reduce_sum(Out_grad, root=root)


@c_broadcast.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {"root": 0}
    yield (rng.normal(size=()),), {}


def _of_root(X, root):
    require(root >= 0, f"root is a rank, 0 or more, not {root}", AttrError)
    return X


@op(traits=TRAITS, cpu=f"{CPU}:c_allgather", gpu=GPU)
def c_allgather(X, *, nranks: int):
    """X of all `nranks` ranks, joined along the first axis."""
    return np.concatenate([X] * nranks)


@c_allgather.infer
def _(X, *, nranks):
    _check(X, nranks)
    return X.with_shape((-1 if X.shape[0] == -1 else X.shape[0] * nranks, *X.shape[1:]))


@c_allgather.grad
def _(g, Out_grad, *, nranks):
    return g.c_reducescatter(Out_grad, nranks=nranks)


@c_allgather.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {"nranks": 1}
    yield (rng.normal(size=(0,)),), {"nranks": 1}


@op(traits=TRAITS, cpu=f"{CPU}:c_reducescatter", gpu=GPU)
def c_reducescatter(X, *, nranks: int):
    """Part r of the sum of X over all `nranks` ranks, cut along the first axis into equal parts, on rank r."""
    return nranks * X[: len(X) // nranks]


@c_reducescatter.infer
def _(X, *, nranks):
    check_sum(X)
    _check(X, nranks)
    size = X.shape[0]
    require(size % nranks == 0 or size == -1, f"the first axis of {X} cannot be cut into {nranks} equal parts")
    return X.with_shape((-1 if size == -1 else size // nranks, *X.shape[1:]))


@c_reducescatter.grad
def _(g, Out_grad, *, nranks):
    return g.c_allgather(Out_grad, nranks=nranks)


@c_reducescatter.samples
def _(rng):
    yield (rng.normal(size=(3, 4)),), {"nranks": 1}
    yield (rng.normal(size=(2,)),), {"nranks": 1}


def check_sum(X):
    require(X.dtype not in (int16, bool_), f"ranks cannot add up {X.dtype}, NCCL has no sum of it", DTypeError,
            "cast X to int32")  # fmt: skip


def _check(X, nranks):
    require(nranks > 0, f"nranks is the number of ranks, 1 or more, not {nranks}", AttrError)
    require(X.ndim > 0, "ranks join and cut along the first axis, X has none", hint="reshape X to [1]")


@op(traits=TRAITS, cpu=f"{CPU}:barrier", gpu=GPU)
def barrier(X):
    """A copy of X, once all ranks have come here."""
    return np.array(X)


@barrier.grad
def _(g, Out_grad):
    return g.assign(Out_grad)


@barrier.samples
def _(rng):
    yield (rng.normal(size=(2,)),), {}
