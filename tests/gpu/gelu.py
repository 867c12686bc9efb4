"""GPU checks of gelu in kernels for large products: every 16-bit number; no less exact than step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from bench import product_kernels
from minigraph import cuda
from minigraph.kernels.cuda.matmul import registry
from minigraph.kernels.cuda.matmul.product import Product
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.types import as_dtype, bfloat16
from tests.gpu.check import STEP, Arrays, Check, repeated
from tests.support import opcheck

KERNELS = {"bfloat16": "hopper_product", "float16": "hopper_product", "float32": "hopper_tf32"}
FORMS = {"erf": False, "tanh": True}
SHAPES = (712, 1088, 584), (256, 512, 3080)  # m, n, k
SIDE = 256  # of the square of all 16-bit numbers
LARGEST = 2.0**60
ARITHMETIC = 4e-7  # what float32 may be off by, besides rounding, for 1 and less
TANH_SLOPE = 8e-6  # and the tanh form's slope, which magnifies it


def checks() -> Iterator[Check]:
    for dtype, form in itertools.product(KERNELS, FORMS):
        yield Check(f"gelu/step by step/{form}/{dtype}", partial(_step_by_step, dtype, FORMS[form]), product=True)
        if dtype != "float32":
            yield Check(f"gelu/every number/{form}/{dtype}", partial(_every_number, dtype, FORMS[form]), product=True)


@contextmanager
def _ours(dtype: str) -> Iterator[None]:
    """Products are those of our kernel, wherever the GPU has it; float32 may round to TF32."""
    offers: list[bool] = []
    bound: list[Product] = []
    cuda.set_float32_matmul_precision("high")
    try:
        with product_kernels.only((KERNELS[dtype],)):
            (kernel,) = registry.KERNELS

            def offered(binder: Binder, product: Product) -> bool:
                offers.append(kernel.offered(binder, product))
                return offers[-1]

            def bind(binder: Binder, product: Product) -> None:
                bound.append(product)
                kernel.bind(binder, product)

            registry.KERNELS = (kernel._replace(offered=offered, bind=bind),)
            yield
    finally:
        cuda.set_float32_matmul_precision("highest")
    assert bound or not any(offers), "another kernel was taken"


def _layer(arrays: Arrays, dtype: str, approximate: bool) -> Arrays:
    """Out and ReserveSpace of a layer with gelu, in one kernel."""
    with _ours(dtype):
        needs = "Out", "ReserveSpace"
        return repeated("fused_gemm_epilogue", arrays, needs, activation="gelu", approximate=approximate)


def _gradient(arrays: Arrays, dtype: str, approximate: bool) -> np.ndarray:
    """DX with gelu's slope, in one kernel."""
    with _ours(dtype):
        attrs = {"activation_grad": "gelu_grad", "approximate": approximate}
        return repeated("fused_gemm_epilogue_grad", arrays, ("DX",), **attrs)["DX"]


def _gelu(z: np.ndarray, approximate: bool) -> np.ndarray:
    return opcheck.OPS["gelu"].reference(z, approximate=approximate)


def _slope(z: np.ndarray, approximate: bool) -> np.ndarray:
    return opcheck.OPS["gelu_grad"].reference(z, np.ones_like(z), approximate=approximate)


def _step_by_step(dtype: str, approximate: bool) -> None:
    """The error against float64 is at most twice that of an operator for each step, in the mean and at its largest."""
    for m, n, k in SHAPES:
        rng = np.random.default_rng([m, n, k])
        x, w, b, d, z = (
            (rng.normal(size=s) * scale).astype(bfloat16).astype(as_dtype(dtype))  # 8 bits, which all types hold
            for s, scale in (((m, k), 1), ((k, n), 2 * k**-0.5), ((n,), 1), ((m, k), 1), ((m, n), 2))
        )
        cuda.set_float32_matmul_precision("high")
        try:
            before = repeated("matmul", {"X": x, "Y": w}, ("Out",))["Out"]
            before = repeated("elementwise_add", {"X": before, "Y": b}, ("Out",))["Out"]
            out = repeated("gelu", {"X": before}, ("Out",), approximate=approximate)["Out"]
            dx = repeated("matmul", {"X": d, "Y": w}, ("Out",))["Out"]
            dx = repeated("gelu_grad", {"X": z, "Out_grad": dx}, ("X_grad",), approximate=approximate)["X_grad"]
        finally:
            cuda.set_float32_matmul_precision("highest")
        layer = _layer({"X": x, "Y": w, "Bias": b}, dtype, approximate)
        gradient = _gradient({"DOut": d, "X": z, "Y": w.T.copy(), "ReserveSpace": z}, dtype, approximate)
        wide_x, wide_w, wide_b, wide_d, wide_z = (a.astype(float) for a in (x, w, b, d, z))
        exact = wide_x @ wide_w + wide_b
        _no_less_exact(layer["ReserveSpace"], before, exact)
        _no_less_exact(layer["Out"], out, _gelu(exact, approximate))
        _no_less_exact(gradient, dx, (wide_d @ wide_w) * _slope(wide_z, approximate))


def _no_less_exact(found: np.ndarray, unfused: np.ndarray, exact: np.ndarray) -> None:
    ours, theirs = (np.abs(a.astype(float) - exact) for a in (found, unfused))
    assert np.linalg.norm(ours) <= 2 * np.linalg.norm(theirs), "the error is more than twice that of steps one by one"
    assert ours.max() <= 2 * theirs.max(), f"{ours.max():.3g} is more than twice {theirs.max():.3g}"


def _every_number(dtype: str, approximate: bool) -> None:
    """gelu and its slope of all 16-bit numbers whose square float32 holds: one rounding away from float64."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(as_dtype(dtype)).reshape(SIDE, SIDE).copy()
    with np.errstate(invalid="ignore"):  # NaNs are among them
        sizes = np.abs(numbers.astype(float))
        numbers[~((sizes > 1 / LARGEST) & (sizes < LARGEST))] = 0
    exact = numbers.astype(float)
    x, y = np.zeros((SIDE, 2 * SIDE), numbers.dtype), np.zeros((2 * SIDE, SIDE), numbers.dtype)
    x[:, :SIDE], y[:SIDE] = np.eye(SIDE), numbers  # row i of Y comes out as row i
    layer = _layer({"X": x, "Y": y, "Bias": np.zeros(SIDE, numbers.dtype)}, dtype, approximate)
    assert np.array_equal(layer["ReserveSpace"], numbers)
    _rounded_once(layer["Out"], _gelu(exact, approximate), np.maximum(np.abs(exact), 1) * ARITHMETIC)
    first = np.zeros((SIDE, 2 * SIDE), numbers.dtype)
    first[:, 0] = 1  # DOut @ Y^T is 1 everywhere
    dx = _gradient({"DOut": first, "X": numbers, "Y": first, "ReserveSpace": numbers}, dtype, approximate)
    besides = TANH_SLOPE if approximate else ARITHMETIC
    _rounded_once(dx, _slope(exact, approximate), np.full(exact.shape, besides))


def _rounded_once(found: np.ndarray, exact: np.ndarray, besides: np.ndarray) -> None:
    steps = STEP[found.dtype] * 2.0 ** (np.frexp(exact)[1] - 1)  # from one number to the next
    allowed = steps / 2 + besides
    wrong = np.abs(found.astype(float) - exact) > allowed
    assert not wrong.any() and np.isfinite(found.astype(float)).all(), (
        f"{wrong.sum()} are off: {found[wrong][:4]} instead of {exact[wrong][:4]}"
    )
