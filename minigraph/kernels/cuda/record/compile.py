"""CUDA C++ -> cubin by NVRTC. Works on a machine without a GPU; results are kept on disk.

They lie in CACHE; where that cannot be written or is full, in a folder of the process, which goes with it. A package
called SHIPPED may bring some: a folder that `minigraph compile --out` wrote, where Python finds packages. From compute
capability 9.0 on every kernel begins with a wait for those before it: a graph may launch it while they end
(device/programmatic_launch.py).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from queue import PriorityQueue
from typing import NamedTuple

from minigraph.kernels.cores import physical_cores

from .bindings import nvrtc
from .progress import told


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user whom the system does not know, in a container for example
        return Path(os.devnull)  # nothing can be written below it


CACHE = _home() / ".cache" / "minigraph" / "kernels"
SHIPPED = "minigraph_kernels"
KEPT = 1024  # texts that may be asked for again: layers share them, and each has many kilobytes
KERNEL = re.compile(r"__global__[^{;]*\{")  # what stands before the first statement of one
WAIT = ' asm volatile("griddepcontrol.wait;" : : : "memory");'
WAITS = "every kernel waits before it touches memory"
TOUCHES = re.compile(r"^\s*(?:@\S+\s+)?(?!ld\.param)(?:ldu?|st|atom|red|cp|prefetchu?|tex|call|mbarrier)\b", re.M)
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "-lineinfo")
_one_thread, _one_takes = threading.Lock(), threading.Lock()


class Cubin(NamedTuple):
    """Machine code of one source for one architecture, and the compiler's resource report."""

    path: Path
    log: str

    @property
    def spilled_bytes(self) -> int:
        """Bytes of registers that did not fit and go through local memory."""
        return sum(int(n) for n in re.findall(r"(\d+) bytes spill", self.log))

    @property
    def waits_first(self) -> bool:
        """Whether its kernels wait for those before them, before they read or write anything."""
        return self.log.endswith(WAITS)


@cache
def read_source(name: str) -> str:
    """The text of a .cu or .cuh file of this folder."""
    return files("minigraph.kernels.cuda").joinpath(name).read_text(encoding="utf-8")


def full_source(name: str, defines: Sequence[tuple[str, str]] = ()) -> str:
    """prelude, `#define`s, then the file."""
    return _full_source(name, tuple(defines))


@lru_cache(maxsize=KEPT)
def _full_source(name: str, defines: tuple[tuple[str, str], ...]) -> str:
    head = "".join(f"#define {key} {value}\n" for key, value in defines)
    return read_source("record/prelude.cuh") + head + read_source(name)


def compile_source(source: str, arch: str = "sm_90a") -> Cubin:
    """The cubin of `source`, from disk if it was made before; a RuntimeError holds NVRTC's log."""
    source = _waiting(source, arch)
    return _known(source, arch) or _made(_writable(CACHE), _key(source, arch), source, arch)


def _key(source: str, arch: str, shipped: bool = False) -> str:
    """The name of a kernel's files; shipped ones serve every NVRTC of a major version, as drivers do."""
    _, major, minor = nvrtc().nvrtcVersion()
    version = f"{major}" if shipped else f"{major}.{minor}"
    return hashlib.sha256("\0".join((source, arch, *OPTIONS, version)).encode()).hexdigest()


def _known(source: str, arch: str) -> Cubin | None:
    """What was compiled before, here or by who shipped it."""
    key = _key(source, arch)
    cubin = _found(CACHE, key)
    if cubin is None and _own_folder.cache_info().currsize:  # the folder could not be written, or was full
        cubin = _found(Path(_own_folder().name), key)
    for folder in _shipped() if cubin is None else ():
        cubin = cubin or _found(folder, _key(source, arch, shipped=True))
    return cubin


@cache
def _shipped() -> tuple[Path, ...]:
    """The folders of the package SHIPPED; it is found, not imported."""
    spec = find_spec(SHIPPED)
    return tuple(map(Path, spec.submodule_search_locations or ())) if spec is not None else ()


def ship(sources: Iterable[str], arch: str, folder: Path) -> int:
    """Write the machine code of `sources` into `folder`, to be shipped; how many kernels."""
    wanted = list(dict.fromkeys(sources))
    compile_all(wanted, arch)
    folder.mkdir(parents=True, exist_ok=True)
    for source in wanted:
        cubin = compile_source(source, arch)
        _kept(folder, _key(_waiting(source, arch), arch, shipped=True), cubin.path.read_bytes(), cubin.log)
    return len(wanted)


def _found(folder: Path, key: str) -> Cubin | None:
    """What `_kept` wrote; None where a part is missing or damaged."""
    path, log = folder / f"{key}.cubin", folder / f"{key}.log"
    try:
        digest, _, report = log.read_text(encoding="utf-8").partition("\n")
        return Cubin(path, report) if digest == _digest(path.read_bytes()) else None
    except (OSError, UnicodeDecodeError):
        return None


def _made(folder: Path, key: str, source: str, arch: str) -> Cubin:
    code, ptx, report = _compiled(source, arch)
    report = f"{report}\n{WAITS}" if waits_first(ptx) else report
    try:
        return _kept(folder, key, code, report)
    except OSError:  # the disk is full, or the folder went away
        with _one_thread:
            folder = Path(_own_folder().name)
        return _kept(folder, key, code, report)


def _kept(folder: Path, key: str, code: bytes, report: str) -> Cubin:
    path = folder / f"{key}.cubin"
    write_whole(folder / f"{key}.log", f"{_digest(code)}\n{report}".encode())
    write_whole(path, code)
    return Cubin(path, report)


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


