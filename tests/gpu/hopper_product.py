"""GPU checks of the kernel for large products: exact sums, errors against float64, NaN, eager and captured runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.cuda.matmul import hopper_product, registry
from minigraph.kernels.cuda.matmul.product import Product
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.types import as_dtype, float32
from tests.gpu.check import LAYOUTS, Check, each, repeated, turned
from tests.support import opcheck

SHAPES = [  # m, n, k: one tile, parts of tiles at all edges, several tiles for a block
    (256, 256, 512), (128, 256, 520), (8, 8, 456), (264, 520, 1000), (712, 1096, 584), (136, 2056, 776),
    (520, 776, 1024), (264, 520, 2056), (2568, 1800, 520), (2568, 1800, 3080),
]  # fmt: skip
ODD = [(333, 264, 520), (264, 264, 777)]  # which sizes may be odd depends on how operands lie
ROUNDED = {"bfloat16": 3.3e-3, "float16": 4.1e-4}  # ||difference|| / ||result||: twice that of one rounding
Arrays = dict[str, np.ndarray]


def checks() -> Iterator[Check]:
    for dtype, (layout, trans) in itertools.product(ROUNDED, LAYOUTS.items()):
        title = f"{layout}/{dtype}"
        yield Check(f"large product/matmul/{title}", partial(_matmuls, trans, dtype), product=True)
        yield Check(f"large product/forward/{title}", partial(_forwards, trans, dtype), product=True)
        yield Check(f"large product/backward/{title}", partial(_backwards, trans, dtype), product=True)
    for dtype in ROUNDED:
        yield Check(f"large product/not a number/{dtype}", partial(_nan_stays, dtype), product=True)
    yield Check("large product/few", _few, sanitize=True, unwritten=True)


@contextmanager
def _this_kernel() -> Iterator[tuple[list[bool], list[int]]]:
    """Where this kernel is offered nothing else is; whether a GPU that has it was asked, and where it was taken."""
    choose, least, kernels, name = Binder.choose, hopper_product.LEAST, registry.KERNELS, hopper_product.NAME
    asked: list[bool] = []
    taken: list[int] = []

    def offered(binder: Binder, product: Product) -> bool:
        asked.append(binder.device.arch.startswith("sm_90"))
        return hopper_product.offered(binder, product)

    def record(binder: Binder, variants: Mapping[str, Any]) -> None:
        taken.extend([binder.step] * (name in variants))
        choose(binder, {name: variants[name]} if name in variants else variants)

    own = registry.row(hopper_product)
    watched = tuple(k._replace(offered=offered) if k == own else k for k in kernels)
    Binder.choose, hopper_product.LEAST, registry.KERNELS = record, 0, watched
    try:
        yield asked, taken
    finally:
        Binder.choose, hopper_product.LEAST, registry.KERNELS = choose, least, kernels


def _run(op_type: str, arrays: Arrays, dtype: str, needs: tuple[str, ...], **attrs: Any) -> Arrays:
    """Outputs of one operator, computed by this kernel; all runs of the plan must give the same bits."""
    typed = {s: a if a.dtype == float32 else a.astype(as_dtype(dtype)) for s, a in arrays.items()}
    with _this_kernel() as (asked, taken):
        found = repeated(op_type, typed, needs, **attrs)
    assert asked and (taken or not asked[0]), "another kernel was taken"
    return found


def _whole(*shape: int, seed: int) -> np.ndarray:
    """-1, 0 and 1, of which every sum is exact before it is rounded."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(float)


def _normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(as_dtype("bfloat16")).astype(float)


