"""Variables: the named, typed places for values that a Block holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import CallSite, MinigraphError, ProgramError, call_site, require
from .types import TensorType

if TYPE_CHECKING:
    from .program import Block, Program

GRAD_SUFFIX = "@GRAD"


class Variable:
    """A named, typed place for a value in a Block.

    persistable    lives in the Scope between runs (parameters, optimizer states)
    stop_gradient  no gradient flows into it or through it
    is_data        declared by `static.data`, to be fed
    """

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
        self.block, self._name, self.type = block, name, type
        self._persistable, self.stop_gradient, self.is_data = persistable, stop_gradient, is_data
        self.site = site

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
        self.program.version += persistable != self._persistable
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
        return ProgramError(
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

    def __len__(self) -> int:
        require(self.ndim > 0, f"len() of a 0-d variable {self}", ProgramError)
        require(self.shape[0] >= 0, f"len() of {self}: axis 0 is known only at run time", ProgramError)
        return self.shape[0]


class Parameter(Variable):
    """A persistable Variable that an optimizer updates.

    optimize_attr  {"learning_rate": factor on the optimizer's rate}
    regularizer    beats the optimizer's own
    need_clip      False leaves it out of gradient clipping
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
        self.optimize_attr = {"learning_rate": learning_rate}
        self.regularizer, self.need_clip = regularizer, need_clip

    @property
    def trainable(self) -> bool:
        return not self.stop_gradient

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.stop_gradient = not value


def copy_var(v: Variable, block: Block) -> Variable:
    """The same variable for another Block (not yet in it)."""
    if not isinstance(v, Parameter):
        return Variable(block, v.name, v.type, persistable=v.persistable, stop_gradient=v.stop_gradient,
                        is_data=v.is_data, site=v.site)  # fmt: skip
    copy = Parameter(block, v.name, v.type, trainable=v.trainable, regularizer=v.regularizer,
                     need_clip=v.need_clip, site=v.site)  # fmt: skip
    copy.optimize_attr = dict(v.optimize_attr)
    return copy
