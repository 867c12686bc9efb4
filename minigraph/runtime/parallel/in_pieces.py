"""InPieces: what stands in a Scope for an optimizer's state of which each rank has a piece.

    w_moment1_0        InPieces, as large as the state and holding nothing
    w_moment1_0@SHARD  this rank's piece

Whoever reads the state in one process gets it whole, put together from the Scopes of all ranks, as if it came from a
GPU. Processes put it together with `gather_states`, in which all of them take part.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph.errors import ProgramError
from minigraph.kernels.groups import Group
from minigraph.kernels.pieces import piece, whole
from minigraph.program.scope import Scope
from minigraph.program.shards import Shard


class InPieces:
    """A state, with the shape and type that it has as a whole.

    name    of the piece in each rank's Scope
    ranks   how many there are
    scopes  theirs, where all of them are in this process
    """

    def __init__(self, v: Shard, ranks: int, scopes: Sequence[Scope]) -> None:
        self.name, self.shape, self.dtype, self.ranks = v.name, v.whole_type.shape, v.whole_type.dtype, ranks
        self.nbytes, self.state = v.whole_type.nbytes, v.whole
        self.scopes = [weakref.ref(scope) for scope in scopes]  # they hold this

    @property
    def device(self) -> InPieces:
        return self

    def synchronize(self) -> None:
        """Nothing runs here."""

    def get(self) -> np.ndarray:
        """The state, on the host."""
        if not self.scopes:
            raise ProgramError(
                f"{self.state} lies in pieces on {self.ranks} ranks, which are processes",
                hint="call minigraph.distributed.gather_states() on all ranks before one of them reads or saves it",
            )
        scopes = [scope() for scope in self.scopes]
        return whole([_on_host(scope.arrays[self.name]) for scope in scopes if scope is not None], self.shape)

    def gathered(self, group: Group, scope: Scope) -> np.ndarray:
        """The state; all ranks of a group call this."""
        return whole([group.all_gather(_on_host(scope.arrays[self.name]))], self.shape)


def is_in_pieces(v: Shard, ranks: int, scope: Scope) -> bool:
    """Whether the Scope has this rank's piece of a state, one of so many, and nobody set the state since."""
    found = scope.arrays.get(v.whole)
    return isinstance(found, InPieces) and found.ranks == ranks and v.whole not in scope.waiting and scope.has(v.name)


def cut(v: Shard, group: Group, scope: Scope) -> None:
    """Let each rank take its piece of a state that rank 0 has."""
    value = scope.read(v.whole) if group.rank == 0 else np.empty(v.whole_type.shape, v.whole_type.dtype)
    value = group.broadcast(value)
    scope.take(v.name, piece(value, group.rank, group.size))
    scope.take(v.whole, InPieces(v, group.size, group.scopes))


def make_whole(scope: Scope, group: Group) -> list[str]:
    """Let a Scope have its states as a whole again; their names. All ranks call this where they are processes."""
    found = sorted((name, array) for name, array in scope.arrays.items() if isinstance(array, InPieces))
    for name, array in found:
        value = array.gathered(group, scope) if group.size > 1 else array.get()
        scope.take(name, value)
        scope.arrays.pop(array.name, None)
    return [name for name, _ in found]


def tear_pieces(scopes: Sequence[Scope], reason: str) -> None:
    """Refuse to read the states: the ranks' pieces may be of different steps."""
    for scope in scopes:
        pairs = [(name, array.name) for name, array in scope.arrays.items() if isinstance(array, InPieces)]
        scope.tear([name for pair in pairs for name in pair], reason)


def _on_host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()
