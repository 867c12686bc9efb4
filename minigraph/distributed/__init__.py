"""Ranks in processes of their own, with Paddle's names: `init_parallel_env`, collectives over arrays, fleet."""

from . import fleet
from .parallel import (
    ParallelEnv,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    gather_states,
    get_group,
    get_rank,
    get_world_size,
    init_parallel_env,
)

__all__ = [
    "ParallelEnv", "all_gather", "all_reduce", "barrier", "broadcast", "fleet", "gather_states", "get_group",
    "get_rank", "get_world_size", "init_parallel_env",
]  # fmt: skip
