"""Schedules that rise and fall: cycles, restarts, straight lines, products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph.errors import require
from minigraph.errors.kinds import WRONG_OBJECT

from .schedules import LambdaDecay, LRScheduler, check, is_int, is_number, is_rate


class MultiplicativeDecay(LambdaDecay):
    """base * lr_lambda(1) * ... * lr_lambda(epoch)"""

    def get_lr(self) -> float:
        return self.base_lr * math.prod(self.lr_lambda(epoch) for epoch in range(1, self.last_epoch + 1))


class LinearLR(LRScheduler):
    """base times a factor that goes straight from start_factor to end_factor in total_steps epochs, then stays."""

    def __init__(
        self, learning_rate: float, total_steps: int, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        fits = is_number(start_factor) and 0 < start_factor <= 1
        self.start_factor = check("start_factor", start_factor, fits, "a number in (0, 1]")
        fits = is_number(end_factor) and 0 <= end_factor <= 1
        self.end_factor = check("end_factor", end_factor, fits, "a number in [0, 1]")
        self.total_steps = check("total_steps", total_steps, is_int(total_steps, 1), "an int > 0")
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        share = min(self.last_epoch, self.total_steps) / self.total_steps
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


class CosineAnnealingWarmRestarts(LRScheduler):
    """A cosine from base down to eta_min in T_0 epochs, then again in T_0 * T_mult, and so on.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983.
    """

    def __init__(
        self, learning_rate: float, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        self.T_0 = check("T_0", T_0, is_int(T_0, 1), "an int > 0")
        self.T_mult = check("T_mult", T_mult, is_int(T_mult, 1), "an int > 0")
        self.eta_min = float(check("eta_min", eta_min, is_rate(eta_min), "a number >= 0"))
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        epoch, length = self.last_epoch, self.T_0
        if self.T_mult == 1:
            epoch %= length
        while epoch >= length:
            epoch, length = epoch - length, length * self.T_mult
        return self.eta_min + (self.base_lr - self.eta_min) * (1 + math.cos(math.pi * epoch / length)) / 2


class OneCycleLR(LRScheduler):
    """From max / divide_factor up to max_learning_rate, then down to end_learning_rate, in total_steps epochs.

    phase_pct        the share of the epochs in which it rises
    anneal_strategy  "cos" or "linear": the form of both ways
    three_phase      down as fast as up, then on to end_learning_rate
    Source: Smith and Topin, Super-Convergence, arXiv:1708.07120.
    """

    def __init__(
        self, max_learning_rate: float, total_steps: int, divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001, phase_pct: float = 0.3, anneal_strategy: str = "cos",
        three_phase: bool = False, last_epoch: int = -1, verbose: bool = False,
    ) -> None:  # fmt: skip
        wanted = f"max_learning_rate must be a number, is {max_learning_rate!r}"
        require(is_number(max_learning_rate), wanted, WRONG_OBJECT)
        top = check("max_learning_rate", max_learning_rate, is_rate(max_learning_rate), "a number >= 0")
        end = check("end_learning_rate", end_learning_rate, is_rate(end_learning_rate), "a number >= 0")
        self.total_steps = check("total_steps", total_steps, is_int(total_steps, 1), "an int > 0")
        check("divide_factor", divide_factor, is_number(divide_factor) and divide_factor > 0, "a number > 0")
        most = 0.5 if three_phase else 1
        check("phase_pct", phase_pct, is_number(phase_pct) and 0 <= phase_pct <= most, f"a number in [0, {most}]")
        known = anneal_strategy in ("cos", "linear")
        self.anneal_strategy = check("anneal_strategy", anneal_strategy, known, "'cos' or 'linear'")
        start, peak, last = top / divide_factor, phase_pct * total_steps - 1, total_steps - 1
        self.turns = [(0, start), (peak, top), (last, end)]
        if three_phase:
            self.turns.insert(2, (2 * phase_pct * total_steps - 2, start))
        super().__init__(start, last_epoch, verbose)

    def get_lr(self) -> float:
        epoch = check("epoch", self.last_epoch, self.last_epoch <= self.total_steps, f"at most {self.total_steps}")
        pairs = list(zip(self.turns, self.turns[1:], strict=False))
        (begin, low), (end, high) = next((p for p in pairs if epoch <= p[1][0]), pairs[-1])
        share = (epoch - begin) / (end - begin) if end != begin else 1.0  # after the last epoch, as Paddle, beyond 1
        if self.anneal_strategy == "cos":
            return high + (low - high) * (1 + math.cos(math.pi * share)) / 2
        return max(low + (high - low) * share, 0.0)


class CyclicLR(LRScheduler):
    """From base_learning_rate up to max in step_size_up epochs, down in step_size_down, again and again.

    mode        "triangular"; "triangular2" halves the height in each cycle; "exp_range" scales it by exp_gamma^epoch
    scale_fn    a function that scales the height in place of mode, of the cycle (from 1) or the epoch
    scale_mode  "cycle" or "iterations": which of both
    Source: Smith, Cyclical Learning Rates, arXiv:1506.01186.
    """

    def __init__(
        self, base_learning_rate: float, max_learning_rate: float, step_size_up: int,
        step_size_down: int | None = None, mode: str = "triangular", exp_gamma: float = 1.0,
        scale_fn: Callable[[Any], float] | None = None, scale_mode: str = "cycle", last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        check("max_learning_rate", max_learning_rate, is_rate(max_learning_rate), "a number >= 0")
        check("step_size_up", step_size_up, is_int(step_size_up, 1), "an int > 0")
        down = step_size_up if step_size_down is None else step_size_down
        check("step_size_down", down, is_int(down, 1), "an int > 0")
        known = mode in ("triangular", "triangular2", "exp_range")
        check("mode", mode, known or scale_fn is not None, "'triangular', 'triangular2' or 'exp_range'")
        check("scale_mode", scale_mode, scale_mode in ("cycle", "iterations"), "'cycle' or 'iterations'")
        check("exp_gamma", exp_gamma, is_number(exp_gamma), "a number")
        self.max_lr, self.cycle_size = float(max_learning_rate), step_size_up + down
        self.share_up = step_size_up / self.cycle_size
        self.mode, self.exp_gamma, self.scale_fn, self.scale_mode = mode, exp_gamma, scale_fn, scale_mode
        super().__init__(base_learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        cycle, at = divmod(self.last_epoch, self.cycle_size)
        share = at / self.cycle_size
        height = share / self.share_up if share <= self.share_up else (1 - share) / (1 - self.share_up)
        return self.base_lr + (self.max_lr - self.base_lr) * height * self._scale(cycle + 1)

    def _scale(self, cycle: int) -> float:
        if self.scale_fn is not None:
            return self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.mode == "exp_range":
            return self.exp_gamma**self.last_epoch
        return 0.5 ** (cycle - 1) if self.mode == "triangular2" else 1.0
