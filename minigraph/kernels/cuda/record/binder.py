"""Binder: records what the operators of a plan do on the device, as launches with fixed arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np

from minigraph.kernels.chunks import workspace

from .buffer import Arena, Buffer, Table, Words, owner
from .call import Call
from .calls import ARGUMENTS, Choice, Copy, Fill, Gemm, HostCall, Launch
from .compile import full_source
from .symbolic import scalar


@dataclass(frozen=True)
class Device:
    """What launch sizes depend on; the defaults are an H200's. A block may have `shared` bytes of shared memory."""

    arch: str = "sm_90a"
    multiprocessors: int = 132
    index: int = 0
    shared: int = 227 * 1024
    arguments: int = ARGUMENTS  # bytes of a kernel's arguments


CARDS = {  # by name, to plan for one that is not there: NVIDIA's data sheets and the CUDA C++ programming guide
    "h200": Device(),
    "h100": Device(),  # SXM: as many multiprocessors as an H200
    "h100-pcie": Device(multiprocessors=114),
    "a100": Device("sm_80", 108, shared=163 * 1024),
    "l40s": Device("sm_89", 142, shared=99 * 1024),
    "rtx4090": Device("sm_89", 128, shared=99 * 1024),
}


@dataclass
class Binder:
    """Collects the calls of one plan.

    calls    in order of execution
    step     number of the operator that is being bound, for faults
    member   the type of a member of it that is being bound, if it is a fused one: faults name it, too
    fault    where kernels report values that they cannot take, prelude.cuh's Fault
    wrong    what such a value is, by the number of its operator
    """

    device: Device = field(default_factory=Device)
    calls: list[Call] = field(default_factory=list)
    step: int = 0
    member: str = ""
    scratches: list[list[Buffer]] = field(default_factory=list)  # per step
    tables: list[Table] = field(default_factory=list)
    arenas: list[Arena] = field(default_factory=list)  # of neighbours
    outside: frozenset[int] = frozenset()  # ids of the buffers that a Scope owns, and of their arenas
    managed: list[Buffer] = field(default_factory=list)  # of those, what shall lie in managed memory
    paged: list[Buffer] = field(default_factory=list)  # of those, what shall lie in pinned memory of the host
    notes: list[tuple[int, str]] = field(default_factory=list)  # step, what its kernel does otherwise than asked
    fault: Buffer = field(default_factory=lambda: Buffer((7,), np.dtype("int64")))
    wrong: dict[int, str] = field(default_factory=dict)
    stored: bool = False  # whether all that a Scope keeps is written before the operator that is being bound
    counter: Buffer = field(default_factory=lambda: Buffer((1,), np.dtype("int64")))  # runs so far
    tf32: bool = False  # whether products of float32 may round their operands
    multi_tensor: str = "auto"  # how kernels over lists learn their addresses: tensors.py
    attention: str = "auto"  # the kernel of attention that is wanted: attention.py
    autotune: bool = False  # whether variants will be timed
    sources: dict[str, str] = field(default_factory=dict)  # texts of kernels so far
    seed: int = 0
    number: int = 0  # of the operator among those of its program
    reference: Callable[..., Any] | None = None  # its NumPy definition
    workspace: Buffer | None = None  # of the products that are recorded now, if they share one
    sure: Callable[[Sequence[Call]], bool] = lambda calls: False  # whether calls will run: workspace.py
    answers: list[bool] = field(default_factory=list)  # what `sure` said of this operator's variants, in order
    joined: dict[int, Launch] = field(default_factory=dict)  # what runs in the place of a call and of others
    gone: frozenset[int] = frozenset()  # positions of these others

    def begin(self, step: int, number: int = 0, reference: Callable[..., Any] | None = None) -> None:
        """The calls that follow belong to operator `step`; scratch of the one before is free again."""
        self.step, self.number, self.reference, self.member = step, number, reference, ""
        self.scratches.append([])
        self.answers.clear()

    def note(self, text: str) -> None:
        """Something about this operator's kernel that a report should say."""
        self.notes.append((self.step, text))

    def report(self, wrong: str) -> tuple[Buffer, np.int64]:
        """Arguments of a kernel that reports values that are `wrong`: "out of range [0, 7)", for example."""
        self.wrong[self.step] = f"{wrong}, in {self.member}" if self.member else wrong
        return self.fault, i64(~self.step if self.stored else self.step)

    def guard(self, outs: Iterable[Buffer]) -> tuple[dict[str, int], tuple[Any, ...]]:
        """What a kernel that writes `outs` is compiled with, and its arguments, so that a Scope keeps what it has there
        where the run has a fault; nothing for other outputs, and where no kernel before this one may report.

        The last argument is 1 where none after it may.
        """
        if not self.wrong or not any(id(owner(b)) in self.outside for b in outs):
            return {}, ()
        return {"GUARD": 1}, (self.fault, i64(1))

    def scratch(self, shape: Sequence[int], dtype: Any) -> Buffer:
        """Memory for this operator alone; its content is undefined."""
        self.scratches[-1].append(Buffer(shape, np.dtype(dtype)))
        return self.scratches[-1][-1]

    def launch(
        self, file: str, function: str, grid: int | Sequence[int], block: int, *args: Any, shared: int = 0,
        defines: Mapping[str, Any] | None = None, form: Any = None,
    ) -> None:  # fmt: skip
        """Launch `function` of a .cu file compiled with `#define key value` for each of `defines`."""
        given = defines or {}
        source = full_source(file, tuple(zip(given, map(str, given.values()), strict=True)))
        self.launch_source(source, function, grid, block, *args, shared=shared, form=form)

    def launch_source(
        self, source: str, function: str, grid: int | Sequence[int], block: int, *args: Any, shared: int = 0,
        together: bool = False, form: Any = None, reads: tuple[Buffer, ...] = (),
    ) -> None:  # fmt: skip
        """Launch `function` of a generated source; a grid without blocks launches nothing."""
        blocks: tuple[Any, ...] = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if 0 in blocks:
            return
        x, y, z = (*blocks, 1, 1)[:3]
        source = self.sources.setdefault(source, source)  # layers share their text, of many kilobytes
        call = Launch(source, function, (x, y, z), (block, 1, 1), args, shared, together, form, reads)
        call.check(self.device.arguments)
        self.calls.append(call)

    def table(self, words: Sequence[Buffer | int], *arrays: np.ndarray) -> list[Buffer]:
        """Words and constant arrays in device memory, as buffers: the words, then each array."""
        self.tables.append(Table(Words(words), arrays))
        return self.tables[-1].parts()

    def side_by_side(self, members: Sequence[Buffer], offsets: Sequence[int], nbytes: int) -> Buffer | None:
        """The buffer in which `members` get these places; None where they cannot be brought together."""
        for arena in self.arenas:
            same = len(arena.members) == len(members) and all(map(is_, arena.members, members))
            if same and arena.offsets == list(offsets):
                return arena.base
        owned = {id(b) in self.outside for b in members}
        if len(owned) > 1 or any(b.owner is not None for b in members) or len({id(b) for b in members}) < len(members):
            return None
        self.arenas.append(Arena(members, offsets, nbytes, owned == {True}))
        base = self.arenas[-1].base
        if owned == {True}:
            self.outside |= {id(base)}  # what owns the members from now on
        return base

    def blocks(self) -> Callable[[Buffer], Sequence[Buffer]]:
        """A function that gives the buffers which own the memory of one: of an arena of temporaries its members."""
        arenas = {id(a.base): a.members for a in self.arenas if not a.outside}
        members = {id(b) for some in arenas.values() for b in some}
        if not arenas:
            return lambda buffer: (owner(buffer),)

        def blocks_of(buffer: Buffer) -> Sequence[Buffer]:
            while buffer.owner is not None and id(buffer) not in members:
                buffer = buffer.owner
            return arenas.get(id(buffer), (buffer,))

        return blocks_of

    def write_tables(self, runtime: Any) -> None:
        """Put the tables into new memory of the runtime, now that addresses are known.

        Calls that were bound before, for other addresses, go on reading their own.
        """
        for table in self.tables:
            table.write(runtime)

    def running(self) -> Iterator[tuple[int, Call]]:
        """The calls that run, with their positions."""
        return ((i, self.joined.get(i, call)) for i, call in enumerate(self.calls) if i not in self.gone)

    def copy(self, destination: Buffer, source: Buffer) -> None:
        """Copy all bytes; nothing to do where both are one buffer or empty."""
        if destination is source:
            return
        assert destination.nbytes == source.nbytes, (destination, source)
        if destination.nbytes:
            self.calls.append(Copy(destination, source))

    def rng(self, attrs: Mapping[str, Any]) -> tuple[np.uint64, np.int64, Buffer]:
        """What keys this operator's random numbers: seed, number, and the step counter on the device."""
        return np.uint64(attrs.get("seed") or self.seed), np.int64(self.number), self.counter

    def host(
        self, inputs: Sequence[Buffer], function: Callable[..., Sequence[np.ndarray]], outputs: Sequence[Buffer] = ()
    ) -> None:  # fmt: skip
        """Call a function of the host with the values of `inputs`; it returns those of `outputs`."""
        self.calls.append(HostCall(function, list(inputs), list(outputs)))

    def zero(self, destination: Buffer) -> None:
        """Set all bytes to zero."""
        if destination.nbytes:
            self.calls.append(Fill(destination, 0))

    def gemm(self, a: Buffer, b: Buffer, c: Buffer, **facts: Any) -> None:
        """A product through cuBLASLt."""
        call = Gemm(a, b, c, **facts)
        room = workspace(call.m * call.n * call.batch)
        call.workspace = shared = self.workspace or self.scratch((room,), np.uint8)
        shared.shape = (max(room, shared.nbytes),)
        self.calls.append(call)

    def apart(self, record: Callable[[], None]) -> list[Call]:
        """The calls that `record` records; they do not stand among the others yet."""
        calls, self.calls = self.calls, []
        try:
            record()
            return self.calls
        finally:
            self.calls = calls

    def choose(self, variants: Mapping[str, Callable[[], None]]) -> None:
        """Record several ways to compute the same, up to one that will run; one of them must suit every shape."""
        made, calls, workspace = dict[str, list[Call]](), self.calls, self.workspace
        self.workspace = workspace or self.scratch((0,), np.uint8)  # of the one that runs
        for name, record in variants.items():
            self.calls = made[name] = []
            record()
            self.answers.append(self.sure(self.calls))
            if self.answers[-1]:
                break
        self.calls, self.workspace = calls, workspace
        self.calls.append(Choice(made, self.step))


def i64(value: int) -> Any:
    """A kernel argument of type long long."""
    return scalar(np.int64, value)


def i32(value: int) -> Any:
    """A kernel argument of type int."""
    return scalar(np.int32, value)


def blocks_for(items: int, per_block: int) -> int:
    """How many blocks cover `items`."""
    return -(-items // per_block)
