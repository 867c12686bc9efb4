"""AdamW over 1.9 million parameters in six tensors, float32, on CPU cores.

Each arm updates the parameters of an MLP 784-1024-1024-10 with gradients that stay: 4 arrays read and 3
written, 28 bytes for each parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import CpuBench, ProcessArm

SHAPES = ((784, 1024), (1024,), (1024, 1024), (1024,), (1024, 10), (10,))
RATE, DECAY, TOLERANCE = 1e-3, 0.01, 1e-6


def values() -> list[tuple[np.ndarray, np.ndarray]]:
    """(parameter, gradient) of each tensor."""
    rng = np.random.default_rng(3)
    return [tuple(rng.normal(size=s).astype(np.float32) for _ in range(2)) for s in SHAPES]


def minigraph_arm(flag: str | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import minigraph as mg
    from minigraph.program.builder import Builder

    program, scope, exe = mg.static.Program("updates"), mg.static.Scope(), mg.static.Executor(mg.CPUPlace())
    block = program.global_block()
    g = Builder(block)

    def variable(name: str, array: np.ndarray) -> Any:
        scope.write(name, array)
        return block.create_var(name, array.shape, array.dtype, persistable=True)

    rate = variable("rate", np.array([RATE], np.float32))
    for i, (p, grad) in enumerate(values()):
        states = {s: variable(f"{s}{i}", np.full_like(p, 0)) for s in ("Moment1", "Moment2")}  # written, as by startup
        states |= {s: variable(f"{s}{i}", np.array([b])) for s, b in (("Beta1Pow", 0.9), ("Beta2Pow", 0.999))}
        param = variable(f"p{i}", p)
        out = {"ParamOut": param, **{f"{s}Out": v for s, v in states.items()}}
        g.adamw(param, variable(f"g{i}", grad), rate, **states, coeff=DECAY, out=out)
    strategy = mg.static.BuildStrategy(**({flag: True} if flag else {}))
    compiled = mg.static.CompiledProgram(program, build_strategy=strategy)

    def step() -> None:
        exe.run(compiled, {}, [], scope=scope)

    def check() -> list[float]:
        step()
        return [float(np.abs(scope.read(f"p{i}").astype(float)).sum()) for i in range(len(SHAPES))]

    return check, step


def torch_arm(**how: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import torch

    params = []
    for p, grad in values():
        params.append(torch.nn.Parameter(torch.from_numpy(p)))
        params[-1].grad = torch.from_numpy(grad)
    optimizer = torch.optim.AdamW(params, lr=RATE, weight_decay=DECAY, **how)

    def check() -> list[float]:
        optimizer.step()
        return [float(p.detach().double().abs().sum()) for p in params]

    return check, optimizer.step


def agree(reference: list[float], other: list[float]) -> str | None:
    """What is wrong, or None: sums of absolute values after the first step."""
    apart = max(abs(a - b) / abs(a) for a, b in zip(reference, other, strict=True))
    return None if apart < TOLERANCE else f"parameters differ by {apart:.2g} after one step"


BENCH = CpuBench(
    "optimizer_cpu", "AdamW over 1.9 million parameters, float32, one step",
    {
        "fused": ProcessArm(lambda: minigraph_arm("fuse_all_optimizer_ops")),
        "for-loop": ProcessArm(lambda: minigraph_arm(None)),
        "foreach": ProcessArm(lambda: minigraph_arm("foreach_optimizer_ops")),
        "torch fused": ProcessArm(lambda: torch_arm(fused=True), "torch"),
        "torch foreach": ProcessArm(lambda: torch_arm(foreach=True), "torch"),
        "torch for-loop": ProcessArm(lambda: torch_arm(foreach=False, fused=False), "torch"),
    },
    agree,
)  # fmt: skip
