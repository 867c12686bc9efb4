"""CUDABackend: programs run on one GPU."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from minigraph import cuda
from minigraph.errors import raise_unknown
from minigraph.errors.kinds import PLACE
from minigraph.kernels.cuda.record.binder import CARDS, Device
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.program import Operator, Program
from minigraph.program.prune import Prune
from minigraph.runtime.backend import PlannedMemory, Resident
from minigraph.runtime.kernel_list import KernelList
from minigraph.runtime.memory import named
from minigraph.runtime.options import RunOptions
from minigraph.types import CUDAPlace, TensorType

from .bind import BoundProgram, bind_program
from .inspect.kernels import kernel_list
from .memory import SharedMemory
from .plan import CudaPlan


class CUDABackend:
    """One GPU; see runtime/backend.py. Its plans share memory."""

    takes = "one of the GPU that cupy.from_dlpack takes"
    captures = True
    is_gpu = True
    settings = staticmethod(cuda.allows_tf32)

    def __init__(self, place: CUDAPlace) -> None:
        self.place, self.shared = place, SharedMemory()

    def require_available(self) -> None:
        """Raise a PlaceError with the reason unless the GPU and its packages can be used."""
        cuda.require_available(self.place)

    def begin(self) -> None:
        """Begin to make the GPU's context, which takes the driver a third of a second, unless it is there."""
        threading.Thread(target=self._made, daemon=True).start()

    def _made(self) -> None:
        with suppress(Exception):  # who needs it makes it, too, and is told why not
            cuda.runtime(self.place)

    def accept_feed(self, value: Any) -> Any:
        """A CuPy array of what lies on a GPU; None for the rest."""
        return cuda.device_array(value)

    def plan(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune, seed: int,
        options: RunOptions,
    ) -> CudaPlan:  # fmt: skip
        """A CudaPlan for the precision that is set now."""
        runtime = cuda.runtime(self.place)
        return CudaPlan(program, feeds, fetches, prune, seed, runtime, self.settings(), options, self.shared)

    def memory(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions
    ) -> PlannedMemory:
        """What a CudaPlan would take; for an H200 and the largest workspaces where this GPU is not there."""
        return planned_memory(self._bound(program, feeds, fetches, options))

    def kernels(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions,
        gpu: str = "",
    ) -> KernelList:  # fmt: skip
        """The calls of a CudaPlan's run: for `gpu` of CARDS, for this GPU, or for an H200 where it is not there."""
        if gpu and gpu not in CARDS:
            raise_unknown("GPU", gpu, CARDS, PLACE)
        return kernel_list(self._bound(program, feeds, fetches, options, CARDS.get(gpu)))

    def _bound(
        self, program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], options: RunOptions,
        device: Device | None = None,
    ) -> BoundProgram:  # fmt: skip
        facts: dict[str, Any] = {"options": options, "tf32": self.settings(), "device": device}
        if device is None and cuda.is_available() and self.place.device_id < cuda.device_count():
            runtime = cuda.runtime(self.place)
            facts |= {"device": runtime.device, "settling": runtime.settling(facts["tf32"], options.autotune)}
        return bind_program(program, feeds, fetches, **facts)


def planned_memory(bound: BoundProgram) -> PlannedMemory:
    """The blocks of the arena, with the values that lie in each, and all that a plan allocates."""
    values, steps = bound.schedule.values, bound.schedule.steps
    shown: dict[int, list[int]] = {}
    for i, buffer in enumerate(bound.buffers):
        shown.setdefault(id(owner(buffer)), []).append(i)
    scratch = {id(b): steps[position].op for position, own in enumerate(bound.binder.scratches) for b in own}
    residents = []
    for b, (_, first, last) in bound.blocks:
        held = shown.get(id(b))
        if held is None:
            op = scratch[id(b)]
            name, type = f"scratch of {op.type}", f"{b.nbytes} bytes"
            residents.append(Resident(name, type, b.nbytes, b.nbytes, first, last, op, scratch=True))
            continue
        own = values[held[0]]
        op = steps[own.producer].op if own.producer >= 0 else None
        inside = sum(values[i].type.nbytes for i in held if values[i].root == i)
        name = named([values[i].name for i in held])
        residents.append(Resident(name, str(own.type), b.nbytes, inside, first, last, op))

    def running(at: int) -> tuple[Operator, ...]:
        if not 0 <= at < len(bound.order):
            return ()
        return tuple(step.op for step, span in zip(steps, bound.spans, strict=True) if bound.order[at] in span)

    nbytes = bound.arena_bytes + bound.staging.nbytes + bound.constant_bytes
    return PlannedMemory(residents, nbytes, running, bound.paged_bytes)
