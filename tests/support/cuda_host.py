"""CUDA kernels on a CPU: what a Binder recorded, compiled by the host's C++ compiler and run.

cuda_host.h and .cpp stand in for the GPU; the kernels' text is the one that NVRTC gets. Every array lies between
guards and begins with garbage, so writes beside an array and elements never written show. What was compiled once is
kept beside the cubins, in ~/.cache/minigraph, by its text, header, runtime and compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Grid, Run
from minigraph.kernels.cuda.record.compile import CACHE, _writable, write_whole
from minigraph.kernels.groups import present

COMPILER = shutil.which("g++")
GUARD, ALIGNMENT = 256, 256  # bytes
GARBAGE = 0xA7
CONVERSION = re.compile(r'asm\("cvt\.([\w.]+) %0, %1;" : "=\w"\((.+?)\) : "\w"\((.+)\)\);')
DYNAMIC_SHARED = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")
SHARED_ARGUMENT = re.compile(r"const __grid_constant__ (\w+) (\w+)")  # a copy for each thread takes long
CLUSTER = re.compile(r"__cluster_dims__\((\w+), 1, 1\)")
SHARED_BYTES = Device().shared
OPTIONS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-fno-strict-aliasing", "-fno-exceptions", "-w")
LIBRARIES = CACHE.with_name("host")
KEPT_SECONDS = 7 * 86400  # since it was last of use
HEADER, RUNTIME = (Path(__file__).with_name(f"cuda_host.{suffix}") for suffix in ("h", "cpp"))

Slots = dict[str, Any]


class NotOnHost(Exception):
    """A call that needs a GPU's library."""


class Memory:
    """Host arrays in place of device buffers."""

    def __init__(self) -> None:
        self.arrays: dict[Buffer, np.ndarray] = {}
        self.guarded: list[np.ndarray] = []

    def put(self, buffer: Buffer, value: np.ndarray | None = None) -> None:
        """Give a buffer memory, unless it has some, filled with `value` or with garbage."""
        while buffer.owner is not None:
            buffer = buffer.owner
        if buffer in self.arrays:
            return
        whole = np.full(buffer.nbytes + 2 * GUARD + ALIGNMENT, GARBAGE, np.uint8)
        start = GUARD + -(whole.ctypes.data + GUARD) % ALIGNMENT
        inner = whole[start : start + buffer.nbytes]
        if value is not None:
            inner[...] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        buffer.ptr = whole.ctypes.data + start
        self.arrays[buffer] = inner.view(buffer.dtype).reshape(buffer.shape)
        self.guarded += [whole[:start], whole[start + buffer.nbytes :]]

    def check(self) -> None:
        """Nothing was written beside an array."""
        for guard in self.guarded:
            assert (guard == GARBAGE).all(), "a kernel wrote beside an array"


def run(binder: Binder, memory: Memory) -> None:
    """Run the calls of a binder in order."""
    for table in binder.tables:
        for buffer in table.words.buffers:
            memory.put(buffer)
        memory.put(table.buffer, table.packed())
    host = Host()
    for call in binder.calls:
        for buffer in call.buffers():
            memory.put(buffer)
        for one in call.runnable(host):
            one()
    memory.check()


