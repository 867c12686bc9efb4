"""Symbols: sizes that stand for others, too, while a function computes with them.

    trace = Trace((256, 784)); n, _ = trace.symbols
    blocks = -(-n // 64)                          a symbol: 4 for these sizes
    wide = n * 4 > 512                            True, and from now on a condition
    program(trace)((200, 784))                    the values of all symbols for other sizes; None where a condition
                                                  does not hold

What a function does depends on sizes by what it computes of them, which is noted, and by what it asks of them, a
comparison or an index. Each answer becomes a condition: where it is the same for other sizes, the function would do
the same, and what it made of symbols holds for them. A symbol is no int, so what needs one asks for it. A text has a
mark in the place of a symbol, since most texts are those of errors that do not come: `Trace.text` fixes one that is
used.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import repeat
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from minigraph.errors import MinigraphError

NUMBERS = int, float, np.integer, np.floating
Answer = TypeVar("Answer")
One = TypeVar("One")
HOLE = object()  # in the place of an argument
DECISIONS = 1024  # answers of one function that are kept
Values = list[Any]  # of the nodes of a trace: sizes, then what its steps give
NO_SYMBOLS = MinigraphError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError
"""What functions raise that take no symbols."""
BEGIN, END = "\x02", "\x03"  # of the number of a node in a text


def _bits(value: int, _: Any) -> int:
    return value.bit_length()


def _ceil(value: float, _: Any) -> int:
    return math.ceil(value)


def _itself(value: Any, _: Any) -> Any:
    return value


class SizeSymbol:
    """A number that a trace knows how to compute for other sizes; `value` is what it is for those of the trace."""

    __slots__ = ("node", "trace", "value")
    __array_ufunc__ = None  # NumPy leaves it to a SizeSymbol to compute with one

    def __init__(self, trace: Trace, node: int, value: Any) -> None:
        self.trace, self.node, self.value = trace, node, value

    def bit_length(self) -> Any:
        return self.trace.computed(_bits, self, 0)

    def __ceil__(self) -> Any:
        return self.trace.computed(_ceil, self, 0)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __neg__(self) -> Any:
        return self.trace.computed(operator.sub, 0, self)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if isinstance(other, SizeSymbol) and other.trace is self.trace:
            return other.node == self.node or self.trace.asked(operator.eq, self, other)
        return self.trace.asked(operator.eq, self, other) if isinstance(other, NUMBERS) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return not self.trace.asked(operator.eq, self, 0)

    def __hash__(self) -> int:
        return hash(self._pinned())

    def __index__(self) -> int:
        return operator.index(self._pinned())

    def __int__(self) -> int:
        return int(self._pinned())

    def __float__(self) -> float:
        return float(self._pinned())

    def __str__(self) -> str:
        return f"{BEGIN}{self.node}{END}"

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self._pinned(), form) if form else str(self)

    def _pinned(self) -> Any:
        """Its value, which is that of other sizes, too."""
        return self.trace.asked(_itself, self, 0)


def _define(name: str, function: Callable[[Any, Any], Any], asks: bool = False) -> None:
    def direct(self: SizeSymbol, other: Any) -> Any:
        return (self.trace.asked if asks else self.trace.computed)(function, self, other)

    def reflected(self: SizeSymbol, other: Any) -> Any:
        return self.trace.computed(function, other, self)

    setattr(SizeSymbol, f"__{name}__", direct)
    if not asks:
        setattr(SizeSymbol, f"__r{name}__", reflected)


for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "lshift", "rshift"):
    _define(_name, getattr(operator, _name))
_define("and", operator.and_)
for _name in ("lt", "le", "gt", "ge"):
    _define(_name, getattr(operator, _name), asks=True)


class TraceStep(NamedTuple):
    """A node behind the sizes of a trace: `function` of the nodes a and b, or the number a where it is None.

    asked   whether its value is an answer, on which it depends what comes next
    """

    function: Any
    a: Any
    b: Any
    asked: bool
    value: Any


class Trace:
    """What is computed and asked of symbols, in order; `symbols` stand for the sizes that it begins with."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.symbols = [SizeSymbol(self, i, size) for i, size in enumerate(sizes)]
        self.steps: list[TraceStep] = []
        self._known: dict[Any, tuple[int, Any]] = {}  # (node, value) of what was computed before

    def computed(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """function(a, b) of symbols and numbers, as a SizeSymbol; NotImplemented for anything else."""
        if not self._takes(a) or not self._takes(b):
            return NotImplemented
        return SizeSymbol(self, *self._node(function, a, b, asked=False))

    def asked(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """What function(a, b) is for the sizes of the trace: a condition for others."""
        if not self._takes(a) or not self._takes(b):
            return NotImplemented
        return self._node(function, a, b, asked=True)[1]

    def decided(self, function: Callable[..., Any], args: tuple[Any, ...], free: Sequence[str] = ()) -> Any:
        """What function(*args) is for the sizes of the trace: a condition for others, where it is asked again.

        free  fields of the answer, a NamedTuple, that may be others: they are symbols
        """
        node, values = self._operand(())
        for symbol in symbols_in(args):
            node, values = self._node(_followed, SizeSymbol(self, node, values), symbol, asked=False)

        decide = Decide(function, with_values(args, repeat(HOLE)))
        answer = self._node(decide, SizeSymbol(self, node, values), 0, asked=not free)
        if not free:
            return answer[1]
        places, whole = tuple(map(answer[1]._fields.index, free)), SizeSymbol(self, *answer)
        self._node(AllBut(places), whole, 0, asked=True)
        symbols = [SizeSymbol(self, *self._node(_item, whole, place, asked=False)) for place in places]
        return answer[1]._replace(**dict(zip(free, symbols, strict=True)))

    @property
    def nodes(self) -> int:
        """How many values it has, sizes among them."""
        return len(self.symbols) + len(self.steps)

    def text(self, text: str) -> str:
        """A text with the values of the symbols in it, which are those of other sizes, too."""
        if BEGIN not in text:
            return text
        symbols = {value[0]: SizeSymbol(self, *value) for value in self._known.values()}
        symbols |= {symbol.node: symbol for symbol in self.symbols}
        return re.sub(f"{BEGIN}([0-9]+){END}", lambda found: str(symbols[int(found[1])]._pinned()), text)

    def _takes(self, x: Any) -> bool:
        return x.trace is self if isinstance(x, SizeSymbol) else isinstance(x, NUMBERS)

    def _operand(self, x: Any) -> tuple[int, Any]:
        if isinstance(x, SizeSymbol):
            return x.node, x.value
        key = type(x), x
        if key not in self._known:
            self._known[key] = self.nodes, x
            self.steps.append(TraceStep(None, x, 0, False, x))
        return self._known[key]

    def _node(self, function: Callable[[Any, Any], Any], a: Any, b: Any, asked: bool) -> tuple[int, Any]:
        (i, x), (j, y) = self._operand(a), self._operand(b)
        key = function, i, j
        if key not in self._known:
            value = function(x, y)
            self._known[key] = self.nodes, value
            self.steps.append(TraceStep(function, i, j, asked, value))
        return self._known[key]


def _followed(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return *values, value


def symbols_in(args: Sequence[Any]) -> Iterator[SizeSymbol]:
    """The symbols among these arguments, and in tuples of them."""
    for arg in args:
        if type(arg) is SizeSymbol:
            yield arg
        elif type(arg) is tuple:
            yield from symbols_in(arg)


def with_values(args: tuple[Any, ...], values: Iterator[Any]) -> tuple[Any, ...]:
    """The arguments with values in the place of their symbols, or of HOLE, in order."""
    return tuple([
        next(values) if type(arg) is SizeSymbol or arg is HOLE
        else with_values(arg, values) if type(arg) is tuple else arg
        for arg in args
    ])  # fmt: skip


class Decide(NamedTuple):
    """A function of which some arguments, HOLE, are values of a trace."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, values: tuple[Any, ...], _: Any) -> Any:
        return self.function(*with_values(self.args, iter(values)))


class AllBut(NamedTuple):
    """Takes what does not stand at these places."""

    places: tuple[int, ...]

    def __call__(self, answer: Any, _: Any) -> Any:
        return tuple([x for i, x in enumerate(answer) if i not in self.places])


def _item(values: tuple[Any, ...], place: int) -> Any:
    return values[place]


def decision(free: Sequence[str] = ()) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Decorates a function that decides by sizes, such as how a product is cut: its answers are kept.

    What it asks of symbols are no conditions, but its answer is one. It takes numbers and tuples of them by position,
    and what can be hashed; its answer has no sizes in it that need not be the same.

    free  fields of its answer, a NamedTuple, of which kernels are told when they run
    """

    def decorate(function: Callable[..., Answer]) -> Callable[..., Answer]:
        kept = lru_cache(maxsize=DECISIONS)(function)

        @wraps(function)
        def decided(*args: Any) -> Answer:
            symbol = next(symbols_in(args), None)
            return kept(*args) if symbol is None else symbol.trace.decided(kept, args, free)

        return decided

    return decorate


class Scalar:
    """An argument of a kernel of a NumPy type whose value is a SizeSymbol."""

    def __init__(self, kind: type[np.generic], symbol: SizeSymbol) -> None:
        self.kind, self.symbol = kind, symbol

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.kind)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize


def scalar(kind: type[np.generic], value: Any) -> Any:
    """A kernel's argument of this type: a Scalar of a SizeSymbol."""
    return Scalar(kind, value) if type(value) is SizeSymbol else kind(value)


@dataclass(slots=True)
class Branch(Generic[One]):
    """Steps up to a question to which several answers came, which are no condition any more, or to the end.

    answers   with what comes then;  end: what was traced, where there are none
    """

    steps: list[TraceStep]
    end: One | None
    answers: list[tuple[Any, Branch[One]]] = field(default_factory=list)


class Questions(Generic[One]):
    """Traces of one function by what they asked: which of them holds for other sizes is found on one way through.

    A function does the same until an answer is another one. So its traces are a tree: what was computed up to a
    question, then a branch for each of the answers that came.
    They have a tree for each way to begin, of which there is one.
    """

    def __init__(self) -> None:
        self.roots: list[Branch[One]] = []

    def add(self, steps: Sequence[TraceStep], end: One) -> None:
        """What has these steps."""
        if not any(_grown(root, list(steps), end) for root in self.roots):
            self.roots.append(Branch(list(steps), end))

    def fitting(self, sizes: Sequence[int]) -> tuple[One, Values] | None:
        """What was traced for sizes that have all of its answers in common with these, and the values of its nodes."""
        for root in self.roots:
            found = [*sizes]
            try:
                end = _end(root, found)
            except NO_SYMBOLS:  # a quotient by 0, say
                continue
            if end is not None:
                return end, found
        return None


def _end(branch: Branch[One], found: Values) -> One | None:
    """The end to which the answers of these sizes lead, and with `found` the values of the nodes before it."""
    while True:
        for function, a, b, asked, known in branch.steps:
            value = a if function is None else function(found[a], found[b])
            found.append(value)
            if asked and value != known:
                return None
        if branch.end is not None:
            return branch.end
        answer = found[-1]
        for known, there in branch.answers:
            if known == answer:
                branch = there
                break
        else:
            return None


def _grown(branch: Branch[One], steps: list[TraceStep], end: One) -> bool:
    """Let a tree have a way to this end, if all ways ask the same up to an answer that is another one."""
    while True:
        own, last = branch.steps, len(branch.steps) - 1 if branch.answers else -1
        for at, (one, other) in enumerate(zip(own, steps, strict=False)):
            if one[:3] != other[:3] or type(one.a) is not type(other.a) or other.asked != (one.asked or at == last):
                return False
            if one.asked and one.value != other.value:
                tail = Branch(own[at + 1 :], branch.end, branch.answers)
                branch.steps = [*own[:at], one._replace(asked=False)]
                branch.answers, branch.end = [(one.value, tail), (other.value, Branch(steps[at + 1 :], end))], None
                return True
        if len(steps) < len(own) or (len(steps) > len(own) and not branch.answers):
            return False
        if not branch.answers:
            branch.end = end
            return True
        answer, steps = steps[last].value, steps[len(own) :]
        known = next((there for before, there in branch.answers if before == answer), None)
        if known is None:
            branch.answers.append((answer, Branch(steps, end)))
            return True
        branch = known


def program(trace: Trace) -> Callable[[Sequence[int]], Values | None]:
    """A function from other sizes to the values of all nodes; None where an answer is another one."""
    own = Questions[bool]()
    own.add(trace.steps, True)

    def values(sizes: Sequence[int]) -> Values | None:
        found = own.fitting(sizes)
        return None if found is None else found[1]

    return values
