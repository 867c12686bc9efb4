"""Program: what the user builds. One global Block with typed Variables and a list of Operators.

A Program is plain data in the order in which it was written. Everything else (autodiff, passes,
the Executor) reads it through `block.ops` and `block.vars`, and adds to it only by
`Block.append_op`, which checks inputs and attributes and infers output types.

The parts stand in variable.py, operator.py and block.py; others import them from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from minigraph.errors import FeedError, ProgramError, nearest, raise_unknown, require, shortened
from minigraph.errors.kinds import NAME, NO_NUMBERS, UNKNOWN_FEED, UNKNOWN_NAME, no_memory
from minigraph.opdef.body import body_for_test
from minigraph.opdef.inner import InnerBlock
from minigraph.types import NO_ARRAY, as_numpy, in_one_piece, why_no_array

from .block import Block
from .blocks.held import next_number, numbered_blocks
from .blocks.open_blocks import building
from .context import Guards, reusable
from .copies import NotPickled
from .operator import ROLES, Operator, Slots, describe_call
from .prune import ops_for_test
from .scope import Scope, global_scope
from .text.dump import dump
from .text.html import folded, text
from .text.summary import Summary, summary_of
from .variable import GRAD_SUFFIX, Parameter, Variable, check_is_of, copy_var
from .whole.changing import ONE_CHANGE, Changing
from .whole.masters import read_together

__all__ = [
    "GRAD_SUFFIX", "ROLES", "Block", "Operator", "Parameter", "Program", "Slots", "Variable", "copy_var",
    "default_main_program", "default_startup_program", "describe_call", "name_scope", "program_guard",
]  # fmt: skip


class Origin:
    """Stands for a program and all its rewritings; nobody keeps it but these."""


class Program(Changing, NotPickled):
    """A list of operators over variables; `print(program)` shows one operator per line.

    version   counts changes, so that plans made for an older state are not reused
    origin    an object that this program shares with its rewritings: so they share random numbers
    """

    _ids = itertools.count()
    to_onnx: Callable[..., None]  # minigraph/onnx/faces.py hangs it on this class
    parent: Program | None = None  # of a block: the program around it
    is_closed = False  # whether it is the block of a branch or loop whose function has returned

    def __init__(self, name: str | None = None) -> None:
        self.id, self.origin = next(Program._ids), Origin()
        self.name = name or f"program_{self.id}"
        super().__init__()
        self.version = 0
        self._random_seed = 0
        self.lr_schedulers: list[tuple[Variable, Any]] = []
        self.loaders: list[Any] = []  # whose next_feed() a run takes that does not feed their variables
        self.fetched: tuple[str, ...] = ()  # names in `fetch` lines of the text form
        self.notes: list[tuple[Operator, str]] = []  # what kernels of the latest GPU plan do otherwise than asked
        self.before: Program | None = None  # the program of which this one is a rewriting
        self.numbered = 0  # operators so far; the next one has this number
        self.block0 = Block(self)

    def next_number(self) -> int:
        with ONE_CHANGE:
            self.numbered += 1
            return self.numbered - 1

    @property
    def scope_name(self) -> str:
        """The name scope of operators that are appended now."""
        if not _name_scopes.entries.get():
            return ""
        return "".join(prefix for program, prefix in _name_scopes.values() if program is self)

    def in_scope(self, prefix: str) -> AbstractContextManager[None]:
        """A guard: operators appended inside have this prefix behind their name scope."""
        return _name_scopes.entered((self, prefix))

    @property
    def random_seed(self) -> int:
        """Decides the random numbers of the program; 0 leaves them to `mg.seed`."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        seed = as_seed(seed)
        self.version += seed != self._random_seed
        self._random_seed = seed

    def global_seed(self, seed: int = 0) -> None:
        """Set random_seed of this program, and of the default programs, to `seed`."""
        for program in (self, default_main_program(), default_startup_program()):
            program.random_seed = seed

    @property
    def blocks(self) -> list[Block]:
        """The global block, and those of branches and loops: those of one block before those inside them."""
        return numbered_blocks(self)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def global_block(self) -> Block:
        return self.block0

    def current_block(self) -> Block:
        """The block of the branch or loop whose function is being called, else the global one."""
        return building(self.block0)

    def block(self, index: int) -> Block:
        blocks = self.blocks
        known = f"block {index} does not exist, the program has {len(blocks)}"
        require(isinstance(index, int) and 0 <= index < len(blocks), known, ProgramError)
        return blocks[index]

    def captured(self, v: Variable) -> Variable | None:
        """What stands for a variable in this program: itself; None for one of another program."""
        return v if v.block is self.block0 else None

    @property
    def ops(self) -> list[Operator]:
        return self.block0.ops

    @property
    def vars(self) -> dict[str, Variable]:
        return self.block0.vars

    def list_vars(self) -> Iterator[Variable]:
        return iter(list(self.vars.values()))

    def all_parameters(self) -> list[Parameter]:
        return self.block0.all_parameters()

    def fed_variable(self, key: Variable | str) -> Variable:
        """What a feed with this key is for; a FeedError where a run takes none for it."""
        name = key.name if isinstance(key, Variable) else key
        v = self.vars.get(name)
        if v is not None and isinstance(key, Variable):
            check_is_of(key, self, "feed", FeedError)
        if v is None or not (v.is_data or not v.persistable):
            data = [d.name for d in self.vars.values() if d.is_data]
            raise UNKNOWN_FEED(
                f"feed {name!r} is not a data variable of program {self.name}",
                hint=nearest(str(name), data) or f"data variables: {', '.join(data) or 'none'}",
            )
        return v

    def clone(self, for_test: bool = False) -> Program:
        """A copy. With for_test only what a test runs (`prune.ops_for_test`), in its inference form (no dropout).

        A test computes the forward values. What `append_backward` or `minimize` appended is left out, and so is what
        reads it; what `static.gradients` appended stays where forward values need it.
        Parameters are shared through the Scope by their names.
        """
        return self.copied((ops_for_test if for_test else list)(self.whole_ops()), for_test)

    def empty(self) -> Program:
        """A new program of this name without operators."""
        return Program(self.name)

    def copied(self, kept: Sequence[Operator], for_test: bool = False) -> Any:
        """A copy with the operators that are kept."""
        return _copied(self, kept, for_test)

    def __copy__(self) -> Program:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        """As `clone()`; the learning rate schedulers stay those of this program."""
        return self.clone()

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The text form, one operator per line; `with_details` adds the user's line of each."""
        return dump(self, with_details)

    def summary(self, feed: Mapping[str, Any] | None = None) -> Summary:
        """Each operator with its output, type, parameters, FLOPs and bytes, and the totals; print it.

        feed   {data variable: shape} for sizes that are not declared; without them these numbers are unknown
        """
        return summary_of(self.name, self.ops, self.vars, feed or {})

    def _repr_html_(self) -> str:
        """For notebooks: the operators by type; the text form is folded."""
        return folded(repr(self).strip("<>"), text(str(self)))

    def state_dict(self, mode: str = "all", scope: Scope | None = None) -> dict[str, np.ndarray]:
        """Copies of the persistable values by name, those between two runs; mode is all, param (parameters) or opt (the
        others). `set` of a copy changes the value in the scope, too."""
        require(mode in ("all", "param", "opt"), f"mode {mode!r} is not all, param or opt", ProgramError)
        scope = scope if scope is not None else global_scope()
        chosen = [
            v.name for v in self.list_vars()
            if v.persistable and (mode == "all" or isinstance(v, Parameter) == (mode == "param"))
        ]  # fmt: skip
        with scope.lock, scope.turn.begin():
            read_together(scope, self, chosen)
            return {name: scope.state(name) for name in chosen if scope.has(name)}

    def set_state_dict(self, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
        """Put values into the Scope; names, shapes and types must be those of persistable variables.

        Nothing is changed unless all of them fit.
        """
        set_states(scope if scope is not None else global_scope(), checked_state(self, state_dict), "set_state_dict")

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<Program {self.name}: {len(self.ops)} operators, {len(self.vars)} variables>"


def set_states(scope: Scope, values: Mapping[str, np.ndarray], call: str) -> None:
    """Let `call` give these values, which `checked_state` made and nobody else has."""
    with scope.lock, scope.turn.begin(), scope.replacing(values, f"a {call}"):
        for name, array in values.items():
            scope.take(name, array)
        scope.were_set(values)


def checked_state(program: Program, state_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values as arrays, if each of them fits its variable."""
    if not isinstance(state_dict, Mapping):
        raise ProgramError(f"state_dict must be a dict, is {shortened(repr(state_dict))}")
    known = [v.name for v in list(program.vars.values()) if v.persistable]
    checked = {}
    for name, value in state_dict.items():
        if name not in program.vars:
            raise_unknown("persistable variable", name, known, UNKNOWN_NAME)
        v = program.vars[name]
        try:
            array = in_one_piece(np.array(as_numpy(value), order="C"))
        except NO_ARRAY as problem:
            raise NO_NUMBERS(f"value of {name} is {why_no_array(value, problem)}") from None
        except MemoryError as problem:
            raise no_memory(f"a copy of {name}", problem) from problem
        require(v.persistable, f"{name} is not persistable", ProgramError)
        require(
            array.dtype == v.dtype and v.type.accepts(v.type.with_shape(array.shape)),
            f"state of {v} has shape {list(array.shape)} and type {array.dtype}",
        )
        checked[name] = array
    return checked


def _copied(program: Program, kept: Sequence[Operator], for_test: bool) -> Program:
    """A copy of a program with some of its operators; refused where another thread takes parts out meanwhile."""
    try:
        return _copied_at_once(program, kept, for_test)
    except KeyError as problem:  # a variable that an operator uses
        changed = f"program {program.name} was changed by another thread while it was copied"
        raise ProgramError(changed, hint="build in one thread, then clone") from problem


def _copied_at_once(program: Program, kept: Sequence[Operator], for_test: bool) -> Program:
    copy = program.empty()
    copy.random_seed, copy.fetched = program.random_seed, program.fetched
    used = {id(v) for op in kept for v in itertools.chain(op.input_vars, op.output_vars)}
    copies = {
        v: copy_var(v, copy.block0) for v in list(program.vars.values())  # to which another thread may add
        if not for_test or id(v) in used or isinstance(v, Parameter) or v.is_data or program.is_closed
    }  # fmt: skip
    copied: dict[int, Operator] = {}
    for op in kept:
        attrs = {name: _copied_attr(value, copy, for_test) for name, value in op.attrs.items()}
        if for_test and "is_test" in attrs:
            attrs["is_test"] = True
        if for_test and "body" in attrs:
            attrs["body"] = body_for_test(attrs["body"])
        copied[id(op)] = Operator(
            copy.block0, op.opdef,
            {s: [copies[v] for v in vs] for s, vs in op.inputs.items()},
            {s: [copies[v] for v in vs] for s, vs in op.outputs.items()},
            attrs, role=op.role, forward=copied.get(id(op.forward)), grad_slot=op.grad_slot,
            site=op.site, number=op.number, scope_name=op.scope_name,
        )  # fmt: skip
    copy.block0.fill({v._name: v for v in copies.values()}, copied.values())
    copy.updated = program.updated
    copy.numbered, copy.loaders = next_number(program.ops), list(program.loaders)
    if not for_test:
        copy.lr_schedulers = [(copy.vars[v.name], s) for v, s in program.lr_schedulers if v.name in copy.vars]
    return copy


def _copied_attr(value: Any, program: Program, for_test: bool) -> Any:
    """An attribute for a copied operator of `program`: a block is copied with it."""
    if not isinstance(value, InnerBlock):
        return value
    assert isinstance(value, Program)
    block = value.clone(for_test)
    block.parent = program
    return block


def as_seed(seed: Any) -> int:
    """`seed`, which must be an int >= 0."""
    fits = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0
    require(fits, f"a seed is an int >= 0, not {seed!r}", ProgramError)
    return int(seed)


_default = Program("main"), Program("startup")
_guards = Guards[tuple[Program, Program]]("program_guard")
_name_scopes = Guards[tuple[Program, str]]("name_scope")


def default_main_program() -> Program:
    """The Program to which operators are appended now."""
    return _guards.innermost(_default)[0]


def default_startup_program() -> Program:
    """The Program to which initialisers of new parameters are appended now."""
    return _guards.innermost(_default)[1]


@reusable
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make these the default programs inside the block, for the thread that enters it."""
    for program in (main_program, startup_program):
        require(
            program is None or isinstance(program, Program), f"program_guard takes Programs, not {program!r}",
            ProgramError,
        )  # fmt: skip
    startup = startup_program if startup_program is not None else default_startup_program()
    with _guards.entered((main_program, startup)):
        yield


@reusable
def name_scope(prefix: str) -> Iterator[None]:
    """Mark the operators appended inside with `prefix/`, for reading dumps and drawings."""
    require(isinstance(prefix, str), f"a name scope has a str for a name, not {prefix!r}", NAME)
    with default_main_program().in_scope(f"{prefix}/"):
        yield
