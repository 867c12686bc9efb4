"""Chains of elementwise operators, around normalisations and softmax too, as one kernel on a GPU.

Arms: fused is the program after fuse_elementwise, unfused the same operators one by one, torch is PyTorch's
torch.compile where it works (Triton needs a C compiler), else eager; jax is the formula in float32, jitted. Bytes are
those that the whole chain must read and write at the least; the floor is their time at the bandwidth of a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .gpu_kernels import EPSILON, _norm_grad, softmax64
from .gpu_timing import Case, CaseRows, GpuBench, Input, Vars

BATCH, WIDTH = 8192, 1024
SCORES = (256, 2, 128, 1024)
DTYPES = ("bfloat16", "float32")


def compiled(torch: Any, function: Callable[..., Any], *tensors: Any) -> Callable[[], Any]:
    """`function` by torch.compile, tried once; the eager one where that does not work."""
    try:
        made = torch.compile(function)
        made(*tensors)
    except Exception:  # no compiler on this machine: the row is then PyTorch's eager one
        made = function
    return lambda: made(*tensors)


def chain(
    title: str, dtype: str, inputs: dict[str, Input], program: Callable[[Any, Vars], Sequence[Any]],
    exact: Callable[[CaseRows], Sequence[Any]], written: int, torch: Callable[..., Any] | None = None,
    jax: Callable[..., Sequence[Any]] | None = None,
) -> Case:  # fmt: skip
    """`written` bytes are written, all inputs are read."""
    names = list(inputs)
    peer = None
    if torch is not None:
        def peer(module: Any, t: Vars) -> Callable[[], Any]:
            return compiled(module, lambda *a: torch(module, *a), *(t[name] for name in names))

    nbytes = written + sum(i.nbytes for i in inputs.values())
    return Case(
        f"{title} {dtype}", inputs, {"fused": program, "unfused": program}, exact, peer, nbytes, jax=jax,
        rewritten=frozenset({"fused"}), flag="fuse_elementwise",
    )  # fmt: skip


def size_of(dtype: str) -> int:
    return 2 if "16" in dtype else 4


def cases() -> Sequence[Case]:
    return [case for dtype in DTYPES for case in (*pointwise(dtype), *normalised(dtype), *attention(dtype))]


def pointwise(dtype: str) -> Iterator[Case]:
    x, size = Input((BATCH, 4 * WIDTH), dtype), BATCH * 4 * WIDTH * size_of(dtype)

    def swiglu(g: Any, v: Vars) -> Sequence[Any]:
        return [g.elementwise_mul(g.elementwise_mul(v["x"], g.sigmoid(v["x"])), v["y"])]

    def gated(rows: CaseRows) -> Sequence[Any]:
        a = rows.of("x")
        return [a / (1 + np.exp(-a)) * rows.of("y")]

    yield chain(
        "x * sigmoid(x) * y", dtype, {"x": x, "y": x}, swiglu, gated, size,
        lambda torch, x, y: x * torch.sigmoid(x) * y,
    )  # fmt: skip

    def deep(g: Any, v: Vars) -> Sequence[Any]:
        a = g.gelu(g.elementwise_add(v["x"], v["b"]), approximate=True)
        return [g.elementwise_add(g.scale(g.tanh(a), scale=0.5), v["y"])]

    def deep64(rows: CaseRows) -> Sequence[Any]:
        z = rows.of("x") + rows.whole("b")
        a = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        return [np.tanh(a) * 0.5 + rows.of("y")]

    yield chain(
        "tanh(gelu(x + b)) / 2 + y", dtype, {"x": x, "y": x, "b": Input((4 * WIDTH,), dtype)}, deep, deep64, size,
        lambda torch, x, y, b: torch.tanh(torch.nn.functional.gelu(x + b, approximate="tanh")) * 0.5 + y,
    )  # fmt: skip


def normalised(dtype: str) -> Iterator[Case]:
    x, vector, size = Input((BATCH, WIDTH), dtype), Input((WIDTH,), dtype), BATCH * WIDTH * size_of(dtype)

    def residual(g: Any, v: Vars) -> Sequence[Any]:
        s = g.elementwise_add(g.elementwise_add(v["x"], v["b"]), v["r"])
        return [g.layer_norm(s, v["scale"], v["bias"])[0], s]

    def residual64(rows: CaseRows) -> Sequence[Any]:
        s = rows.of("x") + rows.whole("b") + rows.of("r")
        n = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + EPSILON)
        return [n * rows.whole("scale") + rows.whole("bias"), s]

    def torch_residual(torch: Any, x: Any, r: Any, b: Any, scale: Any, bias: Any) -> Any:
        s = x + b + r
        return torch.nn.functional.layer_norm(s, (WIDTH,), scale, bias), s

    yield chain(
        "bias, residual, layer norm", dtype, {"x": x, "r": x, "b": vector, "scale": vector, "bias": vector},
        residual, residual64, 2 * size, torch_residual,
    )  # fmt: skip

    def dropped(g: Any, v: Vars) -> Sequence[Any]:
        return [g.elementwise_add(g.dropout(v["x"], p=0.1)[0], v["r"])]

    yield chain("dropout, residual", dtype, {"x": x, "r": x}, dropped, lambda rows: [None], 3 * size // 2)

    statistics, zeros = Input((BATCH,), "float32"), Input((BATCH,), "float32", scale=0.0)

    def gradient(g: Any, v: Vars) -> Sequence[Any]:
        X_grad, *sums = g.layer_norm_grad(
            v["x"], v["mean"], v["variance"], v["d"], v["scale"], v["bias"], needs=["X_grad", "Scale_grad", "Bias_grad"]
        )
        return [g.sum([v["r"], X_grad]), *sums]

    def gradient64(rows: CaseRows) -> Sequence[Any]:
        X_grad, *sums = _norm_grad(rows)
        return [X_grad + rows.device("r"), *sums]

    yield chain(
        "layer norm gradient, residual", dtype,
        {"x": x, "d": x, "r": x, "scale": vector, "bias": vector, "mean": statistics, "variance": zeros},
        gradient, gradient64, size,
    )  # fmt: skip


def attention(dtype: str) -> Iterator[Case]:
    scores, mask = Input(SCORES, dtype), Input((SCORES[0], 1, 1, SCORES[3]), dtype)

    def masked(g: Any, v: Vars) -> Sequence[Any]:
        return [g.softmax(g.elementwise_add(g.scale(v["x"], scale=0.125), v["mask"]))]

    yield chain(
        "softmax with scale and mask", dtype, {"x": scores, "mask": mask}, masked,
        lambda rows: [softmax64(rows.of("x") * 0.125 + rows.of("mask"))], math.prod(SCORES) * size_of(dtype),
        lambda torch, x, mask: torch.softmax(x * 0.125 + mask, -1),
    )  # fmt: skip


BENCH = GpuBench("gpu_fusion", "Fused chains of elementwise operators", cases)
