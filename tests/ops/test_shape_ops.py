"""Reshaping, joining, cutting and indexing: NumPy's results, unknown sizes, views, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from minigraph.errors import AttrError, DTypeError, KernelError, ProgramError, ShapeError
from minigraph.opdef import OPS
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import TensorType, float32
from tests.support.opcheck import run_op, type_of


def inferred(op_type, *shapes, **attrs):
    """The output's shape for inputs of the given shapes (a list of shapes for a list slot)."""
    opdef = OPS[op_type]
    types = {
        slot.name: [TensorType(s, float32) for s in (shape if slot.variadic else [shape])]
        for slot, shape in zip(opdef.inputs, shapes, strict=True)
    }
    (found,) = opdef.infer_types(types, opdef.bind_attrs(attrs)).values()
    return [t.shape for t in found] if opdef.outputs[0].variadic else found[0].shape


@pytest.mark.parametrize(
    ("sizes", "shape", "expected"),
    [
        ((4, 6), (3, 8), (3, 8)),
        ((4, 6), (0, -1, 2), (4, 3, 2)),
        ((2, 3, 4), (0, 0, -1), (2, 3, 4)),
        ((2, 3, 4), (-1, 0), (8, 3)),
        ((0, 4), (-1, 4), (0, 4)),
        ((0, 4), (0, -1), (0, 4)),
        ((4, 0), (-1, 7), (0, 7)),
        ((), (), ()),
        ((), (-1,), (1,)),
        ((1, 1), (), ()),
        ((-1, 8), (-1, 4), (-1, 4)),
        ((-1, 8, 4), (0, -1), (-1, 32)),
        ((-1, 8), (0, 2, 4), (-1, 2, 4)),
        ((-1, 8), (2, 4), (2, 4)),
        ((-1, -1, 8), (0, -1, 2), (-1, -1, 2)),
        ((-1, 0), (-1, 5), (0, 5)),
        ((-1,), (3, -1), (3, -1)),
    ],
)
def test_reshape_rules(sizes, shape, expected):
    assert inferred("reshape", sizes, shape=shape) == expected


@pytest.mark.parametrize(
    ("sizes", "shape", "phrase"),
    [
        ((4, 6), (5, 5), "X [4, 6] has 24 elements, shape [5, 5] asks for 25"),
        ((4, 6), (-1, 5), "X [4, 6] has 24 elements, shape [-1, 5] asks for a multiple of 5"),
        ((4, 6), (0, 5), "X [4, 6] has 6 elements besides the copied sizes, shape [0, 5] asks for 5"),
        ((-1, 8), (3, 5), "X [-1, 8] has a multiple of 8 elements, shape [3, 5] asks for 15"),
        ((-1, 4), (0, 7), "X [-1, 4] has 4 elements besides the copied sizes"),
        ((4, 6), (-1, -1), "shape [-1, -1] has more than one -1"),
        ((4, 6), (-2, 12), "shape [-2, 12] has a negative size"),
        ((4, 6), (4, 6, 0), "shape [4, 6, 0] copies the size of axis 2, X has rank 2"),
        ((3, 0), (3, 2), "X [3, 0] has 0 elements, shape [3, 2] asks for 6"),
    ],
)
def test_reshape_refuses(sizes, shape, phrase):
    with pytest.raises(ShapeError) as caught:
        inferred("reshape", sizes, shape=shape)
    assert phrase in str(caught.value)


def test_reshape_of_a_size_known_at_run_time():
    block = Program().global_block()
    g = Builder(block)
    x = block.create_var("x", [None, 6], "float32", is_data=True)
    y = g.reshape(x, shape=(-1, 4))
    (grad,) = gradients([g.square(y)], [x])
    exe = Executor()
    for rows in (0, 2, 4):
        fed = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        value, slope = exe.run(block.program, {"x": fed}, [y, grad])
        np.testing.assert_array_equal(value, fed.reshape(-1, 4))
        np.testing.assert_array_equal(slope, 2 * fed)
    with pytest.raises(ShapeError, match=r"18 elements, shape .* asks for a multiple of 4"):
        exe.run(block.program, {"x": np.zeros((3, 6), np.float32)}, [y])


