"""Running an operator's reference on arrays: how validation, constant folding and fused bodies compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.types import FLOATS, bfloat16, float16, float32, float64

from .opdef import OpDef

Rng = tuple[int, ...]


def run_reference(
    opdef: OpDef, inputs: Mapping[str, Sequence[np.ndarray]], attrs: Mapping[str, Any], wanted: Collection[str],
    rng: Rng = (0, 0, 0), lifted: bool = False,
) -> dict[str, list[np.ndarray]]:  # fmt: skip
    """{output slot: arrays} of the reference; slots that it leaves out are absent.

    inputs  {slot: arrays}; 16-bit floats are storage, they are computed as float32
    wanted  the output slots that are read
    rng     seed, operator's number and step of random numbers
    lifted  let all floats be float64, those that attributes name too
    """
    args: list[Any] = []
    for slot in opdef.inputs:
        given = [computed(x) for x in inputs.get(slot.name, ())]
        args.append(None if not given else given if slot.variadic else given[0])
    results = opdef.reference(*args, **reference_keywords(opdef, attrs, wanted, rng, lifted))
    if len(opdef.outputs) == 1 or not isinstance(results, tuple):
        results = (results,)
    return {
        slot.name: [np.asarray(x) for x in (result if slot.variadic else [result])]
        for slot, result in zip(opdef.outputs, results, strict=True)
        if result is not None
    }


def reference_keywords(
    opdef: OpDef, attrs: Mapping[str, Any], wanted: Collection[str], rng: Rng | None = None, lifted: bool = False
) -> dict[str, Any]:
    """Attributes, and what else the reference takes, but for `out`."""
    keywords = dict(attrs)
    if lifted:
        keywords = {n: float64 if isinstance(v, np.dtype) and v in FLOATS else v for n, v in attrs.items()}
    more = {"needs": frozenset(wanted), "rng": rng, "lifted": lifted}
    keywords.update((n, v) for n, v in more.items() if n in opdef.injected_by_reference and v is not None)
    return keywords


def computed(x: np.ndarray) -> np.ndarray:
    """An array in the type that it is computed in: 16-bit floats are storage."""
    return x.astype(float32) if x.dtype in (float16, bfloat16) else x
