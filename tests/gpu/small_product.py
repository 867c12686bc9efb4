"""GPU checks of our kernels for TF32 products: exact sums, errors against float64, NaN, eager and captured runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from minigraph import cuda
from minigraph.kernels.cuda.matmul import hopper_tf32, small_product
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.ops.matmul.gemm_epilogue import pack_mask
from minigraph.types import float32
from tests.gpu.check import LAYOUTS, Check, each, repeated, turned
from tests.support import opcheck

SHAPES = [
    (256, 1024, 1024), (1024, 1024, 256), (784, 1024, 256), (200, 332, 356), (1, 20, 4), (68, 132, 1028), (129, 20, 36),
    (64, 64, 32), (37, 24, 1024), (3000, 64, 64),
]  # fmt: skip
LARGER = [
    (768, 768, 2052), (200, 332, 356), (1, 20, 4), (700, 544, 1236), (129, 288, 36), (3000, 64, 96), (384, 512, 512),
]  # fmt: skip
WHOLE_WAVE = 1536, 4096, 260  # blocks of the most rows
KERNELS = {"small product": (small_product.NAME, SHAPES), "hopper product": (hopper_tf32.NAME, LARGER)}
ROUNDED = 6e-4  # ||difference|| / ||result|| of TF32
Arrays = dict[str, np.ndarray]


def checks() -> Iterator[Check]:
    for kernel, (title, trans) in itertools.product(KERNELS, LAYOUTS.items()):
        yield Check(f"{kernel}/matmul/{title}", partial(_matmuls, kernel, trans), product=True)
        yield Check(f"{kernel}/forward/{title}", partial(_forwards, kernel, trans), product=True)
        yield Check(f"{kernel}/backward/{title}", partial(_backwards, kernel, trans), product=True)
    for title, trans in LAYOUTS.items():
        yield Check(f"hopper product/accumulate/{title}", partial(_accumulates, trans), product=True)
        yield Check(f"hopper product/whole wave/{title}", partial(_whole_wave, trans), product=True)
    for kernel in KERNELS:
        yield Check(f"{kernel}/not a number", partial(_nan_stays, kernel), product=True)
        yield Check(f"{kernel}/few", partial(_few, kernel), sanitize=True)


@contextmanager
def _this_kernel(kernel: str) -> Iterator[None]:
    """TF32 is allowed, and where this kernel is offered nothing else is."""
    choose, columns, least, name = Binder.choose, small_product.COLUMNS, hopper_tf32.LEAST, KERNELS[kernel][0]

    def record(binder: Binder, variants: Mapping[str, Any]) -> None:
        choose(binder, {name: variants[name]} if name in variants else variants)

    Binder.choose, small_product.COLUMNS, hopper_tf32.LEAST = record, 0, 0
    cuda.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        Binder.choose, small_product.COLUMNS, hopper_tf32.LEAST = choose, columns, least
        cuda.set_float32_matmul_precision("highest")


def _run(kernel: str, op_type: str, arrays: Arrays, needs: tuple[str, ...], **attrs: Any) -> Arrays:
    """Outputs of one operator by this kernel; all runs of the plan must give the same bits."""
    typed = {s: a if a.dtype == np.uint8 else a.astype(float32) for s, a in arrays.items()}
    with _this_kernel(kernel):
        return repeated(op_type, typed, needs, **attrs)


def _whole(*shape: int, seed: int) -> np.ndarray:
    """Small whole numbers, of which every sum is exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def _normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(float32).astype(float)


def _compare(found: Arrays, exact: Arrays, whole: bool) -> None:
    for slot, wanted in exact.items():
        if whole or found[slot].dtype == np.uint8:
            wrong = int((found[slot] != wanted).sum())
            assert wrong == 0, f"{wrong} of {wanted.size} elements of {slot} are wrong"
            continue
        error = np.linalg.norm(found[slot] - wanted) / np.linalg.norm(wanted)
        assert error <= ROUNDED, f"{slot} errs by {error:.2g}"


def _cases(kernel: str, trans: tuple[bool, bool]) -> Iterator[tuple[tuple[int, int, int], bool]]:
    for (m, n, k), whole in itertools.product(KERNELS[kernel][1], (True, False)):
        if not (trans[0] and m % 4):  # refused, the library computes it
            yield (m, n, k), whole


