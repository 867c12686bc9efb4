"""Operators on whole numbers, after ops/elementwise/integers.py; ONNX divides ints towards zero."""

from __future__ import annotations

from minigraph.types import FLOATS, bool_

from ..nodes import Nodes, Term
from ..registry import form


@form
def elementwise_mod(g: Nodes, X: Term, Y: Term) -> Term:
    """What floor division leaves: with the sign of Y. Of floats ONNX has that with the sign of X alone."""
    if X.dtype not in FLOATS:
        return g.Mod(X, Y)
    rest = g.Mod(X, Y, fmod=1)
    return g.Where(_turned(g, rest, Y), rest + Y, rest)


@form
def floor_divide(g: Nodes, X: Term, Y: Term) -> Term:
    if X.dtype not in FLOATS:
        return (X - g.Mod(X, Y)) / Y
    rest = g.Mod(X, Y, fmod=1)
    quotient = (X - rest) / Y
    quotient = g.Where(_turned(g, rest, Y), quotient - 1, quotient)
    whole = g.Floor(quotient)
    whole = g.Where(quotient - whole > 0.5, whole + 1, whole)
    return g.Where(g.Equal(Y, 0), X / Y, whole)


def _turned(g: Nodes, rest: Term, Y: Term) -> Term:
    """Whether a remainder is not 0 and has another sign than the divisor."""
    return g.Xor(rest < 0, Y < 0) & g.Not(g.Equal(rest, 0))


def _bitwise(name: str, of_bools: str, of_ints: str) -> None:
    def write(g: Nodes, *inputs: Term) -> Term:
        return g.node(of_bools if inputs[0].dtype == bool_ else of_ints, *inputs)

    write.__name__ = name
    form(write)


for _name, _of_bools, _of_ints in (
    ("bitwise_and", "And", "BitwiseAnd"), ("bitwise_or", "Or", "BitwiseOr"), ("bitwise_xor", "Xor", "BitwiseXor"),
    ("bitwise_not", "Not", "BitwiseNot"),
):  # fmt: skip
    _bitwise(_name, _of_bools, _of_ints)
