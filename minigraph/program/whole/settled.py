"""Settings that programs are built with: one that is set later would change nothing, and whoever sets it is told so."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from minigraph.errors import AttrError, call_site, require, shortened
from minigraph.errors.kinds import ORDER

_said: dict[Any, Any] = {}  # warnings that were shown, by text and line


def as_it_is(name: str, value: Any) -> Any:
    """The check of a setting that takes anything."""
    return value


class Settled:
    """Base of what is read while a program is built: settings cannot be set after the call that read them.

    settings  {name: its check, which gives the value as it is kept}
    """

    settings: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}
    instead: ClassVar[str] = "set it before, or make another one for another program"

    def settle(self, call: str) -> None:
        """`call` has built operators with the settings."""
        self.__dict__["_settled_by"] = call

    def settled_by(self, name: str) -> str:
        """The call after which `name` cannot be set; empty where it can."""
        return self.__dict__.get("_settled_by", "") if name in self.settings else ""

    def __setattr__(self, name: str, value: Any) -> None:
        call = self.settled_by(name)
        if call:
            raise ORDER(f"{name} is set after {call}, it would have no effect", hint=self.instead)
        check = self.settings.get(name)
        object.__setattr__(self, name, value if check is None else check(name, value))


class OptimizeAttr(dict[str, Any]):
    """`optimize_attr` of a parameter, which tells it of changes."""

    __slots__ = ("parameter",)

    def __init__(self, parameter: Any, facts: Any) -> None:
        require(isinstance(facts, Mapping), f"optimize_attr must be a dict, is {shortened(repr(facts))}", AttrError)
        super().__init__({"learning_rate": 1.0} | _checked(facts))
        self.parameter = parameter

    def copied_for(self, parameter: Any) -> OptimizeAttr:
        """The same for a copy of the parameter."""
        copy = OptimizeAttr.__new__(OptimizeAttr)
        dict.update(copy, self)
        copy.parameter = parameter
        return copy

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __ior__(self, facts: Any) -> OptimizeAttr:
        self.update(facts)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is nobody's

    def update(self, *facts: Any, **more: Any) -> None:
        new, before = dict(*facts, **more), self["learning_rate"]
        super().update(_checked(new))
        if before != self["learning_rate"] and self.parameter.program.updated:
            warn_of_late_change(self.parameter, "optimize_attr")

    def pop(self, key: str, *default: Any) -> Any:
        require(key != "learning_rate", "learning_rate of a parameter cannot be taken out", AttrError, "set it to 1.0")
        return super().pop(key, *default)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def popitem(self) -> tuple[str, Any]:
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        self.pop("learning_rate")


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What updates read of these must be a number."""
    rate = facts.get("learning_rate", 1.0)
    number = isinstance(rate, numbers.Real) and not isinstance(rate, bool) and math.isfinite(rate)
    require(number, f"learning_rate of a parameter must be a finite number, is {shortened(repr(rate))}", AttrError)
    return dict(facts)


def differ(before: Any, after: Any) -> bool:
    """Whether two settings are not the same; those that cannot be compared, such as arrays, are not."""
    try:
        return bool(before != after)
    except ValueError:
        return True


def warn_of_late_change(parameter: Any, what: str) -> None:
    """Warn where an update of this parameter is there, which was built as the parameter was before.

    It is no error: an optimizer that comes now, for another loss, builds with what is set.
    """
    built = any(
        op.role == "optimize" and any(v is parameter for v in op.output_vars) for op in parameter.program.ops
    )
    site = call_site()
    if built and site is not None:
        text = (
            f"{what} of a parameter is set after minimize, whose update stays as it is;"
            " set it before, or build the program again"
        )
        warnings.warn_explicit(text, UserWarning, site.filename, site.line, registry=_said)
