"""Memory of one GPU, and what goes in and out of it. Needs a GPU."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from minigraph.kernels.cuda.record.binder import Device
from minigraph.kernels.cuda.record.buffer import Buffer

from .streams import StreamTurn

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, ANY = 1, 2, 3, 4  # cudaMemcpyKind; ANY: the addresses say it
LARGE_ARGUMENTS = 12010  # the version of the driver from which kernels take 32764 bytes of arguments


class PagedMemory(cupy.cuda.PinnedMemory):
    """Pinned memory of the host for a state; the GPU has done all its work before it is given back.

    number   no other one has it
    """

    made = itertools.count(1)

    def __init__(self, nbytes: int, index: int) -> None:
        self.index, self.number = index, next(self.made)
        super().__init__(max(nbytes, 1), cupy.cuda.runtime.hostAllocPortable)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with cupy.cuda.Device(self.index):
                cupy.cuda.runtime.deviceSynchronize()
        super().__del__()


class Memory:
    """Arrays of one GPU, copied in the order of its stream.

    turn   `with memory.turn:` around whatever gives work to the GPU, see streams.py
    """

    def __init__(self, index: int) -> None:
        with cupy.cuda.Device(index):
            major, minor = divmod(int(cupy.cuda.Device(index).compute_capability), 10)
            arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
            facts = cupy.cuda.runtime.getDeviceProperties(index)
            arguments = 32764 if cupy.cuda.runtime.driverGetVersion() >= LARGE_ARGUMENTS else 4096
        shared = facts["sharedMemPerBlockOptin"]
        self.device = Device(arch, facts["multiProcessorCount"], index, shared, arguments)
        self.turn = StreamTurn(index)

    @property
    def stream(self) -> Any:
        """The stream to which work goes now."""
        return self.turn.stream

    def allocate(self, nbytes: int) -> cupy.ndarray:
        """Bytes of device memory, aligned to 512."""
        return self.empty((max(nbytes, 1),), np.dtype("uint8"))

    def zeros(self, nbytes: int) -> cupy.ndarray:
        """The same, with nothing but zeros in the order of the stream."""
        made = self.allocate(nbytes)
        cupy.cuda.runtime.memsetAsync(made.data.ptr, 0, made.nbytes, self.stream.ptr)
        return made

    def give_back(self) -> None:
        """Let others have what CuPy keeps of memory that nobody uses."""
        with cupy.cuda.Device(self.device.index):
            cupy.get_default_memory_pool().free_all_blocks()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
        """An array of this GPU with undefined content; MemoryError where there is no room."""
        with cupy.cuda.Device(self.device.index), self.turn.own_is_current():
            made = _array(shape, dtype)
        if isinstance(made.data.mem, cupy.cuda.memory.MemoryAsync):  # freed in the order of that stream alone
            self.turn.stay()
        return made

    def to_device(self, array: Any) -> cupy.ndarray:
        """A copy on this GPU."""
        host = array if isinstance(array, np.ndarray) else cupy.asnumpy(array)
        copy = self.empty(host.shape, host.dtype)
        self._copy_in(np.ascontiguousarray(host), copy.data.ptr)
        self.stream.synchronize()
        return copy

    def managed(self, array: Any) -> cupy.ndarray:
        """The array in memory that the driver pages, itself if it lies there; MemoryError beyond what is free."""
        if self.holds(array) and isinstance(array.data.mem, cupy.cuda.memory.ManagedMemory):
            return array
        free, _ = cupy.cuda.runtime.memGetInfo()
        if array.nbytes > free:  # more than is free would be paged in every step, or hang
            raise MemoryError(f"{array.nbytes} bytes of managed memory are wanted, {free} are free")
        with cupy.cuda.Device(self.device.index):
            copy = cupy.ndarray(array.shape, array.dtype, cupy.cuda.malloc_managed(max(array.nbytes, 1)))
        source = array if self.holds(array) else self.to_device(array)
        self.gather([source], copy, [0])
        return copy

    def paged(self, array: Any) -> cupy.ndarray:
        """The array in pinned memory of the host, where kernels can reach it too, itself if it lies there.

        MemoryError where the driver finds no room; where the host has none it may kill this process, so ask before.
        """
        if self.holds(array) and self.lies_on_host(array):
            return array
        try:
            memory = PagedMemory(array.nbytes, self.device.index)
        except cupy.cuda.runtime.CUDARuntimeError as problem:
            raise MemoryError(str(problem)) from None
        shown = cupy.cuda.UnownedMemory(memory.ptr, memory.size, memory, self.device.index)
        copy = cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(shown, 0))
        if isinstance(array, np.ndarray):
            seen = np.frombuffer(cupy.cuda.PinnedMemoryPointer(memory, 0), np.uint8, array.nbytes)
            np.copyto(seen.view(array.dtype).reshape(array.shape), array)
        elif array.nbytes:
            source = array if self.holds(array) else self.to_device(array)
            cupy.cuda.runtime.memcpyAsync(memory.ptr, source.data.ptr, array.nbytes, ANY, self.stream.ptr)
            self.stream.synchronize()
        return copy

    def lies_on_host(self, array: Any) -> bool:
        """Whether it is one of `paged`."""
        return isinstance(array, cupy.ndarray) and isinstance(getattr(array.data.mem, "_owner", None), PagedMemory)

    def gather(
        self, arrays: Sequence[cupy.ndarray], memory: cupy.ndarray, offsets: Sequence[int]
    ) -> list[cupy.ndarray]:
        """Copies of arrays of this GPU at these places of `memory`, with zeros between them."""
        copy, views = cupy.cuda.runtime.memcpyAsync, []
        cupy.cuda.runtime.memsetAsync(memory.data.ptr, 0, memory.nbytes, self.stream.ptr)
        for array, offset in zip(arrays, offsets, strict=True):
            views.append(cupy.ndarray(array.shape, array.dtype, memory.data + offset))
            if array.nbytes:
                copy(views[-1].data.ptr, array.data.ptr, array.nbytes, ANY, self.stream.ptr)
        self.stream.synchronize()  # before somebody frees the originals
        return views

    def write(self, array: cupy.ndarray, host: np.ndarray) -> None:
        """Put a host array's values into an array of this GPU, in the order of the stream."""
        self._copy_in(np.ascontiguousarray(host), array.data.ptr)
        if self.lies_on_host(array):  # nothing was staged
            self.stream.synchronize()

    def holds(self, array: Any) -> bool:
        """Whether this is an array of this GPU as kernels want it: rows one after the other, on a multiple of 16."""
        if not isinstance(array, cupy.ndarray):
            return False
        memory = array.data
        return memory.device_id == self.device.index and memory.ptr % 16 == 0 and array.flags.c_contiguous

    def upload(self, array: np.ndarray, buffer: Buffer) -> None:
        """A host array into a buffer."""
        self._copy_in(np.ascontiguousarray(array), buffer.address)

    def _copy_in(self, host: np.ndarray, address: int) -> None:
        if host.nbytes:  # the copy from pageable memory is staged before this returns
            self.send(address, host.ctypes.data, host.nbytes)

    def send(self, address: int, host: int, nbytes: int) -> None:
        """Bytes of the host, given by their address, to the GPU; from pinned memory this does not wait, others are
        staged before it returns."""
        cupy.cuda.runtime.memcpyAsync(address, host, nbytes, HOST_TO_DEVICE, self.stream.ptr)

    def receive(self, host: int, address: int, nbytes: int) -> None:
        """Bytes of the GPU to the host; there after the stream is synchronised."""
        cupy.cuda.runtime.memcpyAsync(host, address, nbytes, DEVICE_TO_HOST, self.stream.ptr)

    def known_by(self, array: cupy.ndarray) -> int:
        """What tells its memory from any that calls were bound with before: the address.

        Of pinned memory a number: a graph that copies from memory which was freed is wrong, though what was made since
        may have its address.
        """
        return -array.data.mem._owner.number if self.lies_on_host(array) else array.data.ptr

    def lies_at(self, array: Any) -> int:
        """The address of an array that kernels can read as it is; 0 of others."""
        return array.data.ptr if self.holds(array) else 0

    def take(self, arrays: Sequence[tuple[Any, Buffer]]) -> None:
        """Arrays of a GPU into buffers."""
        sources = [cupy.ascontiguousarray(a) for a, _ in arrays]
        self.turn.join()
        for source, (_, buffer) in zip(sources, arrays, strict=True):
            cupy.cuda.runtime.memcpyAsync(
                buffer.address, source.data.ptr, buffer.nbytes, DEVICE_TO_DEVICE, self.stream.ptr
            )

    def idle(self) -> bool:
        """Whether all is done that the stream was given."""
        return self.stream.done

    def pinned(self, nbytes: int) -> np.ndarray:
        """Bytes of the host that the GPU reads and writes without a copy in between."""
        return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def event(self) -> Any:
        """Something with record(stream) and synchronize()."""
        return cupy.cuda.Event(disable_timing=True)

    def download(self, buffer: Buffer, host: np.ndarray) -> None:
        """A buffer's bytes into a host array; complete after the stream is synchronised."""
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                host.ctypes.data, buffer.address, buffer.nbytes, ANY, self.stream.ptr
            )

    def fetch(self, buffer: Buffer, as_numpy: bool) -> Any:
        """A copy of a buffer: a NumPy array, or one of this GPU, in memory that the caller's stream may use again."""
        if as_numpy:
            host = np.empty(buffer.shape, buffer.dtype)
            self.download(buffer, host)
            return host
        with cupy.cuda.Device(self.device.index):
            copy = _array(buffer.shape, buffer.dtype)
        if buffer.nbytes:
            cupy.cuda.runtime.memcpyAsync(
                copy.data.ptr, buffer.address, buffer.nbytes, ANY, self.stream.ptr
            )
        return copy


def _array(shape: tuple[int, ...], dtype: np.dtype) -> cupy.ndarray:
    """An array with undefined content of the current device and stream; MemoryError where there is no room."""
    try:
        return cupy.ndarray(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError as problem:
        raise MemoryError(str(problem)) from None
