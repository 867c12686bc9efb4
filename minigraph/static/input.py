"""What stands at the beginning of a program: data to be fed, and parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import MinigraphError, ProgramError, call_site, require
from minigraph.errors.kinds import NAME, UNKNOWN_SIZE
from minigraph.nn.initializer import Initializer
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.parameter import create_parameter as make_parameter
from minigraph.program import (
    Parameter,
    Variable,
    default_main_program,
    default_startup_program,
    unique_name,
)
from minigraph.program.default_dtype import default_dtype
from minigraph.types import as_dtype, normalize_shape, tensor_type


def data(name: str, shape: Any, dtype: Any = None, lod_level: int = 0) -> Variable:
    """A Variable to be fed under its name; None or -1 is a size known only at run time.

    dtype      the default data type for None
    lod_level  only 0: sequences of several lengths in one array do not exist here
    Asked for twice with the same shape and type it is the same Variable; otherwise an error.
    """
    if lod_level != 0:
        raise ProgramError(
            f"lod_level {lod_level} is not supported, only 0", call="data", site=call_site(),
            hint="pad sequences to one length and feed a mask beside them",
        )  # fmt: skip
    if not isinstance(name, str):
        raise NAME(f"name must be a str, is {name!r}", call="data", site=call_site())
    try:
        type = tensor_type(shape, dtype if dtype is not None else default_dtype())
    except MinigraphError as error:
        raise error.at(f"data({name!r})", call_site()) from None
    block = default_main_program().global_block()
    existing = block.vars.get(name)
    if existing is None:
        return block.create_var(name, type=type, stop_gradient=True, is_data=True)
    if existing.is_data and existing.type == type:
        return existing
    where = f"; it was made at {existing.site.text()}" if existing.site else ""
    raise NAME(
        f"variable {existing} exists already, it cannot be {type} as well{where}", call=f"data({name!r})",
        site=call_site(), hint="use another name, or another program: with static.program_guard(static.Program()): ...",
    )  # fmt: skip


def create_parameter(
    shape: Any, dtype: Any = None, name: str | None = None, attr: Any = None, is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter:  # fmt: skip
    """A Parameter of the default main program, initialised by the default startup program.

    Weights are XavierUniform and biases 0 unless `attr` or default_initializer says otherwise.
    """
    if attr is None:
        attr = ParamAttr(name=name)
    elif name is not None:
        raise ProgramError(
            "name and attr are both given", call="create_parameter", site=call_site(), hint="use ParamAttr(name=...)"
        )
    owner = unique_name.generate("create_parameter")
    parameter = make_parameter(owner, shape, dtype, attr, is_bias, default_initializer)
    if parameter is None:
        raise ProgramError("attr=False makes no parameter", call="create_parameter", site=call_site())
    return parameter


def create_global_var(
    shape: Any, value: Any, dtype: Any, persistable: bool = False, force_cpu: bool = False, name: str | None = None
) -> Variable:
    """A Variable full of one number: persistable, filled by the startup program; else filled in each run.

    persistable  Paddle 2.6.2 has no value for one that is not, and a run that reads it fails
    force_cpu    says nothing here: a value lives where its program runs
    """
    name = name if name is not None else unique_name.generate("global_var")
    try:
        type = tensor_type(shape, dtype)
        require(type.is_static, f"every size must be known, got {type}", UNKNOWN_SIZE)
    except MinigraphError as error:
        raise error.at(f"create_global_var({name!r})", call_site()) from None
    main, startup = default_main_program().global_block(), default_startup_program().global_block()
    block = startup if persistable else main
    with main.whole(), startup.program.undone_on_error():
        variable = main.create_var(name, type=type, persistable=bool(persistable), stop_gradient=True)
        filled = startup.create_var(name, type=type, persistable=True) if persistable else variable
        block.append_op(
            "fill_constant", outputs={"Out": filled}, attrs={"shape": type.shape, "value": value, "dtype": type.dtype}
        )
    return variable


class InputSpec:
    """Shape, data type and name of an input, None or -1 for a size known only at run time."""

    def __init__(
        self, shape: Any, dtype: Any = "float32", name: str | None = None, stop_gradient: bool = False
    ) -> None:
        self.shape, self.dtype = normalize_shape(shape), as_dtype(dtype)
        self.name, self.stop_gradient = name, stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Variable, name: str | None = None) -> InputSpec:
        """The InputSpec of a Variable."""
        return cls(tensor.shape, tensor.dtype, name or tensor.name)

    @classmethod
    def from_numpy(cls, ndarray: np.ndarray, name: str | None = None) -> InputSpec:
        """The InputSpec of an array."""
        return cls(ndarray.shape, ndarray.dtype, name)

    def batch(self, batch_size: int) -> InputSpec:
        """Put an axis of size `batch_size` in front."""
        self.shape = normalize_shape((batch_size, *self.shape))
        return self

    def unbatch(self) -> InputSpec:
        """Take the first axis away."""
        if not self.shape:
            raise ProgramError("a 0-d InputSpec has no batch axis", call="unbatch", site=call_site())
        self.shape = self.shape[1:]
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self.name, self.stop_gradient

    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype.name}, name={self.name})"
