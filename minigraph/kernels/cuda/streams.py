"""In which order a GPU gets work, and on which stream. Needs a GPU."""

from __future__ import annotations

import threading
from typing import Any

import cupy

PER_THREAD = cupy.cuda.Stream.ptds.ptr  # one handle, another stream in each thread
current_device, current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream


class Target:
    """The stream that calls go to: that of the Turn, or in its place one that captures them."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Turn:
    """`with turn:` around whatever gives work to a GPU: its device is the current one, and all work is in order.

    Work of all threads comes one after the other: after what the caller's stream was given before, and before what that
    stream is given later. It simply goes to the caller's stream, CuPy's current one, which is kept until another one
    takes its place, so most runs need no event. A stream of our own for all of them would have to wait for the caller's
    and the other way round, which keeps the host 2 us longer (bench/results/studies/streams.json).

    own      a stream for callers whose stream cannot be kept; memory is taken for it, so that no one else gets it
    stream   that to which work goes: the caller's of the latest turn, or `own`
    target   where calls read it
    """

    def __init__(self, index: int) -> None:
        self.index = index
        with cupy.cuda.Device(index):
            self.stream = self.own = cupy.cuda.Stream(non_blocking=True)
            self._fence = cupy.cuda.Event(disable_timing=True)
        self.target = Target(self.own.ptr)
        self._lock = threading.RLock()
        self._devices: list[int] = []  # those that were current before, one for each `with` that has not ended
        self._guest: Any = None  # the caller's stream while work goes to `own` for it

    def __enter__(self) -> None:
        self._lock.acquire()
        device = current_device()
        self._devices.append(device)
        if device != self.index or current_stream(device) is not self.stream:
            try:
                cupy.cuda.runtime.setDevice(self.index)
                self._go_to(current_stream(self.index))
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        device = self._devices.pop()
        try:
            if self._guest is not None and not self._devices:
                self._after(self._guest, self.stream)
                self._guest = None
            if device != self.index:
                cupy.cuda.runtime.setDevice(device)
        finally:
            self._lock.release()

    def _go_to(self, caller: Any) -> None:
        kept = isinstance(caller, cupy.cuda.Stream) and caller.ptr != PER_THREAD  # others destroy an ExternalStream
        stream = caller if kept else self.own
        if stream is not self.stream:
            self._after(stream, self.stream)
            self.stream, self.target.ptr = stream, stream.ptr
        if not kept:
            self._guest = caller
            self.join()

    def join(self) -> None:
        """What comes now is after all that the caller's stream was given, also since the turn began."""
        if self._guest is not None:
            self._after(self.stream, self._guest)

    def _after(self, later: Any, earlier: Any) -> None:
        """What one stream is given from now on waits for what another one has been given."""
        self._fence.record(earlier)
        later.wait_event(self._fence)
