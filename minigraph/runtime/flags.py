"""Flags of the process, with Paddle's names: `set_flags`, `get_flags`, and the environment when minigraph is imported.

    FLAGS_check_nan_inf   look at every result of the programs that run; docs/check_nan_inf.md

This is the one place that reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import AttrError, nearest, require

from .options import RunOptions

WORDS = {"0": False, "false": False, "1": True, "true": True}  # in the environment
DEFAULTS = {"FLAGS_check_nan_inf": False}


def _from_environment() -> dict[str, bool]:
    """The flags that this process starts with."""
    flags = dict(DEFAULTS)
    for name in DEFAULTS:
        word = os.environ.get(name)
        if word is not None:
            known = word.lower() in WORDS
            require(known, f"environment variable {name} must be 0, 1, true or false, is {word!r}", AttrError)
            flags[name] = WORDS[word.lower()]
    return flags


values = _from_environment()  # another dict after each change: whoever keeps one can see whether it still holds


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags of this process: `set_flags({"FLAGS_check_nan_inf": 1})`. Runs that begin later see them.

    flags  {name: 0, 1, False or True}
    An AttrError for an unknown name or another value; then no flag changes.
    """
    global values
    require(isinstance(flags, Mapping), f"flags are a dict {{name: value}}, not a {type(flags).__name__}", AttrError)
    for name, value in flags.items():
        _require_known(name)
        fits = isinstance(value, (bool, int, np.bool_, np.integer)) and value in (0, 1)
        require(fits, f"{name} must be 0, 1, False or True, is {value!r}", AttrError)
    values = values | {name: bool(value) for name, value in flags.items()}


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """{name: value} of one flag, or of a list of them."""
    named = isinstance(flags, (str, list, tuple))
    require(named, f"get_flags takes a name or a list of names, not {flags!r}", AttrError)
    names = [flags] if isinstance(flags, str) else list(flags)
    for name in names:
        _require_known(name)
    return {name: values[name] for name in names}


def _require_known(name: Any) -> None:
    require(
        isinstance(name, str) and name in DEFAULTS, f"there is no flag {name!r}", AttrError,
        nearest(str(name), DEFAULTS) or f"known: {', '.join(DEFAULTS)}",
    )  # fmt: skip


def applied(options: RunOptions, flags: Mapping[str, bool]) -> RunOptions:
    """The options of a run with what the flags turn on besides."""
    return options.checking() if flags["FLAGS_check_nan_inf"] else options