class Host:
    """What calls are bound with on a CPU, see minigraph.kernels.cuda.record.call.Primitives; it has no library."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []

    def kernel(
        self, source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0,
        together: bool = False,
    ) -> Run:  # fmt: skip
        return partial(launch, source, function, grid, block, args)

    def copy(self, destination: int, source: int, nbytes: int) -> Run:
        return partial(ctypes.memmove, destination, source, nbytes)

    def fill(self, destination: int, value: int, nbytes: int) -> Run:
        return partial(ctypes.memset, destination, value, nbytes)

    def product(self, call: Any) -> Run:
        raise NotOnHost(f"{type(call).__name__} needs a GPU")

    def host(self, function: Callable[..., Any], inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Run:
        def call() -> None:
            for array, buffer in zip(function(0, *(seen(b).copy() for b in inputs)), outputs, strict=True):
                assert (array.shape, array.dtype) == (buffer.shape, buffer.dtype), f"{array.dtype} for {buffer}"
                seen(buffer)[...] = array

        return call

    def collective(
        self, kind: str, destination: int, source: int, sizes: tuple[int, int], dtype: Any, root: int
    ) -> Run:  # fmt: skip
        group, (out, x) = present(), (at(a, n, dtype) for a, n in zip((destination, source), sizes, strict=True))

        def run() -> None:
            out[...] = getattr(group, kind)(x, *([root] if kind in ("broadcast", "reduce") else []))

        return run

    def wanted(self, names: Sequence[str]) -> Sequence[str]:
        raise NotOnHost(f"a choice of {', '.join(names)} needs a GPU")


def at(address: int, size: int, dtype: Any) -> np.ndarray:
    """So many elements at an address, in place."""
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address), dtype)


def seen(buffer: Buffer) -> np.ndarray:
    """The elements of a buffer, in place."""
    raw = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
    return np.frombuffer(raw, np.uint8).view(buffer.dtype).reshape(buffer.shape)


def launch(source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...]) -> None:
    """Run a kernel, block by block."""
    held = [np.array([np.int64(v) if type(v) is int else v]) for v in args]
    pointers = (ctypes.c_void_p * len(held))(*[h.ctypes.data for h in held])
    library = compiled(source, function)
    assert library.host_parameters() == len(held), f"{function} takes {library.host_parameters()} arguments"
    library.host_run(pointers, *grid, block[0])


@cache
def compiled(source: str, function: str) -> ctypes.CDLL:
    """The kernel as a function of this process."""
    text, _ = CONVERSION.subn(lambda m: f"{m[2]} = cvt_{m[1].replace('.', '_')}({m[3]});", source)
    text = SHARED_ARGUMENT.sub(r"const \1& \2", text)
    own = rf"static \1 \2_of[CLUSTER_BLOCKS][{SHARED_BYTES} / sizeof(\1)]; \1* const \2 = \2_of[host_thread->rank];"
    text, blocks = DYNAMIC_SHARED.sub(own, text), CLUSTER.search(text)
    text = f"#include \"{HEADER.name}\"\n{text}\nHOST_ENTRY({function}, {blocks[1] if blocks else 1})\n"
    path = _folder() / f"{_hash(text)}.so"
    if not path.exists():
        _compile_header()
        libraries = "-nostdlib", _runtime(), "-lm", "-lc", "-lgcc"  # looking through all that C++ has takes time
        _compile(path, "-shared", "-s", "-x", "c++", "-", "-x", "none", *libraries, text=text)
    _load_runtime()
    library = _load(path)
    library.host_run.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 4]
    library.host_parameters.restype = ctypes.c_long
    return library


def _compile(target: Path, *arguments: Any, text: str = "") -> None:
    """Make `target`, all or nothing: another process may make it, too. `text` is what "-" reads."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, target.name)
        command = [COMPILER or "g++", *OPTIONS, f"-I{target.parent}", *map(str, arguments), "-o", str(made)]
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[:3000]
        os.replace(made, target)


def _load(path: Path, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    os.utime(path)  # it was of use
    return ctypes.CDLL(str(path), mode)


@cache
def _load_runtime() -> ctypes.CDLL:
    """What all kernels share, for them to find."""
    return _load(_runtime(), ctypes.RTLD_GLOBAL)


@cache
def _runtime() -> Path:
    path = _folder() / f"{RUNTIME.stem}.so"
    if not path.exists():  # with _FORTIFY_SOURCE fibers would be taken for broken stacks
        _compile(path, "-shared", RUNTIME, "-O2", "-U_FORTIFY_SOURCE")
    return path


@cache
def _compile_header() -> None:
    """The header, compiled ahead, where kernels look for it."""
    ahead = _folder() / f"{HEADER.name}.gch"
    if not ahead.exists():
        write_whole(ahead.with_suffix(""), HEADER.read_bytes())
        _compile(ahead, "-x", "c++-header", HEADER)


@cache
def _folder() -> Path:
    """Where what this compiler makes with this header and runtime is kept, for other processes and later runs, too."""
    version = subprocess.run([COMPILER or "g++", "-v"], capture_output=True, text=True, check=True).stderr
    everything = _writable(LIBRARIES)
    for old in everything.glob("*/*.so"):
        with suppress(OSError):  # another process was faster
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink()
    folder = everything / _hash("".join((version, *(p.read_text("utf-8") for p in (HEADER, RUNTIME, Path(__file__))))))
    folder.mkdir(exist_ok=True)
    return folder


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_bind(
    bind: Callable[..., None], inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any],
    in_place: Mapping[str, str] | None = None, seed: int = 0, number: int = 0, step: int = 0, unread: Any = (),
    device: Device | None = None, reference: Callable[..., Any] | None = None,
) -> tuple[Slots, np.ndarray]:  # fmt: skip
    """Outputs of a bind function on arrays, and the fault record.

    inputs   {slot: array, list of arrays or None}
    outputs  {slot: TensorType, list of them or None}
    """
    memory, binder = Memory(), Binder(device or Device(), seed=seed)
    binder.begin(3, number, reference)

    def buffer(t: Any, value: np.ndarray | None = None, given: bool = True) -> Buffer:
        made = Buffer(t.shape, t.dtype)
        if given:
            memory.put(made, value)
        return made

    def over(x: Any, one: Callable[[Any], Any]) -> Any:
        return None if x is None else [one(e) for e in x] if isinstance(x, list) else one(x)

    ins = {slot: over(x, lambda a, s=slot: buffer(a, a, s not in unread)) for slot, x in inputs.items()}
    outs = {
        slot: ins[in_place[slot]] if in_place and slot in in_place else over(t, buffer) for slot, t in outputs.items()
    }
    memory.put(binder.fault, np.zeros(binder.fault.shape, np.int64))
    memory.put(binder.counter, np.array([step]))
    bind(binder, ins, outs, attrs)
    run(binder, memory)
    return {slot: over(b, memory.arrays.__getitem__) for slot, b in outs.items()}, memory.arrays[binder.fault][:4]
