"""Initialisers: each appends to the startup program the operator that fills a parameter.

fan_in and fan_out of a weight [in, out] are its sizes; of a rank above 2 (out, in, window...) they are
multiplied by the window's size. A vector counts as both. `name` is Paddle's and has no effect.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import AttrError, ProgramError, ShapeError, nearest, require
from minigraph.program import Block, Operator, Variable, default_startup_program
from minigraph.program.builder import Builder
from minigraph.tensor import diagonal
from minigraph.types import NO_ARRAY, as_numpy, why_no_array

GAINS = {"sigmoid": 1.0, "linear": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
GAINS |= {f"conv{n}d{way}": 1.0 for n in (1, 2, 3) for way in ("", "_transpose")}


class Initializer:
    """Base: `initializer(variable, block)` appends to `block` the operator that writes `variable`."""

    def __call__(self, param: Variable, block: Block | None = None) -> Operator:
        block = block if block is not None else default_startup_program().global_block()
        self.emit(Builder(block), param)
        return next(op for op in reversed(block.ops) if any(v is param for v in op.output_vars))

    def emit(self, g: Builder, param: Variable) -> None:
        raise NotImplementedError


class GlobalInitializers:
    """What set_global_initializer() was given, None where it was not."""

    weight: Initializer | None = None
    bias: Initializer | None = None


def set_global_initializer(weight_init: Initializer | None, bias_init: Initializer | None = None) -> None:
    """From now on weights and biases without an initializer of their own in ParamAttr begin as these say.

    They beat what a layer has as its default; None gives that back.
    """
    for name, value in (("weight_init", weight_init), ("bias_init", bias_init)):
        fits = value is None or isinstance(value, Initializer)
        require(fits, f"{name} must be an initializer or None, is {value!r}", ProgramError)
    GlobalInitializers.weight, GlobalInitializers.bias = weight_init, bias_init


class Constant(Initializer):
    """Every element is `value`."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def emit(self, g: Builder, param: Variable) -> None:
        g.fill_constant(shape=param.shape, value=self.value, dtype=param.dtype, out={"Out": param})


class Assign(Initializer):
    """The elements of `value`, an array or nested lists of the parameter's shape."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        require(not isinstance(value, Variable), f"value must be an array, is the variable {value}", ProgramError)
        try:
            self.value = as_numpy(value)
        except NO_ARRAY as problem:
            raise ProgramError(f"value is {why_no_array(value, problem)}") from None

    def emit(self, g: Builder, param: Variable) -> None:
        require(
            self.value.shape == param.shape, f"parameter {param} cannot hold a value of shape {list(self.value.shape)}"
        )
        g.assign_value(
            values=self.value.reshape(-1).tolist(), shape=param.shape, dtype=param.dtype, out={"Out": param}
        )  # fmt: skip


class Normal(Initializer):
    """Normal numbers with the given mean and standard deviation."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: str | None = None) -> None:
        self.mean, self.std = mean, std

    def emit(self, g: Builder, param: Variable) -> None:
        g.gaussian_random(shape=param.shape, mean=self.mean, std=self.std, dtype=param.dtype, out={"Out": param})


class TruncatedNormal(Initializer):
    """Normal numbers given that they lie within 2 std of the mean."""

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, name: str | None = None
    ) -> None:
        require((a, b) == (-2.0, 2.0), f"bounds are -2 and 2 standard deviations, not {a} and {b}", AttrError)
        self.mean, self.std = mean, std

    def emit(self, g: Builder, param: Variable) -> None:
        g.truncated_gaussian_random(
            shape=param.shape, mean=self.mean, std=self.std, dtype=param.dtype, out={"Out": param}
        )


