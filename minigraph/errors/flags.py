"""Arguments that are a bool: True, False, 1 and 0, also those of NumPy. "no" would count as True, and is refused.

Paddle's scripts write `keepdim=1`; it takes numbers for nearly all of its flags.

`check_flags` puts the check around public functions, methods and constructors once, when minigraph is imported: each
parameter with the annotation `bool` or `bool | None` is looked at.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any

import numpy as np

from . import PACKAGE_FOLDER, AttrError

KINDS = {"bool": False, "bool | None": True}  # annotation -> whether None fits


def is_flag(value: Any) -> bool:
    """Whether `value` can stand for True or False."""
    return isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1))


def as_flag(name: str, value: Any, call: str | None = None) -> bool:
    """`value` as a bool; an AttrError where it is none."""
    if value is True or value is False:
        return value
    if is_flag(value):
        return bool(value)
    raise AttrError(f"{name} must be a bool, is {value!r}"[:200], call=call)


def check_flags(spaces: Iterable[Any], but: Iterable[Callable[..., Any]] = ()) -> None:
    """Let the public names of these modules and classes refuse values that are no bool where they take one.

    but   functions that look at theirs themselves
    """
    made: dict[int, Callable[..., Any]] = {}
    for owner, name, function in [found for space in spaces for found in _functions(space, set())]:
        flags = _flags_of(function)
        if flags and function not in but:
            checking = made.setdefault(id(function), _checking(function, flags))
            setattr(owner, name, checking)
            home = sys.modules[function.__module__]
            if getattr(home, function.__qualname__, None) is function:
                setattr(home, function.__qualname__, checking)


def _functions(space: Any, seen: set[type]) -> Iterator[tuple[Any, str, FunctionType]]:
    """(module or class, name, function) of what a user can call there; constructors count."""
    own = inspect.isclass(space)
    for name, value in list(vars(space).items()):
        if isinstance(value, FunctionType) and (name[0] != "_" or (own and name == "__init__")):
            if value.__code__.co_filename.startswith(PACKAGE_FOLDER) or hasattr(value, "__wrapped__"):
                yield space, name, value
        elif inspect.isclass(value) and value.__module__.startswith("minigraph.") and name[0] != "_" and not own:
            for ancestor in value.__mro__:
                if ancestor.__module__.startswith("minigraph.") and ancestor not in seen:
                    seen.add(ancestor)
                    yield from _functions(ancestor, seen)


def _flags_of(function: FunctionType) -> dict[str, bool]:
    """{parameter that is a bool: whether None fits}"""
    return {name: KINDS[kind] for name, kind in function.__annotations__.items() if kind in KINDS and name != "return"}


def _checking(function: FunctionType, flags: dict[str, bool]) -> Callable[..., Any]:
    call = function.__qualname__.removesuffix(".__init__")
    code = inspect.unwrap(function).__code__
    places = {i: name for i, name in enumerate(code.co_varnames[: code.co_argcount]) if name in flags}
    first = min(places, default=sys.maxsize)

    def flag(name: str, value: Any) -> Any:
        return value if value is None and flags[name] else as_flag(name, value, call)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, value in kwargs.items():
            if value is not True and value is not False and name in flags:
                kwargs[name] = flag(name, value)
        if len(args) > first:
            args = tuple(flag(places[i], value) if i in places else value for i, value in enumerate(args))
        return function(*args, **kwargs)

    return checked