def _matmuls(kernel: str, trans: tuple[bool, bool]) -> None:
    def one(shape: tuple[int, int, int], whole: bool) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        x, y = numbers(m, k, seed=1), numbers(k, n, seed=2)
        arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1])}
        found = _run(kernel, "matmul", arrays, ("Out",), trans_x=trans[0], trans_y=trans[1])
        _compare(found, {"Out": x @ y}, whole)

    each((f"{shape} {whole}", partial(one, shape, whole)) for shape, whole in _cases(kernel, trans))


def _forwards(kernel: str, trans: tuple[bool, bool]) -> None:
    def one(shape: tuple[int, int, int], whole: bool, activation: str, approximate: bool, keep: bool) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        x, y, bias = numbers(m, k, seed=1), numbers(k, n, seed=2), numbers(n, seed=3)
        arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1]), "Bias": bias}
        attrs = {"activation": activation, "approximate": approximate, "trans_x": trans[0], "trans_y": trans[1]}
        needs = ("Out", "ReserveSpace") if keep else ("Out",)
        found = _run(kernel, "fused_gemm_epilogue", arrays, needs, **attrs)
        z = x @ y + bias
        exact = {"none": z, "relu": np.maximum(z, 0)}
        if activation == "gelu":
            kept = {"ReserveSpace": z} if keep else {}
            _compare(found, kept, whole)
            reference = opcheck.OPS["gelu"].reference(z, approximate=approximate)
            return _compare(found, {"Out": reference}, False)
        _compare(found, {"Out": exact[activation]}, whole)
        if keep:
            assert np.array_equal(found["ReserveSpace"], pack_mask(found["Out"] > 0)), "the mask is not that of Out"

    forms = [("none", False, False), ("relu", False, False), ("relu", False, True)]
    forms += [("gelu", tanh, keep) for tanh in (False, True) for keep in (False, True)]
    each(
        (f"{shape} {whole} {form}", partial(one, shape, whole, *form))
        for shape, whole in _cases(kernel, trans) for form in forms
    )  # fmt: skip


def _backwards(kernel: str, trans: tuple[bool, bool]) -> None:
    """Of a layer whose forward product is m x n x k; DX's is m x k x n, DY's k x n x m."""

    def one(shape: tuple[int, int, int], whole: bool, kind: str) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        d, x, y, z = (numbers(*s, seed=i) for i, s in enumerate(((m, n), (m, k), (k, n), (m, k))))
        arrays = {"DOut": d, "X": turned(x, trans[0]), "Y": turned(y, trans[1])}
        dx, dy = d @ y.T, x.T @ d
        if kind == "relu_grad":
            arrays["ReserveSpace"] = pack_mask(turned(z, trans[0]) > 0)
            dx = dx * (z > 0)
        elif kind != "none":
            arrays["ReserveSpace"] = turned(z, trans[0])
            dx = dx * opcheck.OPS["gelu_grad"].reference(z, np.ones_like(z), approximate=kind == "tanh")
        attrs = {"activation_grad": "gelu_grad" if kind in ("erf", "tanh") else kind, "approximate": kind == "tanh"}
        attrs |= {"trans_x": trans[0], "trans_y": trans[1]}
        found = _run(kernel, "fused_gemm_epilogue_grad", arrays, ("DX", "DY", "DBias"), **attrs)
        _compare(found, {"DY": turned(dy, trans[1]), "DBias": d.sum(axis=0)}, whole)
        _compare(found, {"DX": turned(dx, trans[0])}, whole and kind in ("none", "relu_grad"))

    each(
        (f"{shape} {whole} {kind}", partial(one, shape, whole, kind))
        for shape, whole in _cases(kernel, trans) for kind in ("none", "relu_grad", "erf", "tanh")
    )  # fmt: skip


def _accumulates(trans: tuple[bool, bool]) -> None:
    """What the result is added to comes with the last loads of the product."""

    def one(shape: tuple[int, int, int], whole: bool) -> None:
        m, n, k = shape
        numbers = _whole if whole else _normal
        x, y, old = numbers(m, k, seed=1), numbers(k, n, seed=2), numbers(m, n, seed=3)
        arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1]), "Acc": old}
        found = _run("hopper product", "matmul_accumulate", arrays, ("Out",), trans_x=trans[0], trans_y=trans[1])
        _compare(found, {"Out": old + x @ y}, whole)

    cases = [*_cases("hopper product", trans), (WHOLE_WAVE, True), ((129, 288, 4), True)]
    each((f"{shape} {whole}", partial(one, shape, whole)) for shape, whole in cases if not (trans[0] and shape[0] % 4))


