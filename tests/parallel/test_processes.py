"""Ranks that are processes under mpirun: they compute what threads do, bit by bit, and nobody waits for the dead."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.distributed.environment import read_world
from minigraph.errors import AttrError, MinigraphError, ProgramError
from tests.support.parallel_training import batch, net, trained

HERE = Path(__file__).parents[2]
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None
    or not (Path(sys.executable).with_name("mpirun").exists() or shutil.which("mpirun")),
    reason="needs mpi4py and mpirun: pip install 'minigraph[mpi]'",
)


def launched(ranks: int, what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What `minigraph launch` of tests/support/ranks.py gives."""
    command = [sys.executable, "-m", "minigraph", "launch", "--nproc", str(ranks), "tests/support/ranks.py", "--"]
    return subprocess.run(
        [*command, what, str(folder)], capture_output=True, text=True, timeout=200, cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip


@needs_mpi
def test_processes_are_threads_bit_by_bit(tmp_path):
    """Through fleet with buckets, and through with_data_parallel; what they save goes on elsewhere."""
    done = launched(3, "fleet,compiled,pieces", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for what, flags in (("fleet", {}), ("compiled", {"every": True}), ("pieces", {"every": True})):
        _, values = trained(3, steps=3, rows=6, **flags)
        with np.load(tmp_path / f"{what}.npz") as found:
            for name, value in values.items():
                np.testing.assert_array_equal(found[name], value, err_msg=name)
    main, _, loss = net()
    scope, exe = static.Scope(), static.Executor(mg.CPUPlace())
    with static.scope_guard(scope):
        static.load(main, str(tmp_path / "compiled"))
    program = static.CompiledProgram(main).with_data_parallel(loss.name, places=static.cpu_places(2))
    (value,) = exe.run(program, feed=batch(3), fetch_list=["linear_0.w_0"], scope=scope, return_merged=False)
    np.testing.assert_array_equal(value[0], value[1])


@needs_mpi
@pytest.mark.parametrize(
    ("what", "ranks", "said"),
    [
        ("raise", 3, ["rank 1 failed first", "[1] ValueError: rank 1 has had enough"]),
        ("uneven", 2, ["feeds of rank 0 and rank 1 differ: x: f64[3,6], y: i64[3,1] and x: f64[1,6], y: i64[1,1]"]),
        ("hang", 2, ["rank 1 did not come to"]),
    ],
)
def test_a_rank_that_goes_wrong_is_named(what, ranks, said, tmp_path):
    done = launched(ranks, what, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    for line in said:
        assert line in done.stdout, done.stdout + done.stderr


def killed(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    done = launched(2, f"kill {r.randrange(2)} {r.randrange(3)}", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "signal 9" in done.stdout


@needs_mpi
def test_nobody_waits_for_a_rank_that_was_killed(tmp_path):
    killed(0, tmp_path)


@needs_mpi
@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100))
def test_nobody_waits_for_a_rank_that_was_killed_at_any_step(seed, tmp_path):
    killed(seed, tmp_path)


# What launchers say

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
PADDLE = {
    "PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6170,10.0.0.1:6171",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (TORCHRUN, ("torchrun", 1, 4, 0, "h:29500")),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, ("torchrun", 1, 4, 0, "h:29501")),
        ({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": ""}, ("torchrun", 0, 1, 0, "None")),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}, ("MPICH's mpirun", 2, 3, 2, "None")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("Open MPI's mpirun", 0, 2, 0, "None")),
        (SRUN, ("srun", 5, 8, 1, "None")),
        ({**SRUN, "MASTER_ADDR": "h", "MASTER_PORT": "7"}, ("srun", 5, 8, 1, "h:7")),
        (PADDLE, ("Paddle's launcher", 1, 2, 1, "10.0.0.1:6170")),
    ],
)
def test_launchers_are_read(environment, found):
    world = read_world(environment)
    assert (world if world is None else (*world[:4], str(world.meeting))) == found


@pytest.mark.parametrize(
    ("given", "changed", "said"),
    [
        (TORCHRUN, {"RANK": "4"}, "RANK=4 and WORLD_SIZE=4: ranks are 0 to 3"),
        (TORCHRUN, {"RANK": "x"}, "RANK is 'x', not a number"),
        (TORCHRUN, {"WORLD_SIZE": None}, "torchrun has not set WORLD_SIZE"),
        (TORCHRUN, {"MASTER_ADDR": None}, "torchrun has not set MASTER_ADDR"),
        (TORCHRUN, {"MASTER_PORT": None}, "torchrun has not set MASTER_PORT"),
        (TORCHRUN, {"MASTER_PORT": "70000"}, "MASTER_PORT has the port '70000'"),
        (PADDLE, {"PADDLE_TRAINER_ENDPOINTS": None}, "Paddle's launcher has not set PADDLE_TRAINER_ENDPOINTS"),
        (PADDLE, {"PADDLE_TRAINER_ENDPOINTS": "h:1"}, "names 1 processes, PADDLE_TRAINERS_NUM says 2"),
        (PADDLE, {"PADDLE_CURRENT_ENDPOINT": "10.0.0.1:6170"}, "rank 1 of PADDLE_TRAINER_ENDPOINTS is '10.0.0.1:6171'"),
        (PADDLE, {"PADDLE_TRAINER_ENDPOINTS": "h,g"}, "has the port 'h'"),
    ],
)
def test_bad_environments_are_refused(given, changed, said):
    environment = {name: value for name, value in {**given, **changed}.items() if value is not None}
    with pytest.raises(ProgramError, match=said):
        read_world(environment)


def test_alone_everything_works():
    assert mg.distributed.init_parallel_env().world_size == 1
    fleet = mg.distributed.fleet
    fleet.init(is_collective=True)
    main, _, _ = net(optimizer=fleet.distributed_optimizer)
    assert fleet.worker_num() == 1 and fleet.is_first_worker()
    assert not any(op.type.startswith("c_") for op in main.ops)
    np.testing.assert_array_equal(mg.distributed.all_reduce([1.0, 2.0]), [1.0, 2.0])
    strategy = fleet.DistributedStrategy()
    strategy.amp, strategy.fuse_grad_size_in_MB = False, 32  # as they are
    assert strategy.sharding is False and not hasattr(strategy, "shard")
    for name, value, instead in (
        ("sharding", True, "ReduceStrategy.Reduce"), ("sharding_configs", {"stage": 2}, "ReduceStrategy.Reduce"),
        ("fuse_grad_size_in_MB", 16, "BuildStrategy"), ("amp", True, "amp.decorate"), ("dgc", True, "not here"),
        ("hybrid_configs", {}, "not here"), ("sync_nccl_allreduce", 1, "not here"),
    ):  # fmt: skip
        with pytest.raises(AttrError, match=rf"(?s)DistributedStrategy.{name} cannot be .*{instead}"):
            setattr(strategy, name, value)
    with pytest.raises(AttrError, match=r"(?s)no field 'shardin' here.*sharding"):
        strategy.shardin = True
    with pytest.raises(AttrError, match="is_collective=True"):
        fleet.init(is_collective=False)


def test_each_rank_has_its_share_of_a_data_set():
    def batches(rank, **facts):
        sampler = mg.io.DistributedBatchSampler(range(10), 2, num_replicas=3, rank=rank, **facts)
        found = list(sampler)
        assert len(sampler) == len(found)
        return found

    assert [batches(rank) for rank in range(3)] == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [0, 1]]]
    shuffled = [batches(rank, shuffle=True) for rank in range(3)]
    assert {n for each in shuffled for b in each for n in b} == set(range(10))
    sampler = mg.io.DistributedBatchSampler(range(10), 2, num_replicas=3, rank=0, shuffle=True)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first != second
    with pytest.raises(MinigraphError, match="rank is 3 of num_replicas=3"):
        batches(3)
