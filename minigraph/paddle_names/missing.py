"""What happens when a script asks for a name that is not here.

    mg.nn.Conv2D                NotHere: paddle.nn.Conv2D is not here: convolution and pooling are not part of ...
    from minigraph.nn import X  the same as an ImportError, where Python would hide what an AttributeError says
    hasattr(mg, "Model")        False
    mg.tanh_(x)                 mg.tanh with a warning, as Paddle's static mode does
    mg.nn.Lineer                an AttributeError that names nn.Linear
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from opcode import opmap
from types import ModuleType
from typing import Any

from minigraph.errors import PACKAGE_FOLDER, MinigraphError, nearest
from minigraph.errors.kinds import NOT_HERE

from .listed import listed
from .reasons import reason_of

IMPORT_FROM = opmap["IMPORT_FROM"]
SPACES: dict[str, Any] = {}  # Paddle's name of a namespace -> the module or class that has its names here


class NotHere(MinigraphError, AttributeError):
    """A name of Paddle that minigraph does not have, with the reason and what to use instead."""

    code = NOT_HERE.code


class NotHereToImport(MinigraphError, ImportError):
    """The same in `from minigraph.nn import Conv2D`."""

    code = NOT_HERE.code


class UnknownName(AttributeError):
    """Any other name. The nearest one is looked for when somebody reads the message: many only ask whether it is there.

    what   whose attribute it would be;  known: the names that there are
    """

    def __init__(self, what: str, name: str, known: Callable[[], Iterable[str]]) -> None:
        super().__init__(what, name)
        self.what, self.wanted, self.known = what, name, known

    def __str__(self) -> str:
        hint = nearest(self.wanted, (n for n in self.known() if not n.startswith("_")))
        return f"{self.what} has no attribute {self.wanted!r}{f'; {hint}' if hint else ''}"

    def __reduce__(self) -> Any:
        return AttributeError, (str(self),)  # another process has other names


def is_listed(space: str, name: str) -> bool:
    """Whether Paddle has `name` in one of its namespaces, such as nn.functional or Variable."""
    return name in listed()[space]


def refusal(space: str, name: str, kind: type[MinigraphError] = NotHere) -> MinigraphError:
    """The error for a name of Paddle that is not here."""
    why, instead = reason_of(space, name)
    whole = ".".join(part for part in ("paddle" if space[:1].islower() or not space else "", space, name) if part)
    return kind(f"{whole} is not here: {why}", call=whole, hint=instead)


def explain_missing(spaces: Mapping[str, Any]) -> None:
    """Let modules and classes explain the names of Paddle that they do not have.

    spaces  {Paddle's name of a namespace: the module or class that has its names here}
    """
    SPACES.update(spaces)
    for space, owner in spaces.items():
        if isinstance(owner, ModuleType):
            owner.__dict__["__getattr__"] = _of_module([s for s, o in spaces.items() if o is owner], owner)
        elif not hasattr(owner, "__getattr__"):  # else it asks for `refusal` itself
            owner.__getattr__ = _of_class(space, owner)


def _of_module(spaces: list[str], module: ModuleType) -> Callable[[str], Any]:
    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        space = next((s for s in spaces if name in listed()[s]), None)
        if space is not None:
            function = module.__dict__.get(name[:-1]) if name.endswith("_") else None
            if callable(function):
                return _not_in_place(space, name, function)
            raise refusal(space, name, NotHereToImport if _imports() else NotHere)
        raise UnknownName(
            f"module {module.__name__!r}", name, lambda: {*vars(module)}.union(*(listed()[s] for s in spaces))
        )

    missing.__qualname__ = "__getattr__"
    return missing


def _of_class(space: str, owner: type) -> Callable[[Any, str], Any]:
    def missing(self: Any, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in listed()[space]:
            function = getattr(owner, name[:-1], None) if name.endswith("_") else None
            if callable(function):
                return _not_in_place(space, name, function).__get__(self)
            raise refusal(space, name)
        raise UnknownName(f"{type(self).__name__!r} object", name, lambda: {*listed()[space], *dir(owner)})

    missing.__qualname__ = "__getattr__"
    return missing


@cache
def _not_in_place(space: str, name: str, function: Callable[..., Any]) -> Any:
    """`function` under the name that ends with _: in static mode Paddle computes a new value and warns, too."""

    @wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        whole = f"{space}.{name}" if space else name
        warnings.warn(f"{whole} changes nothing in place in a program: it is {whole[:-1]}", stacklevel=2)
        return function(*args, **kwargs)

    return computed


def _imports() -> bool:
    """Whether the line of the user that runs now is `from ... import name`."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        frame = frame.f_back
    return frame is not None and frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == IMPORT_FROM
