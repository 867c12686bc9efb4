"""A weight divided by its largest singular value."""

from __future__ import annotations

import math

from minigraph.errors import AttrError, ShapeError, call_site
from minigraph.nn.initializer import Normal
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.parameter import create_parameter
from minigraph.program import Variable
from minigraph.program.builder import Builder, builder_of
from minigraph.tensor.math_op_patch import detach


def spectrally_normed(w: Variable, dim: int, power_iters: int, eps: float, layer: str) -> Variable:
    """static.nn.spectral_norm with variables called after `layer`."""
    call = "spectral_norm"
    if dim not in (0, 1):
        raise AttrError(f"dim {dim} is not 0 or 1", call=call, site=call_site())
    if w.ndim < 2 or -1 in w.shape or 0 in w.shape:
        raise ShapeError(f"weight must be a matrix or more with known sizes, is {w}", call=call, site=call_site())
    if power_iters < 0:
        raise AttrError(f"power_iters must not be negative, is {power_iters}", call=call, site=call_site())
    g, rows = builder_of(w), w.shape[dim]
    columns = math.prod(w.shape) // rows
    u, v = (
        create_parameter(layer, [size], w.dtype, ParamAttr(initializer=Normal(0.0, 1.0), trainable=False))
        for size in (rows, columns)
    )
    order = [dim, *(a for a in range(w.ndim) if a != dim)]
    matrix = g.reshape(w if dim == 0 else g.transpose(w, perm=order), shape=(rows, columns))
    constant = detach(matrix)
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