def _times(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Exact for whole numbers, and nearly for others: x and y have 8 bits."""
    return (x.astype(np.float32) @ y.astype(np.float32)).astype(float) if x.size > 1 << 20 else x @ y


def _compare(found: Arrays, exact: Arrays, whole: bool, dtype: str) -> None:
    for slot, wanted in exact.items():
        if whole:
            wrong = int((found[slot] != wanted.astype(found[slot].dtype)).sum())
            assert wrong == 0, f"{wrong} of {wanted.size} elements of {slot} are wrong"
            continue
        error = np.linalg.norm(found[slot].astype(float) - wanted) / np.linalg.norm(wanted)
        assert error <= (2e-6 if found[slot].dtype == float32 else ROUNDED[dtype]), f"{slot} errs by {error:.2g}"


def _cases(trans: tuple[bool, bool]) -> Iterator[tuple[tuple[int, int, int], bool]]:
    odd = [(m, n, k) for m, n, k in ODD if not (trans[0] and m % 8) and (k % 8 == 0 or trans == (True, False))]
    yield from itertools.product([*SHAPES, *odd], (True, False))


def _matmuls(trans: tuple[bool, bool], dtype: str) -> None:
    def one(shape: tuple[int, int, int], whole: bool) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        x, y = numbers(m, k, seed=1), numbers(k, n, seed=2)
        arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1])}
        found = _run("matmul", arrays, dtype, ("Out",), trans_x=trans[0], trans_y=trans[1])
        _compare(found, {"Out": _times(x, y)}, whole, dtype)

    each((f"{shape} {whole}", partial(one, shape, whole)) for shape, whole in _cases(trans))


def _forwards(trans: tuple[bool, bool], dtype: str) -> None:
    def one(shape: tuple[int, int, int], whole: bool, activation: str, approximate: bool, keep: bool) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        x, y, bias = numbers(m, k, seed=1), numbers(k, n, seed=2) / (1 if whole else 16), numbers(n, seed=3)
        arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1]), "Bias": bias}
        attrs = {"activation": activation, "approximate": approximate, "trans_x": trans[0], "trans_y": trans[1]}
        needs = ("Out", "ReserveSpace") if keep else ("Out",)
        found = _run("fused_gemm_epilogue", arrays, dtype, needs, **attrs)
        z = _times(x, y) + bias
        if activation == "none":
            return _compare(found, {"Out": z}, whole, dtype)
        _compare(found, {"ReserveSpace": z} if keep else {}, whole, dtype)
        _compare(found, {"Out": opcheck.OPS["gelu"].reference(z, approximate=approximate)}, False, dtype)

    forms = [("none", False, False), *(("gelu", tanh, keep) for tanh in (False, True) for keep in (False, True))]
    each(
        (f"{shape} {whole} {form}", partial(one, shape, whole, *form))
        for shape, whole in _cases(trans) if shape[0] < 2000 or not whole for form in forms
    )  # fmt: skip


def _backwards(trans: tuple[bool, bool], dtype: str) -> None:
    """Of a layer whose forward product is m x n x k; DX's is m x k x n, DY's k x n x m."""

    def one(shape: tuple[int, int, int], whole: bool, kind: str) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        d, x, y, z = (numbers(*s, seed=i) for i, s in enumerate(((m, n), (m, k), (k, n), (m, k))))
        arrays = {"DOut": d, "X": turned(x, trans[0]), "Y": turned(y, trans[1])}
        dx, dy = d @ y.T, x.T @ d
        if kind != "none":
            arrays["ReserveSpace"] = turned(z, trans[0])
            dx = dx * opcheck.OPS["gelu_grad"].reference(z, np.ones_like(z), approximate=kind == "tanh")
        attrs = {"activation_grad": "none" if kind == "none" else "gelu_grad", "approximate": kind == "tanh"}
        attrs |= {"trans_x": trans[0], "trans_y": trans[1]}
        found = _run("fused_gemm_epilogue_grad", arrays, dtype, ("DX", "DY", "DBias", "DXSums"), **attrs)
        _compare(found, {"DY": turned(dy, trans[1]), "DBias": d.sum(axis=0)}, whole, dtype)
        sums = turned(dx, trans[0]).sum(axis=0)
        _compare(found, {"DX": turned(dx, trans[0]), "DXSums": sums}, whole and kind == "none", dtype)

    each(
        (f"{shape} {whole} {kind}", partial(one, shape, whole, kind))
        for shape in ((712, 1096, 584), (264, 520, 1000), (456, 456, 8), (264, 3080, 520)) for whole in (True, False)
        for kind in ("none", "erf", "tanh")
    )  # fmt: skip


def _nan_stays(dtype: str) -> None:
    """A NaN in X, Y or Bias reaches Out, infinity stays what it is."""

    def one(where: str, activation: str, value: float) -> None:
        arrays = {"X": _whole(136, 520, seed=1) + 2, "Y": _whole(520, 264, seed=2) + 2, "Bias": _whole(264, seed=3)}
        arrays[where].reshape(-1)[0] = value
        out = _run("fused_gemm_epilogue", arrays, dtype, ("Out",), activation=activation)["Out"].astype(float)
        hit = np.zeros((136, 264), bool)
        hit[(0,) if where == "X" else (slice(None), 0)] = True
        assert np.array_equal(np.isnan(out) if np.isnan(value) else np.isposinf(out), hit)

    each(
        (f"{where} {activation} {value}", partial(one, where, activation, value))
        for where in ("X", "Y", "Bias") for activation in ("none", "gelu") for value in (np.nan, np.inf)
    )  # fmt: skip


def _few() -> None:
    """Two tiles and their edges; for compute-sanitizer."""
    m, n, k = 264, 264, 456
    x, y, bias = (_whole(*s, seed=i) for i, s in enumerate(((m, k), (k, n), (n,))))
    found = _run("fused_gemm_epilogue", {"X": x, "Y": y, "Bias": bias}, "bfloat16", ("Out",), activation="none")
    _compare(found, {"Out": x @ y + bias}, True, "bfloat16")
