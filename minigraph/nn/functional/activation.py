"""Activation functions. What is one operator is one line here; the others are written with operators."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, call_site, require
from minigraph.errors.kinds import COUNT, RANK
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.tensor import abs, cast, max, reshape, sign, split, tanh, where
from minigraph.tensor.arguments import emit, output_prefix, scalars_as_rows, variable

SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


def relu(x: Variable, name: str | None = None) -> Variable:
    """max(x, 0)"""
    return emit("relu", "relu", variable(x, "relu"), name=name)


def gelu(x: Variable, approximate: bool = False, name: str | None = None) -> Variable:
    """x * Phi(x), Phi the normal distribution function; approximate=True uses the tanh form."""
    return emit("gelu", "gelu", variable(x, "gelu"), approximate=approximate, name=name)


def silu(x: Variable, name: str | None = None) -> Variable:
    """x * sigmoid(x)"""
    return emit("silu", "silu", variable(x, "silu"), name=name)


def swish(x: Variable, name: str | None = None) -> Variable:
    """x * sigmoid(x), another name of silu."""
    return emit("swish", "silu", variable(x, "swish"), name=name)


def sigmoid(x: Variable, name: str | None = None) -> Variable:
    """1 / (1 + exp(-x))"""
    return emit("sigmoid", "sigmoid", variable(x, "sigmoid"), name=name)


def leaky_relu(x: Variable, negative_slope: float = 0.01, name: str | None = None) -> Variable:
    """x where x > 0, else negative_slope * x."""
    return emit("leaky_relu", "leaky_relu", variable(x, "leaky_relu"), alpha=negative_slope, name=name)


def softplus(x: Variable, beta: float = 1, threshold: float = 20, name: str | None = None) -> Variable:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""
    return emit("softplus", "softplus", variable(x, "softplus"), beta=beta, threshold=threshold, name=name)


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return emit("elu", "elu", variable(x, "elu"), alpha=alpha, name=name)


def celu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""
    require(alpha != 0, "alpha must not be 0", AttrError)
    return emit("celu", "elu", variable(x, "celu"), alpha=alpha, input_scale=1 / alpha, name=name)


def selu(x: Variable, scale: float = SELU_SCALE, alpha: float = SELU_ALPHA, name: str | None = None) -> Variable:
    """scale * x where x > 0, else scale * alpha * (exp(x) - 1).

    Source: Klambauer and others, Self-Normalizing Neural Networks, arXiv:1706.02515.
    """
    require(scale > 1, f"scale must be greater than 1, is {scale}", AttrError)
    require(alpha >= 0, f"alpha must not be negative, is {alpha}", AttrError)
    return emit("selu", "elu", variable(x, "selu"), alpha=alpha, scale=scale, name=name)


def hardtanh(x: Variable, min: float = -1.0, max: float = 1.0, name: str | None = None) -> Variable:
    """x brought into [min, max]; the gradient is 0 outside and on the border."""
    return emit("hardtanh", "hardtanh", variable(x, "hardtanh"), min=min, max=max, name=name)


def relu6(x: Variable, name: str | None = None) -> Variable:
    """min(max(x, 0), 6)"""
    return emit("relu6", "hardtanh", variable(x, "relu6"), min=0.0, max=6.0, name=name)


def softsign(x: Variable, name: str | None = None) -> Variable:
    """x / (1 + |x|)"""
    return emit("softsign", "softsign", variable(x, "softsign"), name=name)


@whole
def hardsigmoid(x: Variable, slope: float = 0.1666667, offset: float = 0.5, name: str | None = None) -> Variable:
    """slope * x + offset, brought into [0, 1]."""
    return hardtanh(variable(x, "hardsigmoid") * slope + offset, 0.0, 1.0, name=name or "hardsigmoid")


@whole
def hardswish(x: Variable, name: str | None = None) -> Variable:
    """x * min(max(x + 3, 0), 6) / 6"""
    x = variable(x, "hardswish")
    return x * (relu6(x + 3.0) / 6.0)  # 6 * x might overflow


@whole
def hardshrink(x: Variable, threshold: float = 0.5, name: str | None = None) -> Variable:
    """x where |x| > threshold, else 0."""
    x = variable(x, "hardshrink")
    return where(abs(x) > threshold, x, 0.0, name=name or "hardshrink")


@whole
def softshrink(x: Variable, threshold: float = 0.5, name: str | None = None) -> Variable:
    """x moved by threshold towards 0, and 0 where |x| <= threshold."""
    require(threshold >= 0, f"threshold must not be negative, is {threshold}", AttrError)
    x = variable(x, "softshrink")
    return sign(x) * relu(abs(x) - threshold)


@whole
def thresholded_relu(x: Variable, threshold: float = 1.0, name: str | None = None) -> Variable:
    """x where x > threshold, else 0."""
    x = variable(x, "thresholded_relu")
    return where(x > threshold, x, 0.0, name=name or "thresholded_relu")


@whole
def tanhshrink(x: Variable, name: str | None = None) -> Variable:
    """x - tanh(x)"""
    x = variable(x, "tanhshrink")
    return x - tanh(x)


@whole
def mish(x: Variable, name: str | None = None) -> Variable:
    """x * tanh(softplus(x)). Source: Misra, arXiv:1908.08681."""
    x = variable(x, "mish")
    return x * tanh(softplus(x))


@whole
def log_sigmoid(x: Variable, name: str | None = None) -> Variable:
    """log(sigmoid(x)), accurate where the sigmoid is 0 or 1."""
    x = variable(x, "log_sigmoid")
    return -builder_of(x).softplus(-x)


@whole
def prelu(x: Variable, weight: Variable, data_format: str = "NCHW", name: str | None = None) -> Variable:
    """x where x > 0, else weight * x, with a weight that is learnt.

    weight       one element, or one for each channel
    data_format  the channels are on axis 1 where its second letter is C, else on the last axis
    """
    x, weight = variable(x, "prelu"), variable(weight, "prelu", "weight")
    if weight.ndim > 1:
        raise RANK(f"weight must have rank 0 or 1, is {weight}", call="prelu", site=call_site())
    if weight.ndim and weight.shape[0] != 1:
        weight = on_channels(weight, x, data_format, "prelu")
    return sloped(x, weight, output_prefix("prelu", name))


def sloped(x: Variable, slope: Variable, prefix: str) -> Variable:
    """x where x > 0, else slope * x, where slope broadcasts; an infinite x has a finite gradient of the slope."""
    g = builder_of(x)
    negative = g.elementwise_mul(where(x > 0, 0.0, x), slope)
    return g.elementwise_add(g.relu(x), negative, name=prefix)


def channel_axis(x: Variable, data_format: str, call: str) -> int:
    """The axis of the channels: 1 for NC, NCL, NCHW, NCDHW, the last for NLC, NHWC, NDHWC."""
    if data_format not in ("NC", "NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"):
        raise AttrError(f"data_format {data_format!r} is none of Paddle's", call=call, site=call_site())
    if x.ndim < 2:
        raise RANK(f"x must have channels, is {x}", call=call, site=call_site())
    return 1 if data_format[1] == "C" else x.ndim - 1


def on_channels(values: Variable, x: Variable, data_format: str, call: str) -> Variable:
    """`values`, one for each channel, in a shape that broadcasts to x."""
    axis = channel_axis(x, data_format, call)
    if values.ndim != 1 or (-1 not in (values.shape[0], x.shape[axis]) and values.shape[0] != x.shape[axis]):
        raise COUNT(
            f"{values} must have one element for each of the channels on axis {axis} of {x}", call=call,
            site=call_site(),
        )  # fmt: skip
    trailing = x.ndim - 1 - axis
    return values if trailing == 0 else reshape(values, [-1, *[1] * trailing])


@whole
def rrelu(
    x: Variable, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = True, name: str | None = None
) -> Variable:
    """x where x > 0, else a * x with a random a of each element in [lower, upper).

    In inference, by training=False or `program.clone(for_test=True)`, a is (lower + upper) / 2.
    Source: Xu and others, Empirical Evaluation of Rectified Activations, arXiv:1505.00853.
    """
    require(0 <= lower <= upper <= 1, f"0 <= lower <= upper <= 1 does not hold for {lower} and {upper}", AttrError)
    x = variable(x, "rrelu")
    slope = builder_of(x).uniform_random_like(
        x, min=lower, max=upper, test_value=(lower + upper) / 2, is_test=not training
    )
    return sloped(x, slope, output_prefix("rrelu", name))


@whole
def glu(x: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """a * sigmoid(b), a and b the halves of x along `axis`. Source: Dauphin and others, arXiv:1612.08083."""
    first, second = split(variable(x, "glu"), 2, axis=axis)
    return first * sigmoid(second)


@whole
def maxout(x: Variable, groups: int, axis: int = 1, name: str | None = None) -> Variable:
    """The largest of each `groups` channels that follow each other on `axis`; equal ones share the gradient."""
    x = variable(x, "maxout")
    axis = axis + x.ndim if axis < 0 else axis
    channels = x.shape[axis] if 0 <= axis < x.ndim else 0
    if channels < 1 or groups < 1 or channels % groups:
        raise COUNT(
            f"axis {axis} of {x} has no channels in groups of {groups}", call="maxout", site=call_site()
        )
    sizes = [0] * axis + [channels // groups, groups] + [-1 if s == -1 else s for s in x.shape[axis + 1 :]]
    return max(reshape(x, sizes), axis=axis + 1)


@scalars_as_rows
@whole
def softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """exp(x) / sum(exp(x)) along `axis`; dtype: cast x first."""
    x = variable(x, "softmax")
    return emit("softmax", "softmax", x if dtype is None else cast(x, dtype), axis=axis, name=name)


@scalars_as_rows
@whole
def log_softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """log(softmax(x)) without the loss of a logarithm of small numbers; dtype: cast x first."""
    x = variable(x, "log_softmax")
    return emit("log_softmax", "log_softmax", x if dtype is None else cast(x, dtype), axis=axis, name=name)


@whole
def gumbel_softmax(
    x: Variable, temperature: float = 1.0, hard: bool = False, axis: int = -1, name: str | None = None
) -> Variable:
    """softmax((x + noise) / temperature) along `axis`, a random choice that has a gradient.

    noise  -log(-log(u)) with u uniform in (0, 1)
    hard   1 at the largest element, else 0, with the gradient of the softmax
    Source: Jang, Gu and Poole, Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144.
    """
    x = variable(x, "gumbel_softmax")
    require(temperature > 0, f"temperature must be positive, is {temperature}", AttrError)
    g = builder_of(x)
    u = g.uniform_random_like(x, min=1e-7, max=1.0)
    noise = -(-u.log().clip(max=-1e-7)).log()
    soft = softmax((x + noise) / temperature, axis=axis)
    if not hard:
        return soft
    top = max(soft, axis=axis, keepdim=True)
    best = g.cast(soft >= top, dtype=x.dtype)
    step = best - soft
    step.stop_gradient = True  # the value of `best` with the gradient of `soft`
    return soft + step


# In static mode Paddle's forms "in place" give a new Variable, as the others do.
elu_, hardtanh_, leaky_relu_, relu_, tanh_ = elu, hardtanh, leaky_relu, relu, tanh
softmax_, thresholded_relu_ = softmax, thresholded_relu

__all__ = [
    "celu", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "hardtanh_", "leaky_relu", "leaky_relu_", "log_sigmoid", "log_softmax", "maxout", "mish", "prelu", "relu", "relu6",
    "relu_", "rrelu", "selu", "sigmoid", "silu", "softmax", "softmax_", "softplus", "softshrink", "softsign", "swish",
    "tanh", "tanh_", "tanhshrink", "thresholded_relu", "thresholded_relu_",
]  # fmt: skip
