"""One training step of an MLP 784-1024-1024-10, batch 256, AdamW, float32, on CPU cores.

Work: three linear layers forward and backward, 2 * 256 * (784 * 1024 + 1024 * 1024 + 1024 * 10) * 3
less the gradient of the data = 2.4 GFLOP, and AdamW over 1.9 million parameters (30 MB read, 22 MB
written). Both frameworks get the same weights, the same batches, and fetch the loss after each step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .harness import CpuBench, ProcessArm

SIZES = (784, 1024, 1024, 10)
BATCH = 256
RATE, DECAY = 1e-3, 0.01
TOLERANCE = 1e-4  # on the loss of each of the first three steps


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        (rng.random((BATCH, SIZES[0]), np.float32), rng.integers(0, SIZES[-1], (BATCH, 1))) for _ in range(4)
    ]


def weights() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [
        (rng.normal(size=(a, b), scale=(2 / a) ** 0.5).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(SIZES)
    ]


def minigraph_arm(fused: bool, blas: bool = False) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A program with its passes or without; `blas` leaves all products to NumPy's library."""
    import minigraph as mg
    from minigraph.kernels.cpu import product

    if blas:
        product.faster = lambda *_: False
    mg.enable_static()
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [None, SIZES[0]])
        y = mg.static.data("y", [None, 1], "int64")
        layers = [mg.nn.Linear(a, b) for a, b in itertools.pairwise(SIZES)]
        h = x
        for layer in layers[:-1]:
            h = mg.nn.functional.relu(layer(h))
        loss = mg.nn.functional.cross_entropy(layers[-1](h), y)
        mg.optimizer.AdamW(RATE, weight_decay=DECAY).minimize(loss)
    exe = mg.static.Executor(mg.CPUPlace())
    exe.run(startup)
    for layer, (w, b) in zip(layers, weights(), strict=True):
        mg.static.global_scope().find_var(layer.weight.name).get_tensor().set(w)
        mg.static.global_scope().find_var(layer.bias.name).get_tensor().set(b)
    program = main
    if fused:
        strategy = mg.static.BuildStrategy(fuse_gemm_epilogue=True, fuse_all_optimizer_ops=True)
        program = mg.static.CompiledProgram(main, build_strategy=strategy)
    feeds = itertools.cycle([{"x": images, "y": labels} for images, labels in batches()])

    def step() -> float:
        return float(exe.run(program, feed=next(feeds), fetch_list=[loss])[0])

    return lambda: [step() for _ in range(3)], step


def torch_arm(fused_optimizer: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import torch

    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(SIZES)]
    for layer, (w, b) in zip(layers, weights(), strict=True):
        layer.weight.data = torch.from_numpy(w.T.copy())
        layer.bias.data = torch.from_numpy(b)
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY, fused=fused_optimizer)
    feeds = itertools.cycle([(torch.from_numpy(x), torch.from_numpy(y)[:, 0]) for x, y in batches()])

    def step() -> float:
        x, y = next(feeds)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda: [step() for _ in range(3)], step


def agree(reference: list[float], other: list[float]) -> str | None:
    worst = max(abs(a - b) for a, b in zip(reference, other, strict=True))
    return None if worst <= TOLERANCE else f"losses {reference} and {other} differ by {worst:.1e}"


BENCH = CpuBench(
    "mlp_cpu",
    "MLP 784-1024-1024-10, batch 256, AdamW, float32, one step",
    {
        "minigraph": ProcessArm(lambda: minigraph_arm(fused=False)),
        "minigraph fused": ProcessArm(lambda: minigraph_arm(fused=True)),
        "minigraph, BLAS": ProcessArm(lambda: minigraph_arm(fused=True, blas=True)),
        "torch": ProcessArm(lambda: torch_arm(fused_optimizer=False), "torch"),
        "torch fused AdamW": ProcessArm(lambda: torch_arm(fused_optimizer=True), "torch"),
    },
    agree,
)
