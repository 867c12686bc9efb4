"""Functions of numbers: arithmetic, matrix products, elementwise functions, reductions."""

from __future__ import annotations

from typing import Any

from minigraph.errors import ProgramError, call_site
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.types import FLOATS, bool_, uint8

from .arguments import (
    Operand,
    as_type,
    describe,
    emit,
    ints,
    is_number,
    operands,
    output_prefix,
    plain,
    scalars_as_rows,
    variable,
    widened,
)


@whole
def arithmetic(op_type: str, x: Any, y: Any, call: str, prefix: str) -> Variable:
    """`x <op> y` with broadcasting; beside a Variable stands a number or a small NumPy array.

    `+ - *` with a number are one `scale`, `**` with a number on the right is one `pow`, as in
    Paddle. A quotient is a division, never a product with a rounded reciprocal.
    """
    x, y = plain(x), plain(y)
    short = None
    if is_number(y) and isinstance(x, Variable):
        x = widened(x, y, call, "y")
        short = _with_number(op_type, x, y, prefix)
    elif is_number(x) and isinstance(y, Variable):
        y = widened(y, x, call, "x")
        short = _from_number(op_type, x, y, prefix)
    if short is not None:
        return short
    x, y = operands(x, y, call)
    if op_type == "elementwise_div" and x.dtype not in FLOATS:
        x, y = as_type(x, default_dtype()), as_type(y, default_dtype())
    return builder_of(x).emit(op_type, x, y, name=prefix)


def _scalable(x: Variable, number: float) -> bool:
    """Whether `scale`, whose attributes are floats, computes exactly the same."""
    return x.dtype in FLOATS or (x.dtype not in (uint8, bool_) and -(2**53) <= number <= 2**53)


def _with_number(op_type: str, x: Variable, y: Any, prefix: str) -> Variable | None:
    """x <op> number in one operator, None where that does not exist."""
    g = builder_of(x)
    if op_type == "elementwise_pow" and x.dtype != bool_:
        return g.pow(x, factor=float(y), name=prefix)
    if not _scalable(x, y):
        return None
    if op_type == "elementwise_add":
        return g.scale(x, bias=float(y), name=prefix)
    if op_type == "elementwise_sub":
        return g.scale(x, bias=-float(y), name=prefix)
    if op_type == "elementwise_mul":
        return g.scale(x, scale=float(y), name=prefix)
    return None


def _from_number(op_type: str, x: Any, y: Variable, prefix: str) -> Variable | None:
    """number <op> y in one operator, None where that does not exist."""
    if op_type == "elementwise_sub":
        return builder_of(y).scale(y, scale=-1.0, bias=float(x), name=prefix) if _scalable(y, x) else None
    return _with_number(op_type, y, x, prefix) if op_type in ("elementwise_add", "elementwise_mul") else None