@cache
def _writable(wanted: Path) -> Path:
    """`wanted`, made if need be; where nothing can be written there, a folder that goes with the process."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:
        with _one_thread:  # a second folder in place of the first would remove that
            return Path(_own_folder().name)


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="minigraph-")


class SideBySide:
    """Brings cubins of sources to the disk in threads of its own, while the caller goes on.

    Of what is left that comes next which somebody waits for, and of that the longest: it takes longest.
    begun  {source: what says that it was compiled} of those that were not there, until somebody waits for them
    there  the other sources, of all that were asked for: each is looked for once
    """

    def __init__(self, arch: str) -> None:
        self.arch, self.begun = arch, dict[str, Future[None]]()
        self.there: set[str] = set()
        self._left: PriorityQueue[tuple[bool, int, int, str, Future[None]]] = PriorityQueue()
        self._numbers = itertools.count()  # no two that are left are the same
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, sources: Iterable[str]) -> None:
        """Compile what is not on the disk."""
        for source in sorted({*sources} - self.there - self.begun.keys(), key=len, reverse=True):
            if _known(_waiting(source, self.arch), self.arch) is not None:
                self.there.add(source)
            else:
                self.begun[source] = Future()
                self._put(source, self.begun[source], wanted=False)

    def end(self, sources: Iterable[str]) -> int:
        """Wait for those of `sources` that have begun, and help; behind the last the threads go. How many it were."""
        wanted = {source: self.begun.pop(source) for source in sources if source in self.begun}
        if not wanted:  # a timer of `told` is a thread
            return 0
        for source, one in wanted.items():
            if not (one.running() or one.done()):
                self._put(source, one, wanted=True)

        def said() -> str:
            left = sum(not one.done() for one in wanted.values())
            return f"compiling {left} of {len(wanted)} kernels for {self.arch}; once, they stay in {CACHE}"

        try:
            with told(said):
                for source in sorted(wanted, key=len, reverse=True):
                    self._compile(source, wanted[source])
                for one in wanted.values():
                    one.result()
        finally:
            if self._pool is not None and not self.begun:
                self._pool.shutdown(wait=False)
                self._pool = None
        self.there |= wanted.keys()
        return len(wanted)

    def _put(self, source: str, done: Future[None], wanted: bool) -> None:
        self._left.put((not wanted, -len(source), next(self._numbers), source, done))
        self._pool = self._pool or ThreadPoolExecutor(physical_cores())
        self._pool.submit(self._compile_next)

    def _compile_next(self) -> None:
        self._compile(*self._left.get()[3:])

    def _compile(self, source: str, done: Future[None]) -> None:
        with _one_takes:
            if done.running() or done.done():  # somebody else has it
                return
            done.set_running_or_notify_cancel()
        try:
            compile_source(source, self.arch)
        except BaseException as problem:
            done.set_exception(problem)
        else:
            done.set_result(None)


def compile_all(sources: Iterable[str], arch: str) -> int:
    """Bring the cubins of several sources to the disk, several at a time; how many were not there."""
    work, wanted = SideBySide(arch), list(sources)
    work.begin(wanted)
    return work.end(wanted)


def ptx_of(source: str, arch: str = "sm_90a") -> str:
    """The PTX of `source` as `compile_source` compiles it; a RuntimeError holds NVRTC's log."""
    return _compiled(_waiting(source, arch), arch)[1]


def _waiting(source: str, arch: str) -> str:
    """The source for a GPU whose kernels may begin before the one before them has ended: each waits for that."""
    return KERNEL.sub(lambda m: m[0] + WAIT, source) if int(re.sub(r"\D", "", arch)) >= 90 else source


def _compiled(source: str, arch: str) -> tuple[bytes, str, str]:
    """(cubin, PTX, NVRTC's log)"""
    compiler = nvrtc()
    options = [o.encode() for o in (*OPTIONS, f"-arch={arch}", "--ptxas-options=-v")]
    _, program = compiler.nvrtcCreateProgram(source.encode(), b"minigraph.cu", 0, [], [])
    (status,) = compiler.nvrtcCompileProgram(program, len(options), options)
    _, size = compiler.nvrtcGetProgramLogSize(program)
    log = bytes(size)  # new memory; b" " * 1 would be the interpreter's own b" ", which NVRTC then overwrites
    compiler.nvrtcGetProgramLog(program, log)
    report = log.decode(errors="replace").strip("\0 \n")
    if int(status) != 0:
        raise RuntimeError(f"NVRTC cannot compile for {arch}:\n{report}")
    _, size = compiler.nvrtcGetCUBINSize(program)
    code = bytes(size)
    compiler.nvrtcGetCUBIN(program, code)
    _, size = compiler.nvrtcGetPTXSize(program)
    ptx = bytes(size)
    compiler.nvrtcGetPTX(program, ptx)
    compiler.nvrtcDestroyProgram(program)
    return code, ptx.decode(errors="replace").rstrip("\0"), report


def waits_first(ptx: str) -> bool:
    """Whether in the text of each kernel nothing but its arguments is read before the wait."""
    kernels = ptx.split(".entry ")[1:]
    return all("griddepcontrol.wait" in k and not TOUCHES.search(k[: k.index("griddepcontrol.wait")]) for k in kernels)


def write_whole(path: Path, content: bytes) -> None:
    """All or nothing, also when two processes write the same file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
