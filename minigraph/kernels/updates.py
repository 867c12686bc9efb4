"""What a step of an optimizer does to one element, written once for all levels and devices.

    loop(g, p, *states, *numbers)       the update in place: gradient, parameter, states, numbers of the step
    numbers(rate, *powers, **attrs)     the numbers of the step, computed in double and rounded once

NumPy runs a loop as array operations, numba as machine code (kernels/cpu/compiled/elements.py); a trace of it
(kernels/trace.py) is a CUDA kernel's body or a list of elementary operations. All do the same
operations in the same order without contractions, so their results are bit-equal. A loop reads all
that it needs of an element before it writes: a processor that has just written to one array reads
another, which lies as far from the start of a page, half as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Loop = Callable[..., None]


def elements(array: np.ndarray) -> tuple[Any, ...]:
    """The indices of a one-dimensional array: all of them at once; compiled, one after the other."""
    return (slice(None),)


class Update(NamedTuple):
    """The arithmetic of one update operator with given attributes.

    states  input slots of arrays like the parameter, in the order of the loop's arguments
    powers  input slots of single float64 numbers, in the order of `numbers`
    finish  loop(r, p, size), where `loop` gets one array r more, for the direction of a step whose
            size is `numbers[-1]` times ||p|| / ||r|| (1 where one of them is 0): layer-wise adaptation
    """

    loop: Loop
    numbers: Callable[..., tuple[Any, ...]]
    states: tuple[str, ...] = ()
    powers: tuple[str, ...] = ()
    finish: Loop | None = None

    def betas(self, attrs: Mapping[str, Any]) -> list[float]:
        """What each power is multiplied with after the step."""
        return [attrs[slot.removesuffix("Pow").lower()] for slot in self.powers]


def _sgd(g, p, rate):
    for i in elements(g):
        p[i] = p[i] - g[i] * rate


def _momentum(g, p, v, rate, mu):
    for i in elements(g):
        u = v[i] * mu + g[i]
        p[i] = p[i] - u * rate
        v[i] = u


def _nesterov(g, p, v, rate, mu):
    for i in elements(g):
        u = v[i] * mu + g[i]
        p[i] = p[i] - (g[i] + u * mu) * rate
        v[i] = u


def _adam(g, p, m, v, beta1, rest1, beta2, rest2, epsilon, step, shrink):
    for i in elements(g):
        mean = m[i] * beta1 + g[i] * rest1
        square = v[i] * beta2 + (g[i] * g[i]) * rest2
        p[i] = p[i] * shrink - mean / (np.sqrt(square) + epsilon) * step
        m[i], v[i] = mean, square


def _amsgrad(g, p, m, v, most, beta1, rest1, beta2, rest2, epsilon, step, shrink):
    for i in elements(g):
        mean = m[i] * beta1 + g[i] * rest1
        square = v[i] * beta2 + (g[i] * g[i]) * rest2
        largest = np.maximum(most[i], square)
        p[i] = p[i] * shrink - mean / (np.sqrt(largest) + epsilon) * step
        m[i], v[i], most[i] = mean, square, largest


def _adamax(g, p, m, n, beta1, rest1, beta2, epsilon, step):
    for i in elements(g):
        mean = m[i] * beta1 + g[i] * rest1
        norm = np.maximum(np.abs(g[i]), n[i] * beta2 + epsilon)
        p[i] = p[i] - mean / norm * step
        m[i], n[i] = mean, norm


def _adagrad(g, p, s, epsilon, rate):
    for i in elements(g):
        total = s[i] + g[i] * g[i]
        p[i] = p[i] - g[i] / (np.sqrt(total) + epsilon) * rate
        s[i] = total


def _adadelta(g, p, a, d, rho, rest, epsilon, rate):
    for i in elements(g):
        square = a[i] * rho + (g[i] * g[i]) * rest
        u = np.sqrt((d[i] + epsilon) / (square + epsilon)) * g[i]
        change = d[i] * rho + (u * u) * rest
        p[i] = p[i] - u * rate
        a[i], d[i] = square, change


def _rmsprop(g, p, s, v, rho, rest, epsilon, mu, rate):
    for i in elements(g):
        square = s[i] * rho + (g[i] * g[i]) * rest
        u = v[i] * mu + g[i] / np.sqrt(square + epsilon) * rate
        p[i] = p[i] - u
        s[i], v[i] = square, u


def _centered(g, p, s, v, c, rho, rest, epsilon, mu, rate):
    for i in elements(g):
        square = s[i] * rho + (g[i] * g[i]) * rest
        mean = c[i] * rho + g[i] * rest
        u = v[i] * mu + g[i] / np.sqrt(square - mean * mean + epsilon) * rate
        p[i] = p[i] - u
        s[i], c[i], v[i] = square, mean, u


def _lion(g, p, m, beta1, rest1, beta2, rest2, rate, shrink):
    for i in elements(g):
        grad, mean = g[i], m[i]
        p[i] = p[i] * shrink - np.sign(mean * beta1 + grad * rest1) * rate
        m[i] = mean * beta2 + grad * rest2


def _lamb(g, p, m, v, r, beta1, rest1, beta2, rest2, epsilon, factor, decay):
    for i in elements(g):
        mean = m[i] * beta1 + g[i] * rest1
        square = v[i] * beta2 + (g[i] * g[i]) * rest2
        r[i] = mean / (np.sqrt(square) + epsilon) * factor + p[i] * decay
        m[i], v[i] = mean, square


def _unadapted(g, p, m, v, beta1, rest1, beta2, rest2, epsilon, factor, rate):
    for i in elements(g):
        mean = m[i] * beta1 + g[i] * rest1
        square = v[i] * beta2 + (g[i] * g[i]) * rest2
        p[i] = p[i] - mean / (np.sqrt(square) + epsilon) * factor * rate
        m[i], v[i] = mean, square


def _step(r, p, size):
    for i in elements(r):
        p[i] = p[i] - r[i] * size


def _root(x: Any) -> Any:
    """The square root of a float, or of a symbol of a trace. NumPy's own takes ten times as long for a float."""
    return math.sqrt(x) if isinstance(x, float) and x >= 0 else np.sqrt(x)


