"""GPU checks of checkpoints: a training with a schedule and dropout goes on with the same bits, also as a graph."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import static
from minigraph.errors import require
from minigraph.optimizer import Adam, AdamW, Lamb
from minigraph.program import unique_name
from tests.gpu.check import Check, GpuExecutor
from tests.support.resumed_training import Training

OPTIMIZERS = {"Adam": Adam, "AdamW": AdamW, "Lamb": Lamb}


def checks() -> Iterator[Check]:
    for name in OPTIMIZERS:
        for passes in (False, True):
            yield Check(f"checkpoint/resume/{name}/{'passes' if passes else 'plain'}", partial(_resumed, name, passes))
    yield Check("checkpoint/layout", _layout)


def _training(name: str, passes: bool) -> Training:
    training = Training(OPTIMIZERS[name], passes=passes)
    training.exe = GpuExecutor()
    return training


def _resumed(name: str, passes: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = _training(name, passes)
        first.go(0, 4)
        first.save(Path(folder) / "m")
        expected = first.go(4, 4)
        second = _training(name, passes)
        second.go(0, 3)  # its graph is captured, with other arrays
        second.load(Path(folder) / "m")
        require(second.go(4, 4) == expected, "the resumed training has other bits")
        second.load(Path(folder) / "m")
        require(second.go(4, 4) == expected, "the training that was resumed twice has other bits")


def _layout() -> None:
    """A transposed array of the host as a weight, and a transposed array of the GPU that a program writes into one."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with unique_name.guard(), static.program_guard(main, startup):
        x, w = static.data("x", [3, 4]), static.create_parameter([4, 3], name="w")
        kept = main.global_block().create_var("kept", [4, 3], persistable=True)
        mg.assign(mg.transpose(x, [1, 0]) * 2.0 + w, kept)
    exe = GpuExecutor()
    exe.run(startup, scope=scope)
    for _ in range(3):
        scope.find_var("w").get_tensor().set(values.T)
        exe.run(main, {"x": np.asfortranarray(values)}, [], scope=scope)
    with tempfile.TemporaryDirectory() as folder, static.scope_guard(scope):
        static.save(main, Path(folder) / "m")
        state = static.load_program_state(Path(folder) / "m")
    require(state["w"].tolist() == values.T.tolist(), "the weight is scrambled")
    require(state["kept"].tolist() == (3 * values.T).tolist(), "what the program wrote is scrambled")
