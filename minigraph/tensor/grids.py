"""Regular Variables: evenly spaced numbers, unit matrices, triangles and diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import ProgramError, call_site, require
from minigraph.errors.kinds import AXIS, RANK, UNKNOWN_SIZE
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype
from minigraph.program.known import known_number
from minigraph.types import FLOATS, as_dtype, float64, normalize_axis

from .arguments import as_type, constant, describe, is_number, output_prefix, plain, variable
from .creation import full, full_like
from .logic import where
from .manipulation import concat, flatten, gather, transpose
from .math import sum


@whole
def linspace(start: Any, stop: Any, num: int, dtype: Any = None, name: str | None = None) -> Variable:
    """`num` evenly spaced numbers from start to stop, both with them; start and stop may be 0-d Variables.

    dtype  the default data type for None; ints are cut from what float64 gives
    """
    num = known_number(num)
    if not isinstance(num, int) or num < 1:
        raise ProgramError(f"num must be an int > 0, is {describe(num)}", call="linspace", site=call_site())
    dtype = default_dtype() if dtype is None else as_dtype(dtype)
    kind = dtype if dtype in FLOATS else float64
    g = builder_of(start, stop)
    start, stop = (
        as_type(v, kind) if isinstance(v, Variable) else constant(float(plain(v)), kind) for v in (start, stop)
    )
    place = g.arange(end=num, dtype=kind)
    step = (stop - start) / float(max(num - 1, 1))
    line = where(place < num / 2, start + step * place, stop - step * (num - 1.0 - place))
    return g.cast(line, dtype=dtype, name=output_prefix("linspace", name))


@whole
def logspace(
    start: Any, stop: Any, num: int, base: Any = 10.0, dtype: Any = None, name: str | None = None
) -> Variable:  # fmt: skip
    """base ** linspace(start, stop, num)"""
    dtype = default_dtype() if dtype is None else as_dtype(dtype)
    powers = linspace(start, stop, num, "float64")
    g = builder_of(powers)
    base = g.cast(base, dtype=float64) if isinstance(base, Variable) else full_like(powers, float(base))
    return g.cast(g.elementwise_pow(base, powers), dtype=dtype, name=output_prefix("logspace", name))


def empty(shape: Any, dtype: Any = None, name: str | None = None) -> Variable:
    """A Variable of the given shape; its elements are 0."""
    return full(shape, 0, dtype, name)


def empty_like(x: Variable, dtype: Any = None, name: str | None = None) -> Variable:
    """full_like(x, 0, dtype)"""
    return full_like(x, 0, dtype, name)


@whole
def eye(num_rows: int, num_columns: int | None = None, dtype: Any = None, name: str | None = None) -> Variable:
    """Ones on the main diagonal, zeros elsewhere."""
    g = builder_of()
    columns = num_rows if num_columns is None else num_columns
    rows = g.unsqueeze(g.arange(end=num_rows), axes=[1])
    on = g.equal(rows, g.arange(end=columns))
    return g.cast(on, dtype=default_dtype() if dtype is None else dtype, name=output_prefix("eye", name))


def _indices(rows: int, columns: int, offset: int, lower: bool, dtype: Any) -> Variable:
    at = np.tril_indices(rows, offset, columns) if lower else np.triu_indices(rows, offset, columns)
    return constant(np.stack(at).astype(as_dtype(dtype)), as_dtype(dtype))


def tril_indices(row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64") -> Variable:
    """The coordinates [2, n] of the lower triangle of a matrix, row by row; at most 4096 numbers."""
    return _indices(row, row if col is None else col, offset, True, dtype)


def triu_indices(row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64") -> Variable:
    """The coordinates [2, n] of the upper triangle of a matrix, row by row; at most 4096 numbers."""
    return _indices(row, row if col is None else col, offset, False, dtype)


@whole
def diagonal(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None) -> Variable:
    """The diagonal of the plane of two axes, whose sizes must be known, as the last axis; `offset` > 0 lies above."""
    x = variable(x, "diagonal")
    first, second = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    require(first != second, "axis1 and axis2 are one axis", AXIS)
    rows, columns = x.shape[first], x.shape[second]
    require(-1 not in (rows, columns), f"sizes of {x} must be known", UNKNOWN_SIZE)
    row, column = max(-offset, 0), max(offset, 0)
    length = max(min(rows - row, columns - column), 0)
    g = builder_of(x)
    order = [a for a in range(x.ndim) if a not in (first, second)]
    flat = flatten(transpose(x, [*order, first, second]), x.ndim - 2, x.ndim - 1)
    start = row * columns + column
    places = g.arange(start=start, end=start + length * (columns + 1), step=columns + 1)
    return gather(flat, places, axis=x.ndim - 2, name=name)


def trace(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None) -> Variable:
    """The sum of the diagonal."""
    return sum(diagonal(x, offset, axis1, axis2), -1, name=name)


@whole
def diag_embed(input: Variable, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Matrices whose diagonals are the last axis of input, in the plane of the axes dim1 and dim2 of the result."""
    return _on_diagonal(variable(input, "diag_embed", "input"), offset, 0.0, dim1, dim2, "diag_embed", None)


def _on_diagonal(
    x: Variable, offset: int, padding: float, dim1: int, dim2: int, call: str, name: str | None
) -> Variable:  # fmt: skip
    n, g = x.shape[-1], builder_of(x)
    require(n != -1, f"the last size of {x} must be known", UNKNOWN_SIZE)
    size = n + abs(offset)
    if offset:  # one row for each element, empty ones where the diagonal does not reach
        gap = g.fill_any_like(g.gather(x, g.assign_value(values=[0] * abs(offset), shape=[abs(offset)], dtype="int64"),
                                       axis=x.ndim - 1), value=0.0)  # fmt: skip
        x = concat([x, gap] if offset > 0 else [gap, x], axis=-1)
    rows, columns = g.unsqueeze(g.arange(end=size), axes=[1]), g.arange(start=offset, end=size + offset)
    on = g.equal(rows, g.scale(columns, bias=-2.0 * offset) if offset else columns)
    out = where(on, g.unsqueeze(x, axes=[x.ndim]), padding)
    last, axes = out.ndim, list(range(out.ndim - 2))
    first, second = normalize_axis(dim1, last), normalize_axis(dim2, last)
    for place, axis in sorted([(first, last - 2), (second, last - 1)]):
        axes.insert(place, axis)
    return transpose(out, axes, name=output_prefix(call, name)[:-4])


@whole
def diag(x: Variable, offset: int = 0, padding_value: float = 0, name: str | None = None) -> Variable:
    """A vector as the diagonal of a matrix, with `padding_value` elsewhere; the diagonal of a matrix."""
    x = variable(x, "diag")
    require(x.ndim in (1, 2), f"x must be a vector or a matrix, is {x}", RANK)
    require(is_number(padding_value), f"padding_value is {describe(padding_value)}", ProgramError)
    if x.ndim == 2:
        return diagonal(x, offset, name=name)
    return _on_diagonal(x, offset, padding_value, 0, 1, "diag", name)


@whole
def diagflat(x: Variable, offset: int = 0, name: str | None = None) -> Variable:
    """x, laid flat, as the diagonal of a matrix."""
    return diag(flatten(variable(x, "diagflat")), offset, name=name)


__all__ = [
    "diag", "diag_embed", "diagflat", "diagonal", "empty", "empty_like", "eye", "linspace", "logspace", "trace",
    "tril_indices", "triu_indices",
]  # fmt: skip