def _whole_wave(trans: tuple[bool, bool]) -> None:
    """Epilogues of the largest blocks: relu and its mask; below, its gradient and gelu's by what forward kept."""
    m, n, k = WHOLE_WAVE
    attrs = {"trans_x": trans[0], "trans_y": trans[1]}
    x, y, bias = (_whole(*s, seed=i) for i, s in enumerate(((m, k), (k, n), (n,))))
    arrays = {"X": turned(x, trans[0]), "Y": turned(y, trans[1]), "Bias": bias}
    needs = ("Out", "ReserveSpace")
    found = _run("hopper product", "fused_gemm_epilogue", arrays, needs, activation="relu", **attrs)
    out = np.maximum(x @ y + bias, 0)
    _compare(found, {"Out": out, "ReserveSpace": pack_mask(out > 0)}, True)

    d, x, y, z = (_whole(*s, seed=i) for i, s in enumerate(((m, k), (m, n), (n, k), (m, n))))
    arrays = {"DOut": d, "X": turned(x, trans[0]), "Y": turned(y, trans[1])}
    for kind in ("relu_grad", "gelu_grad"):
        slope = z > 0 if kind == "relu_grad" else opcheck.OPS[kind].reference(z, np.ones_like(z))
        arrays["ReserveSpace"] = pack_mask(turned(slope, trans[0])) if kind == "relu_grad" else turned(z, trans[0])
        needs = ("DX",)
        found = _run("hopper product", "fused_gemm_epilogue_grad", arrays, needs, activation_grad=kind, **attrs)
        _compare(found, {"DX": turned((d @ y.T) * slope, trans[0])}, kind == "relu_grad")


def _nan_stays(kernel: str) -> None:
    """A NaN in X, Y or Bias reaches Out, infinity stays what it is."""

    def one(where: str, activation: str, value: float) -> None:
        arrays = {"X": _whole(68, 132, seed=1) + 5, "Y": _whole(132, 84, seed=2) + 5, "Bias": _whole(84, seed=3)}
        arrays[where].reshape(-1)[0] = value
        out = _run(kernel, "fused_gemm_epilogue", arrays, ("Out",), activation=activation)["Out"]
        hit = np.zeros((68, 84), bool)
        hit[(0,) if where == "X" else (slice(None), 0)] = True
        assert np.array_equal(np.isnan(out) if np.isnan(value) else np.isposinf(out), hit)

    each(
        (f"{where} {activation} {value}", partial(one, where, activation, value))
        for where in ("X", "Y", "Bias") for activation in ("none", "relu", "gelu") for value in (np.nan, np.inf)
    )  # fmt: skip


def _few(kernel: str) -> None:
    """One tile and a bit, a sum shared by blocks, hardly anything; for compute-sanitizer."""
    for m, n, k in ((68, 84, 36), (64, 64, 516), (4, 20, 4)):
        d, x, y, bias = (_whole(*s, seed=i) for i, s in enumerate(((m, n), (m, k), (k, n), (n,))))
        arrays = {"X": x, "Y": y, "Bias": bias}
        z = x @ y + bias
        found = _run(kernel, "fused_gemm_epilogue", arrays, ("Out", "ReserveSpace"), activation="relu")
        _compare(found, {"Out": np.maximum(z, 0), "ReserveSpace": pack_mask(z > 0)}, True)
        arrays = {"DOut": d, "X": x, "Y": y, "ReserveSpace": pack_mask(x > 0)}
        found = _run(kernel, "fused_gemm_epilogue_grad", arrays, ("DX", "DY", "DBias"), activation_grad="relu_grad")
        _compare(found, {"DX": (d @ y.T) * (x > 0), "DY": x.T @ d, "DBias": d.sum(axis=0)}, True)
        if kernel == "hopper product":  # the other one adds nothing
            found = _run(kernel, "matmul_accumulate", {"X": x, "Y": y, "Acc": d}, ("Out",))
            _compare(found, {"Out": d + x @ y}, True)
