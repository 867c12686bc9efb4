"""The base of all schedules, and those that fall from epoch to epoch."""

from __future__ import annotations

import logging
import math
import numbers
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minigraph.errors import AttrError, raise_unknown, require
from minigraph.errors.kinds import UNKNOWN_ATTR

log = logging.getLogger(__name__)

stepping = threading.RLock()  # a state is read or set between two steps, also while another thread trains


@contextmanager
def whole(scheduler: LRScheduler) -> Iterator[None]:
    """What fails or is interrupted inside leaves a scheduler, and those that it holds, as they were."""
    attributes = [vars(each) for each in _with_inner(scheduler)]
    before = [dict(own) for own in attributes]
    try:
        yield
    except BaseException:
        for own, old in zip(attributes, before, strict=True):
            own.update(old)
        raise


def _with_inner(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    yield scheduler
    for value in vars(scheduler).values():
        if isinstance(value, LRScheduler):
            yield from _with_inner(value)


class LRScheduler:
    """Base: a subclass gives `get_lr()`, the rate at `self.last_epoch`, from `self.base_lr`.

    last_epoch  epoch to continue after; -1 starts at epoch 0
    verbose     logs each new rate (level INFO)
    Calling the scheduler gives the present rate.
    """

    state_names: tuple[str, ...] = ("last_epoch", "last_lr")

    def __init__(self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False) -> None:
        self.base_lr = check("learning_rate", learning_rate, is_rate(learning_rate), "a number >= 0")
        self.last_lr = self.base_lr
        self.last_epoch = check("last_epoch", last_epoch, is_int(last_epoch, -1), "an int >= -1")
        self.verbose = verbose
        self.step()

    def __call__(self) -> float:
        return self.last_lr

    def get_lr(self) -> float:
        """The rate at epoch `self.last_epoch`."""
        raise NotImplementedError

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to `epoch`; where `get_lr` fails nothing is changed."""
        if epoch is not None:
            check("epoch", epoch, is_int(epoch, 0), "an int >= 0")
        with stepping, whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            rate = self.get_lr()
            self.last_lr = float(check(f"{type(self).__name__}.get_lr()", rate, is_rate(rate), "a number >= 0"))
        if self.verbose:
            log.info("epoch %d: %s sets the learning rate to %g", self.last_epoch, type(self).__name__, self.last_lr)

    def state_dict(self) -> dict[str, Any]:
        """The numbers that change from step to step, for saving."""
        with stepping:
            return {name: getattr(self, name) for name in self.state_names}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; nothing is changed unless it fits."""
        _require_names(self, self.state_names, state_dict)
        epoch, rate = state_dict.get("last_epoch", 0), state_dict.get("last_lr", 0.0)
        check("last_epoch", epoch, is_int(epoch, -1), "an int >= -1")
        check("last_lr", rate, is_rate(rate), "a number >= 0")
        with stepping, whole(self):
            for name in self.state_names:
                setattr(self, name, state_dict[name])

    def kind(self) -> str:
        """Whose states these are: the name of the class, with that of an inner scheduler."""
        return type(self).__name__

    set_dict = set_state_dict


class NoamDecay(LRScheduler):
    """base * d_model^-0.5 * min(epoch^-0.5, epoch * warmup_steps^-1.5); epoch 0 gives 0."""

    def __init__(
        self, d_model: float, warmup_steps: int, learning_rate: float = 1.0, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.d_model = check("d_model", d_model, is_rate(d_model) and d_model > 0, "a number > 0")
        self.warmup_steps = check("warmup_steps", warmup_steps, is_int(warmup_steps, 1), "an int > 0")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        falling = self.last_epoch**-0.5 if self.last_epoch else 1.0
        rising = self.last_epoch * self.warmup_steps**-1.5
        return self.base_lr * self.d_model**-0.5 * min(falling, rising)


class PiecewiseDecay(LRScheduler):
    """values[i] before epoch boundaries[i], then the last value."""

    def __init__(
        self, boundaries: Sequence[int], values: Sequence[float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        check("boundaries", boundaries, _rising(boundaries), "a list of rising ints")
        fits = len(values) == len(boundaries) + 1 and all(is_rate(v) for v in values)
        check("values", values, fits, f"{len(boundaries) + 1} numbers >= 0, one more than boundaries")
        self.boundaries, self.values = list(boundaries), [float(v) for v in values]
        super().__init__(self.values[0], last_epoch, verbose)

    def get_lr(self) -> float:
        return self.values[sum(boundary <= self.last_epoch for boundary in self.boundaries)]


class NaturalExpDecay(LRScheduler):
    """base * e^(-gamma * epoch)"""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        self.gamma = check("gamma", gamma, is_number(gamma) and gamma > 0, "a number > 0")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * math.exp(-self.gamma * self.last_epoch)


class InverseTimeDecay(LRScheduler):
    """base / (1 + gamma * epoch)"""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        self.gamma = check("gamma", gamma, is_number(gamma) and gamma >= 0, "a number >= 0")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr / (1 + self.gamma * self.last_epoch)


class PolynomialDecay(LRScheduler):
    """end_lr + (base - end_lr) * (1 - epoch / decay_steps)^power, end_lr from epoch decay_steps on.

    cycle=True starts over instead, each time towards the next multiple of decay_steps.
    """

    def __init__(
        self, learning_rate: float, decay_steps: int, end_lr: float = 0.0001, power: float = 1.0, cycle: bool = False,
        last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.decay_steps = check("decay_steps", decay_steps, is_int(decay_steps, 1), "an int > 0")
        self.end_lr = check("end_lr", end_lr, is_rate(end_lr), "a number >= 0")
        self.power = check("power", power, is_number(power) and power > 0, "a number > 0")
        self.cycle = cycle
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        epoch, steps = self.last_epoch, self.decay_steps
        if self.cycle:
            steps *= max(-(-epoch // steps), 1)
        else:
            epoch = min(epoch, steps)
        return (self.base_lr - self.end_lr) * (1 - epoch / steps) ** self.power + self.end_lr


class LinearWarmup(LRScheduler):
    """From start_lr straight to end_lr in warmup_steps epochs, then `learning_rate`.

    learning_rate  a number, or a scheduler, which counts its epochs from the end of the warm-up
    """

    def __init__(
        self, learning_rate: Any, warmup_steps: int, start_lr: float, end_lr: float,
        last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(learning_rate, LRScheduler):
            check("learning_rate", learning_rate, is_rate(learning_rate), "a number >= 0 or an LRScheduler")
        self.learning_rate = learning_rate
        self.warmup_steps = check("warmup_steps", warmup_steps, is_int(warmup_steps, 0), "an int >= 0")
        self.start_lr = check("start_lr", start_lr, is_rate(start_lr), "a number >= 0")
        rises = is_rate(end_lr) and end_lr > start_lr
        self.end_lr = check("end_lr", end_lr, rises, f"a number > start_lr {start_lr}")
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        if self.last_epoch < self.warmup_steps:
            return (self.end_lr - self.start_lr) * self.last_epoch / self.warmup_steps + self.start_lr
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(self.last_epoch - self.warmup_steps)
            return self.learning_rate()
        return self.learning_rate

    def state_dict(self) -> dict[str, Any]:
        """With the state of the inner scheduler, if there is one."""
        inner = isinstance(self.learning_rate, LRScheduler)
        with stepping:
            return super().state_dict() | ({"LinearWarmup_LR": self.learning_rate.state_dict()} if inner else {})

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        with stepping, whole(self):
            super().set_state_dict(state_dict)
            if isinstance(self.learning_rate, LRScheduler):
                _require_names(self, ("LinearWarmup_LR",), state_dict)
                self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])

    def kind(self) -> str:
        inner = self.learning_rate
        return f"{type(self).__name__} of {inner.kind()}" if isinstance(inner, LRScheduler) else type(self).__name__

    set_dict = set_state_dict


class ExponentialDecay(LRScheduler):
    """base * gamma^epoch"""

    def __init__(self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False) -> None:
        self.gamma = check("gamma", gamma, is_number(gamma) and 0 < gamma < 1, "a number in (0, 1)")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.gamma**self.last_epoch


class StepDecay(LRScheduler):
    """base * gamma^(epoch // step_size)"""

    def __init__(
        self, learning_rate: float, step_size: int, gamma: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.step_size = check("step_size", step_size, is_int(step_size, 1), "an int > 0")
        self.gamma = check("gamma", gamma, is_number(gamma) and 0 <= gamma < 1, "a number in [0, 1)")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepDecay(LRScheduler):
    """base * gamma^(number of milestones that are reached)"""

    def __init__(
        self, learning_rate: float, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        check("milestones", milestones, _rising(milestones), "a list of rising ints")
        self.milestones = list(milestones)
        self.gamma = check("gamma", gamma, is_number(gamma) and 0 <= gamma < 1, "a number in [0, 1)")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.gamma ** sum(milestone <= self.last_epoch for milestone in self.milestones)


class LambdaDecay(LRScheduler):
    """base * lr_lambda(epoch)"""

    def __init__(
        self, learning_rate: float, lr_lambda: Callable[[int], float], last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.lr_lambda = check("lr_lambda", lr_lambda, callable(lr_lambda), "a function of the epoch")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.lr_lambda(self.last_epoch)


class CosineAnnealingDecay(LRScheduler):
    """eta_min + (base - eta_min) * (1 + cos(pi * epoch / T_max)) / 2

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983 (without restarts: after T_max it rises again).
    """

    def __init__(
        self, learning_rate: float, T_max: int, eta_min: float = 0.0, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.T_max = check("T_max", T_max, is_int(T_max, 1), "an int > 0")
        self.eta_min = float(check("eta_min", eta_min, is_rate(eta_min), "a number >= 0"))
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (self.base_lr - self.eta_min) * share


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_int(value: Any, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def is_rate(value: Any) -> bool:
    return is_number(value) and value >= 0


def check(name: str, value: Any, condition: bool, wanted: str) -> Any:
    """`value`, refused unless the condition holds."""
    require(condition, f"{name} must be {wanted}, is {value!r}", AttrError)
    return value


def _rising(values: Sequence[int]) -> bool:
    if not isinstance(values, Sequence) or not all(is_int(v, 0) for v in values):
        return False
    return list(values) == sorted(set(values))


def _require_names(scheduler: LRScheduler, names: Sequence[str], state_dict: Mapping[str, Any]) -> None:
    check("state_dict", state_dict, isinstance(state_dict, Mapping), "a dict")
    for name in names:
        if name not in state_dict:
            raise_unknown(f"state of {type(scheduler).__name__}", name, state_dict, UNKNOWN_ATTR)
