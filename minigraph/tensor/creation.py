"""Variables from nothing, from values, and from the shape of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import ProgramError, call_site
from minigraph.errors.kinds import NO_NUMBERS
from minigraph.program import Variable
from minigraph.program.builder import builder_of
from minigraph.program.default_dtype import default_dtype
from minigraph.program.known import Size, known
from minigraph.types import as_dtype, float64

from .arguments import constant, describe, emit, is_number, output_prefix, plain, variable
from .sized import full_of, run_sizes


def is_tensor(x: Any) -> bool:
    """Whether x is a Variable."""
    return isinstance(x, Variable)


def _number(value: Any, call: str, argument: str) -> Any:
    value = plain(known(value))
    if not is_number(value):
        raise ProgramError(f"{argument} must be a number, is {describe(value)}", call=call, site=call_site())
    return value


def _read(value: Any) -> Any:
    """The number that a text says; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def full(shape: Any, fill_value: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """A Variable of the given shape with every element equal to `fill_value`.

    shape       its entries may be sizes of Variables that only a run knows
    fill_value  a number, or a text of one as Paddle takes it
    dtype       the default data type for None
    """
    value = _number(_read(fill_value), "full", "fill_value")
    dtype = as_dtype(dtype) if dtype is not None else default_dtype()
    sizes = run_sizes(shape)
    if sizes:
        return full_of(sizes, value, dtype)
    return builder_of().fill_constant(shape=shape, value=value, dtype=dtype, name=output_prefix("fill_constant", name))


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """full(shape, 0, dtype)"""
    return full(shape, 0, dtype, name)


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """full(shape, 1, dtype)"""
    return full(shape, 1, dtype, name)


def full_like(x: Variable, fill_value: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """`fill_value` in the shape of x, sizes known only at run time included; x's type for dtype=None."""
    value = _number(fill_value, "full_like", "fill_value")
    return emit("full_like", "fill_any_like", variable(x, "full_like"), value=value, dtype=dtype, name=name)


def zeros_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """full_like(x, 0, dtype)"""
    return full_like(variable(x, "zeros_like"), 0, dtype, name)


def ones_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """full_like(x, 1, dtype)"""
    return full_like(variable(x, "ones_like"), 1, dtype, name)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: str | None = None) -> Variable:
    """start, start + step, ... up to `end`, which is left out; arange(n) counts from 0.

    end    may be the size of a Variable that only a run knows
    dtype  for None int64 if all three are ints, else the default data type
    """
    if end is None:
        start, end = 0, start
    size = known(end)
    if isinstance(size, Size):
        return _range_of(size, _number(start, "arange", "start"), _number(step, "arange", "step"), dtype, name)
    bounds = [_number(v, "arange", a) for v, a in ((start, "start"), (end, "end"), (step, "step"))]
    if dtype is None:
        dtype = "int64" if all(isinstance(v, int) for v in bounds) else default_dtype()
    start, end, step = bounds
    prefix = output_prefix("arange", name)
    return builder_of().arange(start=start, end=end, step=step, dtype=dtype, name=prefix)


def _range_of(size: Size, start: Any, step: Any, dtype: Any, name: str | None) -> Variable:
    """arange up to a size that only a run knows."""
    if dtype is None:
        dtype = "int64" if isinstance(start, int) and isinstance(step, int) else default_dtype()
    g = builder_of(size.variable)
    prefix = output_prefix("arange", name)
    return g.arange_like(size.variable, axis=size.axis, start=start, step=step, dtype=dtype, name=prefix)


def assign(x: Any, output: Variable | None = None) -> Variable:
    """A copy of x: a Variable, a number, or (nested lists as) a NumPy array of at most 4096 elements.

    output  write it there instead of to a new Variable
    A number becomes an array of one element, as in Paddle; mg.to_tensor makes it 0-d.
    Floats of Python and of NumPy's float64 become the default data type, as in Paddle; other arrays keep their own.
    """
    if output is None and isinstance(x, (np.ndarray, np.floating)) and x.dtype == float64:
        x = x.astype(default_dtype())
    if not isinstance(x, Variable):
        if is_number(x) and (output is None or output.ndim > 0):
            x = x.reshape(1) if isinstance(x, np.generic) else [x]
        x = from_value(x)
        if output is None:
            return x
    out = None if output is None else {"Out": variable(output, "assign", "output")}
    return emit("assign", "assign", x, out=out)


def from_value(value: Any) -> Variable:
    """A constant: 0-d of a number, else of the array's shape."""
    if not (is_number(value) or isinstance(value, (np.ndarray, list, tuple))):
        raise ProgramError(
            f"x must be a Variable, numbers or a NumPy array, is {describe(value)}", call="assign", site=call_site()
        )
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise ProgramError(f"x is no array: {problem}", call="assign", site=call_site()) from None
    if array.dtype.kind not in "biufV":
        raise NO_NUMBERS(f"x must hold numbers, is {describe(value)}", call="assign", site=call_site())
    typed = isinstance(value, (np.ndarray, np.generic)) or array.dtype.kind != "f"
    dtype = as_dtype(array.dtype) if typed else default_dtype()
    return constant(array if array.ndim else array.item(), dtype)


def tril(x: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The lower triangle of the last two axes, zeros above `diagonal` (0 the main one, > 0 above it)."""
    return emit("tril", "tril_triu", variable(x, "tril"), diagonal=diagonal, lower=True, name=name)


def triu(x: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The upper triangle of the last two axes, zeros below `diagonal`."""
    return emit("triu", "tril_triu", variable(x, "triu"), diagonal=diagonal, lower=False, name=name)
