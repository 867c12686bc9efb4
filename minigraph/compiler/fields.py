"""What a field of BuildStrategy takes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from minigraph.errors import AttrError, MinigraphError, nearest
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import UNKNOWN_ATTR
from minigraph.paddle_names import is_listed, refusal

CHOICES = {  # values of fields that are words
    "verify": ("off", "structure", "each_pass"),
    "multi_tensor_mode": ("auto", "table", "struct4k", "struct32k", "arena", "unified", "paged"),
    "all_reduce_dtype": ("auto", "float16", "bfloat16", "float32", "float64"),
    "attention_kernel": ("auto", "wgmma", "mma", "exact"),
}


class UnknownField(AttrError, AttributeError):
    """A BuildStrategy has no such field."""

    code = UNKNOWN_ATTR.code


def checked(name: str, value: Any, default: Any) -> Any:
    """A value for a field with this default; an AttrError for one of another kind."""
    wanted = int if default is None else type(default)
    if value is None and default is None:
        return value
    if value is None and wanted is bool:  # Paddle's memory_optimize = None
        value = default
    if wanted is bool:
        return as_flag(name, value)
    if wanted is float and type(value) is int:
        value = float(value)
    least = {int: 1, float: 1e-300}.get(wanted)
    if not isinstance(value, wanted) or (least is not None and (value is True or not value >= least)):
        kind = {int: "positive int", float: "positive number"}.get(wanted, wanted.__name__)
        raise AttrError(f"{name} must be a {kind}, is {value!r}")
    if name in CHOICES and value not in CHOICES[name]:
        raise AttrError(f"{name} must be {', '.join(CHOICES[name][:-1])} or {CHOICES[name][-1]}, is {value!r}")
    return value


def unknown(name: str, known: Collection[str]) -> MinigraphError:
    """The error for a field that does not exist, or that Paddle alone has."""
    if is_listed("BuildStrategy", name):
        return refusal("BuildStrategy", name)
    return UnknownField(
        f"BuildStrategy has no field {name!r}", hint=nearest(name, known) or "its docstring lists them"
    )
