"""Call: what a plan gives to the GPU, recorded before any address is known. Each kind answers for itself.

    buffers, reads, on_host    what an order of the calls depends on
    moved, repeatable          the same call for other buffers
    leaves, products           what will run, and which products of it a library must choose an algorithm for
    facts, title               what a measured time depends on, and what lists call it
    bound                      a function that hands it to the GPU, made of what a Primitives offers

A new kind is a dataclass that derives from Call and says how it is `bound`; the other answers follow from its fields.
Nothing else has to know it, as long as it is made of what Primitives has. The kinds that operators record are in
calls.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from .buffer import Buffer, ConstantTable, Words, alignment, lies_as, owner

Grid = tuple[int, int, int]
Places = dict[int, Buffer]  # a buffer in the place of another, by the id of that
Run = Callable[[], None]
HOLDERS = Buffer, Words, list, tuple  # values of fields that may have buffers in them


class Unsupported(Exception):
    """The library has no algorithm for a product."""


class Primitives(Protocol):
    """What calls are bound with: each of these gives a function that hands the work to the runtime's stream."""

    notes: list[tuple[int, str]]  # (operator, what a report should say of its calls)

    def kernel(
        self, source: str, function: str, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0,
        together: bool = False,
    ) -> Run:  # fmt: skip
        """A kernel of a CUDA source with these values as its arguments; the other facts are those of a Launch."""
        ...

    def copy(self, destination: int, source: int, nbytes: int) -> Run:
        """Bytes from one address to another."""
        ...

    def fill(self, destination: int, value: int, nbytes: int) -> Run:
        """Bytes at an address set to one value."""
        ...

    def product(self, call: Any) -> Run:
        """A Gemm by the library; Unsupported where it has no algorithm."""
        ...

    def host(
        self, function: Callable[..., Sequence[np.ndarray]], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> Run:  # fmt: skip
        """A function of the host that is given how often the program ran before, and the inputs as NumPy arrays; what
        it returns becomes the outputs."""
        ...

    def beside(self, parts: Sequence[Segment]) -> Run:
        """Bound calls on the runtime's stream, lane 0, and on others that fork from it and join it."""
        ...

    def collective(
        self, kind: str, destination: int, source: int, sizes: tuple[int, int], dtype: Any, root: int
    ) -> Run:  # fmt: skip
        """What a Group's method of this name does, on so many elements at two addresses of all ranks."""
        ...

    def together(self, collectives: Sequence[Run]) -> Run:
        """Collectives that begin together, in this order on all ranks."""
        ...

    def wanted(self, names: Sequence[str]) -> Sequence[str]:
        """Those of a Choice's variants that may run, the best one first."""
        ...


class Call:
    """Something that a plan does in each run.

    on_host     the host takes part: the call keeps its place, and no CUDA graph can hold it
    ordered     calls of this kind keep their order among each other, and have a stream of the captured graph for them
    repeatable  an operator like the one that it was recorded for can have a copy of it
    reads       buffers that it is given and does not write, though its operator may
    """

    __slots__ = ()
    on_host: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True
    reads: Any = ()

    def buffers(self) -> list[Buffer]:
        """All that it, or a variant of it, is given."""
        return list(within([getattr(self, name) for name in names_of(type(self))]))

    @property
    def operands(self) -> list[Buffer]:
        """What it reads and writes for its operator, without room to work in."""
        return self.buffers()

    def moved(self, places: Places, step: int | None = None) -> Any:
        """The call with other buffers: `places` has one for the id of each owner, and gets those that show them.

        step   the operator whose call it becomes; that of this call for None
        """
        values = [getattr(self, name) for name in names_of(type(self))]
        return type(self)(*[moved(x, places) if isinstance(x, HOLDERS) else x for x in values])

    def facts(self) -> Any:
        """What a measured time depends on, as plain data: sizes, types and how operands lie, no addresses."""
        return [type(self).__name__, {name: facts(getattr(self, name)) for name in names_of(type(self))}]

    def title(self) -> str:
        """What lists of calls name it."""
        return type(self).__name__.lower()

    def leaves(self) -> Sequence[Call]:
        """The call itself; of a Choice the calls of all its variants."""
        return (self,)

    def ways(self) -> Sequence[Sequence[Call]]:
        """What may run in its place, the best one first."""
        return ((self,),)

    def products(self) -> Sequence[Any]:
        """What a library must choose an algorithm for."""
        return ()

    def opened(self) -> list[Call]:
        """What will run, where that is sure, else the call itself."""
        return [self]

    def decided(self, decide: Callable[[Any], list[Call]]) -> list[Call]:
        """What runs in its place, if `decide` says it of a Choice."""
        return [self]

    def kernels(self) -> list[tuple[str, str]]:
        """(source, function) of the kernels that it is likely to launch, so that they are compiled side by side."""
        return []

    def looks_at(self, buffer: Buffer) -> bool:
        """Whether it is a kernel with this very buffer among its arguments."""
        return False

    def bound(self, runtime: Primitives) -> Run:
        """A function that hands it to the GPU; all addresses are known by now."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")

    def runnable(self, runtime: Primitives) -> list[RunnableCall]:
        """It, or what runs in its place; Unsupported where the library lacks something."""
        return [RunnableCall(self, self.bound(runtime))]


@dataclass(slots=True)
class RunnableCall:
    """A call with its addresses: `call()` hands it to the target stream.

    position   of the recorded call that it comes from, which may be a Choice
    """

    call: Call
    run: Run
    position: int = -1

    def __call__(self) -> None:
        self.run()


class Segment(NamedTuple):
    """Runnable calls, one after the other on a lane of a graph, after the segments with the numbers `waits`."""

    calls: Sequence[Run]
    lane: int = 0
    waits: Sequence[int] = ()


# what the fields of kinds hold


@cache
def names_of(kind: type[Call]) -> tuple[str, ...]:
    """The fields of a kind of calls, in the order in which it takes them."""
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]  # it is a dataclass


def every_call(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls in order, with those of every variant in the place of a Choice."""
    for call in calls:
        yield from call.leaves()


def within(values: Iterable[Any]) -> Iterator[Buffer]:
    """The buffers among these values, in Words and in lists."""
    for value in values:
        if isinstance(value, Buffer):
            yield value
        elif isinstance(value, Words):
            yield from value.buffers
        elif isinstance(value, (list, tuple)):
            yield from within(value)


def moved(value: Any, places: Places) -> Any:
    """A value of a call's field with other buffers, see Call.moved."""
    if isinstance(value, Buffer):
        buffer = places.get(id(value))
        if buffer is not None or isinstance(value, ConstantTable):
            return buffer or value
        assert value.owner is not None, f"{value} has no buffer"
        buffer = places[id(value)] = Buffer(value.shape, value.dtype, alignment=value.alignment)
        buffer.owner, buffer.offset, buffer.steps = moved(value.owner, places), value.offset, value.steps
        return buffer
    if isinstance(value, Words):
        return value.elsewhere(lambda buffer: places.get(id(buffer)) or moved(buffer, places))
    if isinstance(value, (list, tuple)):
        made = [moved(one, places) for one in value]
        return made if isinstance(value, list) else tuple(made)
    return value


def facts(value: Any) -> Any:
    """A value of a call's field as plain data, see Call.facts."""
    if isinstance(value, Buffer):
        lies = lies_as(value) if isinstance(owner(value), ConstantTable) else alignment(value.address)
        return [str(value.dtype), list(value.shape), lies]
    if isinstance(value, Words):
        return [type(value).__name__, facts(value.facts)]
    if isinstance(value, Call):
        return value.facts()
    if isinstance(value, Mapping):
        return {name: facts(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [facts(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
