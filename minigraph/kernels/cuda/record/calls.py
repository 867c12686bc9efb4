"""The kinds of calls that operators record: see call.py for what each of them answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minigraph.errors import KernelError, require

from .buffer import Buffer, Words
from .call import (
    HOLDERS,
    Call,
    Grid,
    Places,
    Primitives,
    Run,
    RunnableCall,
    Segment,
    Unsupported,
    every_call,
    facts,
    moved,
    names_of,
)
from .symbolic import Scalar

ARGUMENTS = 32764  # bytes of a kernel's arguments that an H200 takes
WIDTHS: dict[type, int] = {Buffer: 8} | {
    t: np.dtype(t).itemsize for t in (np.int32, np.int64, np.uint64, np.float32, np.float64)
}  # bytes of usual arguments of kernels
UNSURE = {"RELU_BIAS"}  # epilogues of which algorithms are tried: some turn NaN into 0
LATER = "workspace", "algorithm", "others"  # fields of a product that follow from the others


@dataclass(slots=True)
class Launch(Call):
    """One kernel launch. Arguments are Buffers (their addresses), NumPy scalars and Words (by value).

    together  blocks wait for each other, so the device must run all of them at once or refuse
    reads     scratch that it does not write
    form      what the kernel is made of, where it may become part of another: joined_head.py
    """

    source: str
    function: str
    grid: Grid
    block: Grid
    args: tuple[Any, ...]
    shared: int = 0
    together: bool = False
    form: Any = None
    reads: tuple[Buffer, ...] = ()

    def check(self, limit: int = ARGUMENTS) -> None:
        """Sizes that every device of compute capability 8.0 or more can launch; `limit` bytes of arguments."""
        assert 1 <= self.grid[0] < 2**31 and 1 <= self.grid[1] < 2**16 and 1 <= self.grid[2] < 2**16, self.grid
        assert 1 <= self.block[0] * self.block[1] * self.block[2] <= 1024, self.block
        assert self.shared <= 227 * 1024, self.shared
        nbytes = 0
        for arg in self.args:
            nbytes += WIDTHS.get(type(arg)) or self._width(arg)
        require(
            nbytes <= limit, f"{self.function} has {nbytes} bytes of arguments, this device takes {limit}", KernelError,
            "fewer tensors in one launch, or a table in device memory",
        )  # fmt: skip

    def _width(self, arg: Any) -> int:
        """Bytes of an argument."""
        assert isinstance(arg, (Buffer, Words, np.generic, Scalar)), f"{self.function}: {arg!r} has no fixed width"
        return 8 if isinstance(arg, Buffer) else arg.nbytes

    def buffers(self) -> list[Buffer]:
        given: list[Buffer] = []
        for arg in self.args:
            if isinstance(arg, Buffer):
                given.append(arg)
            elif isinstance(arg, Words):
                given += arg.buffers
        return given

    def moved(self, places: Places, step: int | None = None) -> Launch:
        args = tuple([
            places.get(id(arg)) or moved(arg, places) if isinstance(arg, HOLDERS) else arg for arg in self.args
        ])  # fmt: skip
        reads = moved(self.reads, places) if self.reads else ()
        return Launch(
            self.source, self.function, self.grid, self.block, args, self.shared, self.together, self.form, reads
        )

    def facts(self) -> Any:
        code = hashlib.sha256(self.source.encode()).hexdigest()
        return ["launch", self.function, code, self.grid, self.block, self.shared, facts(self.args)]

    def title(self) -> str:
        return self.function

    def kernels(self) -> list[tuple[str, str]]:
        return [(self.source, self.function)]

    def looks_at(self, buffer: Buffer) -> bool:
        return any(arg is buffer for arg in self.args)

    def bound(self, runtime: Primitives) -> Run:
        args = tuple([arg if isinstance(arg, np.generic) else value_of(arg) for arg in self.args])
        return runtime.kernel(self.source, self.function, self.grid, self.block, args, self.shared, self.together)


@dataclass(slots=True)
class Copy(Call):
    """Bytes from one buffer to another of the same size."""

    destination: Buffer
    source: Buffer

    def bound(self, runtime: Primitives) -> Run:
        return runtime.copy(self.destination.address, self.source.address, self.destination.nbytes)


@dataclass(slots=True)
class Fill(Call):
    """Every byte of a buffer set to one value."""

    destination: Buffer
    value: int = 0

    def bound(self, runtime: Primitives) -> Run:
        return runtime.fill(self.destination.address, self.value, self.destination.nbytes)


@dataclass(slots=True)
class Gemm(Call):
    """epilogue(op(A) @ op(B) + beta * C) -> C, row-major, batched; see gemm.py."""

    a: Buffer
    b: Buffer
    c: Buffer
    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    epilogue: str = "DEFAULT"
    bias: Buffer | None = None
    aux: Buffer | None = None
    aux_ld: int = 0
    beta: float = 0.0
    batch: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)  # elements from one matrix of A, B, C to the next
    workspace: Buffer | None = None
    algorithm: bytes | None = None  # for which the workspace was made, see workspace.py
    others: tuple[bytes, ...] = ()  # which have room there too

    @property
    def operands(self) -> list[Buffer]:
        return [b for b in (self.a, self.b, self.c, self.bias, self.aux) if b is not None]

    def buffers(self) -> list[Buffer]:
        return self.operands if self.workspace is None else [*self.operands, self.workspace]

    def moved(self, places: Places, step: int | None = None) -> Gemm:
        there: list[Any] = [
            x and (places.get(id(x)) or moved(x, places))
            for x in (self.a, self.b, self.c, self.bias, self.aux, self.workspace)
        ]
        a, b, c, bias, aux, workspace = there
        return Gemm(
            a, b, c, self.m, self.n, self.k, self.trans_a, self.trans_b, self.epilogue, bias, aux, self.aux_ld,
            self.beta, self.batch, self.strides, workspace, self.algorithm, self.others,
        )

    def facts(self) -> Any:
        known = [name for name in names_of(Gemm) if name not in LATER]
        return ["Gemm", {name: facts(getattr(self, name)) for name in known}]

    def title(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"product {batch}{self.m}x{self.n}x{self.k} {self.epilogue.lower()}"

    def products(self) -> Sequence[Gemm]:
        return (self,)

    @property
    def tried_first(self) -> bool:
        """Whether what runs is known only when addresses are."""
        return self.epilogue in UNSURE

    def bound(self, runtime: Primitives) -> Run:
        return runtime.product(self)


@dataclass(slots=True)
class HostCall(Call):
    """A function of the host that sees values as NumPy arrays; the GPU waits for it.

    function(runs, *arrays)   runs: how often the program ran before; its result is an array for each of `outputs`
    """

    function: Callable[..., Sequence[np.ndarray]]
    inputs: list[Buffer]
    outputs: list[Buffer]
    on_host: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    def bound(self, runtime: Primitives) -> Run:
        return runtime.host(self.function, self.inputs, self.outputs)


class MovedVariants(Mapping[str, list[Call]]):
    """Variants with other buffers, each made when it is first asked for: one of them runs."""

    __slots__ = ("_made", "_own", "_places", "_step")

    def __init__(self, own: Mapping[str, list[Call]], places: Places, step: int | None) -> None:
        self._own, self._places, self._step = own, places, step
        self._made: dict[str, list[Call]] = {}

    def __getitem__(self, name: str) -> list[Call]:
        if name not in self._made:
            self._made[name] = [call.moved(self._places, self._step) for call in self._own[name]]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@dataclass(slots=True)
class Choice(Call):
    """Lists of calls that compute the same, by name; one of them runs.

    It is the first whose products the library has, or of these the fastest where they are timed (device/autotune.py).
    """

    variants: Mapping[str, list[Any]]
    step: int

    def buffers(self) -> list[Buffer]:
        return [b for calls in self.variants.values() for call in calls for b in call.buffers()]

    def moved(self, places: Places, step: int | None = None) -> Choice:
        return Choice(MovedVariants(self.variants, places, step), self.step if step is None else step)

    def facts(self) -> Any:
        return ["choice", {name: facts(calls) for name, calls in self.variants.items()}]

    def leaves(self) -> Sequence[Call]:
        return [leaf for calls in self.variants.values() for leaf in every_call(calls)]

    def ways(self) -> Sequence[Sequence[Call]]:
        return list(self.variants.values())

    def opened(self) -> list[Call]:
        first = self.ways()[0]
        products = (product for call in every_call(first) for product in call.products())
        sure = all(product.algorithm is not None and not product.tried_first for product in products)
        return [one for call in first for one in call.opened()] if sure else [self]

    def decided(self, decide: Callable[[Choice], list[Call]]) -> list[Call]:
        return decide(self)

    def kernels(self) -> list[tuple[str, str]]:
        return [kernel for call in self.ways()[0] for kernel in call.kernels()]

    def runnable(self, runtime: Primitives) -> list[RunnableCall]:
        """The first variant whose products the library has; a note says why it is not the best one."""
        said, missing = len(runtime.notes), None
        for name in runtime.wanted(list(self.variants)):
            try:
                calls = [one for call in self.variants[name] for one in call.runnable(runtime)]
            except Unsupported as why:
                del runtime.notes[said:]
                missing = missing or why
                continue
            if missing is not None:
                runtime.notes.append((self.step, f"{name}: {missing}"))
            return calls
        raise missing or Unsupported("no way to compute this is known")


def are_fixed(calls: Iterable[Call]) -> bool:
    """Whether nothing is left to choose about calls: no library has a say, and there is one way to compute the same."""
    return all(
        len(call.ways()) == 1 and are_fixed(call.ways()[0]) if isinstance(call, Choice)
        else not any(one.products() for one in call.leaves()) for call in calls
    )  # fmt: skip


class Part(NamedTuple):
    """Recorded calls, one after the other on a lane of a Pipeline, after its parts with the numbers `waits`."""

    calls: Sequence[Any]
    lane: int = 0
    waits: Sequence[int] = ()


@dataclass(slots=True)
class Pipeline(Call):
    """Parts that run beside each other on lanes of their own: all begin where this call stands, and end with it.

    A part waits for the one before it on its lane, and for those that it names. What else they may not do at the same
    time, nobody sees.
    """

    parts: list[Part]

    def buffers(self) -> list[Buffer]:
        return [b for call in self.leaves() for b in call.buffers()]

    def moved(self, places: Places, step: int | None = None) -> Pipeline:
        return Pipeline([part._replace(calls=[c.moved(places, step) for c in part.calls]) for part in self.parts])

    def facts(self) -> Any:
        return ["pipeline", [[facts(list(part.calls)), part.lane, list(part.waits)] for part in self.parts]]

    def title(self) -> str:
        kernels = dict.fromkeys(function for _, function in self.kernels())
        return f"pipeline of {', '.join(kernels)} in {len(self.parts)} parts"

    def leaves(self) -> Sequence[Call]:
        return [leaf for part in self.parts for leaf in every_call(part.calls)]

    def kernels(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys(kernel for call in self.leaves() for kernel in call.kernels()))

    def looks_at(self, buffer: Buffer) -> bool:
        return any(call.looks_at(buffer) for call in self.leaves())

    def bound(self, runtime: Primitives) -> Run:
        return runtime.beside(
            [Segment([call.bound(runtime) for call in part.calls], part.lane, part.waits) for part in self.parts]
        )


def value_of(arg: Any) -> Any:
    """A kernel's argument now that addresses are known."""
    if isinstance(arg, Buffer):
        return arg.address
    if isinstance(arg, Words):  # as one element, which is how CuPy takes a struct by value
        return arg.packed().view([("words", np.uint64, len(arg.words))])
    return arg
