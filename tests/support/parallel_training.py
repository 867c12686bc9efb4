"""A small network and its training on several ranks, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import minigraph as mg
from minigraph import static

_rng = np.random.default_rng(5)
BATCHES = [(_rng.normal(size=(8, 6)), _rng.integers(0, 3, (8, 1))) for _ in range(5)]


def batch(step: int, rows: int = 8) -> dict[str, np.ndarray]:
    x, y = BATCHES[step % len(BATCHES)]
    return {"x": x[:rows], "y": y[:rows]}


def net(clip: bool = True, rate: Any = None, optimizer: Any = lambda one: one) -> tuple[Any, Any, Any]:
    """(main, startup, loss): two layers and AdamW, which `optimizer` may wrap."""
    main, startup = static.Program("net"), static.Program("start")
    main.random_seed = startup.random_seed = 3
    before = mg.get_default_dtype()
    mg.set_default_dtype("float64")
    try:
        with static.program_guard(main, startup), mg.utils.unique_name.guard():
            x, y = static.data("x", [None, 6]), static.data("y", [None, 1], "int64")
            hidden = mg.nn.functional.relu(mg.nn.Linear(6, 8)(x))
            loss = mg.nn.functional.cross_entropy(mg.nn.Linear(8, 3)(hidden), y)
            rule = mg.nn.ClipGradByGlobalNorm(0.05) if clip else None
            rate = mg.optimizer.lr.ExponentialDecay(0.01, 0.9) if rate is None else rate
            optimizer(mg.optimizer.AdamW(rate, weight_decay=0.1, grad_clip=rule)).minimize(loss)
    finally:
        mg.set_default_dtype(before)
    return main, startup, loss


def trained(
    ranks: int, steps: int = 5, every: bool = False, rows: int = 8, **flags: Any
) -> tuple[list[float], dict[str, Any]]:
    """(losses, values of all persistables) of so many ranks in this process."""
    main, startup, loss = net()
    exe, scope = static.Executor(mg.CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    strategy = static.BuildStrategy.all(**flags) if every else static.BuildStrategy(**flags)
    program = static.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=static.cpu_places(ranks))
    losses = []
    for step in range(steps):
        (values,) = exe.run(program, feed=batch(step, rows), fetch_list=[loss], scope=scope)
        losses.append(float(np.mean(values)))
        for _, scheduler in main.lr_schedulers:
            scheduler.step()
    exe.close()
    return losses, main.state_dict(scope=scope)
