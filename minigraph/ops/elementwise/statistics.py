"""What batch normalisation keeps from step to step: which statistics it uses, and their running average."""

from __future__ import annotations

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import MIXED_TYPES
from minigraph.opdef import op
from minigraph.types import TensorType

from .elementwise import draw
from .unary import infer_float

SHAPES = ((4,), (0,), (1,), (2, 3))


def _infer(Batch: TensorType, Running: TensorType, **attrs: object) -> TensorType:
    require(Batch.dtype == Running.dtype, f"Batch is {Batch.dtype}, Running is {Running.dtype}", MIXED_TYPES)
    require(
        Batch.accepts(Running) or Running.accepts(Batch), f"Batch is {Batch}, Running is {Running}: not of one shape"
    )
    return infer_float(Running)


def _samples(rng):
    for shape in SHAPES:
        for is_test in (False, True):
            yield (draw(rng, shape), draw(rng, shape)), {"is_test": is_test}


@op(traits={"elementwise"}, cuda=lambda a: "Running" if a["is_test"] else "Batch")
def used_statistics(Batch, Running, *, is_test: bool = False):
    """Batch while training, Running in inference."""
    return np.array(Running if is_test else Batch)


@used_statistics.grad
def _(g, Out_grad, *, is_test):
    return (None, g.assign(Out_grad)) if is_test else (g.assign(Out_grad), None)


def _average(attrs):
    return "Running" if attrs["is_test"] else "momentum * Running + C(1.0 - momentum) * Batch"


@op(traits={"elementwise", "statistic"}, inplace={"Out": "Running"}, cuda=_average)
def running_average(Batch, Running, *, momentum: float = 0.9, is_test: bool = False, out=None):
    """momentum * Running + (1 - momentum) * Batch while training, Running in inference."""
    result = out[0] if out and out[0] is not None else np.empty_like(Running)
    if is_test:
        np.copyto(result, Running)
        return result
    c = Running.dtype.type
    return np.add(c(momentum) * Running, c(1 - momentum) * Batch, out=result)


@running_average.infer
def _(Batch, Running, *, momentum, is_test):
    require(0 <= momentum <= 1, f"momentum must lie in [0, 1], is {momentum}", AttrError)
    return _infer(Batch, Running)


@running_average.grad
def _(g, Out_grad, *, momentum, is_test):
    if is_test:
        return None, g.assign(Out_grad)
    return g.scale(Out_grad, scale=1 - momentum), g.scale(Out_grad, scale=momentum)


used_statistics.infer(_infer).samples(_samples)
running_average.samples(_samples)
