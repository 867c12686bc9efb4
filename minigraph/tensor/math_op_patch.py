"""Operators and methods of Variables: `x + 1`, `x @ w`, `x < y`, `x[1:]`, `x.sum()`.

The package `program` knows no operators, so this file adds them to Variable, from three tables. New
variables are called `tmp_0`, `tmp_1`, ... as in Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minigraph import tensor
from minigraph.errors import DTypeError, call_site
from minigraph.errors.kinds import UNKNOWN_NAME
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import FLOATS, bool_

from . import linalg
from .arguments import operands
from .functions import bits, sigmoid
from .indexing import indexing
from .logic import comparison
from .math import arithmetic
from .waiting.calls import waiting

ARITHMETIC = {
    "add": ("elementwise_add", "+"),
    "sub": ("elementwise_sub", "-"),
    "mul": ("elementwise_mul", "*"),
    "truediv": ("elementwise_div", "/"),
    "pow": ("elementwise_pow", "**"),
}
COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less_than", "le": "less_equal", "gt": "greater_than",
    "ge": "greater_equal",
}  # fmt: skip
CONNECTIVES = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
OF_INTS = {"floordiv": "floor_divide", "mod": "remainder"}
MISSING = {
    "divmod": ("divmod", "x // y and x % y"),
    "lshift": ("<<", "multiply by a power of 2"),
    "rshift": (">>", "divide by a power of 2"),
}
FROM_NOTHING = (
    "arange", "broadcast_shape", "broadcast_tensors", "concat", "einsum", "empty", "eye", "finfo", "full", "iinfo",
    "linspace", "logspace", "meshgrid", "multi_dot", "multiplex", "normal", "ones", "rand", "randint", "randn",
    "randperm", "shape", "stack", "standard_normal", "to_tensor", "tril_indices", "triu_indices", "uniform", "zeros",
)  # fmt: skip  # functions that are no methods


def _arithmetic(op_type: str, symbol: str) -> tuple[Callable[..., Variable], Callable[..., Variable]]:
    def forward(self: Variable, other: Any) -> Variable:
        return arithmetic(op_type, self, other, symbol, "tmp")

    def reverse(self: Variable, other: Any) -> Variable:
        return arithmetic(op_type, other, self, symbol, "tmp")

    return forward, reverse


def _comparison(op_type: str) -> Callable[..., Any]:
    def compare(self: Variable, other: Any) -> Any:
        if other is None:  # `x == None` asks whether there is a variable, not for values
            return NotImplemented
        return comparison(op_type, self, other, "tmp")

    return compare


def _connective(op_type: str) -> tuple[Callable[..., Variable], Callable[..., Variable]]:
    """Of two bools `logical_and`, of ints `bitwise_and`, and so on."""

    def both(x: Any, y: Any) -> Variable:
        bools = [isinstance(v, bool) or (isinstance(v, Variable) and v.dtype == bool_) for v in (x, y)]
        if any(isinstance(v, Variable) and v.dtype in FLOATS for v in (x, y)) or any(bools) != all(bools):
            raise DTypeError(
                f"operands must be two bools or two ints, are {x!r} and {y!r}"[:200], call=op_type, site=call_site(),
                hint="compare first, in parentheses: (x > 0) & (y > 0)",
            )  # fmt: skip
        return bits(op_type if all(bools) else op_type.replace("logical", "bitwise"), x, y, "tmp")

    def forward(self: Variable, other: Any) -> Variable:
        return both(self, other)

    def reverse(self: Variable, other: Any) -> Variable:
        return both(other, self)

    return forward, reverse


def _no_operator(symbol: str, hint: str) -> Callable[[Variable, Any], Variable]:
    def refuse(self: Variable, other: Any) -> Variable:
        raise UNKNOWN_NAME(f"there is no operator {symbol} on variables", call=f"{symbol} of {self}", hint=hint)

    return refuse


def _matmul(self: Variable, other: Any) -> Variable:
    return _product(self, other)


def _rmatmul(self: Variable, other: Any) -> Variable:
    return _product(other, self)


@whole
def _product(x: Any, y: Any) -> Variable:
    x, y = operands(x, y, "@")
    return builder_of(x).matmul(x, y, name="tmp")


def _neg(self: Variable) -> Variable:
    return builder_of(self).scale(self, scale=-1.0, name="tmp")


def _invert(self: Variable) -> Variable:
    if self.dtype in FLOATS:
        raise DTypeError(f"~ takes a bool or int variable, not {self}", site=call_site())
    op_type = "logical_not" if self.dtype == bool_ else "bitwise_not"
    return builder_of(self).emit(op_type, self, name="tmp")


def _of_ints(function: str) -> tuple[Callable[..., Variable], Callable[..., Variable]]:
    def forward(self: Variable, other: Any) -> Variable:
        return getattr(tensor, function)(self, other)

    def reverse(self: Variable, other: Any) -> Variable:
        return getattr(tensor, function)(other, self)

    return forward, reverse


def _transposed(self: Variable) -> Variable:
    """x with its axes in reverse order."""
    return tensor.transpose(self, list(reversed(range(self.ndim))))


def detach(self: Variable) -> Variable:
    """A copy through which no gradient flows."""
    copy = tensor.assign(self)
    copy.stop_gradient = True
    return copy


def same_values(self: Variable, *device: Any, **options: Any) -> Variable:
    """cpu() and cuda(): the same values. They lie where the program runs, which static.Executor(place) decides."""
    return tensor.assign(self)


def size(self: Variable) -> Variable:
    """The number of elements, an int64 of rank 0."""
    if self.type.is_static:
        return tensor.full([], math.prod(self.shape), "int64")
    return tensor.sum(tensor.full_like(self, 1, "int64"))


def install() -> None:
    """Hang operators and methods on Variable."""
    attributes: dict[str, Any] = {
        "__matmul__": _matmul, "__rmatmul__": _rmatmul, "__neg__": _neg, "__abs__": tensor.abs, "__invert__": _invert,
        "__getitem__": waiting("index")(indexing.getitem), "__setitem__": indexing.refuse_assignment,
        "__iter__": indexing.iterate,
        "__hash__": object.__hash__,  # defining == would drop it
        "T": property(_transposed), "astype": tensor.cast, "detach": detach, "cpu": same_values, "cuda": same_values,
        "clone": tensor.assign, "size": size, "sigmoid": sigmoid,
    }  # fmt: skip
    for name, (op_type, symbol) in ARITHMETIC.items():
        attributes[f"__{name}__"], attributes[f"__r{name}__"] = _arithmetic(op_type, symbol)
    for name, op_type in COMPARISONS.items():
        attributes[f"__{name}__"] = _comparison(op_type)
    for name, op_type in CONNECTIVES.items():
        attributes[f"__{name}__"], attributes[f"__r{name}__"] = _connective(op_type)
    for name, function in OF_INTS.items():
        attributes[f"__{name}__"], attributes[f"__r{name}__"] = _of_ints(function)
    for name, (symbol, hint) in MISSING.items():
        attributes[f"__{name}__"] = attributes[f"__r{name}__"] = _no_operator(symbol, hint)
    for room in (linalg, tensor):
        attributes |= {name: getattr(room, name) for name in room.__all__ if name not in FROM_NOTHING}
    for name, value in attributes.items():
        setattr(Variable, name, value)


install()
