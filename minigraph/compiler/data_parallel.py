"""DataParallel: how many ranks run a compiled program, and what each of them runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from minigraph import cuda
from minigraph.errors import ProgramError, require
from minigraph.kernels.groups import present
from minigraph.program import Program, Variable
from minigraph.program.reductions import reduce_gradients
from minigraph.program.shards import share_updates

from .execution_strategy import ExecutionStrategy
from .strategy import BuildStrategy


def _check_ignored(exec_strategy: Any, share_vars_from: Any) -> None:
    """Arguments of which nothing follows are what they are called, not places that were meant for later ones."""
    for name, given, fits, kind in (
        ("exec_strategy", exec_strategy, isinstance(exec_strategy, ExecutionStrategy), "an ExecutionStrategy"),
        ("share_vars_from", share_vars_from, hasattr(share_vars_from, "program_for"), "a CompiledProgram"),
    ):
        require(
            given is None or fits, f"{name} is {given!r}, not {kind}", ProgramError, "places=... names the places"
        )


@dataclass(frozen=True)
class DataParallel:
    """Ranks that share a batch.

    loss_name   the loss, whose gradient is divided by the number of ranks
    places      the places of this process if it has several ranks, one for each; else empty
    ranks       how many there are: in this process, or one in each process of a group
    scale       what the loss's gradient begins with, see reduce_gradients
    shares      whether each rank has a piece of the optimizer's states: reduce_strategy Reduce
    """

    loss_name: str | None
    places: tuple[Any, ...]
    ranks: int
    scale: str
    shares: bool = False

    @classmethod
    def of(cls, loss_name: Any, places: Any, strategy: BuildStrategy, *ignored: Any) -> DataParallel | None:
        """What with_data_parallel was asked for; None where one rank runs the program."""
        _check_ignored(*ignored)
        if isinstance(loss_name, Variable):
            loss_name = loss_name.name
        require(loss_name is None or isinstance(loss_name, str), f"loss_name is {loss_name!r}, not a str", ProgramError,
                "with_data_parallel(loss_name=loss.name)")  # fmt: skip
        given = tuple(places) if isinstance(places, (list, tuple)) else () if places is None else (places,)
        cuda.require_ranks(given)
        processes = present().size
        require(
            processes == 1 or len(given) < 2, f"{len(given)} places in each of {processes} processes", ProgramError,
            "one process runs at several places, or several processes at one place each",
        )  # fmt: skip
        ranks = max(processes, len(given))
        if ranks == 1:
            return None
        shares = strategy.reduce_strategy.name == "Reduce"
        return cls(loss_name, given if len(given) > 1 else (), ranks, strategy.gradient_scale_strategy.name, shares)

    def applied(self, program: Program, fetches: Collection[str]) -> tuple[Program, list[str]]:
        """(a copy of `program` as each rank runs it, updates that it does not share, with the reasons)."""
        copy = program.clone()
        copy.origin, copy.before = program.origin, program
        reduce_gradients(copy, self.loss_name, self.ranks, self.scale)
        return copy, share_updates(copy, self.ranks, fetches) if self.shares else []
