"""Which rank a process is, as its launcher says it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from minigraph.errors import ProgramError, require


class World(NamedTuple):
    """A rank among others.

    launcher     who started it, for errors
    uses_mpi     whether MPI connects the ranks
    local_rank   among the ranks of this host: the GPU to take
    """

    launcher: str
    uses_mpi: bool
    rank: int
    size: int
    local_rank: int


# launcher, whether it connects ranks by MPI, names of rank, size, local rank; the first whose rank is set holds
LAUNCHERS = (
    ("Open MPI's mpirun", True, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPICH's mpirun", True, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("torchrun", False, "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Paddle's launcher", False, "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
    ("srun", True, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def read_world(environment: Mapping[str, str] = os.environ) -> World | None:
    """The rank that a launcher gave this process; None where no launcher has started it."""
    for launcher, uses_mpi, *names in LAUNCHERS:
        if names[0] in environment:
            rank, size = (_number(environment, name, launcher) for name in names[:2])
            require(
                0 <= rank < size, f"{launcher} says {names[0]}={rank} and {names[1]}={size}: ranks are 0 to"
                f" {size - 1}", ProgramError,
            )  # fmt: skip
            local = _number(environment, names[2], launcher) if names[2] in environment else rank
            return World(launcher, uses_mpi, rank, size, local)
    return None


def _number(environment: Mapping[str, str], name: str, launcher: str) -> int:
    value = environment.get(name)
    require(value is not None, f"{launcher} has not set {name}", ProgramError, "start all ranks by one launcher")
    assert value is not None
    require(value.isdecimal(), f"{name} is {value!r}, not a number", ProgramError)
    return int(value)
