"""What masks and constants of attention say, read from how they are made: no array is looked at.

A causal mask is a number where j - i lies within bounds and another number elsewhere, i and j being
the positions along the last two axes: tril(ones), triu(full(-inf), 1), arange(n)[:, None] >= arange(n),
and what follows from these by casts, scales, comparisons with numbers, `where` and `not`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..ir.graph import OpNode, VarNode

Bounds = tuple[float, float]  # of j - i, both included
EVERYWHERE: Bounds = (-math.inf, math.inf)


class Steps(NamedTuple):
    """`inside` where bounds[0] <= j - i <= bounds[1], else `outside`."""

    bounds: Bounds
    inside: float
    outside: float

    @property
    def constant(self) -> float | None:
        """The value of all elements; None where there are two."""
        return self.inside if self.bounds == EVERYWHERE or self.inside == self.outside else None

    def map(self, function: Callable[[float], float]) -> Steps:
        return Steps(self.bounds, float(function(self.inside)), float(function(self.outside)))


class Index(NamedTuple):
    """rows * i + columns * j + start, along the last two axes."""

    rows: int
    columns: int
    start: float


Value = Steps | Index | None

UNARY: dict[str, Callable[[float, Any], float]] = {
    "scale": lambda x, a: x * a["scale"] + a["bias"] if a["bias_after_scale"] else (x + a["bias"]) * a["scale"],
    "pow": lambda x, a: x ** a["factor"],
    "sqrt": lambda x, a: math.sqrt(x),
    "rsqrt": lambda x, a: 1 / math.sqrt(x),
    "reciprocal": lambda x, a: 1 / x,
    "exp": lambda x, a: math.exp(x),
    "logical_not": lambda x, a: float(x == 0),
}
BINARY: dict[str, Callable[[float, float], float]] = {
    "elementwise_add": lambda x, y: x + y,
    "elementwise_sub": lambda x, y: x - y,
    "elementwise_mul": lambda x, y: x * y,
    "elementwise_div": lambda x, y: x / y,
    "elementwise_pow": lambda x, y: x**y,
    "equal": lambda x, y: float(x == y),
    "not_equal": lambda x, y: float(x != y),
    "less_than": lambda x, y: float(x < y),
    "less_equal": lambda x, y: float(x <= y),
    "greater_than": lambda x, y: float(x > y),
    "greater_equal": lambda x, y: float(x >= y),
    "logical_and": lambda x, y: float(x != 0 and y != 0),
    "logical_or": lambda x, y: float(x != 0 or y != 0),
}
SAME = {"assign", "squeeze", "unsqueeze", "reshape", "flatten", "expand", "tile"}  # of a constant: a constant


def constant_of(v: VarNode) -> float | None:
    """The number that every element of `v` is, None where that is not known."""
    found = value_of(v)
    return found.constant if isinstance(found, Steps) else None


def value_of(v: VarNode) -> Value:
    """What the elements of `v` are by their place."""
    op = v.producer
    if op is None or v.version or v.next_version is not None:
        return None
    try:
        return _value(op, v)
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
        return _constant(attrs["values"][0]) if len(set(attrs["values"])) == 1 else None
    if op.type == "arange":
        return Index(0, 1, attrs["start"]) if attrs["step"] == 1 else None
    inputs = [value_of(x) for x in op.input_vars]
    if not inputs or any(x is None for x in inputs):
        return None
    if op.type in SAME:
        return _reshaped(op, inputs[0])
    if op.type == "transpose":
        return _transposed(op, inputs[0])
    if op.type == "tril_triu":
        return _triangle(inputs[0], attrs)
    if op.type == "cast":
        return _cast(inputs[0], attrs["dtype"])
    if op.type in UNARY and isinstance(inputs[0], Steps):
        return _checked(inputs[0].map(lambda x: UNARY[op.type](x, attrs)))
    if op.type == "scale" and isinstance(inputs[0], Index) and attrs["scale"] == 1:
        return inputs[0]._replace(start=inputs[0].start + attrs["bias"])
    if op.type in BINARY and attrs.get("axis", -1) == -1:
        return _binary(op.type, inputs[0], inputs[1])
    if op.type == "where":
        return _chosen(*inputs)
    return None


def _constant(value: float) -> Steps:
    return Steps(EVERYWHERE, float(value), float(value))


def _checked(x: Steps) -> Steps | None:
    return None if math.isnan(x.inside) or (x.constant is None and math.isnan(x.outside)) else x


def _reshaped(op: OpNode, x: Value) -> Value:
    """Constants stay constant; what runs along one axis may get axes of size 1 around it."""
    if isinstance(x, Steps) and x.constant is not None:
        return x
    source, result = next(iter(op.input_vars)).type.shape, next(op.output_vars).type.shape
    if op.type in ("expand", "tile"):
        return x if source[-2:] == result[-2:] and len(source) >= 2 else None
    if op.type == "assign":
        return x
    if isinstance(x, Steps):  # leading axes of size 1 come and go
        return x if source[-2:] == result[-2:] and {*source[:-2], *result[:-2]} <= {1} else None
    assert x is not None
    if (x.rows and x.columns) or any(sum(size != 1 for size in shape) != 1 for shape in (source, result)):
        return None
    step = x.rows or x.columns
    if result[-1] != 1:
        return Index(0, step, x.start)
    return Index(step, 0, x.start) if len(result) > 1 and result[-2] != 1 else None


def _transposed(op: OpNode, x: Value) -> Value:
    rank = len(op.attrs["perm"])
    perm = [axis % rank for axis in op.attrs["perm"]]
    if perm == list(range(rank)) or (isinstance(x, Steps) and x.constant is not None):
        return x
    if perm != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    if isinstance(x, Index):
        return Index(x.columns, x.rows, x.start)
    assert x is not None
    return Steps((-x.bounds[1], -x.bounds[0]), x.inside, x.outside)


def _triangle(x: Value, attrs: Any) -> Value:
    """tril keeps j - i <= diagonal, triu j - i >= diagonal; the rest is 0."""
    if not isinstance(x, Steps):
        return None
    half = (-math.inf, attrs["diagonal"]) if attrs["lower"] else (attrs["diagonal"], math.inf)
    if x.constant is not None:
        return Steps(half, x.constant, 0.0)
    return Steps(_both(x.bounds, half), x.inside, 0.0) if x.outside == 0 else None


def _cast(x: Value, dtype: np.dtype) -> Value:
    if isinstance(x, Index):
        return x if dtype.kind in "if" and dtype.itemsize >= 4 else None
    assert x is not None

    def rounded(value: float) -> float:
        return float(np.asarray(value).astype(dtype))

    with np.errstate(all="ignore"):
        return _checked(x.map(rounded))


def _both(a: Bounds, b: Bounds) -> Bounds:
    return max(a[0], b[0]), min(a[1], b[1])


def _binary(op_type: str, x: Value, y: Value) -> Value:
    function = BINARY[op_type]
    if isinstance(x, Index) or isinstance(y, Index):
        return _of_indices(op_type, x, y)
    assert isinstance(x, Steps)
    assert isinstance(y, Steps)
    if y.constant is not None:
        return _checked(x.map(lambda value: function(value, y.inside)))
    if x.constant is not None:
        return _checked(y.map(lambda value: function(x.inside, value)))
    if x.bounds == y.bounds:
        return _checked(Steps(x.bounds, function(x.inside, y.inside), function(x.outside, y.outside)))
    if op_type in ("logical_and", "elementwise_mul") and x.outside == y.outside == 0:
        return _checked(Steps(_both(x.bounds, y.bounds), function(x.inside, y.inside), 0.0))
    return None


def _of_indices(op_type: str, x: Value, y: Value) -> Value:
    """Sums and differences of places, and comparisons of j - i with a number."""
    a, b = _index(x), _index(y)
    if a is None or b is None:
        return None
    if op_type == "elementwise_add":
        return Index(a.rows + b.rows, a.columns + b.columns, a.start + b.start)
    d = Index(a.rows - b.rows, a.columns - b.columns, a.start - b.start)
    if op_type == "elementwise_sub":
        return d
    if (d.rows, d.columns) == (1, -1):  # (i - j + start) compared with 0 is 0 compared with (j - i - start)
        swapped = {"less_than": "greater_than", "less_equal": "greater_equal"}
        op_type = {**swapped, **{v: k for k, v in swapped.items()}}.get(op_type, op_type)
        d = Index(-1, 1, -d.start)
    if (d.rows, d.columns) != (-1, 1):
        return None
    at = -d.start  # j - i compared with at
    bounds = {
        "less_than": (-math.inf, math.ceil(at) - 1), "less_equal": (-math.inf, math.floor(at)),
        "greater_than": (math.floor(at) + 1, math.inf), "greater_equal": (math.ceil(at), math.inf),
        "equal": (at, at),
    }.get(op_type)  # fmt: skip
    return None if bounds is None else Steps(bounds, 1.0, 0.0)


def _index(x: Value) -> Index | None:
    if isinstance(x, Index):
        return x
    return Index(0, 0, x.constant) if x is not None and x.constant is not None else None


def _chosen(condition: Value, x: Value, y: Value) -> Value:
    """where(condition, x, y) of constants."""
    if not all(isinstance(v, Steps) for v in (condition, x, y)):
        return None
    assert isinstance(condition, Steps)
    assert isinstance(x, Steps)
    assert isinstance(y, Steps)
    if x.constant is None or y.constant is None:
        return None
    return condition.map(lambda c: x.inside if c else y.inside)
