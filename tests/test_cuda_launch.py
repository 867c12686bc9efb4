"""Launches of the kernels that move, pick, draw and update: sizes as arithmetic, results by running them on a CPU."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from cuda_host import COMPILER, run_bind
from hypothesis import given, settings
from hypothesis import strategies as st

from minigraph.kernels import philox
from minigraph.kernels.cuda import add_rows, creation, index, movement, optimizer, random
from minigraph.kernels.cuda.binder import Binder, Copy, Device, Fill, Launch
from minigraph.kernels.cuda.buffer import Buffer
from minigraph.kernels.cuda.movement import Axis
from minigraph.types import (
    TensorType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
)

on_host = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
HUGE = 2**31 + 64  # elements


def calls(bind, ins, outs, attrs=None):
    """What a bind function records for buffers of given (shape, dtype)."""

    def buffer(x):
        return None if x is None else [buffer(e) for e in x] if isinstance(x, list) else Buffer(*x)

    binder = Binder()
    binder.begin(0)
    bind(binder, {s: buffer(x) for s, x in ins.items()}, {s: buffer(x) for s, x in outs.items()}, attrs or {})
    return binder.calls


def defined(call: Launch, name: str) -> str:
    found = re.search(rf"^#define {name} (.+)$", call.source, re.M)
    assert found, f"{name} is not defined"
    return found[1]


def places(axes, to=0, start=0):
    """(destination, source) of every element that a copy moves."""
    return {
        (to + sum(i * a.destination for i, a in zip(at, axes, strict=True)),
         start + sum(i * a.source for i, a in zip(at, axes, strict=True)))
        for at in itertools.product(*(range(a.extent) for a in axes))
    }  # fmt: skip


# axes of copies

STEPS = st.integers(-12, 12)
AXES = st.lists(st.builds(Axis, st.integers(1, 4), STEPS, STEPS), max_size=4)


@given(AXES)
def test_merged_axes_visit_the_same_places(axes):
    found = movement.merged(axes)
    assert places(found) == places(axes)
    assert len(found) <= max(len(axes), 1)


@given(st.permutations(range(4)), st.tuples(*[st.integers(1, 3)] * 4))
def test_a_permutation_of_neighbours_is_one_axis(perm, shape):
    sources = movement.steps_of(shape)
    out = tuple(shape[p] for p in perm)
    axes = [Axis(out[i], sources[p], d) for (i, p), d in zip(enumerate(perm), movement.steps_of(out), strict=True)]
    moved = [p for p in perm if shape[p] > 1]
    breaks = sum(b != min((q for q in moved if q > a), default=-1) for a, b in itertools.pairwise(moved))
    assert len(movement.merged(axes)) == 1 + breaks if moved else 1


@pytest.mark.parametrize(
    ("itemsize", "run", "row", "offset", "alignment", "word"),
    [
        (4, 64, 128, 0, 256, 16), (2, 64, 128, 0, 256, 16), (8, 64, 128, 0, 256, 16), (1, 64, 128, 0, 256, 16),
        (4, 62, 128, 0, 256, 8), (4, 63, 128, 0, 256, 4), (4, 64, 126, 0, 256, 8), (4, 64, 128, 3, 256, 4),
        (2, 64, 128, 4, 256, 8), (4, 64, 128, 0, 8, 8), (4, 64, 128, 0, 4, 4), (1, 6, 10, 0, 256, 2),
    ],
)  # fmt: skip
def test_words_are_as_wide_as_sizes_and_addresses_allow(itemsize, run, row, offset, alignment, word):
    axes = [Axis(5, row, run), Axis(run, 1, 1)]
    assert movement.word_bytes(itemsize, axes, (0, offset), alignment) == word
    n = word // itemsize
    in_words = movement.in_words(axes, n)
    spread = {(d * n + k, s * n + k) for d, s in places(in_words) for k in range(n)}
    assert spread == places(axes)


def test_a_step_inside_a_row_moves_single_elements():
    assert movement.word_bytes(4, [Axis(64, 2, 1)], (0, 0), 256) == 4


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("rows", "wide"), [(2**20, False), (2**22, True)])
def test_offsets_beyond_31_bits_are_64_bits(rows, wide, backwards):
    x, size = ((rows, 1000), float32), 999  # odd rows: words of one element, whose offsets reach 1000 * rows
    attrs = {"axes": (1,), "starts": (-1 if backwards else 1,), "ends": (0 if backwards else 1000,),
             "steps": (-1 if backwards else 1,)}  # fmt: skip
    (call,) = calls(movement.slice, {"X": x}, {"Out": ((rows, size), float32)}, attrs)
    assert defined(call, "I") == ("i64" if wide else "int")
    assert {type(a) for a in call.args[2:]} == {np.int64 if wide else np.int32}
    assert call.grid[0] == -(-rows * size // movement.WORDS_PER_BLOCK)


@pytest.mark.parametrize(
    ("shape", "perm", "function", "pack"),
    [
        ((4096, 8192), (1, 0), "tiles", 4), ((4096, 8190), (1, 0), "tiles", 2), ((33, 35), (1, 0), "tiles", 1),
        ((4, 512, 8, 64), (0, 2, 1, 3), "copy", None), ((1000, 3), (1, 0), "copy", None),
        ((8, 64, 96), (0, 2, 1), "tiles", 4), ((50000, 50000), (1, 0), "tiles", 4),
    ],
)  # fmt: skip
def test_transposes_take_tiles_where_both_axes_are_long(shape, perm, function, pack):
    out = tuple(shape[p] for p in perm)
    (call,) = calls(movement.transpose, {"X": (shape, float32)}, {"Out": (out, float32)}, {"perm": perm})
    assert call.function == function
    if pack:
        assert defined(call, "V") == str(pack)
        side, batch = int(defined(call, "TILE")), math.prod(shape[:-2])
        assert call.grid[0] == batch * -(-shape[-1] // side) * -(-shape[-2] // side)


def test_tiles_fit_into_shared_memory_and_rows_begin_in_another_bank():
    for word, side in movement.TILES.items():
        pitch = side * word + max(4, word)  # bytes
        assert side * pitch <= 48 * 1024
        assert pitch // max(4, word) % 2 == 1
        assert side * side * word % (256 * 16) == 0  # whole rounds of 256 threads


EMPTY = [
    (movement.transpose, {"X": ((0, 3), float32)}, {"Out": ((3, 0), float32)}, {"perm": (1, 0)}),
    (movement.concat, {"X": [((0, 3), float32)] * 2}, {"Out": ((0, 3), float32)}, {"axis": 0}),
    (movement.split, {"X": ((0, 4), float32)}, {"Out": [((0, 2), float32)] * 2},
     {"axis": 1, "num": 2, "sections": None}),
    (movement.expand, {"X": ((1, 3), float32)}, {"Out": ((0, 3), float32)}, {}),
    (movement.tile, {"X": ((2,), float32)}, {"Out": ((0,), float32)}, {"repeat_times": (0,)}),
    (creation.sum, {"X": [((0,), float32)] * 20}, {"Out": ((0,), float32)}, {}),
    (creation.fill_constant, {}, {"Out": ((0, 2), float32)}, {"value": 1.0}),
    (creation.assign_value, {}, {"Out": ((0, 3), float32)}, {"values": ()}),
    (creation.arange, {}, {"Out": ((0,), int64)}, {"start": 0, "step": 1}),
    (index.gather, {"X": ((2, 0), float32), "Index": ((3,), int64)}, {"Out": ((3, 0), float32)}, {"axis": 0}),
    (index.embedding_grad, {"Ids": ((3,), int64), "Out_grad": ((3, 0), float32)}, {"W_grad": ((5, 0), float32)},
     {"padding_idx": None}),
    (index.one_hot, {"X": ((0,), int64)}, {"Out": ((0, 4), float32)}, {"depth": 4}),
    (index.tril_triu, {"X": ((0, 3), float32)}, {"Out": ((0, 3), float32)}, {"diagonal": 0, "lower": True}),
    (random.uniform_random, {}, {"Out": ((0, 2), float32)}, {"min": 0.0, "max": 1.0, "seed": 0}),
    (random.dropout, {"X": ((0, 3), float32)}, {"Out": ((0, 3), float32), "Mask": ((0, 3), np.dtype("uint8"))},
     {"p": 0.5, "mode": "upscale_in_train", "is_test": False, "seed": 0}),
    (optimizer.sgd, {"Param": ((0,), float32), "Grad": ((0,), float32), "LearningRate": ((1,), float32)},
     {"ParamOut": ((0,), float32)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("bind", "ins", "outs", "attrs"), EMPTY, ids=lambda x: getattr(x, "__name__", ""))
def test_nothing_is_launched_for_an_empty_output(bind, ins, outs, attrs):
    assert calls(bind, ins, outs, attrs) == []


def test_an_empty_sum_is_defined():
    ids, grad = ((0,), int64), ((0, 4), float32)
    (call,) = calls(index.embedding_grad, {"Ids": ids, "Out_grad": grad}, {"W_grad": ((5, 4), float32)},
                    {"padding_idx": None})  # fmt: skip
    assert isinstance(call, Fill) and call.value == 0
    (call,) = calls(optimizer.squared_l2_norm, {"X": ((0, 4), float32)}, {"Out": ((), float32)})
    assert isinstance(call, Fill) and call.value == 0


def test_whole_buffers_are_copied_as_they_are():
    (call,) = calls(movement.concat, {"X": [((2, 3), float32)]}, {"Out": ((2, 3), float32)}, {"axis": 1})
    assert isinstance(call, Copy)
    first, second = calls(movement.concat, {"X": [((2, 3), float32)] * 2}, {"Out": ((4, 3), float32)}, {"axis": 0})
    assert isinstance(first, Copy) and isinstance(second, Copy)
    assert (first.destination.offset, second.destination.offset) == (0, 24)


def test_a_view_of_the_same_memory_is_not_copied():
    x = Buffer((4, 6), float32)
    for out, copies in ((x.view((3, 8)), 0), (Buffer((3, 8), float32), 1)):
        binder = Binder()
        binder.begin(0)
        movement.view(binder, {"X": x}, {"Out": out}, {})
        assert len(binder.calls) == copies
    a, b = Buffer((4,), float32, ptr=512), Buffer((2,), float32, ptr=512).view((2,))
    assert movement.place(a) == movement.place(b)


@pytest.mark.parametrize(
    ("n", "size", "passes"),
    [(1, 1, 1), (1000, 255, 1), (1000, 256, 2), (8192, 50257, 2), (10**6, 2**16 - 1, 2), (10**6, 10**6, 3)],
)
def test_radix_passes_cover_all_keys_and_their_sentinel(n, size, passes):
    recorded = calls(
        index.embedding_grad, {"Ids": ((n,), int64), "Out_grad": ((n, 64), bfloat16)},
        {"W_grad": ((size, 64), bfloat16)}, {"padding_idx": None},
    )  # fmt: skip
    counted = [c for c in recorded if c.function == "radix_count"]
    assert [int(c.args[-1]) for c in counted] == list(range(0, 8 * passes, 8))
    assert size < 256**passes
    per_block = int(counted[0].args[3])
    blocks = counted[0].grid[0]
    assert per_block % 256 == 0 and blocks * per_block >= n > (blocks - 1) * per_block
    assert blocks <= add_rows.SORT_BLOCKS


@pytest.mark.parametrize(
    ("bind", "ins", "outs", "attrs"),
    [
        (movement.transpose, {"X": ((65537, 32832), int8)}, {"Out": ((32832, 65537), int8)}, {"perm": (1, 0)}),
        (movement.expand, {"X": ((1,), float16)}, {"Out": ((HUGE,), float16)}, {}),
        (index.embedding, {"Ids": ((2**20,), int64), "W": ((10**6, 4096), bfloat16)},
         {"Out": ((2**20, 4096), bfloat16)}, {"padding_idx": None}),
        (index.embedding_grad, {"Ids": ((2**20,), int64), "Out_grad": ((2**20, 4096), bfloat16)},
         {"W_grad": ((10**6, 4096), bfloat16)}, {"padding_idx": 3}),
        (index.gather_grad, {"X": ((2**21, 1024), float32), "Index": ((7,), int32), "Out_grad": ((2**21, 7), float32)},
         {"X_grad": ((2**21, 1024), float32)}, {"axis": -1}),
        (index.one_hot, {"X": ((2**20,), int64)}, {"Out": ((2**20, 4096), float16)}, {"depth": 4096}),
        (index.tril_triu, {"X": ((2**16, 2**16), bool_)}, {"Out": ((2**16, 2**16), bool_)},
         {"diagonal": 0, "lower": True}),
        (random.gaussian_random, {}, {"Out": ((HUGE,), float32)}, {"mean": 0.0, "std": 1.0, "seed": 0}),
        (optimizer.squared_l2_norm, {"X": ((HUGE,), float16)}, {"Out": ((), float32)}, {}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_more_than_2_31_elements_can_be_launched(bind, ins, outs, attrs):
    recorded = calls(bind, ins, outs, attrs)
    assert recorded  # every launch was checked against the limits of a grid as it was recorded
    for call in recorded:
        if isinstance(call, Launch):
            assert not any(isinstance(a, np.int32) for a in call.args)


def test_the_launches_of_an_update_depend_on_the_device_but_not_those_of_a_norm():
    def grids(multiprocessors, bind, ins, outs):
        binder = Binder(Device("sm_80", multiprocessors))
        binder.begin(0)
        bind(binder, ins, outs, {})
        return [c.grid[0] for c in binder.calls]

    x, scalar = Buffer((2**26,), float32), Buffer((), float32)
    update = {"Param": x, "Grad": x, "LearningRate": scalar}
    assert grids(10, optimizer.sgd, update, {"ParamOut": x}) == [80]
    assert grids(10, optimizer.squared_l2_norm, {"X": x}, {"Out": scalar}) == [optimizer.NORM_BLOCKS, 1]
    assert grids(132, optimizer.squared_l2_norm, {"X": x}, {"Out": scalar}) == [optimizer.NORM_BLOCKS, 1]


# kernels, run


def moved(bind, x, out_shape, attrs, slot="X", out="Out", **ins):
    found, fault = run_bind(bind, {slot: x, **ins}, {out: TensorType(out_shape, x.dtype)}, attrs)
    assert not fault.any()
    return found[out]


def numbers(rng, shape, dtype):
    return rng.integers(0, 100, shape).astype(dtype)


TRANSPOSES = [
    ((70, 45), (1, 0)), ((64, 128), (1, 0)), ((3, 40, 66), (0, 2, 1)), ((40, 3, 35), (2, 1, 0)),
    ((2, 34, 3, 36), (3, 0, 2, 1)), ((4, 33, 40, 2), (0, 2, 1, 3)), ((5, 4, 3), (2, 0, 1)), ((90, 7), (1, 0)),
    ((7, 90), (1, 0)), ((1, 1), (1, 0)), ((2, 3, 2, 3, 2, 2, 3, 2, 2, 2), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),
]  # fmt: skip


@on_host
@pytest.mark.parametrize("dtype", [float64, int16, int8], ids=str)
@pytest.mark.parametrize(("shape", "perm"), TRANSPOSES)
def test_transpose(shape, perm, dtype, rng):
    x = numbers(rng, shape, dtype)
    np.testing.assert_array_equal(
        moved(movement.transpose, x, tuple(shape[p] for p in perm), {"perm": perm}), x.transpose(perm)
    )


@on_host
def test_transpose_of_runs_of_16_bytes(rng):
    x = numbers(rng, (40, 50, 4), float32)
    (call,) = calls(movement.transpose, {"X": (x.shape, float32)}, {"Out": ((50, 40, 4), float32)}, {"perm": (1, 0, 2)})
    assert (call.function, defined(call, "W")) == ("tiles", "Pack<u64, 2>")
    out = moved(movement.transpose, x, (50, 40, 4), {"perm": (1, 0, 2)})
    np.testing.assert_array_equal(out, x.transpose(1, 0, 2))


@on_host
@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(-10, 10), st.sampled_from([-3, -1, 1, 1, 2])), max_size=3),
)
def test_slice_and_its_gradient(shape, cuts):
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1
    starts, ends, steps = zip(*cuts, strict=True) if cuts else ((), (), ())
    attrs = {"axes": tuple(range(len(cuts))), "starts": starts, "ends": ends, "steps": steps, "decrease_axes": ()}
    section = tuple(slice(*cut) for cut in cuts)
    expected = x[section]
    np.testing.assert_array_equal(moved(movement.slice, x, expected.shape, attrs), expected)
    whole = np.zeros(shape, np.float32)
    whole[section] = expected
    grad = moved(movement.slice_grad, np.ascontiguousarray(expected), shape, attrs, "Out_grad", "X_grad")
    np.testing.assert_array_equal(grad, whole)


@on_host
@pytest.mark.parametrize("sizes", [(16, 16), (3, 5, 1), (8, 0, 4), (2,)])
@pytest.mark.parametrize(("outer", "inner"), [((), ()), ((3,), ()), ((2, 3), (4,)), ((), (5,))])
def test_concat_and_its_gradient(sizes, outer, inner, rng):
    xs = [numbers(rng, (*outer, size, *inner), float32) for size in sizes]
    axis, joined = len(outer), np.concatenate(xs, len(outer))
    out, _ = run_bind(movement.concat, {"X": xs}, {"Out": TensorType(joined.shape, joined.dtype)}, {"axis": axis})
    np.testing.assert_array_equal(out["Out"], joined)
    types = [TensorType(x.shape, x.dtype) for x in xs]
    ins = {"X": xs, "Out_grad": joined}
    parts, _ = run_bind(movement.concat_grad, ins, {"X_grad": types}, {"axis": axis - joined.ndim}, unread=("X",))
    for part, x in zip(parts["X_grad"], xs, strict=True):
        np.testing.assert_array_equal(part, x)


@on_host
def test_copies_with_64_bit_offsets(monkeypatch, rng):
    monkeypatch.setattr(movement, "is_wide", lambda *_: True)
    x = numbers(rng, (4, 5, 6), float64)
    np.testing.assert_array_equal(moved(movement.transpose, x, (6, 4, 5), {"perm": (2, 0, 1)}), x.transpose(2, 0, 1))


def id_arrays(rng):
    yield "few", rng.integers(0, 300, 70), 300
    yield "one id fills the batch", np.full(9000, 7), 300
    yield "two ids", np.where(np.arange(9000) < 4500, 3, 4), 5
    yield "skewed", np.minimum(rng.geometric(0.02, 5000), 299), 300
    yield "all different", rng.permutation(1000), 1000
    yield "all padding", np.full(100, 2), 3


@on_host
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 8, 33])
def test_rows_are_added_whatever_the_ids(width, dtype, rng):
    for name, ids, size in id_arrays(rng):
        grad = rng.integers(-2, 3, (len(ids), width)).astype(dtype)  # sums are exact
        attrs = {"padding_idx": 2}
        ins = {"Ids": ids, "W": np.empty((size, width), dtype), "Out_grad": grad}
        found, fault = run_bind(
            index.embedding_grad, ins, {"W_grad": TensorType((size, width), dtype)}, attrs, unread=("W",)
        )
        expected = np.zeros((size, width), np.float32)
        np.add.at(expected, ids[ids != 2], grad[ids != 2].astype(np.float32))
        assert not fault.any()
        np.testing.assert_array_equal(found["W_grad"].astype(np.float32), expected.astype(dtype), err_msg=name)


@on_host
def test_rows_are_added_along_an_inner_axis_and_with_64_bit_numbers(monkeypatch, rng):
    monkeypatch.setattr(add_rows, "NARROW", 0)
    ids = rng.integers(-6, 6, 200).astype(np.int8)
    grad = rng.integers(-2, 3, (3, 200, 2)).astype(np.float64)
    ins = {"X": np.empty((3, 6, 2)), "Index": ids, "Out_grad": grad}
    found, fault = run_bind(index.gather_grad, ins, {"X_grad": TensorType((3, 6, 2), float64)}, {"axis": -2},
                            unread=("X",))  # fmt: skip
    expected = np.zeros((3, 6, 2))
    for i, at in enumerate(ids):
        expected[:, at] += grad[:, i]
    assert not fault.any()
    np.testing.assert_array_equal(found["X_grad"], expected)


@on_host
@pytest.mark.parametrize(
    ("bind", "slot", "low"), [(index.embedding, "Ids", 0), (index.gather, "Index", -4)], ids=["embedding", "gather"]
)
def test_an_index_out_of_range_is_reported_and_its_row_is_zero(bind, slot, low, rng):
    table = rng.normal(size=(4, 5))
    for wrong in (low - 1, 4, 2**40):
        ids = np.array([1, wrong, 3])
        ins = {"X" if slot == "Index" else "W": table, slot: ids}
        found, fault = run_bind(bind, ins, {"Out": TensorType((3, 5), float64)}, {"axis": 0, "padding_idx": None})
        assert fault.tolist() == [1, 3, wrong, 1]  # taken, step, value, row
        np.testing.assert_array_equal(found["Out"], [table[1], np.zeros(5), table[3]])


@on_host
@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_out_of_range_is_reported(wrong):
    x = np.array([0, wrong, 2], np.int32)
    found, fault = run_bind(index.one_hot, {"X": x}, {"Out": TensorType((3, 3), bool_)}, {"depth": 3})
    assert fault.tolist() == [1, 3, wrong, 1]
    np.testing.assert_array_equal(found["Out"], [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


@on_host
def test_an_id_out_of_range_adds_nothing():
    ins = {"Ids": np.array([0, 9, -1]), "W": np.empty((2, 3)), "Out_grad": np.ones((3, 3))}
    attrs = {"padding_idx": None}
    found, fault = run_bind(index.embedding_grad, ins, {"W_grad": TensorType((2, 3), float64)}, attrs, unread=("W",))
    assert fault.tolist() == [1, 3, 9, 1]
    np.testing.assert_array_equal(found["W_grad"], [[1, 1, 1], [0, 0, 0]])


KEYS = [{"seed": 0, "number": 0, "step": 0}, {"seed": 2**63 + 12345, "number": 77, "step": 2**32 + 5}]
SIZES = [(5000,), (4096,), (3,), (1030,)]


def drawn(bind, shape, dtype, attrs, key):
    found, _ = run_bind(bind, {}, {"Out": TensorType(shape, dtype)}, {"seed": 0, **attrs}, **key)
    return found["Out"]


@on_host
@pytest.mark.parametrize("key", KEYS, ids=["zero", "large"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
def test_uniform_numbers_are_the_bits_of_the_cpu(dtype, shape, key):
    computed = dtype if dtype in (float64, float32) else float32
    rng = (key["seed"], key["number"], key["step"])
    for low, high in ((-1.0, 1.0), (0.1, 0.7), (3.0, 3.0), (1.0, 1.0 + 2.0**-22)):
        expected = philox.uniform(rng, shape, low, high, computed).astype(dtype)
        found = drawn(random.uniform_random, shape, dtype, {"min": low, "max": high}, key)
        assert found.tobytes() == expected.tobytes()


@on_host
@pytest.mark.parametrize("key", KEYS, ids=["zero", "large"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_normal_numbers_are_those_of_the_cpu(shape, key):
    rng = (key["seed"], key["number"], key["step"])
    attrs = {"mean": 0.5, "std": 2.0}
    for bind, cpu in (
        (random.gaussian_random, philox.normal), (random.truncated_gaussian_random, philox.truncated_normal)
    ):  # fmt: skip
        np.testing.assert_allclose(
            drawn(bind, shape, float64, attrs, key), cpu(rng, shape, 0.5, 2.0, float64), rtol=1e-12, atol=1e-12
        )


@on_host
def test_an_operators_own_seed_replaces_the_programs():
    own = drawn(random.uniform_random, (9,), float32, {"min": 0.0, "max": 1.0, "seed": 5}, {"seed": 3})
    np.testing.assert_array_equal(own, philox.uniform((5, 0, 0), (9,), 0.0, 1.0, float32))


@on_host
@pytest.mark.parametrize("wanted", [("Out", "Mask"), ("Out",), ("Mask",)], ids="-".join)
@pytest.mark.parametrize(("dtype", "size"), [(float32, 3001), (float16, 2056), (float16, 2058), (float64, 1030)])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_the_mask_of_the_cpu(p, dtype, size, wanted, rng):
    x = rng.normal(size=size).astype(dtype)
    x[:2] = np.inf, np.nan
    attrs = {"p": p, "mode": "upscale_in_train", "is_test": False, "seed": 0}
    types = {"Out": TensorType((size,), dtype), "Mask": TensorType((size,), np.dtype("uint8"))}
    outs = {slot: t if slot in wanted else None for slot, t in types.items()}
    found, _ = run_bind(random.dropout, {"X": x}, outs, attrs, seed=11, number=2, step=9)
    mask = philox.keep_mask((11, 2, 9), (size,), p)
    if "Mask" in wanted:
        np.testing.assert_array_equal(found["Mask"], mask)
    if "Out" in wanted:
        wide = float64 if dtype == float64 else float32
        scaled = (x.astype(wide) * wide.type(1 / (1 - p) if p < 1 else 1.0)).astype(dtype)
        np.testing.assert_array_equal(found["Out"], np.where(mask == 1, scaled, dtype.type(0)))


@on_host
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16], ids=str)
@pytest.mark.parametrize("size", [4096, 4099])
def test_updates_reach_every_element_once_on_a_small_device(size, dtype, rng):
    """One multiprocessor: threads go round several times. In place, as in a Scope."""
    state = float32 if dtype == bfloat16 else dtype
    param, grad = (rng.normal(size=size).astype(dtype) for _ in range(2))
    m, v = rng.normal(size=size).astype(state), (rng.normal(size=size) ** 2).astype(state)
    ins = {"Param": param, "Grad": grad, "LearningRate": np.array([0.01], np.float32), "Moment1": m, "Moment2": v,
           "Beta1Pow": np.array([0.9**3]), "Beta2Pow": np.array([0.999**3])}  # fmt: skip
    in_place = {f"{s}Out": s for s in ("Param", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow")}
    attrs = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "coeff": 0.1, "with_decay": True, "lr_ratio": 0.5}
    device = Device("sm_80", 1)
    found, _ = run_bind(optimizer.adamw, ins, dict.fromkeys(in_place), attrs, in_place, device=device)
    p, g, lr = param.astype(float), grad.astype(float), float(np.float32(0.01)) * 0.5
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.astype(float) + 0.001 * g**2
    p = p * (1 - lr * 0.1) - lr * m / (1 - 0.9**3) / (np.sqrt(v / (1 - 0.999**3)) + 1e-8)
    close = {float64: 1e-12, float32: 2e-6, bfloat16: 2e-6}[dtype]
    np.testing.assert_allclose(found["Moment1Out"], m, rtol=close, atol=close)
    np.testing.assert_allclose(found["Moment2Out"], v, rtol=close, atol=close)
    rounding = 2.0**-8 if dtype == bfloat16 else close
    np.testing.assert_allclose(found["ParamOut"].astype(float), p, rtol=rounding, atol=close)
    np.testing.assert_allclose([found["Beta1PowOut"][0], found["Beta2PowOut"][0]], [0.9**4, 0.999**4], rtol=1e-15)


@on_host
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_sgd_on_a_small_device(nesterov, rng):
    param, grad, velocity = rng.normal(size=(3, 5000))
    device, lr = Device("sm_80", 1), np.array([0.1])
    ins = {"Param": param, "Grad": grad, "Velocity": velocity, "LearningRate": lr}
    in_place = {"ParamOut": "Param", "VelocityOut": "Velocity"}
    attrs = {"mu": 0.8, "use_nesterov": nesterov}
    found, _ = run_bind(optimizer.momentum, ins, dict.fromkeys(in_place), attrs, in_place, device=device)
    v = 0.8 * velocity + grad
    np.testing.assert_allclose(found["VelocityOut"], v, rtol=1e-14)
    np.testing.assert_allclose(
        found["ParamOut"], param - 0.1 * (grad + 0.8 * v if nesterov else v), rtol=1e-13, atol=1e-14
    )
    del ins["Velocity"]
    found, _ = run_bind(optimizer.sgd, ins, {"ParamOut": None}, {}, {"ParamOut": "Param"}, device=device)
    np.testing.assert_allclose(found["ParamOut"], param - 0.1 * grad, rtol=1e-14)


@on_host
@pytest.mark.parametrize("dtype", [float64, float32, float16], ids=str)
@pytest.mark.parametrize("size", [1, 255, 40000])
def test_squared_l2_norm(size, dtype, rng):
    x = (100 * rng.normal(size=size)).astype(dtype)
    out = float64 if dtype == float64 else float32
    found, _ = run_bind(optimizer.squared_l2_norm, {"X": x}, {"Out": TensorType((), out)}, {})
    np.testing.assert_allclose(found["Out"], np.sum(x.astype(float) ** 2), rtol=1e-13 if out == float64 else 2e-7)


@on_host
@pytest.mark.parametrize("count", [1, 64, 200])
@pytest.mark.parametrize("dtype", [float64, bfloat16, int32, bool_], ids=str)
def test_lists_of_numbers_travel_as_arguments(dtype, count, rng):
    values = numbers(rng, count, dtype)
    attrs = {"values": tuple(values.tolist())}
    found, _ = run_bind(creation.assign_value, {}, {"Out": TensorType((count,), dtype)}, attrs)
    np.testing.assert_array_equal(found["Out"], values)


@on_host
@pytest.mark.parametrize("dtype", [float32, float16, int32, bool_], ids=str)
@pytest.mark.parametrize("terms", [2, 16, 40])
def test_sums_of_many_arrays(terms, dtype, rng):
    xs = [numbers(rng, (5, 7), dtype) for _ in range(terms)]
    found, _ = run_bind(creation.sum, {"X": xs}, {"Out": TensorType((5, 7), dtype)}, {})
    wide = [x.astype(np.float32) for x in xs] if dtype == float16 else xs
    total = wide[0]
    for x in wide[1:]:
        total = np.add(total, x)
    np.testing.assert_array_equal(found["Out"], total.astype(dtype))


@on_host
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, math.nan, -1.0])
@pytest.mark.parametrize("dtype", [float64, float16, bfloat16, float32], ids=str)
def test_fills_are_the_bits_of_the_cpu(dtype, value):
    found, _ = run_bind(creation.fill_constant, {}, {"Out": TensorType((33,), dtype)}, {"value": value})
    assert found["Out"].tobytes() == np.full(33, value, dtype).tobytes()
