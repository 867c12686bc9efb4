"""DataParallel: how many ranks run a compiled program, and what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minigraph import cuda
from minigraph.errors import PlaceError, ProgramError, require
from minigraph.kernels.groups import present
from minigraph.program import Program, Variable
from minigraph.program.reductions import reduce_gradients
from minigraph.types import CPUPlace, CUDAPlace

from .strategy import BuildStrategy


@dataclass(frozen=True)
class DataParallel:
    """Ranks that share a batch.

    loss_name   whose gradient is divided by the number of ranks
    places      of this process, one for each of its ranks where it has several
    ranks       all of them: those of this process, or one in each process of a group
    scale       what the loss's gradient begins with, see reduce_gradients
    """

    loss_name: str | None
    places: tuple[Any, ...]
    ranks: int
    scale: str

    @classmethod
    def of(cls, loss_name: Any, places: Any, strategy: BuildStrategy) -> DataParallel | None:
        """What with_data_parallel was asked for; None where one rank runs the program."""
        if isinstance(loss_name, Variable):
            loss_name = loss_name.name
        given = tuple(places) if isinstance(places, (list, tuple)) else () if places is None else (places,)
        _check_places(given)
        processes = present().size
        require(
            processes == 1 or len(given) < 2, f"{len(given)} places in each of {processes} processes", ProgramError,
            "one process runs at several places, or several processes at one place each",
        )  # fmt: skip
        ranks = max(processes, len(given))
        if ranks == 1:
            return None
        require(
            strategy.reduce_strategy.name == "AllReduce", "reduce_strategy Reduce, which shares states of optimizers"
            " among the ranks, is not here yet", ProgramError, "AllReduce gives the same parameters",
        )  # fmt: skip
        return cls(loss_name, given if len(given) > 1 else (), ranks, strategy.gradient_scale_strategy.name)

    def applied(self, program: Program) -> Program:
        """A copy of `program` as each rank runs it."""
        copy = program.clone()
        copy.origin, copy.before = program.origin, program
        reduce_gradients(copy, self.loss_name, self.ranks, self.scale)
        return copy


def _check_places(places: Sequence[Any]) -> None:
    """Places of one kind, and of GPUs each one that is there, once."""
    kinds = {type(place) for place in places}
    require(kinds <= {CPUPlace, CUDAPlace}, f"places holds {places!r}", ProgramError, "static.cpu_places(n), or "
            "static.cuda_places()")  # fmt: skip
    require(len(kinds) < 2, "places holds CPUs and GPUs", ProgramError, "all ranks run on devices of one kind")
    if kinds == {CUDAPlace} and len(places) > 1:
        numbers = [place.device_id for place in places]
        twice = next((n for n in numbers if numbers.count(n) > 1), None)
        require(twice is None, f"places holds GPU {twice} twice: two ranks on one GPU wait for each other", PlaceError)
        known = cuda.device_count()
        require(max(numbers) < known, f"places holds GPU {max(numbers)}, there are {known}", PlaceError)
