"""A Runtime on host memory, to try the GPU checks where there is no GPU.

    python -m tests.gpu.suite --stub --only ops/relu

Plans, arenas, poisoning, faults and the Executor are the real ones. Kernels run through cuda_host,
products through NumPy. It is slow: for small shapes only.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minigraph import cuda
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Run, RunnableCall, Segment
from minigraph.kernels.cuda.record.calls import Gemm
from minigraph.kernels.cuda.record.workspace import Algorithm, Settling, settled, settling
from minigraph.kernels.peaks import Peaks
from minigraph.ops.elementwise.activation import gelu, gelu_slope
from minigraph.ops.matmul.gemm_epilogue import pack_mask, unpack_mask
from minigraph.types import float32, float64
from tests.support import cuda_host

LIMIT = 1 << 34  # bytes of this "card"


class Pointer:
    """What `array.data` is for CuPy."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class StubArray:
    """An array of the stub's device."""

    def __init__(self, host: np.ndarray) -> None:
        self.host, self.data, self.device = host, Pointer(host.ctypes.data), Stream()
        self.shape, self.dtype, self.nbytes = host.shape, host.dtype, host.nbytes
        self.ndim = host.ndim

    def get(self) -> np.ndarray:
        return self.host.copy()


class Stream:
    ptr = 0

    def synchronize(self) -> None:
        """Everything has happened already."""


class Managed(StubArray):
    """An array in managed memory."""


class Paged(StubArray):
    """An array in pinned memory of the host, which has a number that no other one has."""

    made = itertools.count(1)

    def __init__(self, host: np.ndarray) -> None:
        super().__init__(host)
        self.number = next(self.made)


