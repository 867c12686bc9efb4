"""Normalisation: over axes of a row, over groups of channels, over a batch."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ProgramError, ShapeError, call_site, require
from minigraph.errors.kinds import COUNT, RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor.arguments import as_type, is_number, output_prefix, variable
from minigraph.types import float32, float64, normalize_shape

from .activation import channel_axis, on_channels


def layer_norm(
    x: Variable, normalized_shape: Any, weight: Variable | None = None, bias: Variable | None = None,
    epsilon: float = 1e-5, name: str | None = None,
) -> Variable:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axes, of sizes `normalized_shape`.

    weight, bias  1-D with one element for each that is normalised together
    """
    x, sizes = variable(x, "layer_norm"), normalize_shape(normalized_shape)
    last = x.shape[x.ndim - len(sizes) :]
    if not sizes or len(sizes) > x.ndim or any(a not in (-1, b) for a, b in zip(last, sizes, strict=True)):
        raise ShapeError(
            f"x {x} does not end in normalized_shape {list(sizes)}", call="layer_norm", site=call_site()
        )
    g, prefix = builder_of(x), output_prefix("layer_norm", name)
    y, _, _ = g.layer_norm(x, weight, bias, begin_norm_axis=x.ndim - len(sizes), epsilon=epsilon, name=prefix)
    return y


@whole
def batch_norm(
    x: Variable, running_mean: Variable, running_var: Variable, weight: Variable | None = None,
    bias: Variable | None = None, training: bool = False, momentum: float = 0.9, epsilon: float = 1e-5,
    data_format: str = "NCHW", use_global_stats: bool | None = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with the statistics of each channel over all other axes.

    running_mean, running_var  persistable [C], float32 for 16-bit x, like weight and bias
    training          with the batch's own mean and (biased) variance, and each run writes
                      running = momentum * running + (1 - momentum) * batch; else with the running ones.
                      `program.clone(for_test=True)` uses these, too, and writes nothing
    use_global_stats  True: the running ones, while training, too. False: the batch's, always
    data_format       the channels are on axis 1 where its second letter is C, else on the last axis
    Statistics are computed in float32 for 16-bit x. Gradients flow through the batch's own.
    Source: Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167.
    """
    call = "batch_norm"
    x = variable(x, call)
    axis = channel_axis(x, data_format, call)
    kept = [variable(v, call, n) for v, n in ((running_mean, "running_mean"), (running_var, "running_var"))]
    require(is_number(momentum), f"momentum must be a number, is {momentum!r}", ProgramError)
    require(epsilon > 0, f"epsilon must be positive, is {epsilon}", AttrError)
    g, prefix = builder_of(x), output_prefix(call, name)
    wide = x if x.dtype in (float32, float64) else as_type(x, float32)
    of_batch = training if use_global_stats is None else not use_global_stats
    mean, variance = kept
    if of_batch:
        mean, variance = _batch_statistics(wide, axis, kept, momentum, training, data_format)
    mean, factor = (on_channels(v, x, data_format, call) for v in (mean, _factor(variance, epsilon, weight, call)))
    y = g.elementwise_mul(g.elementwise_sub(wide, mean), factor, name=prefix)
    if bias is not None:
        y = g.elementwise_add(y, on_channels(variable(bias, call, "bias"), x, data_format, call), name=prefix)
    return as_type(y, x.dtype)


def _batch_statistics(
    x: Variable, axis: int, kept: list[Variable], momentum: float, training: bool, data_format: str
) -> tuple[Variable, Variable]:
    """Mean and variance of the batch, in a test clone the kept ones; the kept ones become the running averages."""
    g, others = builder_of(x), [a for a in range(x.ndim) if a != axis]
    mean = g.reduce_mean(x, axis=others)
    distance = g.elementwise_sub(x, on_channels(mean, x, data_format, "batch_norm"))
    batch = mean, g.reduce_mean(g.square(distance), axis=others)
    if not training:  # asked for by use_global_stats=False: a test clone changes nothing
        return batch
    mean, variance = (g.used_statistics(b, k) for b, k in zip(batch, kept, strict=True))
    for b, k in zip(batch, kept, strict=True):
        g.running_average(b, k, momentum=momentum, out={"Out": k})
    return mean, variance


def _factor(variance: Variable, epsilon: float, weight: Variable | None, call: str) -> Variable:
    """weight / sqrt(variance + epsilon)"""
    g = builder_of(variance)
    inverse = g.rsqrt(g.scale(variance, bias=epsilon))
    return inverse if weight is None else g.elementwise_mul(inverse, variable(weight, call, "weight"))


@whole
def instance_norm(
    x: Variable, running_mean: Variable | None = None, running_var: Variable | None = None,
    weight: Variable | None = None, bias: Variable | None = None, use_input_stats: bool = True, momentum: float = 0.9,
    eps: float = 1e-5, data_format: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) * weight + bias over the axes behind the channels of [N, C, ...].

    weight, bias  [C]
    As in Paddle, the statistics are always those of x: the other arguments have no effect. Each element of [N, C] is
    its own mean: what is left is the bias, where Paddle gives 0.
    """
    x = variable(x, "instance_norm")
    if x.ndim == 2:
        g = builder_of(x)
        y = group_norm(g.unsqueeze(x, axes=[2]), None, weight, bias, eps, "NCL", name, "instance_norm")
        return g.squeeze(y, axes=[2])
    return group_norm(x, None, weight, bias, eps, data_format, name, "instance_norm")


def group_norm(
    x: Variable, groups: int | None, weight: Variable | None = None, bias: Variable | None = None,
    epsilon: float = 1e-5, data_format: str = "NCHW", name: str | None = None, call: str = "group_norm",
) -> Variable:  # fmt: skip
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, with the statistics of each sample over a group of
    channels and all axes behind them; None: each channel is a group.

    x  [N, C, ...], with another data_format [N, ..., C]; weight, bias  [C]
    Source: Wu and He, Group Normalization, arXiv:1803.08494.
    """
    x = variable(x, call)
    g, prefix, axis = builder_of(x), output_prefix(call, name), channel_axis(x, data_format, call)
    if axis != 1:
        turned = g.transpose(x, perm=(0, axis, *range(1, axis)))
        y = group_norm(turned, groups, weight, bias, epsilon, "NCHW", name, call)
        return g.transpose(y, perm=(0, *range(2, x.ndim), 1), name=prefix)
    channels = x.shape[1]
    if groups is None and x.ndim < 3:
        raise RANK(f"x must have axes behind its channels, is {x}", call=call, site=call_site())
    if groups is not None and (channels < 1 or groups < 1 or channels % groups):
        raise COUNT(f"axis 1 of {x} has no channels in {groups} groups", call=call, site=call_site())
    rows = x if groups is None else g.reshape(x, shape=(0, groups, -1))
    y, _, _ = g.layer_norm(rows, begin_norm_axis=2, epsilon=epsilon, name=f"{prefix}.rows")
    if groups is not None:
        y = g.reshape(y, shape=(0, *x.shape[1:]))
    if weight is not None:
        y = g.elementwise_mul(y, _on_channels_as(weight, x, call, "weight"), name=prefix)
    return y if bias is None else g.elementwise_add(y, _on_channels_as(bias, x, call, "bias"), name=prefix)


def _on_channels_as(values: Variable, x: Variable, call: str, argument: str) -> Variable:
    """Values of the channels on axis 1, in x's type."""
    return as_type(on_channels(variable(values, call, argument), x, "NCHW", call), x.dtype)


__all__ = ["batch_norm", "instance_norm", "layer_norm"]
