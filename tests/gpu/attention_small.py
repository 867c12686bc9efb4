"""GPU checks of attention that are small enough for compute-sanitizer; together they launch every kernel of it.

test_attention_small.py holds that they do, and that each call goes to the kernels that its check is named after.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tests.gpu.check import Check, call_of, check_call, each, normal
from tests.support import opcheck

Inputs = dict[str, Any]
KEY = np.array([9, 2**33, 5])


def qkv(b: int = 2, sq: int = 5, sk: int = 7, h: int = 2, hk: int = 0, d: int = 4, dv: int = 0) -> Inputs:
    shapes = {"Q": (b, sq, h, d), "K": (b, sk, hk or h, d), "V": (b, sk, hk or h, dv or d)}
    return {slot: normal(*shape, seed=i) for i, (slot, shape) in enumerate(shapes.items())}


def low() -> Inputs:
    """Every third query has scores somewhat below -1e3, exact in every type with a scale of 1."""
    inputs = qkv(2, 70, 130, 4, 2, 16)
    inputs["Q"][:, ::3] = 0
    inputs["Q"][:, ::3, :, :2] = -1004, 1
    inputs["K"][..., 0], inputs["K"][..., 1] = 1, np.round(4 * inputs["K"][..., 1]) / 4
    return inputs


def calls(inputs: Inputs, dtype: str, sums_read: bool = False, **attrs: Any) -> Iterator[opcheck.Call]:
    """Forward, and backward from what forward is in float64; with a gradient of LogSumExp where it is read."""
    given = {slot: x for slot, x in inputs.items() if x is not None}
    call = call_of("memory_efficient_attention", given, **attrs)
    yield call
    typed = call.as_dtype(dtype).as_dtype("float64")
    out, sums = (opcheck.reference(typed)[slot][0] for slot in ("Out", "LogSumExp"))
    more = {"Out": out, "LogSumExp": sums, "Out_grad": normal(*out.shape, seed=9)}
    if sums_read:
        more["LogSumExp_grad"] = normal(*sums.shape, seed=10)
    yield call_of("memory_efficient_attention_grad", {**given, **more}, **attrs)


def both(inputs: Inputs, dtype: str, sums_read: bool = False, **attrs: Any) -> None:
    """Forward and backward of one call against the dense reference."""
    for call in calls(inputs, dtype, sums_read, **attrs):
        check_call(call, dtype)


class Case(NamedTuple):
    """One call, forward and backward, and the name of the kernels in the registry that compute it."""

    kernel: str
    dtype: str
    inputs: Inputs
    attrs: dict[str, Any]


def changed(d: int, dv: int = 0, rows: int = 40) -> Iterator[tuple[Inputs, dict[str, Any]]]:
    """Calls whose scores are changed: biases and masks that broadcast in several ways, dropout, packed sequences."""
    base = qkv(2, rows, 70, 4, 2, d, dv)
    mask = np.random.default_rng(4).random((2, 1, rows, 70)) < 0.5
    mask[:, :, 7:9] = False
    yield {**base, "Bias": normal(1, 4, rows, 70)}, {"causal": True}
    yield {**base, "Bias": normal(2, 1, 1, 70), "Mask": mask, "Key": KEY}, {"masked_score": -1e9, "dropout": 0.3}
    yield {**base, "Bias": hiding(rows, 70)}, {}
    packed = {"CuSeqlensQ": np.array([0, 3, 3, 50, 69]), "CuSeqlensK": np.array([0, 30, 35, 35, 80])}
    yield {**qkv(1, 70, 80, 4, 2, d, dv), **packed}, {"causal": True, "bottom_right": True}


def hiding(rows: int, columns: int) -> np.ndarray:
    """A bias [rows, columns] that hides some keys, and of some queries all: backward computes their sums again."""
    bias = normal(rows, columns, seed=7)
    bias[bias > 0.5] = bias[3:6] = -1e30
    return bias


def exact(dtype: str) -> Iterator[Case]:
    """Heads that are too wide for tensor cores in float32; all in float64. Keys and queries are split among blocks."""
    d, dv = exact_widths(dtype)
    yield Case("exact", dtype, qkv(2, 20, 40, 4, 2, d, dv), {"window": (9, 3)})
    yield Case("exact", dtype, qkv(1, 10, 300, 2, 1, d), {})
    yield Case("exact", dtype, qkv(1, 300, 10, 2, 1, d), {"causal": True})


def exact_widths(dtype: str) -> tuple[int, int]:
    return (136, 132) if dtype == "float32" else (6, 5)


def mma(dtype: str) -> Iterator[Case]:
    """Narrow and wide heads, of sizes that are no pieces of 16 bytes, too; splits of keys and of queries."""
    if dtype == "float32":
        for d, dv in ((16, 16), (64, 64), (80, 96), (3, 5)):
            yield Case("mma", dtype, qkv(2, 40, 70, 4, 2, d, dv), {"causal": True, "bottom_right": True})
    else:
        yield Case("mma", dtype, qkv(2, 40, 70, 4, 2, 3, 5), {"window": (9, 3)})
        yield Case("mma", dtype, qkv(2, 40, 70, 4, 2, 160, 96), {"causal": True})
    d = 32 if dtype == "float32" else 36
    yield Case("mma", dtype, qkv(1, 20, 300, 2, 1, d), {})
    yield Case("mma", dtype, qkv(1, 300, 20, 2, 1, d), {"causal": True})


def wgmma(dtype: str, d: int, less: int) -> Iterator[Case]:
    """Several tiles of queries and keys; groups of heads, windows and a width that does not fill a tile."""
    yield Case("wgmma", dtype, qkv(1, 150, 170, 2, 1, d), {})
    yield Case("wgmma", dtype, qkv(1, 70, 170, 1, 1, d), {"causal": True, "bottom_right": True})
    yield Case("wgmma", dtype, qkv(1, 50, 300, 1, 1, d), {})  # fewer tiles of queries than of keys
    for attrs in ({}, {"causal": True, "bottom_right": True}):  # tiles of queries are cut, whose blocks are pairs
        yield Case("wgmma", dtype, qkv(1, 200, 1700, 1, 1, d), attrs)
    yield Case("wgmma", dtype, qkv(2, 150, 70, 1, 1, d - less), {"window": (70, 30)})


def groups() -> dict[str, list[Case]]:
    """The cases of each check."""
    found = {}
    for dtype in ("float64", "float32"):
        found[f"exact/{dtype}"] = list(exact(dtype))
        found[f"exact changed/{dtype}"] = [Case("exact", dtype, *call) for call in changed(*exact_widths(dtype))]
    for dtype in ("float32", "bfloat16"):
        found[f"mma/{dtype}"] = list(mma(dtype))
        both_widths = [*changed(24), *changed(96)]
        found[f"mma changed/{dtype}"] = [Case("mma", dtype, *call) for call in both_widths]
    widths = {"bfloat16": (256, 192, 128, 64), "float16": (192, 64)}
    for dtype, d in ((dtype, d) for dtype, ds in widths.items() for d in ds):
        found[f"wgmma {d}/{dtype}"] = list(wgmma(dtype, d, 24))
    return found


def checks() -> Iterator[Check]:
    for name, cases in groups().items():
        copied = name.startswith(("wgmma 64", "wgmma 128"))  # sums of dQ are written by the copy engine
        yield Check(f"attention/small/{name}", partial(_all, cases), sanitize=True, unwritten=copied)


def _all(cases: list[Case]) -> None:
    each((f"{c.inputs['Q'].shape} {c.attrs}", partial(both, c.inputs, c.dtype, True, **c.attrs)) for c in cases)
