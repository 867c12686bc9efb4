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
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.call import Grid, Run
from minigraph.kernels.cuda.record.compile import CACHE, _writable, read_source, write_whole
from minigraph.kernels.groups import present

COMPILER = shutil.which("g++")
GUARD, ALIGNMENT = 256, 256  # bytes
GARBAGE = 0xA7
CONVERSION = re.compile(r'asm\("cvt\.([\w.]+) %0, %1;" : "=\w"\((.+?)\) : "\w"\((.+)\)\);')
DYNAMIC_SHARED = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")
SHARED_ARGUMENT = re.compile(r"const __grid_constant__ (\w+) (\w+)")  # a copy for each thread takes long
MACRO = re.compile(r"^[ \t]*#[ \t]*define (\w+)", re.MULTILINE)
CLUSTER = re.compile(r"__cluster_dims__\((\w+), 1, 1\)")
SHARED_BYTES = Device().shared
OPTIONS = ("-std=c++17", "-O0", "-ffp-contract=off", "-fPIC", "-fno-strict-aliasing", "-fno-exceptions", "-w")
TOGETHER = 16  # kernels of a library
PRELUDE = "record/prelude.cuh"
LIBRARIES = CACHE.with_name("host")
KEPT_SECONDS = 7 * 86400  # since it was last of use
HEADER, RUNTIME = (Path(__file__).with_name(f"cuda_host.{suffix}") for suffix in ("h", "cpp"))

Slots = dict[str, Any]
Kernel = tuple[str, str]  # its source, the name of its function


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
    calls, kernels = runnable(binder, memory)
    build(kernels)
    for call in calls:
        call()
    memory.check()


def runnable(binder: Binder, memory: Memory) -> tuple[list[Run], list[Kernel]]:
    """What runs the calls of a binder in order, and the kernels in it, which may be built along with others."""
    for table in binder.tables:
        for buffer in table.words.buffers:
            memory.put(buffer)
        memory.put(table.buffer, table.packed())
    for call in binder.calls:
        for buffer in call.buffers():
            memory.put(buffer)
    host = Host()
    return [one for call in binder.calls for one in call.runnable(host)], host.kernels


