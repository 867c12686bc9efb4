"""CPUBackend: programs run with NumPy on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigraph.errors.kinds import NO_KERNEL
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.runtime.backend import PlannedMemory, Resident
from minigraph.runtime.kernel_list import KernelList
from minigraph.runtime.memory import Life, most_live, named
from minigraph.runtime.options import RunOptions
from minigraph.runtime.schedule import Value
from minigraph.types import TensorType

from .checked import CheckedPlan
from .memory import AddressRange
from .plan import Plan


class CPUBackend:
    """The host; see runtime/backend.py."""

    takes = ""
    captures = False
    is_gpu = False

    def __init__(self, place: Any) -> None:
        """There is one host; plans share the memory of their temporaries."""
        self.arena = AddressRange()

    def require_available(self) -> None:
        """It is always there."""

    def begin(self) -> None:
        """There is nothing to bring up."""

    def settings(self) -> None:
        """There are none."""

    def accept_feed(self, value: Any) -> None:
        """Every feed becomes an array of NumPy."""

    def plan(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune, seed: int,
        options: RunOptions,
    ) -> Plan:  # fmt: skip
        """A Plan, or one that checks for NaN."""
        return (CheckedPlan if options.check_nan_inf else Plan)(
            program, feeds, fetches, prune, seed, options, self.arena
        )

    def memory(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions
    ) -> PlannedMemory:
        """The buffers of a Plan, and values that kernels allocate as they run."""
        plan = Plan(program, feeds, fetches, options=options, placed=False)
        steps = plan.schedule.steps
        residents, allocated = [], []
        for block in _blocks(plan):
            first, last = block[0].producer, max(block[-1].last_use, block[-1].producer)
            own, values = block[0].type, sum(v.type.nbytes for v in block)
            name = named([v.name for v in block])
            residents.append(Resident(name, str(own), own.nbytes, values, first, last, steps[first].op))
            if block[0].buffer is None:
                allocated.append(Life(own.nbytes, first, last))
        nbytes = plan.nbytes + most_live(allocated)
        return PlannedMemory(residents, nbytes, lambda at: (steps[at].op,) if 0 <= at < len(steps) else ())

    def kernels(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions,
        gpu: str = "",
    ) -> KernelList:  # fmt: skip
        """There are none."""
        raise NO_KERNEL("a run on a CPU launches no kernels", hint="ask for a GPU, which need not be there")


def _blocks(plan: Plan) -> list[list[Value]]:
    """Values that lie in one block of memory one after the other, each written over the one before."""
    blocks: list[list[Value]] = []
    latest: dict[int, list[Value]] = {}  # what lies in a buffer now
    for i, value in enumerate(plan.values):
        if value.persistable or value.producer < 0 or value.root != i:
            continue
        block = latest.get(value.buffer, []) if value.buffer is not None else []
        if not block or block[-1].last_use < value.producer:  # else it is written over what dies there
            blocks.append(block := [])
        block.append(value)
        if value.buffer is not None:
            latest[value.buffer] = block
    return blocks
