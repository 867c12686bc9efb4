"""SubProgram: the block of a branch or a loop, a program that takes values from outside and returns others.

What it captures of the outer block, and what a loop gives it, are its `inputs`; what it returns is
`fetched`. Parameters and states keep their names: it reads them in the Scope, and writes none of them.
Decision 054 says why a block is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, require
from minigraph.opdef.inner import InnerBlock, Rng
from minigraph.opdef.reference import run_reference
from minigraph.program import unique_name
from minigraph.program.program import Operator, Program, Variable, copy_var
from minigraph.program.variable import set_facts
from minigraph.types import TensorType

from .block_gradient import gradient_block
from .held import check_takes_the_same, stand_ins
from .open_blocks import opened


class SubProgram(Program, InnerBlock):
    """A block of operators that an operator of `parent` holds.

    parent   the program whose operator it belongs to, as far as it was built there; it numbers the operators
    """

    parent: Program | None = None
    _closed = True

    def __init__(self, name: str, parent: Program | None = None) -> None:
        self._numbered = self._version = 0
        super().__init__(name)
        self.parent = parent
        self._outer: dict[int, tuple[Variable, Variable]] = {}  # id of a variable outside -> it, what stands for it

    def __repr__(self) -> str:
        return f"<block {self.id} {self.name}: {len(self.ops)} operators>"

    @property
    def inputs(self) -> list[Variable]:
        """What it takes, in order."""
        return [v for v in self.vars.values() if v.is_data or v.persistable]

    @property
    def outputs(self) -> list[Variable]:
        """What it returns, in order; one may stand there twice."""
        return [self.vars[name] for name in self.fetched]

    @property
    def input_types(self) -> list[TensorType]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [v.type for v in self.inputs]

    @property
    def output_types(self) -> list[TensorType]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return [v.type for v in self.outputs]

    # part of the program around it

    def around(self) -> Iterator[Program]:
        """It and the programs around it, from inside to outside."""
        program: Program | None = self
        while program is not None:
            yield program
            program = program.parent

    @property
    def numbered(self) -> int:
        return self._numbered if self.parent is None else self.parent.numbered

    @numbered.setter
    def numbered(self, number: int) -> None:
        if self.parent is None:
            self._numbered = number
        else:
            self.parent.numbered = number

    @property
    def version(self) -> int:
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        if self.parent is not None:
            self.parent.version += 1

    @property
    def is_closed(self) -> bool:
        return self._closed

    # building

    @classmethod
    def traced(
        cls, name: str, parent: Program, function: Callable[..., Any], given: Sequence[Variable] = (),
        finish: Callable[[SubProgram, Any], Any] = lambda _, result: result, types: Sequence[TensorType] = (),
    ) -> tuple[SubProgram, Any]:  # fmt: skip
        """The block of what `function` builds, and what `finish(block, result)` returns, which is called inside.

        given   variables outside; the function gets what stands for them
        types   of what stands for them, where they are not those of `given`
        """
        sub = cls(name, parent)
        arguments = [sub.argument(v) for v in given]
        for v, t in zip(arguments, types, strict=False):
            v.type = t
        with being_built(sub):
            return sub, finish(sub, function(*arguments))

    def argument(self, v: Variable) -> Variable:
        """A new input of v's type, which is given a value by the operator in each round."""
        name = v.name if v.name not in self.vars else unique_name.generate(v.name)
        inner = Variable(self.block0, name, v.type, is_data=True, site=v.site)
        inner.stop_gradient = v.stop_gradient
        return self.block0._add(inner)

    def captured(self, v: Variable) -> Variable | None:
        """What stands here for a variable of a block around this one; None where it is of another program."""
        home = v.block.program
        if home is self:
            return v
        if self.parent is None or not any(p is home for p in self.around()):
            return None
        outer = self.parent.captured(v)
        assert outer is not None
        known = self._outer.get(id(outer))
        if known is None:
            known = self._outer[id(outer)] = outer, self._stand_in(outer)
        return known[1]

    def _stand_in(self, outer: Variable) -> Variable:
        check_takes_the_same(self.block0, f"reading {outer}")
        inner = copy_var(outer, self.block0)
        if outer.name in self.vars:
            if outer.persistable:  # which is read in the Scope by its name
                self.block0.rename_var(outer.name, unique_name.generate(outer.name))
            else:
                set_facts(inner, {"_name": unique_name.generate(outer.name)})
        set_facts(inner, {"is_data": not outer.persistable})
        return self.block0._add(inner)

    @property
    def captures(self) -> list[tuple[Variable, Variable]]:
        """(variable outside, what stands for it) in the order in which they were captured."""
        return list(self._outer.values())

    def written(self) -> list[Variable]:
        """The variables outside that it writes."""
        own = {id(v) for op in self.ops for v in op.output_vars}
        return [outer for outer, inner in self._outer.values() if id(inner) in own]

    def detach(self, outer: Variable) -> None:
        """What stands for a variable outside may be written here: a persistable one becomes a value of its own."""
        self._hand_over(self._outer[id(outer)][1])

    def _hand_over(self, inner: Variable) -> None:
        """Let an input that is read in the Scope be a value that is handed over, also to blocks inside that read it."""
        if not inner.persistable:
            return
        inner.__class__ = Variable
        for fact in ("optimize_attr", "regularizer", "need_clip"):
            inner.__dict__.pop(fact, None)
        set_facts(inner, {"_persistable": False, "is_data": True})
        self.block0.rename_var(inner.name, unique_name.generate(inner.name))
        for op in self.ops:
            for v, own in list(stand_ins(op)):
                if v is inner:
                    own.program._hand_over(own)

    def arrange(self, first: Sequence[Variable], outside: Sequence[Variable]) -> None:
        """Let its inputs be these of its own, then what stands for these variables outside."""
        ordered = [*first, *(own for v in outside if (own := self.captured(v)) is not None)]
        rest = {name: v for name, v in self.vars.items() if all(v is not i for i in ordered)}
        dict.clear(self.vars)
        dict.update(self.vars, {v.name: v for v in ordered} | rest)

    def take_types(self, types: Sequence[TensorType]) -> None:
        """Let its inputs have these types, and what it computes those that follow."""
        for v, t in zip(self.inputs, types, strict=True):
            v.type = t
        for op in self.ops:
            _infer_again(op)

    def empty(self) -> SubProgram:
        return SubProgram(self.name)

    def clone(self, for_test: bool = False) -> SubProgram:
        """A copy; with for_test its operators are in their form for tests, and none is left out."""
        copy = self.copied(self.ops, for_test)
        assert isinstance(copy, SubProgram)
        return copy

    # what operators ask of it

    def evaluate(self, arrays: Sequence[np.ndarray], rng: Rng, lifted: bool) -> list[np.ndarray]:
        """What it returns, by the references of its operators; numbers of operators are its own."""
        env = {v.name: a for v, a in zip(self.inputs, arrays, strict=True)}
        for op in self.ops:
            inputs = {slot: [env[v.name] for v in vs] for slot, vs in op.inputs.items()}
            wanted = [slot for slot, vs in op.outputs.items() if vs]
            results = run_reference(op.opdef, inputs, op.attrs, wanted, (rng[0], op.number, rng[2]), lifted)
            for slot in wanted:
                for v, x in zip(op.outputs[slot], results.get(slot, ()), strict=False):
                    env[v.name] = x if lifted else x.astype(v.dtype, copy=False)
        return [env[name] for name in self.fetched]

    def gradient(self, wanted: Sequence[int], outputs: Sequence[int], summed: int = 0) -> SubProgram:
        """The block of gradients, see InnerBlock; it computes what it needs of this one's values again."""
        copy = self.clone()
        copy.parent, copy._closed = self.parent, False
        needed = gradient_block(copy, wanted, outputs, summed)
        needed.parent = self.parent
        return needed


@contextmanager
def being_built(sub: SubProgram) -> Iterator[None]:
    """Operators that are appended inside belong to `sub`."""
    sub._closed = False
    try:
        with opened.entered(sub):
            yield
    finally:
        sub._closed = True


def _infer_again(op: Operator) -> None:
    """Give what an operator writes the types that follow from what it reads."""
    given = {slot: [v.type for v in vs] for slot, vs in op.inputs.items()}
    for name, slots in op.opdef.blocks.items():
        op.attrs[name].take_types([t for slot in slots for t in given.get(slot, ())])
    for slot, types in op.opdef.infer_types(given, op.attrs).items():
        for v, t in zip(op.outputs.get(slot, ()), types, strict=False):
            require(
                v.is_data or v.persistable or v.type.dtype == t.dtype, f"{v} would become {t}", ProgramError
            )
            v.type = t
