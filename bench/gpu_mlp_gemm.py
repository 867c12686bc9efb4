"""The products of one step of an MLP 784-1024-1024-10, batch 256, float32 with TF32, each inside a CUDA graph.

Arms: tuned is the fused operator with BuildStrategy.autotune, default the same without; plain and plain tuned
are the product alone. All arrays of a step fit in the L2 cache, in training too, so nothing evicts them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .gpu_timing import Case, GpuBench, Input, Rows, Vars

BATCH = 256
LAYERS = ((784, 1024, "relu"), (1024, 1024, "relu"), (1024, 10, "none"))
REPEATS = 40
PLAIN = frozenset({"plain", "plain tuned"})


def forward(number: int, inner: int, columns: int, activation: str) -> Case:
    def op(g: Any, v: Vars) -> Sequence[Any]:
        needs = ["ReserveSpace"] if activation != "none" else ()
        outputs = g.fused_gemm_epilogue(v["x"], v["w"], v["b"], activation=activation, needs=needs)
        return [v for v in outputs if v is not None]

    def exact(cupy: Any, a: Mapping[str, Any]) -> Sequence[Any]:
        z = a["x"] @ a["w"] + a["b"]
        return [cupy.maximum(z, 0) if activation == "relu" else z]

    inputs = {"x": Input((BATCH, inner), "float32"), "w": Input((inner, columns), "float32", scale=inner**-0.5),
              "b": Input((columns,), "float32")}  # fmt: skip
    title = f"forward {number}: {BATCH} x {inner} x {columns}, {activation}"
    return _case(title, inputs, op, lambda g, v: [g.matmul(v["x"], v["w"])], exact, inner * columns)


def input_gradient(number: int, inner: int, columns: int) -> Case:
    """Through the relu below, by its mask."""

    def op(g: Any, v: Vars) -> Sequence[Any]:
        attrs = {"activation_grad": "relu_grad", "needs": ["DX"]}
        return [g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], v["mask"], **attrs)[0]]

    def exact(cupy: Any, a: Mapping[str, Any]) -> Sequence[Any]:
        bits = cupy.unpackbits(a["mask"].reshape(-1), bitorder="little").reshape(BATCH, -1)[:, :inner]
        return [(a["d"] @ a["w"].T) * bits]

    inputs = {"d": Input((BATCH, columns), "float32"), "h": Input((BATCH, inner), "float32"),
              "w": Input((inner, columns), "float32", scale=inner**-0.5),
              "mask": Input((BATCH, inner // 8), "uint8", below=256)}  # fmt: skip
    return _case(
        f"dX {number}: {BATCH} x {columns} x {inner}, relu's mask", inputs, op,
        lambda g, v: [g.matmul_grad(v["h"], v["w"], v["d"], needs=["X_grad"])[0]], exact, inner * columns,
    )  # fmt: skip


def weight_gradient(number: int, inner: int, columns: int) -> Case:
    def op(g: Any, v: Vars) -> Sequence[Any]:
        return list(g.fused_gemm_epilogue_grad(v["d"], v["h"], v["w"], needs=["DY", "DBias"])[1:])

    inputs = {"d": Input((BATCH, columns), "float32"), "h": Input((BATCH, inner), "float32"),
              "w": Input((inner, columns), "float32")}  # fmt: skip
    return _case(
        f"dW {number}: {inner} x {BATCH} x {columns}, bias gradient", inputs, op,
        lambda g, v: [g.matmul_grad(v["h"], v["w"], v["d"], needs=["Y_grad"])[1]],
        lambda cupy, a: [a["h"].T @ a["d"], a["d"].sum(axis=0)], inner * columns,
    )  # fmt: skip


def _case(title: str, inputs: Mapping[str, Input], op: Any, plain: Any, exact: Any, size: int) -> Case:
    def results(rows: Rows) -> Sequence[Any]:
        return exact(rows.gpu.cupy, {name: rows.device(name) for name in rows.arrays})

    return Case(
        title, inputs, {"tuned": op, "default": op, "plain": plain, "plain tuned": plain}, results,
        flops=2 * BATCH * size, unchecked=PLAIN, tuned=frozenset({"tuned", "plain tuned"}), tf32=True,
        captured=REPEATS,
    )  # fmt: skip


def cases() -> Iterator[Case]:
    for number, (inner, columns, activation) in enumerate(LAYERS, 1):
        yield forward(number, inner, columns, activation)
    for number, (inner, columns, _) in reversed(list(enumerate(LAYERS, 1))):
        if number > 1:
            yield input_gradient(number, inner, columns)
        yield weight_gradient(number, inner, columns)


BENCH = GpuBench(
    "gpu_mlp_gemm", "Products of an MLP 784-1024-1024-10, batch 256, TF32", lambda: list(cases()), ()
)
