"""GPU checks of data parallel: one GPU as a group of one rank, and where there are two GPUs both of them by NCCL."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import minigraph as mg
from minigraph import cuda, static
from minigraph.errors import PlaceError
from tests.gpu.check import Check
from tests.support.connected import ended, started
from tests.support.parallel_training import batch, net
from tests.support.parallel_training import trained as ranks_in_threads

STEPS, KILLS = 4, 20
REDUCE = {"reduce_strategy": static.BuildStrategy.ReduceStrategy.Reduce}
FLAGS: dict[str, dict[str, Any]] = {
    "as it is": {"every": False},
    "all rewrites": {"every": True},
    "small buckets": {"every": True, "fuse_grad_size_in_MB": 0.3 / 1024},
    "pieces": {"every": False, **REDUCE},
    "pieces, all rewrites": {"every": True, **REDUCE},
    "float32 on the way": {"every": True, "all_reduce_dtype": "float32"},
}


def trained(places: Any, every: bool = False, **flags: Any) -> dict[str, np.ndarray]:
    """All that lasts after some steps at these places, equal on all ranks after each."""
    main, startup, loss = net()
    exe, scope = static.Executor(places[0]), static.Scope()
    exe.run(startup, scope=scope)
    strategy = static.BuildStrategy.all(**flags) if every else static.BuildStrategy(**flags)
    program = static.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=places)
    name = main.all_parameters()[0].name
    for step in range(STEPS):
        (values,) = exe.run(program, batch(step), [name], scope=scope, return_merged=len(places) == 1)
        for value in values[1:] if len(places) > 1 else ():
            np.testing.assert_array_equal(value, values[0])
    exe.close()
    return main.state_dict(scope=scope)


def as_one_rank(ranks: int, flags: dict[str, Any]) -> None:
    """So many GPUs train as one CPU does."""
    wanted = trained([mg.CPUPlace()])
    found = trained([mg.CUDAPlace(i) for i in range(ranks)], **flags)
    tolerance = 1e-5 if "all_reduce_dtype" in flags else 1e-10
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def a_failing_rank_changes_nothing(every: bool = False, **flags: Any) -> None:
    """A bad label on the last rank ends the step on all, changes nothing, and the next one runs."""
    main, startup, loss = net()
    exe, scope = static.Executor(mg.CUDAPlace(0)), static.Scope()
    exe.run(startup, scope=scope)
    strategy = static.BuildStrategy.all(**flags) if every else static.BuildStrategy(**flags)
    program = static.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=static.cuda_places([0, 1]))
    feed = batch(0)
    exe.run(program, feed, [loss], scope=scope)
    bad = {**feed, "y": np.where(np.arange(8)[:, None] == 7, 99, feed["y"])}
    said, kept = "nothing: label 99 of 3 classes was taken", main.state_dict(scope=scope)
    try:
        exe.run(program, bad, [loss], scope=scope)
    except mg.errors.MinigraphError as problem:
        said = str(problem)
    assert "rank 1" in said, said
    for name, value in main.state_dict(scope=scope).items():
        np.testing.assert_array_equal(value, kept[name], err_msg=name)
    exe.run(program, feed, [loss], scope=scope)
    assert any((value != kept[name]).any() for name, value in main.state_dict(scope=scope).items())


def _processes_are_one_rank(what: str) -> None:
    """A process for each of two GPUs, as torchrun starts them."""
    with tempfile.TemporaryDirectory() as folder:
        for code, said in ended(started(2, what, Path(folder), device="gpu")):
            assert code == 0 and "Exception in thread" not in said, said
        wanted = ranks_in_threads(2, steps=3, rows=6, every=what != "fleet")[1]
        with np.load(Path(folder) / f"{what}.npz") as found:
            for name, value in wanted.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-10, err_msg=name)


def _killed(number: int) -> None:
    """One of two processes is killed at a random step: the other ends with an error that names it."""
    r = random.Random(number)
    rank, step = r.randrange(2), r.randrange(3)
    with tempfile.TemporaryDirectory() as folder:
        found = ended(started(2, f"kill {rank} {step}", Path(folder), device="gpu"))
    codes = [code for code, _ in found]
    assert codes[rank] == -signal.SIGKILL and codes[1 - rank] == 1, found
    assert f"rank {rank} ended" in found[1 - rank][1], found
    assert "Exception in thread" not in found[1 - rank][1], found


def _one_gpu_twice_is_refused() -> None:
    main, _, loss = net()
    try:
        static.CompiledProgram(main).with_data_parallel(loss.name, places=[mg.CUDAPlace(0), mg.CUDAPlace(0)])
    except PlaceError:
        return
    raise AssertionError("GPU 0 was taken for two ranks")


def checks() -> Iterator[Check]:
    """Those of several ranks where there are so many GPUs."""
    gpus = cuda.device_count()
    for title, flags in FLAGS.items():
        for ranks in (n for n in (1, 2) if n == 1 or n <= gpus):
            name = f"parallel/{ranks} rank{'s' * (ranks > 1)}, {title}"
            yield Check(name, lambda ranks=ranks, flags=flags: as_one_rank(ranks, flags), alone=ranks > 1)
    if gpus >= 2 and "tests.support.gpu_stub" not in sys.modules:  # processes that have real GPUs
        for what in ("fleet", "pieces"):
            yield Check(f"parallel/2 processes, {what}", lambda what=what: _processes_are_one_rank(what), alone=True)
        for number in range(KILLS):
            yield Check(f"parallel/killed {number}", lambda number=number: _killed(number))
    if gpus >= 4:
        yield Check("parallel/4 ranks, pieces", lambda: as_one_rank(4, FLAGS["pieces, all rewrites"]), alone=True)
    if gpus >= 2:
        for title, flags in FLAGS.items():
            name = f"parallel/a rank that fails is named and changes nothing, {title}"
            yield Check(name, lambda flags=flags: a_failing_rank_changes_nothing(**flags), alone=True)
    yield Check("parallel/one GPU twice is refused", _one_gpu_twice_is_refused)
