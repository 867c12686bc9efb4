"""A weight divided by its largest singular value."""

from __future__ import annotations

import math

import numpy as np

from minigraph.errors import AttrError, call_site
from minigraph.errors.kinds import UNKNOWN_SIZE
from minigraph.nn.initializer import Normal
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.parameter import create_parameter
from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of
from minigraph.tensor.math_op_patch import detach


def directions(
    shape: tuple[int, ...], dim: int, power_iters: int, dtype: np.dtype, layer: str
) -> tuple[Variable, Variable]:
    """The vectors of the power iteration for a weight of `shape`, one of its rows' size, one of its columns'."""
    call = "spectral_norm"
    if dim not in (0, 1):
        raise AttrError(f"dim {dim} is not 0 or 1", call=call, site=call_site())
    if len(shape) < 2 or -1 in shape or 0 in shape:
        raise UNKNOWN_SIZE(
            f"weight must be a matrix or more with known sizes, is {list(shape)}", call=call, site=call_site()
        )
    if power_iters < 0:
        raise AttrError(f"power_iters must not be negative, is {power_iters}", call=call, site=call_site())
    attr = ParamAttr(initializer=Normal(0.0, 1.0), trainable=False)
    u, v = (create_parameter(layer, [size], dtype, attr) for size in (shape[dim], math.prod(shape) // shape[dim]))
    assert u is not None
    assert v is not None
    return u, v


def spectrally_normed(
    w: Variable, dim: int, power_iters: int, eps: float, begin: tuple[Variable, Variable], layer: str
) -> Variable:
    """static.nn.spectral_norm from the vectors `begin`, in variables called after `layer`."""
    g, rows = builder_of(w), w.shape[dim]
    order = [dim, *(a for a in range(w.ndim) if a != dim)]
    matrix = g.reshape(w if dim == 0 else g.transpose(w, perm=order), shape=(rows, math.prod(w.shape) // rows))
    constant, (u, v) = detach(matrix), begin
    for _ in range(power_iters):
        v = _unit(g, g.matmul(constant, u, trans_x=True), eps)
        u = _unit(g, g.matmul(constant, v), eps)
    sigma = g.reduce_sum(g.elementwise_mul(u, g.matmul(matrix, v)))
    return g.elementwise_div(w, sigma, name=f"{layer}.tmp")


def _unit(g: Builder, x: Variable, eps: float) -> Variable:
    """x / (|x| + eps), through which no gradient flows."""
    length = g.sqrt(g.reduce_sum(g.square(x)))
    unit = g.elementwise_div(x, g.scale(length, bias=eps))
    unit.stop_gradient = True
    return unit