def _adam_numbers(
    rate, power1, power2, *, beta1, beta2, epsilon, coeff=0.0, with_decay=False, lr_ratio=None, **_
):  # fmt: skip
    """The bias corrections are folded into the step size and epsilon."""
    rate = rate if lr_ratio is None else rate * lr_ratio
    root = _root(1 - power2)
    shrink = 1 - rate * coeff if with_decay else 1.0
    return beta1, 1 - beta1, beta2, 1 - beta2, root * epsilon, rate * root / (1 - power1), shrink


def _adamax_numbers(rate, power1, *, beta1, beta2, epsilon, **_):
    return beta1, 1 - beta1, beta2, epsilon, rate / (1 - power1)


def _lamb_numbers(rate, power1, power2, *, beta1, beta2, epsilon, weight_decay, **_):
    root = _root(1 - power2)
    return beta1, 1 - beta1, beta2, 1 - beta2, root * epsilon, root / (1 - power1), weight_decay, rate


def _unadapted_numbers(rate, power1, power2, **attrs):
    return *_lamb_numbers(rate, power1, power2, **attrs)[:-2], rate


def _lion_numbers(rate, *, beta1, beta2, coeff, **_):
    return beta1, 1 - beta1, beta2, 1 - beta2, rate, 1 - rate * coeff


def _momentum_numbers(rate, *, mu, **_):
    return rate, mu


def _adadelta_numbers(rate, *, rho, epsilon, **_):
    return rho, 1 - rho, epsilon, rate


