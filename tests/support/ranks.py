"""What each rank of tests/parallel/test_processes.py runs: `python tests/support/ranks.py <what> <folder>`
[<device>]."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.distributed import fleet, get_group
from minigraph.runtime.parallel import mpi
from tests.support.parallel_training import batch, net


def rows_of(feed, rank, size):
    """This rank's rows of a batch."""
    own = len(feed["x"]) // size
    return {name: x[rank * own : (rank + 1) * own] for name, x in feed.items()}


def train(what: str, folder: Path, device: str = "cpu") -> None:
    """Three steps; all ranks compare parameters after each, rank 0 saves."""
    group = get_group()
    if what == "fleet":
        main, startup, loss = net(optimizer=fleet.distributed_optimizer)
        program = static.CompiledProgram(main, static.BuildStrategy(fuse_all_reduce_ops=True))
    else:
        main, startup, loss = net()
        flags = {"reduce_strategy": static.BuildStrategy.ReduceStrategy.Reduce} if what == "pieces" else {}
        program = static.CompiledProgram(main).with_data_parallel(loss.name, static.BuildStrategy.all(**flags))
    startup.random_seed = 3 + group.rank  # what rank 0 begins with counts
    exe = static.Executor(mg.CUDAPlace(mg.distributed.ParallelEnv().local_rank) if device == "gpu" else mg.CPUPlace())
    exe.run(startup)
    for step in range(3):
        feed = rows_of(batch(step, 6), group.rank, group.size)
        if what == "uneven" and step == 1 and group.rank == 1:
            feed = {name: x[:1] for name, x in feed.items()}
        if what == "raise" and step == 1 and group.rank == 1:
            raise ValueError("rank 1 has had enough")
        if what.startswith("kill") and what == f"kill {group.rank} {step}":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang" and step == 1:  # all have just met
            group.timeout, mpi.ANSWERS = 0.5, 0.5
            time.sleep(600 * group.rank)
        exe.run(program, feed=feed, fetch_list=[loss])
        values = main.state_dict("param")
        bits = [x.tobytes().hex() for x in values.values()]
        assert len(set(group.texts(" ".join(bits)))) == 1, "parameters differ"
        for _, scheduler in main.lr_schedulers:
            scheduler.step()
    if what == "pieces":
        state = next(name for name in main.vars if "moment1" in name)
        with pytest.raises(mg.errors.ProgramError, match=f"lies in pieces on {group.size} ranks"):
            main.state_dict()
        assert state in mg.distributed.gather_states()
    if group.rank == 0:
        np.savez(folder / f"{what}.npz", **main.state_dict())
        static.save(main, str(folder / what))


if __name__ == "__main__":
    mg.distributed.init_parallel_env(timeout=60)
    for each in sys.argv[1].split(","):
        train(each, Path(sys.argv[2]), *sys.argv[3:])