class Event:
    """What has been recorded has happened."""

    def record(self, stream: Stream) -> None:
        """Nothing to remember."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class StubLauncher(cuda_host.Host):
    """What calls are bound with: kernels run by cuda_host, products by NumPy, at the addresses of now.

    variant   which one of a Choice runs, or the last one
    """

    def __init__(self, runtime: StubRuntime, counter: Buffer | None = None, variant: int = 0) -> None:
        super().__init__()
        self.runtime, self.counter, self.variant = runtime, counter, variant

    def product(self, call: Gemm) -> Run:
        return partial(gemm, deepcopy(call))

    def host(self, function: Callable[..., Any], inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Run:
        given, made = deepcopy([self.counter, *inputs]), deepcopy([*outputs])

        def run() -> None:
            runs, *arrays = (self.runtime.fetch(b, True) for b in given)
            for array, buffer in zip(function(int(runs[0]), *arrays), made, strict=True):
                self.runtime.upload(array, buffer)

        return run

    def beside(self, parts: Sequence[Segment]) -> Run:
        return partial(run_ahead, parts, self.runtime.lane_ahead)

    def wanted(self, names: Sequence[str]) -> Sequence[str]:
        return names[min(self.variant, len(names) - 1) :][:1]


def run_ahead(parts: Sequence[Segment], ahead: int = -1) -> None:
    """Run parts in an order that their waits allow, one lane as far ahead of the others as it may: what does not wait
    for what it needs shows. Negative: the last lane, then the one before it."""
    lanes = sorted({part.lane for part in parts}, key=lambda lane: (lane != ahead, -lane))
    left = [[i for i, part in enumerate(parts) if part.lane == lane] for lane in lanes]
    done = set[int]()
    while any(left):
        lane = next((lane for lane in left if lane and done.issuperset(parts[lane[0]].waits)), None)
        assert lane is not None, "every lane waits for another"
        for step in parts[lane[0]].calls:
            step()
        done.add(lane.pop(0))


class StubRuntime:
    """The methods of kernels/cuda/device/runtime.py's Runtime.

    lane_ahead    which lane of a Pipeline runs as far ahead as it may, see run_ahead
    pinned_limit  bytes of pinned memory that the "host" has left
    is_idle       whether it says that it has done all that it was given
    """

    lane_ahead = -1
    pinned_limit = LIMIT
    is_idle = False

    device = Device(multiprocessors=1)  # blocks run one after the other: none may wait for one that comes later
    stream = Stream()
    variant = 0  # which one of a Choice runs, or the last one
    launcher = StubLauncher

    def __init__(self, index: int = 0) -> None:
        self.device = replace(self.device, index=index)
        self.turn = threading.RLock()  # there is one stream
        self.captures: list[list[Segment]] = []  # parts of the graphs that were made
        self.known: set[tuple[str, str]] = set()  # kernels that were compiled
        self.compiled = 0

    def allocate(self, nbytes: int) -> StubArray:
        if nbytes > LIMIT:
            raise MemoryError(f"the stub has {LIMIT} bytes")
        return self.empty((max(nbytes, 1),), np.dtype("uint8"))

    def zeros(self, nbytes: int) -> StubArray:
        made = self.allocate(nbytes)
        made.host[...] = 0
        return made

    def idle(self) -> bool:
        return self.is_idle

    def handed_over(self) -> None:
        """Nobody has to watch: a group's own timeout does."""

    def give_back(self) -> None:
        """Nothing is kept."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> StubArray:
        size = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        raw = np.full(size + 512, 0xFF, np.uint8)  # NaN, so that who reads what nobody wrote shows
        start = -raw.ctypes.data % 512
        whole = raw[start : start + size]
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return StubArray(
            whole[:nbytes].view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)
        )

    def settling(self, tf32: bool, autotune: bool = False) -> Settling:
        """Products of NumPy need no workspace; some is reserved to see that nobody writes there."""

        def chosen(call: Gemm) -> Algorithm:
            return Algorithm(64, b"NumPy")

        every = Settling(lambda calls, note: settled(calls, chosen, every=True))
        return every if self.variant else settling(chosen)

    def compiling(self, settling: Settling) -> Settling:
        """Nothing is compiled."""
        return settling

    def runnable(self, binder: Binder, tf32: bool) -> list[RunnableCall]:
        binder.write_tables(self)
        launcher, made = self.launcher(self, binder.counter, self.variant), list[RunnableCall]()
        self.compile(kernel for _, call in binder.running() for kernel in call.kernels())
        for position, call in binder.running():
            for one in call.runnable(launcher):
                one.position = position
                made.append(one)
        cuda_host.build(launcher.kernels)
        return made

    def compile(self, kernels: Iterable[tuple[str, str]]) -> None:
        """Nothing is compiled, but counted."""
        new = set(kernels) - self.known
        self.compiled, self.known = self.compiled + len(new), self.known | new

    def captured(self, parts: list[Segment], loosened: bool = False) -> Callable[[], None]:
        """A graph that runs its last lane as far ahead as it may."""
        self.captures.append(parts)
        return partial(run_ahead, parts)

    def timed(self, calls: Sequence[Callable[[], None]], names: Sequence[str]) -> list[float]:
        """Runs them; each took as many seconds as its place among them says."""
        assert len(calls) == len(names)
        for call in calls:
            call()
        return [float(number) for number, _ in enumerate(calls, 1)]

    def peaks(self, tf32: bool) -> Peaks:
        return Peaks("stub", 1e3, {"float32": 1e6}, "invented")

    def to_device(self, array: Any) -> StubArray:
        copy = self.empty(array.shape, array.dtype)
        copy.host[...] = array.host if self.holds(array) else array
        return copy

    def managed(self, array: Any) -> StubArray:
        if isinstance(array, Managed):
            return array
        return Managed((array if self.holds(array) else self.to_device(array)).host)

    def paged(self, array: Any) -> StubArray:
        if isinstance(array, Paged):
            return array
        if array.nbytes > self.pinned_limit:
            raise MemoryError(f"the stub's host has {self.pinned_limit} bytes left")
        self.pinned_limit -= array.nbytes
        return Paged(self.to_device(array).host)

    def lies_on_host(self, array: Any) -> bool:
        return isinstance(array, Paged)

    def known_by(self, array: StubArray) -> int:
        return -array.number if isinstance(array, Paged) else array.data.ptr

    def gather(
        self, arrays: list[StubArray], memory: StubArray, offsets: list[int]
    ) -> list[StubArray]:
        memory.host[...] = 0
        views = []
        for array, offset in zip(arrays, offsets, strict=True):
            part = memory.host[offset : offset + array.nbytes]
            views.append(StubArray(part.view(array.dtype).reshape(array.shape)))
            views[-1].host[...] = array.host
        return views

    def write(self, array: StubArray, host: np.ndarray) -> None:
        array.host[...] = host

    def holds(self, array: Any) -> bool:
        return isinstance(array, StubArray)

    def upload(self, array: Any, buffer: Buffer) -> None:
        host = np.ascontiguousarray(array)
        ctypes.memmove(buffer.address, host.ctypes.data, host.nbytes) if host.nbytes else None

    def send(self, address: int, host: int, nbytes: int) -> None:
        ctypes.memmove(address, host, nbytes)

    def receive(self, host: int, address: int, nbytes: int) -> None:
        ctypes.memmove(host, address, nbytes)

    def take(self, arrays: list[tuple[StubArray, Buffer]]) -> None:
        for array, buffer in arrays:
            ctypes.memmove(buffer.address, array.data.ptr, buffer.nbytes)

    def lies_at(self, array: StubArray) -> int:
        return array.data.ptr if self.holds(array) else 0

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def event(self) -> Event:
        return Event()

    def download(self, buffer: Buffer, host: np.ndarray) -> None:
        ctypes.memmove(host.ctypes.data, buffer.address, buffer.nbytes) if buffer.nbytes else None

    def fetch(self, buffer: Buffer, as_numpy: bool) -> Any:
        copy = self.empty(buffer.shape, buffer.dtype)
        self.download(buffer, copy.host)
        return copy.host.copy() if as_numpy else copy


def _seen(buffer: Buffer, count: int) -> np.ndarray:
    """`count` elements of a buffer, in place."""
    raw = (ctypes.c_uint8 * (count * buffer.dtype.itemsize)).from_address(buffer.address)
    return np.frombuffer(raw, np.uint8).view(buffer.dtype)


def _matrices(buffer: Buffer, rows: int, columns: int, batch: int, stride: int) -> np.ndarray:
    flat = _seen(buffer, (batch - 1) * stride + rows * columns)
    return np.stack(
        [
            flat[i * stride : i * stride + rows * columns].reshape(rows, columns)
            for i in range(batch)
        ]
    )


def gemm(call: Gemm) -> None:
    """What cuBLASLt does with a Gemm: computed in float32, or float64 for float64."""
    real = float64 if call.a.dtype == float64 else float32
    sa, sb, sc = call.strides
    a = _matrices(
        call.a, *((call.k, call.m) if call.trans_a else (call.m, call.k)), call.batch, sa
    ).astype(real)
    b = _matrices(
        call.b, *((call.n, call.k) if call.trans_b else (call.k, call.n)), call.batch, sb
    ).astype(real)
    with np.errstate(all="ignore"):  # a GPU does not warn of NaN
        z = (a.swapaxes(1, 2) if call.trans_a else a) @ (b.swapaxes(1, 2) if call.trans_b else b)
    if call.beta:
        z += real.type(call.beta) * _matrices(call.c, call.m, call.n, call.batch, sc).astype(real)
    _epilogue(call, z[0] if call.batch == 1 else z, a[0], b[0], real)
    flat = _seen(call.c, (call.batch - 1) * sc + call.m * call.n)
    for i in range(call.batch):
        flat[i * sc : i * sc + call.m * call.n] = z[i].reshape(-1).astype(call.c.dtype)


def _epilogue(call: Gemm, z: np.ndarray, a: np.ndarray, b: np.ndarray, real: np.dtype) -> None:
    """Change z in place, and write what the epilogue gives besides."""
    kind = call.epilogue
    if kind == "BGRADA":  # of the library's A, which is our B
        summed = b.sum(axis=1 if call.trans_b else 0)
        _seen(call.bias, call.n)[...] = summed.astype(call.bias.dtype)
    elif kind == "BGRADB":
        summed = a.sum(axis=0 if call.trans_a else 1)
        _seen(call.bias, call.m)[...] = summed.astype(call.bias.dtype)
    elif call.bias is not None:
        z += _seen(call.bias, call.n).astype(real)
    if "RELU" in kind:
        if kind == "DRELU":
            bits = _seen(call.aux, call.m * call.aux_ld // 8).reshape(call.m, -1)
            z *= unpack_mask(bits, call.n)
            return
        if "AUX" in kind:
            bits = _seen(call.aux, call.m * call.aux_ld // 8).reshape(call.m, -1)
            bits[...] = pack_mask(z > 0)
        np.maximum(z, 0, out=z)
    elif "GELU" in kind:
        kept = (
            _seen(call.aux, call.m * call.aux_ld).reshape(call.m, -1)[:, : call.n]
            if call.aux
            else None
        )
        if kind == "DGELU":
            z *= gelu_slope(kept.astype(real), True)
            return
        if kept is not None:
            kept[...] = z.astype(call.aux.dtype)
        z[...] = gelu(z, approximate=True)


def install(gpus: int = 1) -> StubRuntime:
    """Let CUDAPlace(0) and so on be stubs; the first of them."""
    made = [StubRuntime(index) for index in range(gpus)]
    cuda.why_not = lambda: None
    cuda.device_count = lambda: gpus
    cuda.runtime = lambda place: made[place.device_id]
    cuda.device_array = lambda value: value if isinstance(value, StubArray) else None
    return made[0]


def installed(monkeypatch: Any, gpus: int = 1) -> StubRuntime:
    """Likewise for one test: minigraph.cuda is as it was afterwards."""
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(cuda, name, getattr(cuda, name))
    return install(gpus)
