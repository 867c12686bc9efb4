"""What masks and constants of attention say, read from how they are made: no array is looked at.

A causal mask is a number where j - i lies within bounds and another number elsewhere, i and j being
the positions along the last two axes: tril(ones), triu(full(-inf), 1), arange(n)[:, None] >= arange(n),
a literal that is such a triangle, and what follows from these by slices, casts, scales, logarithms,
comparisons with numbers, `where`, `not` and by each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from minigraph.ir.graph import OpNode, VarNode

Bounds = tuple[float, float]  # of j - i, both included
EVERYWHERE: Bounds = (-math.inf, math.inf)


class StepFunction(NamedTuple):
    """`inside` where bounds[0] <= j - i <= bounds[1], else `outside`."""

    bounds: Bounds
    inside: float
    outside: float

    @property
    def constant(self) -> float | None:
        """The value of all elements; None where there are two."""
        return self.inside if self.bounds == EVERYWHERE or self.inside == self.outside else None

    def map(self, function: Callable[[float], float]) -> StepFunction:
        return StepFunction(self.bounds, float(function(self.inside)), float(function(self.outside)))

    def forms(self) -> tuple[StepFunction, ...]:
        """All forms of the same mask: the positions outside one half are the other half."""
        low, high = self.bounds
        if low == -math.inf and high < math.inf:
            return self, StepFunction((high + 1, math.inf), self.outside, self.inside)
        if high == math.inf and low > -math.inf:
            return self, StepFunction((-math.inf, low - 1), self.outside, self.inside)
        return (self,)


class Index(NamedTuple):
    """rows * i + columns * j + start, along the last two axes; `absolute`: of that its absolute value."""

    rows: int
    columns: int
    start: float
    absolute: bool = False


Value = StepFunction | Index | None

UNARY: dict[str, Callable[[float, Any], float]] = {
    "scale": lambda x, a: x * a["scale"] + a["bias"] if a["bias_after_scale"] else (x + a["bias"]) * a["scale"],
    "pow": lambda x, a: x ** a["factor"],
    "sqrt": lambda x, a: math.sqrt(x),
    "rsqrt": lambda x, a: 1 / math.sqrt(x),
    "reciprocal": lambda x, a: 1 / x,
    "exp": lambda x, a: math.exp(x),
    "log": lambda x, a: math.log(x) if x else -math.inf,
    "abs": lambda x, a: abs(x),
    "logical_not": lambda x, a: float(x == 0),
}
BINARY: dict[str, Callable[[float, float], float]] = {
    "elementwise_add": lambda x, y: x + y,
    "elementwise_sub": lambda x, y: x - y,
    "elementwise_mul": lambda x, y: x * y,
    "elementwise_div": lambda x, y: x / y,
    "elementwise_pow": lambda x, y: x**y,
    "elementwise_max": lambda x, y: max(x, y),
    "elementwise_min": lambda x, y: min(x, y),
    "equal": lambda x, y: float(x == y),
    "not_equal": lambda x, y: float(x != y),
    "less_than": lambda x, y: float(x < y),
    "less_equal": lambda x, y: float(x <= y),
    "greater_than": lambda x, y: float(x > y),
    "greater_equal": lambda x, y: float(x >= y),
    "logical_and": lambda x, y: float(x != 0 and y != 0),
    "logical_or": lambda x, y: float(x != 0 or y != 0),
}
SWAPPED = {  # the comparison of y with x
    "less_than": "greater_than", "less_equal": "greater_equal",
    "greater_than": "less_than", "greater_equal": "less_equal",
}  # fmt: skip
SAME = {"assign", "squeeze", "unsqueeze", "reshape", "flatten", "expand", "tile"}  # of a constant: a constant
MOVES = {"squeeze", "unsqueeze", "reshape", "flatten", "transpose", "slice"}  # elements to other places


def constant_of(v: VarNode) -> float | None:
    """The number that every element of `v` is, None where that is not known."""
    value = value_of(v)
    return value.constant if isinstance(value, StepFunction) else None


def value_of(v: VarNode) -> Value:
    """The elements of `v` as a function of their place."""
    op = v.producer
    if op is None or v.version or v.next_version is not None:
        return None
    try:
        return _typed(_value(op, v), v.type.dtype)
    except (ArithmeticError, ValueError):
        return None


def makers(v: VarNode) -> Iterator[OpNode]:
    """The operators that `v` is made by, from the last one on."""
    seen, stack = set(), [v]
    while stack:
        op = stack.pop().producer
        if op is not None and op not in seen:
            seen.add(op)
            yield op
            unread = op.opdef.unread(op.outputs)
            stack += [x for slot, xs in op.inputs.items() if slot not in unread for x in xs]


def _value(op: OpNode, v: VarNode) -> Value:
    attrs = op.attrs
    if op.type in ("fill_constant", "fill_any_like"):
        return _constant(attrs["value"])
    if op.type == "assign_value":
        return _literal(np.reshape(attrs["values"], attrs["shape"]))
    if op.type == "arange":
        return Index(0, 1, attrs["start"]) if attrs["step"] == 1 else None
    inputs = [value_of(x) for x in op.input_vars]
    if not inputs or any(x is None for x in inputs):
        return None
    if op.type not in MOVES and not all(_spreads(x, y, v) for x, y in zip(op.input_vars, inputs, strict=True)):
        return None
    if op.type in SAME:
        return _reshaped(op, inputs[0])
    if op.type == "transpose":
        return _transposed(op, inputs[0])
    if op.type == "slice":
        return _sliced(op, inputs[0])
    if op.type == "tril_triu":
        return _triangle(inputs[0], attrs)
    if op.type == "cast":
        return _cast(inputs[0], attrs["dtype"])
    if op.type in UNARY and isinstance(inputs[0], StepFunction):
        return _checked(inputs[0].map(lambda x: UNARY[op.type](x, attrs)))
    if op.type in ("scale", "abs") and isinstance(inputs[0], Index):
        return _of_index(op.type, inputs[0], attrs)
    if op.type in BINARY and attrs.get("axis", -1) == -1:
        return _binary(op.type, inputs[0], inputs[1])
    if op.type == "where":
        return _chosen(*inputs)
    return None


def _spreads(source: VarNode, x: Value, result: VarNode) -> bool:
    """Whether `x`, which is said of `source`, still holds after `source` is broadcast to the shape of `result`."""
    if isinstance(x, StepFunction) and x.constant is not None:
        return True
    runs = (x.rows, x.columns) if isinstance(x, Index) else (1, 1)
    sizes = [(1, 1, *v.type.shape)[-2:] for v in (source, result)]
    return all(a == b or not run for a, b, run in zip(*sizes, runs, strict=True))


def _constant(value: float) -> StepFunction:
    return StepFunction(EVERYWHERE, float(value), float(value))


def _literal(values: np.ndarray) -> StepFunction | None:
    """One number, or two that a diagonal or a band parts."""
    if not values.size or (values == values.flat[0]).all():
        return _constant(values.flat[0]) if values.size else None
    if values.ndim < 2 or values.size != math.prod(values.shape[-2:]):
        return None
    rows, columns = values.shape[-2], values.shape[-1]
    matrix = values.reshape(rows, columns)
    places = np.arange(columns) - np.arange(rows)[:, None]
    for inside in matrix[0, 0], matrix[-1, 0], matrix[0, -1]:
        chosen = matrix == inside
        low, high = (float(end) for end in (places[chosen].min(initial=columns), places[chosen].max(initial=-rows)))
        outside = matrix[~chosen]
        if not (outside == outside[0]).all() or not (chosen == ((places >= low) & (places <= high))).all():
            continue
        bounds = -math.inf if low == 1 - rows else low, math.inf if high == columns - 1 else high
        return _checked(StepFunction(bounds, float(inside), float(outside[0])))
    return None


def _checked(x: StepFunction) -> StepFunction | None:
    return None if math.isnan(x.inside) or (x.constant is None and math.isnan(x.outside)) else x


def _reshaped(op: OpNode, x: Value) -> Value:
    """Constants stay constant; a value that runs along one axis may get axes of size 1 around it."""
    if isinstance(x, StepFunction) and x.constant is not None:
        return x
    source, result = next(iter(op.input_vars)).type.shape, next(op.output_vars).type.shape
    if op.type == "assign":
        return x
    if op.type in ("expand", "tile"):
        return x
    if isinstance(x, StepFunction):  # leading axes of size 1 come and go
        return x if source[-2:] == result[-2:] and {*source[:-2], *result[:-2]} <= {1} else None
    assert x is not None
    if (x.rows and x.columns) or any(sum(size != 1 for size in shape) != 1 for shape in (source, result)):
        return None
    step = x.rows or x.columns
    if result[-1] != 1:
        return x._replace(rows=0, columns=step)
    return x._replace(rows=step, columns=0) if len(result) > 1 and result[-2] != 1 else None


def _sliced(op: OpNode, x: Value) -> Value:
    """Part of a value that runs along the last two axes; places count from its first element."""
    if isinstance(x, StepFunction) and x.constant is not None:
        return x
    shape, attrs = next(iter(op.input_vars)).type.shape, op.attrs
    starts = dict.fromkeys(range(-len(shape), 0), 0)
    for axis, start in zip(attrs["axes"], attrs["starts"], strict=True):
        axis = axis % len(shape) - len(shape)
        if axis >= -2 and (shape[axis] < 0 or axis % len(shape) in attrs["decrease_axes"]):
            return None
        starts[axis] = range(max(shape[axis], 0))[start:].start
    if any(step != 1 for step in attrs["steps"] or ()) or any(axis < 0 for axis in attrs["decrease_axes"]):
        return None
    row, column = starts.get(-2, 0), starts[-1]
    if isinstance(x, Index):
        return x._replace(start=x.start + x.rows * row + x.columns * column)
    assert x is not None
    return x._replace(bounds=(x.bounds[0] + row - column, x.bounds[1] + row - column))


def _transposed(op: OpNode, x: Value) -> Value:
    rank = len(op.attrs["perm"])
    perm = [axis % rank for axis in op.attrs["perm"]]
    if perm == list(range(rank)) or (isinstance(x, StepFunction) and x.constant is not None):
        return x
    if perm != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    if isinstance(x, Index):
        return x._replace(rows=x.columns, columns=x.rows)
    assert x is not None
    return StepFunction((-x.bounds[1], -x.bounds[0]), x.inside, x.outside)


def _triangle(x: Value, attrs: Any) -> Value:
    """tril keeps j - i <= diagonal, triu j - i >= diagonal; the rest is 0."""
    if not isinstance(x, StepFunction):
        return None
    half = (-math.inf, attrs["diagonal"]) if attrs["lower"] else (attrs["diagonal"], math.inf)
    return _joined(lambda value, kept: value if kept else 0.0, x, StepFunction(half, 1.0, 0.0))


def _cast(x: Value, dtype: np.dtype) -> Value:
    if not isinstance(x, StepFunction):
        return x
    return x.map(math.trunc if dtype.kind in "iu" else lambda value: _rounded(value, dtype))


def _rounded(value: float, dtype: np.dtype) -> float:
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(dtype))


def _typed(x: Value, dtype: np.dtype) -> Value:
    """A value after a cast to a type; None where integers wrap, or places are no whole numbers.

    Of floats the number stays, for programs that are evaluated in float64, but where the type has 0 or infinity for it.
    """
    whole = dtype.kind in "iu"
    if isinstance(x, Index):
        wide = dtype.kind in "if" and dtype.itemsize >= 4
        return x if wide and (not whole or x.start == int(x.start)) else None
    if x is None:
        return None
    if whole and not all(n == int(n) and np.iinfo(dtype).min <= n <= np.iinfo(dtype).max for n in x[1:]):
        return None

    def held(value: float) -> float:
        rounded = _rounded(value, dtype)
        return rounded if dtype.kind == "b" or rounded == 0 or math.isinf(rounded) else value

    return _checked(x.map(held))


def _of_index(op_type: str, x: Index, attrs: Any) -> Index | None:
    """Places moved, turned round, or how far they are from 0."""
    if op_type == "abs":
        return x._replace(absolute=True)
    if x.absolute or attrs["scale"] not in (1, -1):
        return None
    sign = int(attrs["scale"])
    return Index(sign * x.rows, sign * x.columns, UNARY["scale"](x.start, attrs))


def _binary(op_type: str, x: Value, y: Value) -> Value:
    if isinstance(x, Index) or isinstance(y, Index):
        return _of_indices(op_type, x, y)
    assert isinstance(x, StepFunction)
    assert isinstance(y, StepFunction)
    return _joined(BINARY[op_type], x, y)


def _joined(function: Callable[..., float], *values: StepFunction) -> StepFunction | None:
    """What `function` makes of values at one place, where that has two values again and bounds that part them."""
    parted = [i for i, x in enumerate(values) if x.constant is None]
    if not parted:
        return _checked(_constant(function(*(x.inside for x in values))))
    for forms in product(*(x.forms() if i in parted else (x,) for i, x in enumerate(values))):
        bounds = [forms[i].bounds for i in parted]
        together = len(set(bounds)) == 1  # a place is inside of all or of none
        results = {True: set(), False: set()}
        for inside in product((True, False), repeat=len(parted)):
            if together and len(set(inside)) > 1:
                continue
            here = {i: forms[i].inside if x else forms[i].outside for i, x in zip(parted, inside, strict=True)}
            results[all(inside)].add(float(function(*(here.get(i, x.inside) for i, x in enumerate(forms)))))
        if len(results[True]) == len(results[False]) == 1:
            common = max(low for low, _ in bounds), min(high for _, high in bounds)
            return _checked(StepFunction(common, results[True].pop(), results[False].pop()))
    return None


def _of_indices(op_type: str, x: Value, y: Value) -> Value:
    """Sums and differences of places, and comparisons of j - i with a number."""
    a, b = _index(x), _index(y)
    if a is None or b is None:
        return None
    if a.absolute or b.absolute:
        return _near(op_type, a, b)
    if op_type == "elementwise_add":
        return Index(a.rows + b.rows, a.columns + b.columns, a.start + b.start)
    d = Index(a.rows - b.rows, a.columns - b.columns, a.start - b.start)
    if op_type == "elementwise_sub":
        return d
    if (d.rows, d.columns) == (1, -1):  # (i - j + start) compared with 0 is 0 compared with (j - i - start)
        op_type = SWAPPED.get(op_type, op_type)
        d = Index(-1, 1, -d.start)
    if (d.rows, d.columns) != (-1, 1):
        return None
    at = -d.start  # j - i compared with at
    bounds = {
        "less_than": (-math.inf, math.ceil(at) - 1), "less_equal": (-math.inf, math.floor(at)),
        "greater_than": (math.floor(at) + 1, math.inf), "greater_equal": (math.ceil(at), math.inf),
        "equal": (at, at),
    }.get(op_type)  # fmt: skip
    return None if bounds is None else StepFunction(bounds, 1.0, 0.0)


def _near(op_type: str, a: Index, b: Index) -> Value:
    """|j - i + start| compared with a number."""
    if b.absolute:
        op_type, a, b = SWAPPED.get(op_type, op_type), b, a
    if (a.rows, a.columns) not in ((1, -1), (-1, 1)) or b.absolute or b.rows or b.columns:
        return None
    middle, most = (-a.start if a.columns == 1 else a.start), b.start
    if op_type in ("less_than", "greater_equal"):
        most = math.ceil(most) - 1
    near = {"less_than": 1.0, "less_equal": 1.0, "greater_than": 0.0, "greater_equal": 0.0}.get(op_type)
    if near is None or most < 0:
        return None
    return StepFunction((math.ceil(middle - most), math.floor(middle + most)), near, 1 - near)


def _index(x: Value) -> Index | None:
    if isinstance(x, Index):
        return x
    return Index(0, 0, x.constant) if x is not None and x.constant is not None else None


def _chosen(condition: Value, x: Value, y: Value) -> Value:
    """where(condition, x, y)"""
    if not (isinstance(condition, StepFunction) and isinstance(x, StepFunction) and isinstance(y, StepFunction)):
        return None
    return _joined(lambda c, a, b: a if c else b, condition, x, y)