@pytest.mark.parametrize(
    ("op_type", "sizes", "attrs", "expected"),
    [
        ("transpose", (-1, 3, 4), {"perm": (2, 0, 1)}, (4, -1, 3)),
        ("squeeze", (1, -1, 3), {"axes": (0,)}, (-1, 3)),
        ("squeeze", (1, -1, 3), {"axes": (1,)}, (1, 3)),
        ("unsqueeze", (-1, 3), {"axes": (0, 3)}, (1, -1, 3, 1)),
        ("flatten", (2, -1, 3), {"start_axis": 1}, (2, -1)),
        ("flatten", (-1, 4, 3), {"start_axis": 1}, (-1, 12)),
        ("flatten", (-1, 0, 3), {}, (0,)),
        ("expand", (-1, 1), {"shape": (5, 4)}, (5, 4)),
        ("expand", (-1, 1), {"shape": (2, -1, 4)}, (2, -1, 4)),
        ("tile", (-1, 2), {"repeat_times": (2, 3)}, (-1, 6)),
        ("tile", (-1, 2), {"repeat_times": (0, 3)}, (0, 6)),
        ("slice", (-1, 5), {"axes": (0, 1), "starts": (1, 1), "ends": (3, 9)}, (-1, 4)),
        ("slice", (-1, 5), {"axes": (0,), "starts": (0,), "ends": (1,), "decrease_axes": (0,)}, (5,)),
        ("split", (-1, 6), {"num": 2}, [(-1, 6), (-1, 6)]),
        ("split", (-1, 6), {"sections": (2, -1)}, [(2, 6), (-1, 6)]),
        ("split", (4, 6), {"sections": (2, -1), "axis": 1}, [(4, 2), (4, 4)]),
        ("split", (4, 6), {"sections": (6, -1), "axis": 1}, [(4, 6), (4, 0)]),
    ],
)
def test_inferred_shapes(op_type, sizes, attrs, expected):
    assert inferred(op_type, sizes, **attrs) == expected


def test_inferred_shapes_of_joins():
    assert inferred("concat", [(-1, 3), (2, -1)], axis=0) == (-1, 3)
    assert inferred("concat", [(-1, 3), (2, 4)], axis=1) == (2, 7)
    assert inferred("stack", [(-1, 3), (2, -1)], axis=-1) == (2, 3, 2)


