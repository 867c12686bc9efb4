"""Variables: the named, typed places for values that a Block holds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minigraph.errors import CallSite, MinigraphError, ProgramError, call_site, require
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import RUN_TIME, WRONG_OBJECT
from minigraph.types import TensorType

from .arithmetic import Arithmetic
from .blocks.held import check_takes_the_same
from .copies import PartOfProgram
from .scope import Scope, ScopeTensor, ScopeVariable, global_scope
from .whole.settled import OptimizeAttr, differ, warn_of_late_change

if TYPE_CHECKING:
    from .program import Block, Program

GRAD_SUFFIX = "@GRAD"
AGAIN_SUFFIX = ".again"  # of forward values that backward computes a second time
BUILT_INTO_UPDATES = {  # name -> as users know it
    "stop_gradient": "trainable (stop_gradient)", "regularizer": "regularizer", "need_clip": "need_clip",
    "optimize_attr": "optimize_attr",
}  # fmt: skip
FLAGS = frozenset({"stop_gradient", "is_data", "need_clip"})
WIDE_SUFFIX = ".float32"  # of a first value that a startup program rounds to 16 bits


class BareVariable(PartOfProgram, Arithmetic):
    """A Variable that is being made: facts are set without a look at them, then `__class__` makes it a Variable.

    They are in slots, since a program may have 100,000 Variables; what users hang on one is in its dict.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_name", "_persistable", "block", "is_data", "origin", "site", "stop_gradient",
        "type",
    )  # fmt: skip

    block: Block
    type: TensorType
    stop_gradient: bool
    is_data: bool
    site: CallSite | None
    origin: int
    _name: str
    _persistable: bool


