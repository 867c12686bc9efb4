"""Products of linear layers with gelu: kernels of our own against the library's ways, 16 bits and TF32.

Arms: default chooses by itself, ours is the kernel for large products or that for TF32 whatever the size, library is
cuBLASLt with or without kernels after its product, plain the product alone. forward keeps what backward needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .gpu_gemm import erf_gelu, tanh_gelu, tanh_slope
from .gpu_timing import Case, CaseRows, GpuBench, Input, Vars

Shape = tuple[int, int, int]  # rows, columns where gelu is, length of the sum
LARGE = (8192, 4096, 4096)  # the MLP of gpu_steps
FEED_FORWARD = ((8192, 4096, 1024), (8192, 3072, 768))
GPT = ((16384, 3072, 768), (32768, 2048, 512))
HALVES: tuple[Shape, ...] = (
    LARGE, *FEED_FORWARD, (16384, 4096, 1024), (16384, 3072, 768), (4096, 4096, 1024), (2048, 4096, 1024),
    (4096, 3072, 768), (2048, 3072, 768), (2048, 4096, 4096), (32768, 2048, 512),
)  # fmt: skip
TF32: tuple[Shape, ...] = (LARGE, *FEED_FORWARD, (2048, 3072, 768), (1024, 3072, 768), (1024, 1024, 1024))
KERNELS = {"bfloat16": "hopper_product", "float32": "hopper_tf32"}


def gelu(z: np.ndarray, approximate: bool) -> np.ndarray:
    return tanh_gelu(z) if approximate else erf_gelu(z)


def slope(z: np.ndarray, approximate: bool) -> np.ndarray:
    if approximate:
        return tanh_slope(np, z)
    return erf_gelu(z) / z + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)  # no z is 0


def forward(shape: Shape, dtype: str, approximate: bool) -> Case:
    """gelu(X @ W + b), and what it is of."""
    m, n, k = shape

    def op(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation": "gelu", "approximate": approximate, "needs": ["Out", "ReserveSpace"]}
        return list(g.fused_gemm_epilogue(v["x"], v["w"], v["b"], **attrs))

    def exact(rows: CaseRows) -> Sequence[Any]:
        z = rows.of("x") @ rows.whole("w") + rows.whole("b")
        return [gelu(z, approximate), z]

    def torch(framework: Any, t: Vars) -> Callable[[], Any]:
        form = "tanh" if approximate else "none"
        return lambda: framework.nn.functional.gelu(framework.addmm(t["b"], t["x"], t["w"]), approximate=form)

    inputs = {"x": Input((m, k), dtype), "w": Input((k, n), dtype, scale=k**-0.5), "b": Input((n,), dtype)}
    plain = lambda g, v: [g.matmul(v["x"], v["w"])]  # noqa: E731
    return _case("forward", shape, dtype, approximate, inputs, op, plain, exact, torch)


def input_gradient(shape: Shape, dtype: str, approximate: bool) -> Case:
    """(D @ W^T) * the slope of the gelu before this layer."""
    m, n, k = shape

    def op(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation_grad": "gelu_grad", "approximate": approximate, "needs": ["DX"]}
        return [g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], v["z"], **attrs)[0]]

    def exact(rows: CaseRows) -> Sequence[Any]:
        return [(rows.of("d") @ rows.whole("w").T) * slope(rows.of("z"), approximate)]

    def torch(framework: Any, t: Vars) -> Callable[[], Any]:
        form = "tanh" if approximate else "none"
        return lambda: framework.ops.aten.gelu_backward(t["d"] @ t["w"].T, t["z"], approximate=form)

    inputs = {"d": Input((m, k), dtype), "h": Input((m, n), dtype), "w": Input((n, k), dtype, scale=k**-0.5),
              "z": Input((m, n), dtype)}  # fmt: skip
    plain = lambda g, v: [g.matmul_grad(v["h"], v["w"], v["d"], needs=["X_grad"])[0]]  # noqa: E731
    return _case("slope", shape, dtype, approximate, inputs, op, plain, exact, torch)


def with_sums(shape: Shape, dtype: str) -> Case:
    """The same in the tanh form with the sums of its columns, the gradient of the bias before this layer."""
    case = input_gradient(shape, dtype, True)

    def op(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation_grad": "gelu_grad", "approximate": True, "needs": ["DX", "DXSums"]}
        found = g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], v["z"], **attrs)
        return [output for output in found if output is not None]

    def exact(rows: CaseRows) -> Sequence[Any]:
        found = (rows.device("d") @ rows.device("w").T) * tanh_slope(rows.gpu.cupy, rows.device("z"))
        return [found, found.sum(axis=0)]

    programs = {arm: op for arm in case.programs if arm != "plain"} | {"plain": case.programs["plain"]}
    title = case.title.replace("slope", "slope and sums")
    return replace(case, title=title, programs=programs, exact=exact, torch=None)


def _case(
    what: str, shape: Shape, dtype: str, approximate: bool, inputs: dict[str, Input], op: Any, plain: Any, exact: Any,
    torch: Any,
) -> Case:  # fmt: skip
    def peer(framework: Any, tensors: Vars) -> Callable[[], Any]:
        framework.backends.cuda.matmul.allow_tf32 = True
        return torch(framework, tensors)

    kind = f"{'tf32' if dtype == 'float32' else 'bf16'} {'tanh' if approximate else 'erf'}"
    return Case(
        f"{kind} {what} {' x '.join(map(str, shape))}", inputs,
        {"default": op, "ours": op, "library": op, "plain": plain}, exact, peer, flops=2 * math.prod(shape),
        unchecked=frozenset({"plain"}), kernels={"ours": (KERNELS[dtype],), "library": (), "plain": ()},
        tf32=dtype == "float32",
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """The erf form where it may win, the tanh form at the sizes of the MLP and of feed-forward blocks."""
    for make in (forward, input_gradient):
        for dtype, shapes in (("bfloat16", HALVES), ("float32", TF32)):
            yield from (make(shape, dtype, False) for shape in shapes)
            blocks = (*FEED_FORWARD, *GPT) if dtype == "bfloat16" else FEED_FORWARD[:1]
            yield from (make(shape, dtype, True) for shape in (LARGE, *blocks))
    yield from (with_sums(shape, "bfloat16") for shape in (LARGE, *FEED_FORWARD, GPT[0]))


BENCH = GpuBench("gpu_gelu", "Products of linear layers with gelu, rows x columns x sum", lambda: list(cases()))