@pytest.mark.parametrize(
    ("op_type", "sizes", "attrs", "error", "phrase"),
    [
        ("transpose", (2, 3), {"perm": (0,)}, ShapeError, "perm [0] has 1 axes, X has rank 2"),
        ("transpose", (2, 3), {"perm": (0, 0)}, ShapeError, "name one axis twice"),
        ("transpose", (2, 3), {"perm": (0, 2)}, ShapeError, "axis 2 is out of range for rank 2"),
        ("squeeze", (2, 1), {"axes": (0,)}, ShapeError, "X axis 0 has size 2, only 1 can be dropped"),
        ("squeeze", (1, -1), {}, ShapeError, "known only at run time"),
        ("squeeze", (1, 2), {"axes": (0, -2)}, ShapeError, "name one axis twice"),
        ("unsqueeze", (2,), {"axes": (2,)}, ShapeError, "axis 2 is out of range for rank 2"),
        ("unsqueeze", (2,), {"axes": (0, -3)}, ShapeError, "name one axis twice"),
        ("flatten", (2, 3), {"start_axis": 1, "stop_axis": 0}, ShapeError, "start_axis 1 lies behind stop_axis 0"),
        ("flatten", (2, 3), {"stop_axis": 2}, ShapeError, "stop_axis 2 is out of range for rank 2"),
        ("expand", (2, 3), {"shape": (3,)}, ShapeError, "shape [3] has fewer axes than X [2, 3]"),
        ("expand", (2, 3), {"shape": (4, 3)}, ShapeError, "X axis 0 has size 2, it cannot become 4"),
        ("expand", (2, 3), {"shape": (-1, 2, 3)}, ShapeError, "a new leading axis cannot be -1"),
        ("expand", (2, 3), {"shape": (2, -3)}, ShapeError, "size -3 is negative"),
        ("tile", (2, 3), {"repeat_times": (2, -1)}, ShapeError, "repeat_times [2, -1] has a negative number"),
        ("slice", (4,), {"axes": (0,), "starts": (0,), "ends": (2,), "steps": (0,)}, AttrError, "steps [0] has a 0"),
        ("slice", (4,), {"axes": (0,), "starts": (0, 1), "ends": (2,)}, AttrError, "1, 2, 1 and 1 entries"),
        ("slice", (4,), {"axes": (1,), "starts": (0,), "ends": (2,)}, ShapeError, "axis 1 is out of range"),
        ("slice", (4,), {"axes": (0, 0), "starts": (0, 0), "ends": (2, 2)}, ShapeError, "name one axis twice"),
        ("slice", (4,), {"axes": (0,), "starts": (4,), "ends": (5,), "decrease_axes": (0,)}, ShapeError,
         "index 4 is out of range for X axis 0 of size 4"),
        ("slice", (4,), {"axes": (0,), "starts": (-5,), "ends": (-4,), "decrease_axes": (0,)}, ShapeError,
         "index -5 is out of range for X axis 0 of size 4"),
        ("slice", (4,), {"axes": (0,), "starts": (0,), "ends": (2,), "decrease_axes": (0,)}, ShapeError,
         "axis 0 has size 2 after slicing, only 1 can be dropped"),
        ("split", (4,), {}, AttrError, "split takes either sections or num"),
        ("split", (4,), {"sections": (4,), "num": 1}, AttrError, "split takes either sections or num"),
        ("split", (4,), {"num": 0}, AttrError, "num must be positive, is 0"),
        ("split", (4,), {"num": 3}, ShapeError, "an axis of size 4 cannot be cut into 3 equal pieces"),
        ("split", (4,), {"sections": ()}, AttrError, "sections is an empty list"),
        ("split", (4,), {"sections": (1, 2)}, ShapeError, "sections [1, 2] do not add up to the axis size 4"),
        ("split", (4,), {"sections": (5, -1)}, ShapeError, "sections [5, -1] do not add up to the axis size 4"),
        ("split", (4,), {"sections": (-1, -1)}, AttrError, "one of them may be -1"),
        ("split", (), {"num": 1}, ShapeError, "a scalar has no axes"),
        ("tril_triu", (4,), {}, ShapeError, "X has rank 1, a triangle needs 2 axes or more"),
        ("one_hot", (4,), {"depth": 3}, DTypeError, "X must hold integers, is float32"),
    ],
)  # fmt: skip
def test_refusals(op_type, sizes, attrs, error, phrase):
    with pytest.raises(error) as caught:
        inferred(op_type, sizes, **attrs)
    assert phrase in str(caught.value)


@pytest.mark.parametrize("op_type", ["concat", "stack"])
def test_bad_joins(op_type):
    block = Program().global_block()
    g = Builder(block)
    a, b = block.create_var("a", [2, 3], "float32"), block.create_var("b", [4, 2], "float32")
    with pytest.raises(ProgramError, match="X is an empty list"):
        g.emit(op_type, [])
    with pytest.raises(DTypeError, match=r"X\[0\] is float32, X\[1\] is int64"):
        g.emit(op_type, [a, block.create_var("i", [2, 3], "int64")])
    with pytest.raises(ShapeError, match=r"X\[0\] has rank 2, X\[1\] has rank 1"):
        g.emit(op_type, [a, block.create_var("v", [2], "float32")])
    with pytest.raises(ShapeError, match=r"sizes of axis 1 differ: 3 so far, X\[1\] has 2" if op_type == "concat"
                       else r"sizes of axis 0 differ: 2 so far, X\[1\] has 4"):  # fmt: skip
        g.emit(op_type, [a, b])
    with pytest.raises(ShapeError, match="axis 3 is out of range"):
        g.emit(op_type, [a, a], axis=3)


# Values