class Variable(BareVariable):
    """A named, typed place for a value in a Block.

    persistable    lives in the Scope between runs (parameters, optimizer states)
    stop_gradient  no gradient flows into it or through it
    is_data        declared by `static.data`, to be fed
    origin         a number shared by the copies of it in clones and in rewritten programs, and by nobody else
    """

    __slots__ = ()

    _ids = itertools.count()

    __array_ufunc__ = None  # NumPy leaves `array * variable` to Variable.__rmul__

    def __init__(
        self,
        block: Block,
        name: str,
        type: TensorType,
        *,
        persistable: bool = False,
        stop_gradient: bool = False,
        is_data: bool = False,
        site: CallSite | None = None,
    ) -> None:
        facts = block, name, type, persistable, stop_gradient, is_data, site, next(self._ids)
        for fact, value in zip(FACTS, facts, strict=True):
            object.__setattr__(self, fact, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "type":
            fits = isinstance(value, TensorType)
            require(fits, f"type of {self._name} must be a TensorType, is {value!r}", WRONG_OBJECT)
        if name in FLAGS:
            value = as_flag(name, value)
        if name in ("type", "is_data") and value != getattr(self, name):
            if name == "is_data":
                check_takes_the_same(self.block, f"is_data={value} of {self}")
            self.program.version += 1
        object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self.block.rename_var(self._name, name)

    @property
    def persistable(self) -> bool:
        return self._persistable

    @persistable.setter
    def persistable(self, persistable: bool) -> None:
        persistable = as_flag("persistable", persistable)
        if persistable != self._persistable:
            check_takes_the_same(self.block, f"persistable={persistable} of {self}")
            self.program.version += 1
        self._persistable = persistable

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, -1 where known only at run time."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    def dim(self) -> int:
        """Number of axes."""
        return self.type.ndim

    ndimension = dim

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.type.dtype.itemsize

    @property
    def lod_level(self) -> int:
        """0: there are no sequences of several lengths in one tensor."""
        return 0

    @property
    def is_parameter(self) -> bool:
        return isinstance(self, Parameter)

    def get_value(self, scope: Scope | None = None) -> ScopeTensor:
        """The value in the scope (the global one for None): `np.array(v.get_value())` copies it."""
        return self._in_scope(scope).get_tensor()

    def set_value(self, value: Any, scope: Scope | None = None) -> None:
        """Replace the value in the scope (the global one for None) by that of an array of the same shape."""
        self._in_scope(scope).get_tensor().set(value)

    def _in_scope(self, scope: Scope | None) -> ScopeVariable:
        found = (scope if scope is not None else global_scope()).find_var(self._name)
        if found is None:
            raise ProgramError(
                f"{self} has no value in the scope", site=call_site(),
                hint="run the startup program first" if self.persistable else "fetch it: only persistables are kept",
            )  # fmt: skip
        return found

    @property
    def grad_name(self) -> str:
        return self._name + GRAD_SUFFIX

    @property
    def program(self) -> Program:
        return self.block.program

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """`name : f32[4,8]`"""
        return str(self)

    def __str__(self) -> str:
        return f"{self._name}: {self.type}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _no_value(self, what: str) -> MinigraphError:
        return RUN_TIME(
            f"{what} of variable {self} has no value while the program is built",
            site=call_site(),
            hint="fetch it: exe.run(program, feed=..., fetch_list=[variable]); for a choice by value use mg.where",
        )

    def __bool__(self) -> bool:
        raise self._no_value("bool()")

    def __float__(self) -> float:
        raise self._no_value("float()")

    def __int__(self) -> int:
        raise self._no_value("int()")

    def __index__(self) -> int:
        raise self._no_value("int()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise self._no_value("numpy.array()")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise self._no_value(f"numpy.{function.__name__}()")

    if TYPE_CHECKING:  # tensor/math_op_patch.py hangs them on this class

        def _formula(self, other: Any) -> Variable: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _formula
        __floordiv__ = __mod__ = __pow__ = __matmul__ = __and__ = __or__ = __getitem__ = _formula
        __lt__ = __le__ = __gt__ = __ge__ = _formula

        def __neg__(self) -> Variable: ...

    def __len__(self) -> int:
        require(self.ndim > 0, f"len() of a 0-d variable {self}", ProgramError)
        require(self.shape[0] >= 0, f"len() of {self}: axis 0 is known only at run time", RUN_TIME)
        return self.shape[0]


FACTS = ("block", "_name", "type", "_persistable", "stop_gradient", "is_data", "site", "origin")


def facts_of(v: Variable) -> dict[str, Any]:
    """What is known of a Variable, but for the Block that it is of, which stays."""
    return {fact: getattr(v, fact) for fact in FACTS[1:]} | v.__dict__


def set_facts(v: Variable, facts: Mapping[str, Any]) -> None:
    """Let these hold, without a look at them."""
    for fact, value in facts.items():
        object.__setattr__(v, fact, value)


def new_variable(
    block: Block, name: str, type: TensorType, *, persistable: bool = False, stop_gradient: bool = False,
    site: CallSite | None = None,
) -> Variable:  # fmt: skip
    """A Variable that minigraph makes for itself, in half the time: a user's constructor looks at its flags first."""
    v: Any = object.__new__(BareVariable)
    v.block, v._name, v.type = block, name, type
    v._persistable, v.stop_gradient, v.is_data = persistable, stop_gradient, False
    v.site, v.origin = site, next(Variable._ids)
    v.__class__ = Variable
    return v


class RemovedVariable(Variable):
    """What a Variable becomes when a rewrite takes it out of its Program; whoever uses it is told so."""

    @property
    def block(self) -> Block:  # pyright: ignore[reportIncompatibleVariableOverride]  # who reads it is refused
        raise ProgramError(
            f"{self} is not in its program any more, a rewrite took it out", site=call_site(),
            hint=f'rewrite(program, passes, keep=["{self._name}"]) keeps it',
        )  # fmt: skip

    def __setattr__(self, name: str, value: Any) -> None:
        assert self.block  # which is refused


class Parameter(Variable):
    """A persistable Variable that an optimizer updates.

    optimize_attr  {"learning_rate": factor on the optimizer's rate}
    regularizer    beats the optimizer's own
    need_clip      False leaves it out of gradient clipping
    sparse         embedding(sparse=True) reads it: Adam's lazy_mode looks at its rows
    """

    def __init__(
        self,
        block: Block,
        name: str,
        type: TensorType,
        *,
        trainable: bool = True,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        need_clip: bool = True,
        site: CallSite | None = None,
    ) -> None:
        super().__init__(block, name, type, persistable=True, stop_gradient=not trainable, site=site)
        self.optimize_attr = OptimizeAttr(self, {"learning_rate": learning_rate})
        self.regularizer, self.need_clip = regularizer, need_clip
        self.sparse = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "optimize_attr":
            value = OptimizeAttr(self, value)
        before = getattr(self, name, None) if name in BUILT_INTO_UPDATES else None
        super().__setattr__(name, value)
        if name in BUILT_INTO_UPDATES and self.block.program.updated and differ(before, value):
            warn_of_late_change(self, BUILT_INTO_UPDATES[name])

    @property
    def trainable(self) -> bool:
        return not self.stop_gradient

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.stop_gradient = not as_flag("trainable", value)


def copy_var(v: Variable, block: Block) -> Variable:
    """The same variable for another Block (not yet in it)."""
    copy: Any = object.__new__(BareVariable)
    copy.block, copy._name, copy.type = block, v._name, v.type
    copy._persistable, copy.stop_gradient, copy.is_data = v._persistable, v.stop_gradient, v.is_data
    copy.site, copy.origin = v.site, v.origin
    if more := v.__dict__:
        copy.__dict__ = own = more.copy()
        if isinstance(v, Parameter):
            own["optimize_attr"] = v.optimize_attr.copied_for(copy)
    copy.__class__ = v.__class__
    return copy


def is_of(v: Variable, program: Program) -> bool:
    """Whether a name means in `program` what it means for `v`: its own variable, that of a clone, of what it is a
    clone of, or of a rewriting; or a value of the Scope, which programs share by its name."""
    own = program.vars.get(v.name)
    if own is None or own.origin == v.origin:
        return True
    return own.persistable and v.persistable and own.type == v.type


def check_is_of(v: Variable, program: Program, what: str, error: type[MinigraphError]) -> None:
    """Refuse a variable of another program whose name only happens to occur in this one."""
    if not is_of(v, program):
        raise error(
            f"{what} {v.name!r} is a variable of program {v.program.name}, in program {program.name} another one has"
            " its name", site=v.site, hint=f"pass the name, {v.name!r}, if that one is meant",
        )  # fmt: skip
