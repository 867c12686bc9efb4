"""Which rank a process is and where the ranks meet, as its launcher says it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from minigraph.errors import ProgramError, require
from minigraph.runtime.parallel.meeting import MeetingPoint


class World(NamedTuple):
    """A rank among others.

    launcher     who started it, for errors
    rank, size   its number, and how many there are
    local_rank   among the ranks of this host: the GPU to take
    meeting      where the ranks find each other; None where MPI connects them
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    meeting: MeetingPoint | None


# launcher, names of rank, size, local rank; the first whose rank is set holds
MPI = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MPICH's mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
TORCHRUN = ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK")
PADDLE = ("Paddle's launcher", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE")
SRUN = ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"
KEY = "MINIGRAPH_KEY"


def read_world(environment: Mapping[str, str] = os.environ) -> World | None:
    """The rank that a launcher gave this process; None where no launcher has started it.

    srun's ranks are connected by MPI, or meet at MASTER_ADDR where a script sets that.
    """
    for names in (*MPI, TORCHRUN, PADDLE, SRUN):
        launcher, of_rank, of_size, of_local = names
        if of_rank in environment:
            rank, size = (_number(environment, name, launcher) for name in (of_rank, of_size))
            require(
                0 <= rank < size, f"{launcher} says {of_rank}={rank} and {of_size}={size}: ranks are 0 to {size - 1}",
                ProgramError,
            )  # fmt: skip
            local = _number(environment, of_local, launcher) if of_local in environment else rank
            by_mpi = names in MPI or (names is SRUN and "MASTER_ADDR" not in environment)
            meeting = None if by_mpi or size == 1 else _meeting(environment, launcher, rank, size)
            return World(launcher, rank, size, local, meeting)
    return None


def _meeting(environment: Mapping[str, str], launcher: str, rank: int, size: int) -> MeetingPoint:
    """Where rank 0 waits: an endpoint of Paddle's, MASTER_ADDR and MASTER_PORT of others."""
    if launcher == PADDLE[0] and "MASTER_ADDR" not in environment:
        given = _text(environment, ENDPOINTS, launcher)
        ends = given.split(",")
        require(len(ends) == size, f"{ENDPOINTS} names {len(ends)} processes, {PADDLE[2]} says {size}", ProgramError)
        own = environment.get("PADDLE_CURRENT_ENDPOINT", ends[rank])
        require(
            own == ends[rank], f"PADDLE_CURRENT_ENDPOINT is {own!r}, rank {rank} of {ENDPOINTS} is {ends[rank]!r}",
            ProgramError,
        )  # fmt: skip
        host, _, port = ends[0].rpartition(":")
        number = _port(port, ENDPOINTS)
    else:
        host = _text(environment, "MASTER_ADDR", launcher)
        number = _port(_text(environment, "MASTER_PORT", launcher), "MASTER_PORT")
        number += environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself has that port
    require(host != "", f"{launcher} names no host for rank 0", ProgramError)
    run = environment.get("TORCHELASTIC_RUN_ID", environment.get("SLURM_JOB_ID", ""))
    return MeetingPoint(host, number, environment.get(KEY, f"minigraph {host}:{number} {size} {run}").encode())


def _port(value: str, name: str) -> int:
    fits = value.isdecimal() and 0 < int(value) < 65535
    require(fits, f"{name} has the port {value!r}, ports are 1 to 65534", ProgramError)
    return int(value)


def _text(environment: Mapping[str, str], name: str, launcher: str) -> str:
    value = environment.get(name)
    require(
        value is not None, f"{launcher} has not set {name}, so that its ranks could meet", ProgramError,
        "start all ranks by one launcher; for several hosts name rank 0's",
    )  # fmt: skip
    assert value is not None
    return value


def _number(environment: Mapping[str, str], name: str, launcher: str) -> int:
    value = environment.get(name)
    require(value is not None, f"{launcher} has not set {name}", ProgramError, "start all ranks by one launcher")
    assert value is not None
    require(value.isdecimal(), f"{name} is {value!r}, not a number", ProgramError)
    return int(value)