def test_slices_are_numpys(rng):
    x = rng.normal(size=(5,))
    bounds = [-(2**40), -6, -5, -2, -1, 0, 1, 3, 5, 6, 2**40]
    for start, end, step in itertools.product(bounds, bounds, [-7, -2, -1, 1, 2, 7]):
        attrs = {"axes": (0,), "starts": (start,), "ends": (end,), "steps": (step,)}
        expected = x[start:end:step]
        assert inferred("slice", (5,), **attrs) == expected.shape
        np.testing.assert_array_equal(OPS["slice"](x, **attrs), expected)
        grad = OPS["slice_grad"](x, expected, **attrs)
        picked = np.zeros(5, bool)
        picked[start:end:step] = True
        np.testing.assert_array_equal(grad, np.where(picked, x, 0))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_gather_along_every_axis(rng, axis):
    x, index = rng.normal(size=(3, 4, 5)), np.array([[2, 0], [-1, 2]])
    np.testing.assert_array_equal(run_op("gather", x, index, axis=axis), np.take(x, index, axis=axis))


@pytest.mark.parametrize("int_dtype", ["int8", "uint8", "int32", "int64"])
def test_gather_and_its_gradient_with_small_ints(rng, int_dtype):
    """An index type that cannot hold the axis's size."""
    x = rng.normal(size=(300, 2))
    index = np.array([5, 100, 5, 0] if int_dtype == "uint8" else [5, -1, 5, -128], int_dtype)
    weight = rng.normal(size=(4, 2))
    expected = np.zeros_like(x)
    np.add.at(expected, index, weight)
    np.testing.assert_array_equal(run_op("gather", x, index), x[index])
    np.testing.assert_allclose(OPS["gather_grad"](x, index, weight), expected, rtol=1e-15)


@pytest.mark.parametrize(("index", "wrong"), [([0, 4], 4), ([-5, 0], -5)])
def test_gather_out_of_range(rng, index, wrong):
    with pytest.raises(KernelError, match=rf"index {wrong} is out of range \[-4, 4\)") as caught:
        run_op("gather", rng.normal(size=(3, 4)), np.array(index), axis=1)
    assert "gather(X=v0: f64[3,4]" in str(caught.value)
    with pytest.raises(KernelError, match=r"index 0 is out of range \[0, 0\)"):
        run_op("gather", np.zeros((0, 2)), np.array([0]))


def test_gather_index_must_be_integer(rng):
    with pytest.raises(DTypeError, match="Index must hold integers, is float64"):
        run_op("gather", rng.normal(size=3), rng.normal(size=3))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_one_hot_out_of_range(wrong):
    with pytest.raises(KernelError, match=rf"class {wrong} is out of range \[0, 3\)"):
        run_op("one_hot", np.array([0, wrong]), depth=3)
    with pytest.raises(AttrError, match="depth must be positive, is 0"):
        run_op("one_hot", np.array([0]), depth=0)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "bool"])
def test_every_data_type_moves(rng, dtype):
    x = rng.integers(0, 2, size=(2, 3)).astype(dtype)
    for op_type, attrs, expected in [
        ("reshape", {"shape": (3, 2)}, x.reshape(3, 2)), ("transpose", {"perm": (1, 0)}, x.T),
        ("expand", {"shape": (2, 2, 3)}, np.broadcast_to(x, (2, 2, 3))),
        ("tile", {"repeat_times": (2,)}, np.tile(x, 2)),
        ("slice", {"axes": (1,), "starts": (1,), "ends": (3,)}, x[:, 1:]),
        ("tril_triu", {"lower": False}, np.triu(x)),
    ]:  # fmt: skip
        found = run_op(op_type, x, **attrs)
        assert type_of(found) == type_of(expected)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("start", "end", "step", "dtype"),
    [(0, 7, 2, "int64"), (5, -3, -3, "int32"), (0.0, 1.0, 0.1, "float64"), (1, 0, 1, "float32"), (0, 5, 1.5, "float32"),
     (-3, 3, 1, "int8"), (2**53 + 1, 2**53 + 4, 1, "int64"), (2**53 + 1, 2**53 - 2, -2, "int64")],
)  # fmt: skip
def test_arange(start, end, step, dtype):
    (found,) = Executor().run(arange_program(start=start, end=end, step=step, dtype=dtype), fetch_list=["out"])
    expected = np.arange(start, end, step)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected.astype(dtype))


def arange_program(**attrs):
    block = Program().global_block()
    out = Builder(block).arange(**attrs)
    out.name = "out"
    return block.program


