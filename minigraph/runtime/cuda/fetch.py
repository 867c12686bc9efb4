"""How fetched values reach the host: small ones in one copy of the staging buffer, others by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.buffer import Buffer

from .bind import BoundProgram
from .faults import Faults
from .memory import PlanMemory
from .pinned import Pinned


class Fetching:
    """The fetched values of a plan, and the record of faults, which comes with them.

    received   pinned memory for the fields of the staging buffer that the host reads
    values     for each fetched value its buffer, and where it is received if it is small
    """

    def __init__(
        self, bound: BoundProgram, runtime: Any, memory: PlanMemory, faults: Faults, pinned: Pinned
    ) -> None:
        self.runtime, self.memory, self.faults = runtime, memory, faults
        start, nbytes = bound.staging.sent, bound.binder.fault.nbytes
        self.received = received = pinned.receiving(runtime, bound.staging.nbytes - start)
        places = received.ctypes.data, memory.staging.data.ptr + start
        self.copy, self.fault_copy = (*places, received.nbytes), (*places, nbytes)
        self.reported = received[:nbytes].view(np.int64)
        at = {id(b): offset - start for b, offset in bound.staging.fields if offset >= start}
        self.values: list[tuple[Buffer, np.ndarray | None]] = []
        for index in bound.schedule.fetched:
            b = bound.buffers[index]
            place = at.get(id(b))
            seen = None if place is None else received[place : place + b.nbytes].view(b.dtype).reshape(b.shape)
            self.values.append((b, seen))

    def receive(self, return_numpy: bool) -> list[Any]:
        """The fetched values, once the GPU has computed them; an error where a kernel had a fault."""
        self.runtime.receive(*(self.copy if return_numpy else self.fault_copy))
        try:
            large = [
                None if return_numpy and seen is not None
                else self.memory.allocated(partial(self.runtime.fetch, b, return_numpy), "a fetched value", b.nbytes)
                for b, seen in self.values
            ]  # fmt: skip
        finally:  # without room for a value, too: whoever asks next would be told of this run's fault
            self.runtime.stream.synchronize()
            self.faults.judge(self.reported)
        return [
            seen.copy() if value is None and seen is not None else value
            for value, (_, seen) in zip(large, self.values, strict=True)
        ]
