"""What functions on variables accept: Variables, and numbers or arrays beside a Variable.

A number or NumPy array that stands beside a Variable becomes a constant of the Variable's type. The
Variable gives way only where the constant would lose something: an int Variable beside a float is
cast to the default data type, a bool one beside an int to int64, both as in Paddle. Of two Variables
an int beside a float is cast to the float's type (Paddle 2 casts the right one to the left one's),
the smaller of two ints or floats to the larger.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from minigraph.errors import ProgramError, call_site, shortened
from minigraph.errors.kinds import NAME, NO_NUMBERS
from minigraph.program import Variable, unique_name
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.types import FLOATS, INTS, bool_, float32, float64, int64

FIRST, LAST = -(2**63), 2**63 - 1
MAX_CONSTANT = 4096  # elements of an array that is written into the program as a constant

Number = bool | int | float
Operand = Variable | Number | np.ndarray


def describe(value: Any) -> str:
    """`a float: 3.0`, cut where it is long."""
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}: {shortened(repr(value))}" if value is not None else "None"


def variable(value: Any, call: str, argument: str = "x") -> Variable:
    """`value`, which must be a Variable."""
    if isinstance(value, Variable):
        return value
    hint = "mg.assign(value) makes a Variable" if is_number(value) or isinstance(value, (np.ndarray, list)) else None
    raise ProgramError(
        f"{argument} must be a Variable, is {describe(value)}", call=call, site=call_site(), hint=hint
    )


def variables(values: Any, call: str, argument: str = "x") -> list[Variable]:
    """`values`, which must be a list or tuple of Variables, at least one."""
    if not isinstance(values, (list, tuple)):
        raise ProgramError(
            f"{argument} must be a list of Variables, is {describe(values)}", call=call, site=call_site()
        )
    if not values:
        raise ProgramError(f"{argument} is an empty list", call=call, site=call_site())
    return [variable(v, call, f"{argument}[{i}]") for i, v in enumerate(values)]


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating))


def plain(value: Any) -> Any:
    """A NumPy scalar or 0-d array as a Python number, anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def also_named(**spellings: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: arguments may be given by another library's names as well, {that name: the function's own}.

    Both spellings of one argument in a call are an error.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            for other in spellings.keys() & kwargs.keys():
                own = spellings[other]
                if own in kwargs or places[own] < len(args):
                    raise ProgramError(
                        f"{own} and {other} are two names of one argument, and both are given",
                        call=function.__name__, site=call_site(), hint=f"leave {other} out",
                    )  # fmt: skip
                kwargs[own] = kwargs.pop(other)
            return function(*args, **kwargs)

        return run

    return decorated


def output_prefix(kind: str, name: str | None) -> str:
    """Prefix of the output names of one call: `relu_0.tmp` by default, `<name>.tmp` with a name."""
    if name is not None and not isinstance(name, str):
        raise NAME(f"name must be a str, is {describe(name)}", call=kind, site=call_site())
    return (name or unique_name.generate(kind)) + ".tmp"


def emit(kind: str, op_type: str, *inputs: Any, name: str | None = None, **attrs: Any) -> Any:
    """Append an operator; the new variables are named after `kind`, or `name` where it is given."""
    return builder_of(*inputs).emit(op_type, *inputs, name=output_prefix(kind, name), **attrs)


def constant(value: Number | np.ndarray, dtype: np.dtype, like: Variable | None = None) -> Variable:
    """A Variable of type `dtype` that holds `value`, in the program of `like`.

    A number becomes `fill_constant` of rank 0, an array `assign_value`, whose elements stand in the
    text of the program: at most MAX_CONSTANT of them.
    """
    g = builder_of(like)
    if not isinstance(value, np.ndarray):
        _check_fits(value, dtype)
        return g.fill_constant(shape=(), value=value, dtype=dtype)
    if value.size > MAX_CONSTANT:
        raise ProgramError(
            f"an array of {value.size} elements is too large for a constant of the program, {MAX_CONSTANT} may be",
            site=call_site(), hint="feed it through static.data, or hold it in a parameter with initializer.Assign",
        )  # fmt: skip
    if value.size and value.dtype.kind in "iu":
        _check_fits(int(value.min()), dtype)
        _check_fits(int(value.max()), dtype)
    return g.assign_value(values=value.reshape(-1).tolist(), shape=value.shape, dtype=dtype)


