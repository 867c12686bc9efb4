"""Products of 16-bit operands in float32, and products added to an accumulator: types, gradients, refusals, updates."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import DTypeError, ShapeError
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import as_dtype

HALVES = ("float16", "bfloat16")


def block_with(**types):
    block = Program().global_block()
    return block, {n: block.create_var(n, shape, dtype, is_data=True) for n, (shape, dtype) in types.items()}


def run(block, feed, fetches):
    return Executor().run(block.program, feed, fetches, scope=Scope())


@pytest.mark.parametrize("dtype", HALVES)
def test_the_type_of_a_product_is_chosen(dtype):
    block, v = block_with(x=((3, 4), dtype), y=((4, 5), dtype))
    out, same = mg.matmul(v["x"], v["y"], out_dtype="float32"), mg.matmul(v["x"], v["y"])
    assert (str(out.type), out.type.dtype, same.type.dtype) == ("f32[3,5]", np.float32, as_dtype(dtype))
    assert "out_dtype=float32" in str(block.program)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_gradient_meets_operands_in_their_type(dtype, rng):
    """Out_grad is rounded once; the gradients are those of the rounded one."""
    block, v = block_with(x=((3, 40), dtype), y=((40, 5), dtype), d=((3, 5), "float32"))
    out = mg.matmul(v["x"], v["y"], out_dtype="float32")
    grads = gradients([out], [v["x"], v["y"]], [v["d"]])
    assert [g.dtype for g in grads] == [as_dtype(dtype)] * 2
    x, y = rng.normal(size=(3, 40)).astype(as_dtype(dtype)), rng.normal(size=(40, 5)).astype(as_dtype(dtype))
    d = rng.normal(size=(3, 5)).astype(np.float32)
    found = run(block, {"x": x, "y": y, "d": d}, grads)
    rounded = d.astype(as_dtype(dtype)).astype(np.float32)
    for g, exact in zip(found, (rounded @ y.astype(np.float32).T, x.astype(np.float32).T @ rounded), strict=True):
        step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
        np.testing.assert_allclose(g.astype(float), exact, rtol=2 * step, atol=1e-5)


def test_a_product_in_another_type_does_not_become_part_of_a_fused_one(rng):
    """The fused operator has one type: its result would be rounded."""
    mg.enable_static()
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        x, y = (mg.static.data(n, s, "bfloat16") for n, s in (("x", [3, 8]), ("y", [8, 4])))
        b = mg.static.data("b", [4], "float32")
        out = mg.matmul(x, y, out_dtype="float32") + b
    compiled = mg.static.CompiledProgram(main, mg.static.BuildStrategy(fuse_gemm_epilogue=True))
    assert [op.type for op in compiled.program_for([out.name]).ops] == ["matmul", "elementwise_add"]


@pytest.mark.parametrize(
    ("operands", "wanted", "fact"),
    [("float32", "bfloat16", "out_dtype is bfloat16, the product of float32 can be float32"),
     ("bfloat16", "float64", "out_dtype is float64, the product of bfloat16 can be bfloat16 or float32"),
     ("int32", "float32", "out_dtype is float32, the product of int32 can be int32")],
)  # fmt: skip
def test_other_types_are_refused(operands, wanted, fact):
    _, v = block_with(x=((3, 4), operands), y=((4, 5), operands))
    with pytest.raises(DTypeError, match=fact):
        mg.matmul(v["x"], v["y"], out_dtype=wanted)


@pytest.mark.parametrize("dtype", HALVES)
def test_steps_add_up_in_a_persistable_of_float32(dtype, rng):
    """Small terms are not lost, as they would be in 16 bits."""
    block, v = block_with(x=((4, 3), dtype), d=((4, 5), dtype))
    acc = block.create_var("acc", (3, 5), "float32", persistable=True)
    Builder(block).emit("matmul_accumulate", v["x"], v["d"], acc, trans_x=True, out={"Out": acc})
    exe, scope = Executor(), Scope()
    scope.arrays["acc"], exact = np.full((3, 5), 4096, np.float32), np.full((3, 5), 4096.0)
    for _ in range(20):
        x, d = (rng.normal(size=s).astype(as_dtype(dtype)) for s in ((4, 3), (4, 5)))
        exe.run(block.program, {"x": x, "d": d}, [], scope=scope)
        exact = exact + x.astype(float).T @ d.astype(float)
    np.testing.assert_allclose(scope.arrays["acc"], exact, rtol=3e-6)


def test_an_accumulator_is_updated_where_it_lies(rng):
    block, v = block_with(x=((4, 3), "float32"), d=((4, 5), "float32"))
    acc = block.create_var("acc", (3, 5), "float32", persistable=True)
    Builder(block).emit("matmul_accumulate", v["x"], v["d"], acc, trans_x=True, out={"Out": acc})
    scope, total = Scope(), np.ones((3, 5), np.float32)
    scope.arrays["acc"] = total
    x, d = (rng.integers(-3, 4, s).astype(np.float32) for s in ((4, 3), (4, 5)))
    Executor().run(block.program, {"x": x, "d": d}, [], scope=scope)
    assert scope.arrays["acc"] is total
    np.testing.assert_array_equal(total, 1 + x.T @ d)


def test_the_accumulator_stays_for_other_readers(rng):
    block, v = block_with(x=((3, 4), "float64"), y=((4, 5), "float64"), a=((3, 5), "float64"))
    g = Builder(block)
    kept = g.scale(v["a"], scale=2.0)
    out = g.matmul_accumulate(v["x"], v["y"], kept)
    both = g.elementwise_add(out, kept)
    x, y, a = (rng.normal(size=s) for s in ((3, 4), (4, 5), (3, 5)))
    (found,) = run(block, {"x": x, "y": y, "a": a}, [both])
    np.testing.assert_allclose(found, x @ y + 4 * a, rtol=1e-14)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_through_an_accumulator_of_float32(batch, dtype, rng):
    types = {"x": ((*batch, 4, 3), dtype), "y": ((*batch, 4, 5), dtype), "a": ((3, 5), "float32")}
    block, v = block_with(**types, d=((3, 5), "float32"))
    out = Builder(block).matmul_accumulate(v["x"], v["y"], v["a"], trans_x=True)
    grads = gradients([out], [v["x"], v["y"], v["a"]], [v["d"]])
    arrays = {n: rng.integers(-3, 4, s).astype(as_dtype(t)) for n, (s, t) in types.items()}
    arrays["d"] = rng.integers(-3, 4, (3, 5)).astype(np.float32)
    x, y, d = (arrays[n].astype(float) for n in "xyd")
    for g, exact in zip(run(block, arrays, grads), (y @ d.T, x @ d, d), strict=True):
        np.testing.assert_array_equal(g.astype(float), exact)
    assert [g.dtype for g in grads] == [as_dtype(dtype), as_dtype(dtype), np.float32]


@pytest.mark.parametrize(
    ("x", "y", "acc", "error", "fact"),
    [(((3, 4), "float32"), ((4, 5), "float32"), ((3, 5), "float16"), DTypeError, "Acc is float16, X is float32"),
     (((3, 4), "float64"), ((4, 5), "float64"), ((3, 5), "float32"), DTypeError, "Acc is float32, X is float64"),
     (((3, 4), "int32"), ((4, 5), "int32"), ((3, 5), "int32"), DTypeError, "X must be a float, is int32"),
     (((4,), "float32"), ((4, 5), "float32"), ((5,), "float32"), ShapeError, "rank 2 or more"),
     (((3, 4), "float32"), ((4, 5), "float32"), ((5, 3), "float32"), ShapeError, r"Acc must be f32\[3,5\]"),
     (((2, 3, 4), "float32"), ((4, 5), "float32"), ((3, 5), "float32"), ShapeError, "batch axes of X and Y must be"),
     (((3, 4), "float32"), ((5, 4), "float32"), ((3, 5), "float32"), ShapeError, "inner sizes differ")],
)  # fmt: skip
def test_what_cannot_be_added_is_refused(x, y, acc, error, fact):
    block, v = block_with(x=x, y=y, acc=acc)
    with pytest.raises(error, match=fact):
        Builder(block).matmul_accumulate(v["x"], v["y"], v["acc"])
