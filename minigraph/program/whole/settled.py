"""Settings that programs are built with: one that is set later would change nothing, and whoever sets it is told so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from minigraph.errors import call_site
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

    def __init__(self, parameter: Any, facts: Mapping[str, Any]) -> None:
        super().__init__(facts)
        self.parameter = parameter

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __ior__(self, facts: Any) -> OptimizeAttr:
        self.update(facts)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # a copy is nobody's

    def update(self, *facts: Any, **more: Any) -> None:
        before = dict(self)
        super().update(*facts, **more)
        if before != self and self.parameter.program.updated:
            warn_of_late_change(self.parameter, "optimize_attr")


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
