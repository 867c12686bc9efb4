"""Attributes of minigraph's operators as those of an ONNX node, and back, without loss.

ONNX keeps floats in 32 bits and has no empty lists whose type is known; what it cannot keep is a text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.errors import AttrError
from minigraph.opdef import OpDef

PLAIN = {"int", "bool", "str", "DTypeAttr"}  # kinds that ONNX keeps as they are


def to_onnx(opdef: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes but those that are None, which is their default."""
    given = {name: value for name, value in attrs.items() if value is not None}
    return {name: _kept(opdef.attrs[name].kind.removesuffix(" | None"), value) for name, value in given.items()}


def _kept(kind: str, value: Any) -> Any:
    if kind == "DTypeAttr":
        return np.dtype(value).name
    if kind in PLAIN:
        return int(value) if kind == "bool" else value
    if kind in ("Ints", "Texts") and value:
        return tuple(value)
    if kind == "float" and float(np.float32(value)) == value:
        return float(value)
    return json.dumps(value)


def from_onnx(opdef: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """What `to_onnx` was given; an AttrError for what no operator takes."""
    return {name: _meant(opdef, name, value) for name, value in attrs.items() if name in opdef.attrs}


def _meant(opdef: OpDef, name: str, value: Any) -> Any:
    kind = opdef.attrs[name].kind.removesuffix(" | None")
    if kind == "bool":
        return bool(value)
    if isinstance(value, str) and kind not in ("str", "DTypeAttr"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise AttrError(f"attribute {name} is no {opdef.attrs[name].words}") from None
    return value
