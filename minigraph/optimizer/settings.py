"""What users set: hyperparameters and their checks, lists and groups of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from minigraph.errors import AttrError, raise_unknown, require
from minigraph.errors.kinds import CONFLICT, MISSING, UNKNOWN_ATTR
from minigraph.program import Variable
from minigraph.program.whole.settled import Settled
from minigraph.regularizer import L2Decay, WeightDecayRegularizer
from minigraph.types import bfloat16, float16

Check = Callable[[str, Any], Any]
BUILT_IN = frozenset({"learning_rate", "regularization", "grad_clip", "multi_precision"})
LOW_PRECISION = (float16, bfloat16)


def check_of(optimizer: Any, key: str) -> Check:
    """The check of one of an optimizer's hyperparameters."""
    if key not in optimizer.hyper:
        known = ["learning_rate", "parameters", "weight_decay", "grad_clip", *optimizer.hyper]
        raise_unknown(f"{type(optimizer).__name__}: argument", key, known, UNKNOWN_ATTR)
    return optimizer.hyper[key]


def regularizer(value: Any) -> Any:
    """A regularizer from a user's weight_decay."""
    if value is None or isinstance(value, WeightDecayRegularizer):
        return value
    return L2Decay(check_number("weight_decay", value))


def clip_rule(value: Any) -> Any:
    """`value`, which must be a ClipGradBy... object or None."""
    require(value is None or callable(value), f"grad_clip must be a ClipGradBy... object, is {value!r}", AttrError)
    return value


class FixedOnceUsed(Settled):
    """Base of an optimizer: what its updates were made with cannot be set after that."""

    hyper: ClassVar[Mapping[str, Check]] = {}
    instead = "set_lr(value) sets a learning rate; make another optimizer for another program"

    @property
    def settings(self) -> Mapping[str, Check]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The hyperparameters, which are the class's."""
        return self.hyper

    def looks_at_groups_only(self) -> bool:
        """Whether `attrs` and `wanted_states` see of a parameter its group alone, and are the same for others of it."""
        return False

    def settled_by(self, name: str) -> str:
        fixed = name in self.hyper or name in BUILT_IN
        return "minimize" if fixed and self.__dict__.get("_rates") else ""


def below_one(name: str, value: Any) -> float:
    """`value` as a float in [0, 1)."""
    return check_number(name, value, below=1)


def positive(name: str, value: Any) -> float:
    """`value` as a float > 0."""
    number = check_number(name, value)
    require(number > 0, f"{name} must be > 0, is {value!r}", AttrError)
    return number


def positive_int(name: str, value: Any) -> int:
    """`value` as an int > 0."""
    fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0
    require(fits, f"{name} must be a positive int, is {value!r}", AttrError)
    return int(value)


def function(name: str, value: Any) -> Any:
    """`value`, which must be a function or None."""
    require(value is None or callable(value), f"{name} must be a function, is {value!r}", AttrError)
    return value


def check_number(name: str, value: Any, below: float = math.inf) -> float:
    """`value` as a float; it must lie in [0, below)."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    wanted = ">= 0 and finite" if below == math.inf else f"in [0, {below:g})"
    require(0 <= number < below, f"{name} must be a number {wanted}, is {value!r}", AttrError)
    return number


def distinct(parameters: list[Any]) -> list[Any]:
    """Parameters of which none is listed twice."""
    names = [p if isinstance(p, str) else p.name for p in parameters]
    twice = next((n for i, n in enumerate(names) if n in names[:i]), None) if len(set(names)) < len(names) else None
    require(twice is None, f"parameter {twice} is listed twice", CONFLICT)
    return parameters


def as_list(name: str, value: Any) -> list[Any]:
    """A list of Parameters or their names."""
    fact = f"{name} must be a list of Parameters or names"
    if isinstance(value, (str, Variable, Mapping)) or not isinstance(value, Iterable):
        raise AttrError(f"{fact}, is {value!r}"[:200])
    listed = list(value)
    for p in listed:
        require(isinstance(p, (str, Variable)), f"{fact}, holds {p!r}"[:200], AttrError)
    return listed


GROUP_CHECKS: dict[str, Check] = {
    "learning_rate": check_number, "grad_clip": lambda name, value: clip_rule(value),
}  # fmt: skip


def read_groups(
    optimizer: str, hyper: Mapping[str, Check], given: Any
) -> tuple[list[Any] | None, dict[str, dict[str, Any]]]:  # fmt: skip
    """(all parameters or None, {parameter's name: what its group sets}) from a list of parameters or of groups.

    hyper  the optimizer's hyperparameters; one called coeff is its decoupled weight decay
    """
    if given is None:
        return None, {}
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Variable, Mapping)) else []
    if not listed or not all(isinstance(group, Mapping) for group in listed):
        return distinct(as_list("parameters", given)), {}
    checks = {**GROUP_CHECKS, **hyper}
    decay = "coeff" if "coeff" in hyper else "regularization"
    checks["weight_decay"] = check_number if decay == "coeff" else lambda name, value: regularizer(value)
    names = {"learning_rate": "rate_factor", "weight_decay": decay}
    params, groups = [], {}
    for group in listed:
        require("params" in group, f"a group of parameters has the key 'params', not {sorted(group)}", MISSING)
        settings = {}
        for key in group.keys() - {"params"}:
            if key not in checks:
                raise_unknown(f"{optimizer}: group setting", key, ["params", *checks], UNKNOWN_ATTR)
            settings[names.get(key, key)] = checks[key](key, group[key])
        members = as_list("params", group["params"])
        params += members
        groups |= {p if isinstance(p, str) else p.name: settings for p in members}
    return distinct(params), groups
