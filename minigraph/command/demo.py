"""`minigraph demo`: a small network, its rewrites, and that they change no result."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

from minigraph import nn, optimizer
from minigraph.compiler.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.program import Program, program_guard, unique_name
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static.input import data

STEPS, ROWS, WIDTH, CLASSES = 100, 64, 16, 4


def demo(options: Namespace) -> tuple[dict[str, Any], str]:
    """Train without and with rewrites from the same weights; the losses of both."""
    main, startup = Program("demo"), Program("demo startup")
    main.random_seed = startup.random_seed = 1
    with program_guard(main, startup), unique_name.guard():
        x, y = data("x", [None, WIDTH]), data("y", [None, 1], "int64")
        hidden = nn.functional.gelu(nn.Linear(WIDTH, 64)(x))
        loss = nn.functional.cross_entropy(nn.Linear(64, CLASSES)(hidden), y)
        optimizer.AdamW(0.01).minimize(loss)
    compiled = CompiledProgram(main, BuildStrategy.all(keep_history=True))
    rng = np.random.default_rng(0)
    points = rng.normal(size=(ROWS, WIDTH)).astype("float32")
    labels = np.argmax(points @ rng.normal(size=(WIDTH, CLASSES)), axis=1).reshape(ROWS, 1)
    losses = {}
    for name, program in ("without rewrites", main), ("with rewrites", compiled):
        executor, scope = Executor(), Scope()
        executor.run(startup, scope=scope)
        feed = {"x": points, "y": labels}
        values = [float(executor.run(program, feed, [loss], scope=scope)[0]) for _ in range(STEPS)]
        losses[name] = values
    shown = [f"{name:<18} loss {own[0]:.6f} -> {own[-1]:.6f} in {STEPS} steps" for name, own in losses.items()]
    before, after = len(main.ops), len(compiled.after.ops)
    text = [str(compiled.explain()), "", f"{before} operators before, {after} after", *shown]
    text += ["", "next: minigraph report your_script.py"]
    return {"operators": [before, after], "losses": losses}, "\n".join(text)
