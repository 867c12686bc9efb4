"""Comparisons, logic, and choice by a condition. Their results are bool and carry no gradient."""

from __future__ import annotations

from typing import Any

from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.program.default_dtype import default_dtype

from .arguments import Operand, constant, emit, operands, output_prefix, plain, value_of, variable


@whole
def comparison(op_type: str, x: Any, y: Any, prefix: str) -> Variable:
    """`x <op> y` as bool with broadcasting; beside a Variable stands a number or a small NumPy array."""
    x, y = operands(x, y, op_type)
    return builder_of(x).emit(op_type, x, y, name=prefix)


def equal(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x == y"""
    return comparison("equal", x, y, output_prefix("equal", name))


def not_equal(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x != y"""
    return comparison("not_equal", x, y, output_prefix("not_equal", name))


def less_than(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x < y"""
    return comparison("less_than", x, y, output_prefix("less_than", name))


def less_equal(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x <= y"""
    return comparison("less_equal", x, y, output_prefix("less_equal", name))


def greater_than(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x > y"""
    return comparison("greater_than", x, y, output_prefix("greater_than", name))


def greater_equal(x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x >= y"""
    return comparison("greater_equal", x, y, output_prefix("greater_equal", name))


def _connective(op_type: str, x: Any, y: Any, out: Variable | None, name: str | None) -> Variable:
    x, y = variable(x, op_type), variable(y, op_type, "y")
    return emit(op_type, op_type, x, y, name=name, out=None if out is None else {"Out": out})


def logical_and(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """x and y; numbers are true where not zero."""
    return _connective("logical_and", x, y, out, name)


def logical_or(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """x or y; numbers are true where not zero."""
    return _connective("logical_or", x, y, out, name)


def logical_xor(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Either x or y; numbers are true where not zero."""
    return _connective("logical_xor", x, y, out, name)


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """not x; numbers are true where not zero."""
    x = variable(x, "logical_not")
    return emit("logical_not", "logical_not", x, name=name, out=None if out is None else {"Out": out})


@whole
def where(condition: Variable, x: Operand, y: Operand, name: str | None = None) -> Variable:
    """x where `condition`, else y; all three broadcast. x and y may be numbers or small NumPy arrays."""
    condition = variable(condition, "where", "condition")
    x, y = plain(x), plain(y)
    if not isinstance(x, Variable) and not isinstance(y, Variable):
        x = constant(value_of(x, "where", "x"), default_dtype(), condition)
    x, y = operands(x, y, "where")
    return emit("where", "where", condition, x, y, name=name)
