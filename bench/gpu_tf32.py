"""Products of linear layers in float32 with TF32: forward with relu and its mask, and both gradients.

Arms: default is the fused operator, tuned the same with BuildStrategy.autotune, plain the product alone; torch is
PyTorch's product with what else is to be done as kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .gpu_timing import Case, CaseRows, GpuBench, Input, Vars

LAYERS = (
    (8192, 768, 768), (8192, 768, 3072), (8192, 3072, 768), (16384, 1024, 1024), (4096, 1024, 1024),
    (2048, 2048, 2048), (2048, 768, 768), (4096, 4096, 4096),
)  # fmt: skip
Shape = tuple[int, int, int]
Arrays = Mapping[str, Any]


def forward(shape: Shape, activation: str = "relu") -> Case:
    """relu(X @ W + b) and its mask, or the sum alone with "none"."""
    m, k, n = shape

    def op(g: Any, v: Vars) -> Sequence[Any]:
        needs = ["ReserveSpace"] if activation == "relu" else ()
        outputs = g.fused_gemm_epilogue(v["x"], v["w"], v["b"], activation=activation, needs=needs)
        return [v for v in outputs if v is not None]

    def exact(cupy: Any, a: Arrays) -> Sequence[Any]:
        z = a["x"] @ a["w"] + a["b"]
        return [cupy.maximum(z, 0) if activation == "relu" else z]

    def torch(torch: Any, t: Vars) -> Callable[[], Any]:
        return lambda: torch.relu(torch.addmm(t["b"], t["x"], t["w"]))

    inputs = {"x": Input((m, k), "float32"), "w": Input((k, n), "float32", scale=k**-0.5), "b": Input((n,), "float32")}
    return _case("forward, relu with mask", shape, inputs, op, lambda g, v: [g.matmul(v["x"], v["w"])], exact, torch)


def input_gradient(shape: Shape) -> Case:
    """Through the relu below, by its mask."""
    m, k, n = shape

    def op(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation_grad": "relu_grad", "needs": ["DX"]}
        return [g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], v["mask"], **attrs)[0]]

    def exact(cupy: Any, a: Arrays) -> Sequence[Any]:
        bits = cupy.unpackbits(a["mask"].reshape(-1), bitorder="little").reshape(m, -1)[:, :k]
        return [(a["d"] @ a["w"].T) * bits]

    def torch(torch: Any, t: Vars) -> Callable[[], Any]:
        return lambda: torch.ops.aten.threshold_backward(t["d"] @ t["w"].T, t["h"], 0)

    inputs = {"d": Input((m, n), "float32"), "h": Input((m, k), "float32"),
              "w": Input((k, n), "float32", scale=k**-0.5), "mask": Input((m, k // 8), "uint8", below=256)}  # fmt: skip
    plain = lambda g, v: [g.matmul_grad(v["h"], v["w"], v["d"], needs=["X_grad"])[0]]  # noqa: E731
    return _case("dX, relu's mask", shape, inputs, op, plain, exact, torch)


def weight_gradient(shape: Shape) -> Case:
    """With the bias gradient."""
    m, k, n = shape

    def op(g: Any, v: Vars) -> Sequence[Any]:
        return list(g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], needs=["DY", "DBias"])[1:])

    def torch(torch: Any, t: Vars) -> Callable[[], Any]:
        return lambda: (t["h"].T @ t["d"], t["d"].sum(0))

    inputs = {"d": Input((m, n), "float32"), "h": Input((m, k), "float32"), "w": Input((k, n), "float32")}
    exact = lambda cupy, a: [a["h"].T @ a["d"], a["d"].sum(axis=0)]  # noqa: E731
    plain = lambda g, v: [g.matmul_grad(v["h"], v["w"], v["d"], needs=["Y_grad"])[1]]  # noqa: E731
    return _case("dW, bias gradient", shape, inputs, op, plain, exact, torch)


def _case(
    title: str, shape: Shape, inputs: Mapping[str, Input], op: Any, plain: Any, exact: Any, torch: Any
) -> Case:
    def results(rows: CaseRows) -> Sequence[Any]:
        return exact(rows.gpu.cupy, {name: rows.device(name) for name in rows.arrays})

    def peer(framework: Any, tensors: Vars) -> Callable[[], Any]:
        framework.backends.cuda.matmul.allow_tf32 = True
        return torch(framework, tensors)

    m, k, n = shape
    return Case(
        f"{m} x {k} x {n}: {title}", inputs, {"default": op, "tuned": op, "plain": plain}, results, torch=peer,
        flops=2 * m * k * n, unchecked=frozenset({"plain"}), tuned=frozenset({"tuned"}), tf32=True,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for shape in LAYERS:
        yield forward(shape)
        yield input_gradient(shape)
        yield weight_gradient(shape)


BENCH = GpuBench("gpu_tf32", "Products of linear layers, float32 with TF32", lambda: list(cases()))
