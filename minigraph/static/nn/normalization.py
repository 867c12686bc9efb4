"""Normalisation with new parameters, as one call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import CONFLICT, UNKNOWN_SIZE
from minigraph.nn import functional as F
from minigraph.nn.activated import activated, check_activation
from minigraph.nn.functional.activation import channel_axis
from minigraph.nn.functional.norm import group_norm as grouped
from minigraph.nn.functional.spectral_norm import directions, spectrally_normed
from minigraph.nn.initializer import Constant
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.parameter import create_parameter
from minigraph.program import Parameter, Variable, unique_name
from minigraph.program.builder import whole
from minigraph.tensor.arguments import variable
from minigraph.types import float32, float64

from .maps import needed


@whole
def layer_norm(
    input: Variable, scale: bool = True, shift: bool = True, begin_norm_axis: int = 1, epsilon: float = 1e-5,
    param_attr: Any = None, bias_attr: Any = None, act: str | None = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """act((input - mean) / sqrt(variance + epsilon) * weight + bias) over the axes from begin_norm_axis on.

    scale, shift  whether there is a new weight (1 at first), a new bias (0)
    """
    check_activation("layer_norm", act)
    x, layer = variable(input, "layer_norm", "input"), name or unique_name.generate("layer_norm")
    sizes = x.shape[begin_norm_axis:]
    if not sizes or -1 in sizes:
        raise UNKNOWN_SIZE(
            f"the sizes of {x} from axis {begin_norm_axis} on must be known", call="layer_norm", site=call_site()
        )
    weight, bias = _parameters(
        layer, math.prod(sizes), x.dtype, param_attr if scale else False, bias_attr if shift else False
    )
    return activated(F.layer_norm(x, sizes, weight, bias, epsilon, name=layer), act, layer)


@whole
def batch_norm(
    input: Variable, act: str | None = None, is_test: bool = False, momentum: float = 0.9, epsilon: float = 1e-5,
    param_attr: Any = None, bias_attr: Any = None, data_layout: str = "NCHW", in_place: bool = False,
    name: str | None = None, moving_mean_name: str | None = None, moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True, use_global_stats: bool = False,
) -> Variable:  # fmt: skip
    """act(functional.batch_norm(input)) with a new weight, bias and running averages, which begin at 0 and 1.

    input        [N, C] or [N, C, ...], with data_layout="NHWC" [N, ..., C]
    is_test      the running averages are used and stay; `program.clone(for_test=True)` does the same
    in_place and do_model_average_for_mean_and_var are accepted and have no effect.
    """
    call = "batch_norm"
    check_activation(call, act)
    x, layer = variable(input, call, "input"), name or unique_name.generate(call)
    _check_layout(call, data_layout)
    channels, dtype = x.shape[channel_axis(x, data_layout, call)], _wide(x)
    weight, bias = _parameters(layer, channels, dtype, param_attr, bias_attr)
    mean, variance = (
        needed(create_parameter(layer, [channels], dtype, ParamAttr(name=n, initializer=Constant(v), trainable=False)),
               call)
        for n, v in ((moving_mean_name, 0.0), (moving_variance_name, 1.0))
    )  # fmt: skip
    out = F.batch_norm(
        x, mean, variance, weight, bias, not is_test, momentum, epsilon, data_layout, use_global_stats or None,
        name=layer,
    )  # fmt: skip
    return activated(out, act, layer)


@whole
def group_norm(
    input: Variable, groups: int, epsilon: float = 1e-5, param_attr: Any = None, bias_attr: Any = None,
    act: str | None = None, data_layout: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """act of `input` [N, C, ...] normalised over groups of channels, times a new weight, plus a new bias, both [C]."""
    check_activation("group_norm", act)
    x, layer = variable(input, "group_norm", "input"), name or unique_name.generate("group_norm")
    _check_layout("group_norm", data_layout)
    channels = x.shape[channel_axis(x, data_layout, "group_norm")]
    weight, bias = _parameters(layer, channels, x.dtype, param_attr, bias_attr)
    return activated(grouped(x, groups, weight, bias, epsilon, data_layout, name=layer), act, layer)


@whole
def instance_norm(
    input: Variable, epsilon: float = 1e-5, param_attr: Any = None, bias_attr: Any = None, name: str | None = None
) -> Variable:
    """`input` [N, C, ...] normalised over the axes behind the channels, times a new weight, plus a new bias."""
    call = "instance_norm"
    x, layer = variable(input, call, "input"), name or unique_name.generate(call)
    require(
        (param_attr is False) == (bias_attr is False), "param_attr and bias_attr must both be False, or none", CONFLICT
    )
    weight, bias = _parameters(layer, x.shape[channel_axis(x, "NCHW", call)], _wide(x), param_attr, bias_attr)
    return F.instance_norm(x, weight=weight, bias=bias, eps=epsilon, name=layer)


@whole
def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """weight / s, s its largest singular value, found by `power_iters` steps of the power iteration.

    dim  the axis that is the matrix's rows, 0 or 1; the other axes are its columns
    The vectors of the iteration are new persistable variables that begin at random and, as in Paddle, stay as they
    are: each run makes the same steps again. They are constants for gradients.
    Source: Miyato and others, Spectral Normalization for GANs, arXiv:1802.05957.
    """
    call = "spectral_norm"
    w, layer = variable(weight, call, "weight"), name or unique_name.generate(call)
    begin = directions(w.shape, dim, power_iters, w.dtype, layer)
    return spectrally_normed(w, dim, power_iters, eps, begin, layer)


def _parameters(
    layer: str, size: int, dtype: np.dtype, param_attr: Any, bias_attr: Any
) -> tuple[Parameter | None, Parameter | None]:
    """A weight of ones and a bias of zeros; None for False."""
    weight = create_parameter(layer, [size], dtype, param_attr, default_initializer=Constant(1.0))
    return weight, create_parameter(layer, [size], dtype, bias_attr, is_bias=True)


def _wide(x: Variable) -> np.dtype:
    """The type of parameters beside x: float32 for 16-bit floats."""
    return x.dtype if x.dtype in (float32, float64) else float32


def _check_layout(call: str, layout: str) -> None:
    if layout not in ("NCHW", "NHWC"):
        raise AttrError(f"data_layout {layout!r} is not NCHW or NHWC", call=call, site=call_site())