class Host:
    """What calls are bound with on a CPU, see minigraph.kernels.cuda.record.call.Primitives; it has no library."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        self.kernels: list[Kernel] = []

    def kernel(
        self, source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0,
        together: bool = False,
    ) -> Run:  # fmt: skip
        self.kernels.append((source, function))
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
            with np.errstate(all="ignore"):  # the gaps of a bucket hold anything
                out[...] = getattr(group, kind)(x, *([root] if kind in ("broadcast", "reduce") else []))

        return run

    def together(self, collectives: Sequence[Run]) -> Run:
        def run() -> None:
            for collective in collectives:
                collective()

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


_one_kernel = threading.Lock()


def launch(source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...]) -> None:
    """Run a kernel, block by block."""
    held = [np.array([np.int64(v) if type(v) is int else v]) for v in args]
    pointers = (ctypes.c_void_p * len(held))(*[h.ctypes.data for h in held])
    entry = compiled(source, function)
    assert entry.parameters == len(held), f"{function} takes {entry.parameters} arguments"
    with _one_kernel:  # blockIdx and the like are variables of this process
        entry.run(pointers, *grid, block[0])


class Entry(NamedTuple):
    """A kernel as a function of this process, and how many arguments it takes."""

    run: Callable[..., None]
    parameters: int


@cache
def compiled(source: str, function: str) -> Entry:
    """The kernel, built if need be."""
    build([(source, function)])
    name = _name(source, function)
    _load_runtime()
    library = _load(_folder() / f"{name}.so")
    run, parameters = library[f"run_{name}"], library[f"parameters_{name}"]
    run.argtypes, run.restype = [ctypes.c_void_p, *[ctypes.c_uint] * 4], None
    parameters.restype = ctypes.c_long
    return Entry(run, parameters())


def build(kernels: Iterable[Kernel]) -> None:
    """Compile kernels that are not on the disk, TOGETHER at a time; starting a compiler takes longer than most need.

    A library lies under the name of each of its kernels, which have a namespace each.
    """
    names = {_name(*kernel): kernel for kernel in kernels}
    missing = [name for name in names if not (_folder() / f"{name}.so").exists()]
    for some in (missing[i : i + TOGETHER] for i in range(0, len(missing), TOGETHER)):
        header, runtime = _header(), _runtime()
        texts = [_text(name, *names[name]) for name in some]
        libraries = "-x", "none", "-nostdlib", runtime, "-lgcc"  # looking through more takes longer than compiling
        paths = [_folder() / f"{name}.so" for name in some]
        _compile(paths, "-shared", "-s", "-x", "c++", "-", *libraries, text="".join((header, *texts)))


@cache
def _name(source: str, function: str) -> str:
    return "k" + _hash(f"{function} {source}")


def _text(name: str, source: str, function: str) -> str:
    """A kernel in a namespace of its own, without the prelude, which is in the header."""
    text = _on_host(source.removeprefix(read_source(PRELUDE))).replace('extern "C" ', "")
    own = rf"static \1 \2_of[CLUSTER_BLOCKS][{SHARED_BYTES} / sizeof(\1)]; \1* const \2 = \2_of[host_thread->rank];"
    text, blocks = DYNAMIC_SHARED.sub(own, text), CLUSTER.search(text)
    undefined = "".join(f"#undef {macro}\n" for macro in dict.fromkeys(MACRO.findall(text)))
    entry = f"HOST_ENTRY({name}, {function}, {blocks[1] if blocks else 1})"
    return f"namespace {name} {{\n{text}\n}}\n{entry}\n{undefined}"


def _on_host(text: str) -> str:
    text, _ = CONVERSION.subn(lambda m: f"{m[2]} = cvt_{m[1].replace('.', '_')}({m[3]});", text)
    return SHARED_ARGUMENT.sub(r"const \1& \2", text)


def _compile(targets: Sequence[Path], *arguments: Any, text: str = "") -> None:
    """Make a file that has all these names; another process may make it, too. `text` is what "-" reads."""
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        made = Path(folder, "made")
        command = [COMPILER or "g++", *OPTIONS, f"-I{_folder()}", *map(str, arguments), "-o", str(made)]
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[:3000]
        for target in targets:
            with suppress(FileExistsError):  # another process was faster
                os.link(made, target)


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
        _compile([path], "-shared", RUNTIME, "-O2", "-U_FORTIFY_SOURCE")
    return path


@cache
def _header() -> str:
    """The line with which kernels include what all begin with, compiled ahead."""
    ahead = _folder() / "before.h.gch"
    if not ahead.exists():
        text = HEADER.read_text("utf-8") + _on_host(read_source(PRELUDE))
        write_whole(ahead.with_suffix(""), text.encode())
        _compile([ahead], "-x", "c++-header", ahead.with_suffix(""))
    return f'#include "{ahead.stem}"\n'


@cache
def _folder() -> Path:
    """Where what this compiler makes with this header and runtime is kept, for other processes and later runs, too."""
    version = subprocess.run([COMPILER or "g++", "-v"], capture_output=True, text=True, check=True).stderr
    everything = _writable(LIBRARIES)
    for old in everything.glob("*/*.so"):
        with suppress(OSError):  # another process was faster
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                old.unlink()
    texts = [p.read_text("utf-8") for p in (HEADER, RUNTIME, Path(__file__))]
    folder = everything / _hash("".join((version, read_source(PRELUDE), *texts)))
    folder.mkdir(exist_ok=True)
    return folder


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Bound:
    """What a bind function recorded for arrays, with memory, ready to run.

    inputs   {slot: array, list of arrays or None}
    outputs  {slot: TensorType, list of them or None}
    """

    def __init__(
        self, bind: Callable[..., None], inputs: Mapping[str, Any], outputs: Mapping[str, Any],
        attrs: Mapping[str, Any], in_place: Mapping[str, str] | None = None, seed: int = 0, number: int = 0,
        step: int = 0, unread: Any = (), device: Device | None = None, reference: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        self.memory, self.binder = Memory(), Binder(device or Device(), seed=seed)
        self.binder.begin(3, number, reference)
        ins = {s: over(x, lambda a, s=s: self.buffer(a, a, s not in unread)) for s, x in inputs.items()}
        self.outputs = {
            s: ins[in_place[s]] if in_place and s in in_place else over(t, self.buffer) for s, t in outputs.items()
        }
        self.memory.put(self.binder.fault, np.zeros(self.binder.fault.shape, np.int64))
        self.memory.put(self.binder.counter, np.array([step]))
        bind(self.binder, ins, self.outputs, attrs)
        self.calls, self.kernels = runnable(self.binder, self.memory)

    def buffer(self, t: Any, value: np.ndarray | None = None, given: bool = True) -> Buffer:
        made = Buffer(t.shape, t.dtype)
        if given:
            self.memory.put(made, value)
        return made

    def run(self) -> tuple[Slots, np.ndarray]:
        """Outputs and the fault record."""
        build(self.kernels)
        for call in self.calls:
            call()
        self.memory.check()
        arrays = self.memory.arrays
        return {s: over(b, arrays.__getitem__) for s, b in self.outputs.items()}, arrays[self.binder.fault][:4]


def over(x: Any, one: Callable[[Any], Any]) -> Any:
    """`one` of a slot's element, or of each one of its list."""
    return None if x is None else [one(e) for e in x] if isinstance(x, list) else one(x)


def run_bind(*arguments: Any, **options: Any) -> tuple[Slots, np.ndarray]:
    """Outputs of a bind function on arrays, and the fault record, see Bound."""
    return Bound(*arguments, **options).run()
