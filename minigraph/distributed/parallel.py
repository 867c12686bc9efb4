"""The group of this process: joining it, and what a script asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.kernels.groups import Group, join, present
from minigraph.program.scope import Scope, global_scope
from minigraph.runtime.parallel.connections import ConnectedGroup
from minigraph.runtime.parallel.in_pieces import make_whole
from minigraph.runtime.parallel.mpi import MPIGroup, check_world, end_all_on_error
from minigraph.runtime.parallel.threads import TIMEOUT

from .environment import World, read_world

_world: World | None = None


def init_parallel_env(timeout: float = TIMEOUT) -> ParallelEnv:
    """Join the processes that one launcher has started; alone where there is none.

    timeout   seconds for which a rank waits for another before it says which one is missing
    An error that nobody catches ends all processes from now on.
    """
    global _world
    if present().size > 1:
        return ParallelEnv()
    world = read_world()
    if world is not None and world.size > 1:
        group = _joined(world, timeout)
        end_all_on_error(group)
        join(group)
        _world = world
    return ParallelEnv()


def _joined(world: World, timeout: float) -> MPIGroup | ConnectedGroup:
    """The group of the processes that a launcher has started."""
    if world.meeting is not None:
        return ConnectedGroup(world.meeting, world.rank, world.size, timeout)
    group = MPIGroup(timeout)
    check_world(group, world.rank, world.size)
    return group


class ParallelEnv:
    """What the launcher says of this process, with Paddle's names."""

    @property
    def rank(self) -> int:
        return get_rank()

    @property
    def world_size(self) -> int:
        return get_world_size()

    @property
    def local_rank(self) -> int:
        """This rank among those of its host."""
        return _world.local_rank if _world is not None else 0

    dev_id = device_id = local_rank
    nranks = world_size


def get_group() -> Group:
    """The group of this process, with collectives over arrays of NumPy."""
    return present()


def get_rank(group: Group | None = None) -> int:
    """The number of this rank, 0 where there is one."""
    return (group or present()).rank


def get_world_size(group: Group | None = None) -> int:
    """How many ranks there are."""
    return (group or present()).size


def barrier(group: Group | None = None) -> None:
    """Return when all ranks have come."""
    (group or present()).barrier()


def gather_states(scope: Scope | None = None) -> list[str]:
    """Make states of optimizers whole that lie in pieces on the ranks (reduce_strategy Reduce); their names.

    All ranks call this before one of them saves or reads states. The next step cuts them again.
    scope   the global one for None
    """
    return make_whole(global_scope() if scope is None else scope, present())


def all_reduce(array: Any, group: Group | None = None) -> np.ndarray:
    """The sum of what all ranks have, as a new array."""
    return (group or present()).all_reduce(np.asarray(array))


def all_gather(array: Any, group: Group | None = None) -> np.ndarray:
    """What all ranks have, joined along the first axis."""
    return (group or present()).all_gather(np.asarray(array))


def broadcast(array: Any, src: int = 0, group: Group | None = None) -> np.ndarray:
    """What rank `src` has; the other ranks' arrays say its shape and type."""
    return (group or present()).broadcast(np.asarray(array), src)