class Uniform(Initializer):
    """Uniform numbers in [low, high)."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: str | None = None) -> None:
        self.low, self.high = low, high

    def emit(self, g: Builder, param: Variable) -> None:
        g.uniform_random(shape=param.shape, min=self.low, max=self.high, dtype=param.dtype, out={"Out": param})


def fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """fan_in and fan_out of a weight, at least 1."""
    if len(shape) < 2:
        size = shape[0] if shape else 1
        return max(size, 1), max(size, 1)
    if len(shape) == 2:
        return max(shape[0], 1), max(shape[1], 1)
    window = math.prod(shape[2:])
    return max(shape[1] * window, 1), max(shape[0] * window, 1)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance of signals through `nonlinearity`; param is leaky_relu's slope."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    require(
        nonlinearity in GAINS, f"nonlinearity {nonlinearity!r} has no gain", ProgramError,
        nearest(nonlinearity, [*GAINS, "leaky_relu"]),
    )  # fmt: skip
    return GAINS[nonlinearity]


class _Xavier(Initializer):
    """A variance of gain^2 * 2 / (fan_in + fan_out): Glorot and Bengio 2010."""

    def __init__(
        self, fan_in: float | None = None, fan_out: float | None = None, gain: float = 1.0, name: str | None = None
    ) -> None:
        self.fan_in, self.fan_out, self.gain = fan_in, fan_out, gain

    def std(self, param: Variable) -> float:
        fan_in, fan_out = fans(param.shape)
        fan_in = fan_in if self.fan_in is None else self.fan_in
        fan_out = fan_out if self.fan_out is None else self.fan_out
        return self.gain * math.sqrt(2 / (fan_in + fan_out))


class XavierNormal(_Xavier):
    """Normal numbers with std = gain * sqrt(2 / (fan_in + fan_out))."""

    def emit(self, g: Builder, param: Variable) -> None:
        Normal(0.0, self.std(param)).emit(g, param)


class XavierUniform(_Xavier):
    """Uniform numbers within gain * sqrt(6 / (fan_in + fan_out)) of 0."""

    def emit(self, g: Builder, param: Variable) -> None:
        limit = math.sqrt(3) * self.std(param)
        Uniform(-limit, limit).emit(g, param)


class _Kaiming(Initializer):
    """A variance of gain^2 / fan: He et al. 2015."""

    def __init__(
        self, fan_in: float | None = None, negative_slope: float = 0.0, nonlinearity: str = "relu", mode: str = "fan_in"
    ) -> None:
        require(mode in ("fan_in", "fan_out"), f"mode {mode!r} is not fan_in or fan_out", ProgramError)
        self.fan_in, self.mode = fan_in, mode
        self.gain = calculate_gain(nonlinearity, negative_slope)

    def std(self, param: Variable) -> float:
        fan_in, fan_out = fans(param.shape)
        fan = fan_out if self.mode == "fan_out" else fan_in if self.fan_in is None else self.fan_in
        return self.gain / math.sqrt(fan)


class KaimingNormal(_Kaiming):
    """Normal numbers with std = gain / sqrt(fan)."""

    def emit(self, g: Builder, param: Variable) -> None:
        Normal(0.0, self.std(param)).emit(g, param)


class KaimingUniform(_Kaiming):
    """Uniform numbers within gain * sqrt(3 / fan) of 0."""

    def emit(self, g: Builder, param: Variable) -> None:
        limit = math.sqrt(3) * self.std(param)
        Uniform(-limit, limit).emit(g, param)


class Orthogonal(Initializer):
    """gain times a matrix with orthogonal rows or columns, whichever are fewer, drawn evenly among these.

    A weight of a rank above 2 is the matrix [axis 0, all others].
    Source: Saxe and others, Exact solutions to the nonlinear dynamics of learning, arXiv:1312.6120.
    """

    def __init__(self, gain: float = 1.0, name: str | None = None) -> None:
        self.gain = gain

    def emit(self, g: Builder, param: Variable) -> None:
        require(len(param.shape) >= 2, f"Orthogonal needs a matrix or more, parameter {param} is none", ShapeError)
        rows = param.shape[0]
        columns = math.prod(param.shape[1:])
        drawn = g.gaussian_random(shape=[max(rows, columns), min(rows, columns)], dtype=param.dtype)
        q, r = g.qr(drawn)
        q = g.elementwise_mul(q, g.sign(diagonal(r)))  # else the signs are those that QR takes, and not even
        q = g.transpose(q, perm=[1, 0]) if rows < columns else q
        g.scale(g.reshape(q, shape=param.shape), scale=self.gain, out={"Out": param})


class Dirac(Initializer):
    """1 in the middle of the window where the output channel is the input channel, else 0: of a weight [out, in, ...].

    groups  the output channels are cut into so many parts, each of which begins anew with input channel 0
    """

    def __init__(self, groups: int = 1, name: str | None = None) -> None:
        require(isinstance(groups, int) and groups > 0, f"groups must be an int > 0, is {groups!r}", AttrError)
        self.groups = groups

    def emit(self, g: Builder, param: Variable) -> None:
        fits = 3 <= len(param.shape) <= 5 and param.shape[0] % self.groups == 0
        require(fits, f"Dirac needs rank 3 to 5 and axis 0 in {self.groups} parts, parameter is {param}", ShapeError)
        part, middle = param.shape[0] // self.groups, tuple(size // 2 for size in param.shape[2:])
        value = np.zeros(param.shape)
        for out in range(param.shape[0]):
            if out % part < param.shape[1]:
                value[(out, out % part, *middle)] = 1.0
        Assign(value).emit(g, param)


class BilinearWindow(Initializer):
    """The window of a linear interpolation between pixels: of a weight [out, in, k, k], each alike.

    Paddle takes its rows at fractions of pixels, so that its window is not the same along both axes.
    """

    def emit(self, g: Builder, param: Variable) -> None:
        shape = param.shape
        fits = len(shape) == 4 and shape[2] == shape[3]
        require(fits, f"Bilinear needs [out, in, k, k], parameter is {param}", ShapeError)
        half = math.ceil(shape[3] / 2)
        center = (2 * half - 1 - half % 2) / (2 * half)
        line = 1 - abs(np.arange(shape[3]) / half - center)
        Assign(np.broadcast_to(line[:, None] * line, shape).copy()).emit(g, param)


Bilinear = BilinearWindow  # as Paddle calls it


__all__ = [
    "Assign", "Bilinear", "Constant", "Dirac", "Initializer", "KaimingNormal", "KaimingUniform", "Normal", "Orthogonal",
    "TruncatedNormal", "Uniform", "XavierNormal", "XavierUniform", "calculate_gain", "set_global_initializer",
]  # fmt: skip
