"""A schedule that follows a value which the user measures."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.errors import require
from minigraph.errors.kinds import WRONG_OBJECT

from .schedules import LRScheduler, check, is_int, is_number, is_rate, log, stepping, whole


class ReduceOnPlateau(LRScheduler):
    """The rate times `factor` once a value, such as the loss, has not become better in `patience` epochs.

    mode            "min": smaller is better; "max": larger
    threshold       by how much it must be better: a share of the best (threshold_mode "rel") or as such ("abs")
    cooldown        epochs after a reduction that do not count
    min_lr, epsilon the rate stays >= min_lr; a change of at most epsilon is not made
    `step(value)` takes a number or an array of one element.
    """

    state_names = ("cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr")

    def __init__(
        self, learning_rate: float, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: float = 0,
        epsilon: float = 1e-8, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.mode = check("mode", mode, mode in ("min", "max"), "'min' or 'max'")
        known = threshold_mode in ("rel", "abs")
        self.threshold_mode = check("threshold_mode", threshold_mode, known, "'rel' or 'abs'")
        self.factor = check("factor", factor, is_number(factor) and 0 <= factor < 1, "a number in [0, 1)")
        self.patience = check("patience", patience, is_int(patience, 0), "an int >= 0")
        self.cooldown = check("cooldown", cooldown, is_int(cooldown, 0), "an int >= 0")
        self.threshold = check("threshold", threshold, is_number(threshold), "a number")
        self.min_lr = check("min_lr", min_lr, is_rate(min_lr), "a number >= 0")
        self.epsilon = check("epsilon", epsilon, is_rate(epsilon), "a number >= 0")
        require(is_number(learning_rate), f"learning_rate must be a number, is {learning_rate!r}", WRONG_OBJECT)
        self.base_lr = self.last_lr = float(check("learning_rate", learning_rate, is_rate(learning_rate), ">= 0"))
        self.best: float | None = None
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self.verbose = verbose

    def get_lr(self) -> float:
        return self.last_lr

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go to the next epoch, or to `epoch`, with the value measured in it."""
        one = _is_real(metrics) or (isinstance(metrics, np.ndarray) and metrics.size == 1)
        require(one, f"metrics must be a number or an array of one, is {metrics!r}", WRONG_OBJECT)
        with stepping, whole(self):
            self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
            self._follow(float(np.asarray(metrics).reshape(())))

    def _follow(self, value: float) -> None:
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            rate = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - rate > self.epsilon:
                self.last_lr = rate
                if self.verbose:
                    log.info("epoch %d: ReduceOnPlateau sets the learning rate to %g", self.last_epoch, rate)

    def _is_better(self, value: float, best: float) -> bool:
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return value < best - margin if self.mode == "min" else value > best + margin

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        best = state_dict.get("best") if isinstance(state_dict, Mapping) else None
        check("best", best, best is None or _is_real(best), "a number or None")
        super().set_state_dict(state_dict)

    set_dict = set_state_dict


def _is_real(value: Any) -> bool:
    """Whether it is a number; that of a loss which overflowed, too."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