def _rmsprop_numbers(rate, *, decay, epsilon, momentum, **_):
    return decay, 1 - decay, epsilon, momentum, rate


def _adagrad_numbers(rate, *, epsilon, **_):
    return epsilon, rate


MOMENTS, POWERS = ("Moment1", "Moment2"), ("Beta1Pow", "Beta2Pow")

SGD = Update(_sgd, lambda rate, **_: (rate,))
MOMENTUM, NESTEROV = (Update(loop, _momentum_numbers, ("Velocity",)) for loop in (_momentum, _nesterov))
ADAM = Update(_adam, _adam_numbers, MOMENTS, POWERS)
AMSGRAD = Update(_amsgrad, _adam_numbers, (*MOMENTS, "Moment2Max"), POWERS)
ADAMAX = Update(_adamax, _adamax_numbers, ("Moment", "InfNorm"), POWERS[:1])
ADAGRAD = Update(_adagrad, _adagrad_numbers, ("Moment",))
ADADELTA = Update(_adadelta, _adadelta_numbers, ("AvgSquaredGrad", "AvgSquaredUpdate"))
RMSPROP = Update(_rmsprop, _rmsprop_numbers, ("MeanSquare", "Moment"))
CENTERED = Update(_centered, _rmsprop_numbers, ("MeanSquare", "Moment", "MeanGrad"))
LION = Update(_lion, _lion_numbers, ("Moment",))
LAMB = Update(_lamb, _lamb_numbers, MOMENTS, POWERS, finish=_step)
UNADAPTED = Update(_unadapted, _unadapted_numbers, MOMENTS, POWERS)


PLAIN = {
    "sgd": SGD, "momentum": MOMENTUM, "adam": ADAM, "adamw": ADAM, "adamax": ADAMAX, "adagrad": ADAGRAD,
    "adadelta": ADADELTA, "rmsprop": RMSPROP, "lion": LION, "lamb": LAMB,
}  # fmt: skip
VARIANTS: dict[str, tuple[Callable[[Mapping[str, Any]], bool], Update]] = {  # which attributes choose other arithmetic
    "momentum": (lambda attrs: attrs["use_nesterov"], NESTEROV),
    "adam": (lambda attrs: attrs["amsgrad"], AMSGRAD),
    "adamw": (lambda attrs: attrs["amsgrad"], AMSGRAD),
    "rmsprop": (lambda attrs: attrs["centered"], CENTERED),
    "lamb": (lambda attrs: attrs["weight_decay"] == 0 and not attrs["always_adapt"], UNADAPTED),
}


def update_of(op_type: str, attrs: Mapping[str, Any]) -> Update:
    """The arithmetic of an update operator, single or fused."""
    name = op_type.removeprefix("fused_")
    if name in VARIANTS and VARIANTS[name][0](attrs):
        return VARIANTS[name][1]
    return PLAIN[name]


class Slots(NamedTuple):
    """The slots of an update operator: states and powers as in Update, `extra` states of its variant.

    A single operator has one variable in each, a fused one lists in all but those in `SHARED`.
    """

    states: tuple[str, ...]
    powers: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return "Param", "Grad", "LearningRate", *self.states, *self.powers, *self.extra, *OPTIONAL

    @property
    def updated(self) -> tuple[str, ...]:
        """Inputs whose new values are the outputs `<slot>Out`, in this order."""
        return "Param", *self.states, *self.powers, *self.extra, "MasterParam"


OPTIONAL = ("MasterParam", "SkipUpdate", "GradScale")
SHARED = ("LearningRate", "SkipUpdate", "GradScale")


@cache
def slots_of(op_type: str) -> Slots:
    """The slots of an update operator, single or fused."""
    name = op_type.removeprefix("fused_")
    plain = PLAIN[name]
    extra = VARIANTS[name][1].states[len(plain.states) :] if name in VARIANTS else ()
    return Slots(plain.states, plain.powers, extra)