@pytest.mark.parametrize(
    ("attrs", "phrase"),
    [
        ({"end": 3, "step": 0}, "step is 0"),
        ({"end": float("inf")}, "end must be finite, is inf"),
        ({"start": float("nan"), "end": 3}, "start must be finite, is nan"),
    ],
)
def test_bad_arange(attrs, phrase):
    with pytest.raises(AttrError, match=phrase):
        arange_program(**attrs)


def test_bad_assign_value():
    g = Builder(Program().global_block())
    with pytest.raises(ShapeError, match=r"3 values do not fill shape \[2, 2\]"):
        g.assign_value(values=(1, 2, 3), shape=(2, 2), dtype="float32")
    with pytest.raises(ShapeError, match="every size must be known"):
        g.assign_value(values=(1, 2), shape=(-1, 2), dtype="float32")


# Views and the memory plan


VIEWS = {
    "reshape": {"shape": (3, 2)},
    "transpose": {"perm": (1, 0)},
    "unsqueeze": {"axes": (0,)},
    "flatten": {},
    "slice": {"axes": (0,), "starts": (1,), "ends": (2,)},
}


@pytest.mark.parametrize("op_type", VIEWS)
def test_a_view_outlives_its_source(rng, op_type):
    """Buffers of dead values are used again; the memory that a view shows is not dead."""
    block = Program().global_block()
    g = Builder(block)
    x = block.create_var("x", [2, 3], "float64", is_data=True)
    view = g.emit(op_type, g.scale(x, scale=2.0), **VIEWS[op_type])
    other = x
    for _ in range(4):  # each step could take the buffer of the scaled x
        other = g.scale(other, scale=3.0)
    total = g.elementwise_add(g.reduce_sum(other), g.reduce_sum(g.scale(view, scale=1.0)))
    fed = rng.normal(size=(2, 3))
    value, shown = Executor().run(block.program, {"x": fed}, [total, view])
    expected = OPS[op_type](2 * fed, **VIEWS[op_type])
    np.testing.assert_array_equal(shown, expected)
    np.testing.assert_allclose(value, 81 * fed.sum() + expected.sum(), rtol=1e-13)


def test_pieces_outlive_their_source(rng):
    block = Program().global_block()
    g = Builder(block)
    x = block.create_var("x", [4, 3], "float64", is_data=True)
    pieces = g.split(g.scale(x, scale=2.0), num=2)
    joined = g.concat([g.scale(g.scale(pieces[0], scale=1.0), scale=1.0), pieces[1]])
    (grad,) = gradients([g.square(joined)], [x])
    fed = rng.normal(size=(4, 3))
    value, slope = Executor().run(block.program, {"x": fed}, [joined, grad])
    np.testing.assert_array_equal(value, 2 * fed)
    np.testing.assert_array_equal(slope, 8 * fed)


def test_a_view_keeps_the_value_of_before_an_update():
    """An update in place under a view that is read later would change what the view shows."""
    block = Program().global_block()
    g = Builder(block)
    w = block.create_parameter("w", [2, 3], "float32")
    view = g.transpose(w, perm=(1, 0))
    g.increment(w, step=1.0, out={"Out": w})
    late = g.scale(view, scale=2.0)
    scope = Scope()
    scope.write("w", np.zeros((2, 3), np.float32))
    exe = Executor()
    for run in range(3):
        shown, doubled, updated = exe.run(block.program, fetch_list=[view, late, w], scope=scope)
        assert (shown == run).all()
        assert (doubled == 2 * run).all()
        assert (updated == run + 1).all()


def test_an_operator_that_reads_one_memory_twice_does_not_overwrite_it(rng):
    block = Program().global_block()
    g = Builder(block)
    x = block.create_var("x", [2, 3], "float64", is_data=True)
    same, viewed = g.scale(x, scale=2.0), g.scale(x, scale=3.0)
    twice = g.scale(g.softmax_grad(same, same), scale=1.0)
    view = g.transpose(g.transpose(viewed, perm=(1, 0)), perm=(1, 0))
    by_view = g.scale(g.softmax_grad(view, viewed), scale=1.0)
    fed = rng.normal(size=(2, 3))
    found = Executor().run(block.program, {"x": fed}, [twice, by_view])
    for value, factor in zip(found, (2, 3), strict=True):
        np.testing.assert_array_equal(value, OPS["softmax_grad"](factor * fed, factor * fed))