def add(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x + y with broadcasting."""
    return arithmetic("elementwise_add", x, y, "add", output_prefix("elementwise_add", name))


def subtract(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x - y with broadcasting."""
    return arithmetic("elementwise_sub", x, y, "subtract", output_prefix("elementwise_sub", name))


def multiply(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x * y with broadcasting."""
    return arithmetic("elementwise_mul", x, y, "multiply", output_prefix("elementwise_mul", name))


def divide(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x / y with broadcasting; ints are cast to the default data type first."""
    return arithmetic("elementwise_div", x, y, "divide", output_prefix("elementwise_div", name))


def pow(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x ** y with broadcasting."""
    return arithmetic("elementwise_pow", x, y, "pow", output_prefix("elementwise_pow", name))


def maximum(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """The larger of x and y with broadcasting, NaN where one is NaN."""
    return arithmetic("elementwise_max", x, y, "maximum", output_prefix("elementwise_max", name))


def minimum(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """The smaller of x and y with broadcasting, NaN where one is NaN."""
    return arithmetic("elementwise_min", x, y, "minimum", output_prefix("elementwise_min", name))


def matmul(
    x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False, name: str | None = None, *,
    out_dtype: Any = None,
) -> Variable:  # fmt: skip
    """x @ y: vectors, matrices, and batches of matrices whose leading axes broadcast.

    transpose_x, transpose_y  swap the last two axes of an operand first
    out_dtype                 "float32" keeps the sums of 16-bit operands as they are; None rounds to x's type
    """
    x, y = variable(x, "matmul"), variable(y, "matmul", "y")
    attrs = {"trans_x": transpose_x, "trans_y": transpose_y, "out_dtype": out_dtype}
    return emit("matmul", "matmul", x, y, **attrs, name=name)


@whole
def scale(
    x: Variable, scale: Any = 1.0, bias: float = 0.0, bias_after_scale: bool = True, name: str | None = None
) -> Variable:
    """x * scale + bias, or (x + bias) * scale with bias_after_scale=False; scale may be a Variable of one number."""
    if isinstance(scale, Variable):
        x = variable(x, "scale")
        factor = cast(builder_of(x).reshape(scale, shape=[1] * x.ndim), x.dtype)
        return x * factor + bias if bias_after_scale else (x + bias) * factor
    attrs = {"scale": scale, "bias": bias, "bias_after_scale": bias_after_scale}
    return emit("scale", "scale", variable(x, "scale"), name=name, **attrs)


@whole
def clip(x: Variable, min: Any = None, max: Any = None, name: str | None = None) -> Variable:
    """x brought into [min, max]; None leaves a side open. The gradient is 0 outside, 1 on the border.

    min, max  numbers, or Variables of one element, which get no gradient
    """
    if isinstance(min, Variable) or isinstance(max, Variable):
        return _clip_between(variable(x, "clip"), min, max, name)
    for argument, bound in (("min", min), ("max", max)):
        if bound is not None and not is_number(plain(bound)):
            raise ProgramError(
                f"{argument} must be a number or None, is {describe(bound)}", call="clip", site=call_site(),
                hint="mg.maximum and mg.minimum take Variables of x's shape",
            )  # fmt: skip
    return emit("clip", "clip", variable(x, "clip"), min=plain(min), max=plain(max), name=name)


def _clip_between(x: Variable, low: Any, high: Any, name: str | None) -> Variable:
    g = builder_of(x)
    for choose, bound in ((maximum, low), (minimum, high)):
        if isinstance(bound, Variable):
            if bound.type.size != 1:
                raise ProgramError(f"a bound is {bound}, not one number", call="clip", site=call_site(),
                                   hint="mg.maximum and mg.minimum take Variables of x's shape")  # fmt: skip
            bound = g.cast(g.reshape(bound, shape=[]), dtype=x.dtype)
            bound.stop_gradient = True
        if bound is not None:
            x = choose(x, bound)
    return g.assign(x, name=output_prefix("clip", name))


def _reduce(call: str, x: Any, axis: Any, keepdim: bool, name: str | None, **attrs: Any) -> Variable:
    kind = f"reduce_{call.removeprefix('a')}"
    return emit(call, kind, variable(x, call), axis=ints(axis), keepdim=keepdim, name=name, **attrs)


def _reduce_as(call: str, x: Any, axis: Any, dtype: Any, keepdim: bool, name: str | None) -> Variable:
    x = variable(x, call)
    if dtype is None:
        return _reduce(call, x, axis, keepdim, name)
    x = cast(x, dtype)
    return as_type(_reduce(call, x, axis, keepdim, name), x.dtype)  # ints are added up as int64


@scalars_as_rows
@whole
def sum(x: Variable, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The sum over `axis`, an int or list of ints (None or empty: all axes).

    dtype  of the sum, and of what is added up; by default floats keep theirs, bool and ints become int64
    """
    return _reduce_as("sum", x, axis, dtype, keepdim, name)


@scalars_as_rows
def mean(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The mean of floats over `axis`, as sum."""
    return _reduce("mean", x, axis, keepdim, name)


@scalars_as_rows
def max(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The largest element over `axis`, as sum. Equal largest elements have all of the gradient each, as in Paddle."""
    return _reduce("max", x, axis, keepdim, name, share=False)


@scalars_as_rows
def min(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The smallest element over `axis`, as sum. Equal smallest elements have all of the gradient each."""
    return _reduce("min", x, axis, keepdim, name, share=False)


@scalars_as_rows
def amax(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The largest element over `axis`, as sum. Equal largest elements share the gradient equally."""
    return _reduce("amax", x, axis, keepdim, name)


@scalars_as_rows
def amin(x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Variable:
    """The smallest element over `axis`, as sum. Equal smallest elements share the gradient equally."""
    return _reduce("amin", x, axis, keepdim, name)


@scalars_as_rows
@whole
def prod(x: Variable, axis: Any = None, keepdim: bool = False, dtype: Any = None, name: str | None = None) -> Variable:
    """The product over `axis`, types as in sum."""
    return _reduce_as("prod", x, axis, dtype, keepdim, name)


@whole
def cumsum(x: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """Sums of the elements up to each one along `axis`, of the flattened x for None."""
    x = variable(x, "cumsum")
    if dtype is not None:
        x = cast(x, dtype)
    if x.ndim == 0 and axis is not None:
        return scalars_as_rows(cumsum)(x, axis, name=name)
    return emit("cumsum", "cumsum", x, axis=axis, name=name)


@scalars_as_rows
def argmax(
    x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """The position of the first largest element along `axis`, in the flattened x for None."""
    return emit("argmax", "arg_max", variable(x, "argmax"), axis=axis, keepdim=keepdim, dtype=dtype, name=name)


@scalars_as_rows
def argmin(
    x: Variable, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """The position of the first smallest element along `axis`, in the flattened x for None."""
    return emit("argmin", "arg_min", variable(x, "argmin"), axis=axis, keepdim=keepdim, dtype=dtype, name=name)


def cast(x: Variable, dtype: Any, name: str | None = None) -> Variable:
    """x with another data type. Floats lose their fraction on the way to ints; not zero is True."""
    return emit("cast", "cast", variable(x, "cast"), dtype=dtype, name=name)
