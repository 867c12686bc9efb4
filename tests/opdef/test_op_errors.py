"""Bad calls of operators: each ends in one clear error and leaves the program as it was."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.errors import AttrError, DTypeError, KernelError, ProgramError, ShapeError
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support.opcheck import run_op


def bad(op_type, inputs, error, phrase, **attrs):
    """A call with inputs of the given types, the error it ends in and a phrase of its message."""
    return pytest.param(op_type, inputs.split(), attrs, error, phrase, id=f"{op_type}: {phrase}")


BAD_CALLS = [
    bad("elementwise_add", "f64[4,3] f64[4]", ShapeError, "cannot broadcast axis -1: X has 3, Y has 4"),
    bad("elementwise_mul", "f64[2,4,3] f64[5,1]", ShapeError, "cannot broadcast axis -2: X has 4, Y has 5"),
    bad("elementwise_add", "f64[4,3] f64[3]", ShapeError, "axis 2 does not place Y of rank 1", axis=2),
    bad("elementwise_sub", "f64[4,3] f64[3]", ShapeError, "cannot broadcast axis -2: X has 4, Y has 3", axis=0),
    bad("elementwise_add", "f64[3] f32[3]", DTypeError, "X is float64, Y is float32"),
    bad("less_than", "f64[3] i64[3]", DTypeError, "X is float64, Y is int64"),
    bad("elementwise_add", "bool[3] bool[3]", DTypeError, "X is bool"),
    bad("elementwise_div", "i64[3] i64[3]", DTypeError, "cast both to a float type"),
    bad("where", "i64[3] f64[3] f64[3]", DTypeError, "Condition must be bool, is int64"),
    bad("where", "bool[3] f64[3] i64[3]", DTypeError, "X is float64, Y is int64"),
    bad("where", "bool[2] f64[3] f64[3]", ShapeError, "Condition has 2, X has 3"),
    bad("matmul", "f64[4,8] f64[3,3]", ShapeError, "inner sizes differ: X axis -1 is 8, Y axis -2 is 3"),
    bad("matmul", "f64[] f64[3,3]", ShapeError, "a 0-d operand"),
    bad("exp", "i64[3]", DTypeError, "X must be a float, is int64"),
    bad("relu", "i64[3]", DTypeError, "X must be a float, is int64"),
    bad("floor", "bool[3]", DTypeError, "X must be a float, is bool"),
    bad("abs", "bool[3]", DTypeError, "X is bool"),
    bad("reduce_mean", "i64[3]", DTypeError, "X must be a float, is int64"),
    bad("cumsum", "bool[3]", DTypeError, "X is bool"),
    bad("reduce_sum", "f64[4,3]", ShapeError, "axis 2 is out of range for rank 2", axis=[2]),
    bad("reduce_max", "f64[4,3]", ShapeError, "axis -3 is out of range for rank 2", axis=[-3]),
    bad("arg_max", "f64[]", ShapeError, "a scalar has no axes", axis=0),
    bad("reduce_mean", "f64[4,3]", ShapeError, "name one axis twice", axis=[1, -1]),
    bad("cumsum", "f64[4,3]", ShapeError, "axis 2 is out of range for rank 2", axis=2),
    bad("reduce_max", "f64[4,0]", ShapeError, "axis 1 of X has size 0", axis=[1]),
    bad("arg_min", "f64[0]", ShapeError, "axis 0 of X has size 0"),
    bad("arg_max", "f64[3]", DTypeError, "positions are int32 or int64, not float32", dtype="float32"),
    bad("scale", "i64[3]", AttrError, "scale 0.5 is no int64, as X is", scale=0.5),
    bad("scale", "i8[3]", AttrError, "bias 200.0 is no int8, as X is", bias=200.0),
    bad("clip", "i64[3]", AttrError, "min 0.5 is no int64, as X is", min=0.5),
    bad("clip", "i64[3]", AttrError, "max inf is no int64, as X is", max=float("inf")),
    bad("scale", "i64[3]", AttrError, "scale nan is no int64, as X is", scale=float("nan")),
    bad("clip", "f64[3]", AttrError, "min 2.0 is larger than max 1.0", min=2.0, max=1.0),
    bad("pow", "i64[3]", AttrError, "factor 0.5 is no int64", factor=0.5),
    bad("pow", "i64[3]", AttrError, "factor -1.0 of int64 X is negative", factor=-1.0),
    bad("elementwise_add", "f64[3] f64[3]", AttrError, "attribute axis must be an int, not True", axis=True),
    bad("elementwise_add", "f64[3] f64[3]", AttrError, "attribute axis must be an int, not '0'", axis="0"),
    bad("cumsum", "f64[3]", AttrError, "attribute axis must be an int or None, not 1.0", axis=1.0),
    bad("reduce_sum", "f64[3]", AttrError, "attribute keepdim must be a bool, not 2", keepdim=2),
    bad("reduce_sum", "f64[3]", AttrError, "attribute axis must be a list of ints or None, not '0'", axis="0"),
    bad("reduce_sum", "f64[3]", AttrError, "attribute axis must be a list of ints or None, not [False]", axis=[False]),
    bad("leaky_relu", "f64[3]", AttrError, "attribute alpha must be a number, not True", alpha=True),
    bad("cast", "f64[3]", AttrError, "'float31' is not a data type", dtype="float31"),
    bad("pow", "f64[3]", AttrError, "attribute factor is missing"),
    bad("gelu", "f64[3]", AttrError, "did you mean 'approximate'?", aproximate=True),
    bad("matmul", "f64[3,3]", ProgramError, "input Y is missing"),
    bad("relu", "f64[3] f64[3]", ProgramError, "relu takes 1 inputs, 2 were given"),
    bad("elementwise_ad", "f64[3] f64[3]", ProgramError, "did you mean 'elementwise_add'?"),
]  # fmt: skip


def typed(block, name, text):
    """A variable of a type such as `f64[4,3]`."""
    dtype, _, sizes = text.rstrip("]").partition("[")
    return block.create_var(name, [int(s) for s in sizes.split(",") if s], dtype, is_data=True)


@pytest.mark.parametrize(("op_type", "inputs", "attrs", "error", "phrase"), BAD_CALLS)
def test_bad_call(op_type, inputs, attrs, error, phrase):
    block = Program().global_block()
    variables = [typed(block, f"v{i}", text) for i, text in enumerate(inputs)]
    before = str(block)
    with pytest.raises(error) as caught:
        Builder(block).emit(op_type, *variables, **attrs)
    assert phrase in str(caught.value)
    assert str(block) == before, "a refused call leaves the program as it was"


def test_errors_name_the_call_and_the_line():
    block = Program().global_block()
    x = block.create_var("x", [4, 8], "float32")
    y = block.create_var("y", [3], "float32")
    with pytest.raises(ShapeError) as caught:
        Builder(block).elementwise_add(x, y)
    first, second = str(caught.value).splitlines()[:2]
    said = "elementwise_add(X=x: f32[4,8], Y=y: f32[3]): cannot broadcast axis -1: X has 8, Y has 3"
    assert first == f"[MG-SHAPE-004] {said}"
    assert "test_op_errors.py" in second
    assert "Builder(block).elementwise_add(x, y)" in second


def test_bad_inputs():
    block, other = Program().global_block(), Program().global_block()
    x, foreign = typed(block, "x", "f64[3]"), typed(other, "x", "f64[3]")
    g = Builder(block)
    for make, phrase in [
        (lambda: g.elementwise_add(x, foreign), "Y=x belongs to another program"),
        (lambda: g.relu(np.zeros(3)), "X must be a variable, is array"),
        (lambda: g.sum([]), "X is an empty list"),
        (lambda: g.relu(x, X=x), "input X is given twice"),
        (lambda: block.append_op("relu", {"Y": x}), "input slot of relu 'Y' does not exist"),
        (lambda: block.append_op("relu", {"X": [x, x]}), "input X takes one variable"),
        (lambda: block.append_op("relu", {"X": x}), "output Out is missing"),
        (lambda: block.append_op("relu", {"X": "z"}), "variable of program"),
    ]:
        with pytest.raises(ProgramError) as caught:
            make()
        assert phrase in str(caught.value)


def test_sizes_known_only_at_run_time_are_checked_then():
    block = Program().global_block()
    x, y = (typed(block, n, "f64[-1]") for n in "xy")
    total = Builder(block).elementwise_add(x, y)
    assert total.shape == (-1,)
    with pytest.raises(ShapeError, match="cannot broadcast axis -1: X has 2, Y has 3"):
        Executor().run(block.program, {"x": np.zeros(2), "y": np.zeros(3)}, [total], scope=Scope())
    empty = Builder(block).reduce_max(x)
    with pytest.raises(ShapeError, match="axis 0 of X has size 0"):
        Executor().run(block.program, {"x": np.zeros(0), "y": np.zeros(0)}, [empty], scope=Scope())


def test_kernel_failures_name_the_operator():
    with pytest.raises(KernelError, match=r"elementwise_pow.*negative integer powers"):
        run_op("elementwise_pow", [2], [-1])
