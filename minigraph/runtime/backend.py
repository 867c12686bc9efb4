"""Backend: what a device offers to those who run programs or plan their memory.

A device is a class with these methods and a row in devices.py; nobody else asks what a place is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from minigraph.program import Operator, Program
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope
from minigraph.types import TensorType

from .kernel_list import KernelList
from .options import RunOptions


class RunnablePlan(Protocol):
    """A program made ready for feeds of known types.

    seconds   what it has cost the host to make; the Executor adds to it
    """

    seconds: float

    def run(self, feeds: Mapping[str, Any], scope: Scope, return_numpy: bool = True) -> list[Any]:
        """Run once; the fetched values, which later runs do not change."""
        ...


@dataclass(frozen=True)
class Resident:
    """A block of memory: a value, or scratch memory of an operator.

    first, last   steps (on a GPU calls) during which it is needed, both included
    op            the operator that writes it first; None for feeds
    values        bytes of all values that lie in it, those that an operator writes over its input included
    """

    name: str
    type: str
    nbytes: int
    values: int
    first: int
    last: int
    op: Operator | None
    scratch: bool = False


@dataclass(frozen=True)
class PlannedMemory:
    """The blocks of a plan, the bytes that it takes, and the operators that run at a step (on a GPU at a call).

    on_host   bytes of persistables that a GPU's plan keeps in pinned memory of the host
    """

    residents: list[Resident]
    nbytes: int
    running: Callable[[int], tuple[Operator, ...]]
    on_host: int = 0


class Backend(Protocol):
    """One device, for one Executor or one report.

    takes     what feeds may be besides arrays of the host, as a hint says it; "" for nothing
    captures  whether its runs become captured graphs
    is_gpu    whether passes weigh memory as a GPU needs it: workspaces beside products, writes that wait
    """

    takes: str
    captures: bool
    is_gpu: bool

    def __init__(self, place: Any) -> None: ...

    def require_available(self) -> None:
        """Raise a PlaceError with the reason unless programs can run here."""
        ...

    def begin(self) -> None:
        """Begin to bring the device up, beside what the caller does until it needs it."""
        ...

    def settings(self) -> Any:
        """What the user has set for this device and plans depend on; it is hashed, and asked for in every run."""
        ...

    def accept_feed(self, value: Any) -> Any:
        """An array of this device as it is; None for what must become an array of the host.

        An array has dtype, shape and ndim. Raises what a library says where memory cannot be shared.
        """
        ...

    def plan(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune, seed: int,
        options: RunOptions,
    ) -> RunnablePlan:  # fmt: skip
        """The plan of a program; an OutOfMemoryError where other plans may hold the memory that it needs."""
        ...

    def memory(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions
    ) -> PlannedMemory:
        """What a plan would take; the device need not be there."""
        ...

    def kernels(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions,
        gpu: str = "",
    ) -> KernelList:  # fmt: skip
        """The calls of a run, on the GPU of that name if one is given; it need not be there. A PlaceError where a run
        has none, or no such GPU is known."""
        ...