def _check_fits(value: Number, dtype: np.dtype) -> None:
    if dtype in INTS and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise NO_NUMBERS(f"{value} does not fit {dtype}", site=call_site(), hint="cast the variable to a larger type")


def operands(x: Any, y: Any, call: str) -> tuple[Variable, Variable]:
    """Two operands as Variables of one type; at least one is a Variable already."""
    if isinstance(x, Variable) and isinstance(y, Variable):
        return promoted(x, y)
    if isinstance(y, Variable):
        y = widened(y, x, call, "x")
        return constant(plain(x), y.dtype, y), y
    x = widened(variable(x, call), y, call, "y")
    return x, constant(plain(y), x.dtype, x)


def promoted(x: Variable, y: Variable) -> tuple[Variable, Variable]:
    """Two Variables brought to one type; of two 16-bit floats that is float32."""
    if x.dtype == y.dtype:
        return x, y
    floats = {v.dtype for v in (x, y)} & set(FLOATS)
    if len(floats) == 2:
        wide = float64 if float64 in floats else float32
    else:
        wide = next(iter(floats), None) or np.promote_types(x.dtype, y.dtype)
    return as_type(x, wide), as_type(y, wide)


def scalars_as_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: along an axis of a 0-d Variable `function` computes what it does of a row of one element.

    Where None stands for all axes there is nothing to do: a mean of a loss that is 0-d is one operator.
    """
    arguments = inspect.signature(function)
    name = "axis" if "axis" in arguments.parameters else "dim"

    @wraps(function)
    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Variable) or x.ndim > 0:
            return function(x, *args, **kwargs)
        given = arguments.bind(x, *args, **kwargs)
        given.apply_defaults()
        if given.arguments[name] in (None, [], ()):
            return function(x, *args, **kwargs)
        return of_row(x, *args, **kwargs)

    @whole
    def of_row(x: Variable, *args: Any, **kwargs: Any) -> Any:
        g = builder_of(x)
        made = function(g.reshape(x, shape=[1]), *args, **kwargs)
        parts = [g.reshape(v, shape=[]) for v in (made if isinstance(made, tuple) else (made,))]
        return tuple(parts) if isinstance(made, tuple) else parts[0]

    return run


def value_of(value: Any, call: str, argument: str) -> Number | np.ndarray:
    """`value`, which must be a number or an array of numbers."""
    if not (is_number(value) or isinstance(value, np.ndarray)):
        raise ProgramError(
            f"{argument} must be a Variable, a number or a NumPy array, is {describe(value)}", call=call,
            site=call_site(),
        )  # fmt: skip
    if isinstance(value, int) and not FIRST <= value <= LAST:
        raise NO_NUMBERS(f"{argument} {value} does not fit int64", call=call, site=call_site())
    if np.asarray(value).dtype.kind not in "biuf":
        raise NO_NUMBERS(f"{argument} must hold numbers, is {describe(value)}", call=call, site=call_site())
    return value


def widened(x: Variable, value: Any, call: str, argument: str) -> Variable:
    """`x`, cast where the constant `value` would not fit its kind."""
    kind = np.asarray(value_of(value, call, argument)).dtype.kind
    if kind == "f" and x.dtype not in FLOATS:
        return as_type(x, default_dtype())
    if kind in "iu" and x.dtype == bool_:
        return as_type(x, int64)
    return x


def as_type(x: Variable, dtype: np.dtype) -> Variable:
    """`x` cast to `dtype`, itself if it has that type."""
    return x if x.dtype == dtype else builder_of(x).cast(x, dtype=dtype)


def ints(value: Any) -> Sequence[int] | None:
    """An axis or list of axes as attributes take it: a tuple, None for None and for an empty list."""
    if value is None:
        return None
    return tuple(value) or None if isinstance(value, (list, tuple)) else (value,)
