"""Launches of the kernels that move, pick, draw and update: grids, words, offsets and passes as arithmetic."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigraph.kernels.cuda.elementwise import random
from minigraph.kernels.cuda.elementwise.pointwise import bind_pointwise
from minigraph.kernels.cuda.movement import add_rows, bin_rows, creation, index, movement
from minigraph.kernels.cuda.movement.movement import Axis
from minigraph.kernels.cuda.optimizer import optimizer, update
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer, rows_apart
from minigraph.kernels.cuda.record.calls import Copy, Fill, Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.kernels.cuda.rows import norm
from minigraph.opdef import OPS
from minigraph.types import bfloat16, bool_, float16, float32, float64, int8, int32, int64
from tests.support.grades import checkered

MOVES = "concat", "reshape", "slice", "split", "transpose"
concat, reshape, cut_out, split, transpose = (OPS[name].gpu_bind for name in MOVES)

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
    sources = rows_apart(shape)
    out = tuple(shape[p] for p in perm)
    axes = [Axis(out[i], sources[p], d) for (i, p), d in zip(enumerate(perm), rows_apart(out), strict=True)]
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
    (call,) = calls(cut_out, {"X": x}, {"Out": ((rows, size), float32)}, attrs)
    assert defined(call, "I") == ("i64" if wide else "int")
    assert {type(a) for a in call.args[2:]} == {np.int64 if wide else np.int32}
    assert call.grid[0] == -(-rows * size // movement.WORDS_PER_BLOCK)


@pytest.mark.parametrize(
    ("shape", "perm", "function", "aligned"),
    [
        ((4096, 8192), (1, 0), "tiles", "1"), ((4096, 8190), (1, 0), "tiles", "0"), ((33, 35), (1, 0), "tiles", "0"),
        ((4, 512, 8, 64), (0, 2, 1, 3), "copy", None), ((1000, 3), (1, 0), "copy", None),
        ((8, 64, 96), (0, 2, 1), "tiles", "1"), ((50000, 50000), (1, 0), "tiles", "1"),
        ((3, 7, 62, 64), (1, 0, 3, 2), "tiles", "0"),
    ],
)  # fmt: skip
def test_transposes_take_tiles_where_both_axes_are_long(shape, perm, function, aligned):
    out = tuple(shape[p] for p in perm)
    (call,) = calls(transpose, {"X": (shape, float32)}, {"Out": (out, float32)}, {"perm": perm})
    assert call.function == function
    if aligned:
        assert defined(call, "ALIGNED") == aligned
        across, down, batch = int(defined(call, "TILE")), int(defined(call, "DOWN")), math.prod(shape[:-2])
        halo = 0 if aligned == "1" else 7  # words of a sector that may belong to the tile before
        room = across if aligned == "1" else across + 1
        assert call.grid[0] == batch * -(-shape[-1] // room) * -(-(shape[-2] + halo) // down)


def test_an_inner_axis_of_one_word_is_moved_as_words():
    (call,) = calls(
        transpose, {"X": ((40, 50, 4), float32)}, {"Out": ((50, 40, 4), float32)}, {"perm": (1, 0, 2)}
    )
    assert (call.function, defined(call, "W"), defined(call, "ALIGNED")) == ("tiles", "Pack<u64, 2>", "1")


def test_places_beside_a_boundary_are_not_aligned():
    binder = Binder()
    axes = [Axis(64, 1, 64), Axis(64, 64, 1)]
    for to, start, alignment, aligned in (
        (0, 0, 256, "1"), (4, 8, 256, "1"), (1, 0, 256, "0"), (0, 3, 256, "0"), (0, 0, 8, "0"),
    ):  # fmt: skip
        x, y = (Buffer((2**13,), float32, None, alignment) for _ in range(2))
        binder.begin(0)
        movement.bind_copy(binder, y, x, axes, to=to, start=start)
        assert defined(binder.calls[-1], "ALIGNED") == aligned


@pytest.mark.parametrize(
    ("read", "written", "columns", "pack"),
    [(float32, bfloat16, 64, 8), (float32, bool_, 64, 16), (float32, bool_, 24, 8), (int64, bool_, 64, 8),
     (bfloat16, float32, 64, 4), (float32, float32, 64, 4), (bfloat16, float32, 63, 1)],
)  # fmt: skip
def test_a_thread_writes_16_bytes_and_reads_at_most_64_of_an_operand(read, written, columns, pack):
    binder = Binder()
    binder.begin(0)
    x, y = Buffer((columns,), read), Buffer((columns,), written)
    bind_pointwise(binder, {"Out": y}, {"X": x}, {"Out": "X"})
    (call,) = binder.calls
    assert int(call.args[2]) * pack == x.size and f", {pack}> r_Out;" in call.source


def test_tiles_fit_into_shared_memory_and_lines_of_a_column_lie_in_different_banks():
    for aligned in (True, False):
        for word, (across, down) in movement.TILES.items():
            pack = movement.PACK_BYTES // word
            if pack == 1 and not aligned:
                continue  # a word of 16 bytes lies on a boundary
            assert movement.tile_bytes(word, aligned) <= 40 * 1024
            lines = across // pack + (not aligned)
            rows = down + (0 if aligned else movement.SECTOR_BYTES // word)
            places = [y * lines + y // pack for y in range(rows)]
            assert max(places) + lines <= movement.tile_bytes(word, aligned) // movement.PACK_BYTES
            for first in range(rows - 8 * pack + 1):  # eight lines that a warp reads at once
                assert {p % 8 for p in places[first : first + 8 * pack : pack]} == set(range(8))


@pytest.mark.parametrize("word", movement.ODD_TILES)
@pytest.mark.parametrize("pitch", [33, 1033, 2**31 - 1])
def test_tiles_of_odd_rows_keep_the_place_in_128_bytes_and_read_from_different_banks(word, pitch):
    pack, (across, down) = movement.PACK_BYTES // word, movement.ODD_TILES[word]
    rows, lines = down + movement.SECTOR_BYTES // word, across // pack + 8
    assert 3 * movement.tile_bytes(word, False, True) <= 163 * 1024  # of a multiprocessor, where there is least
    for skew in range(8 * pack):
        firsts = [(skew + y * pitch) // pack % 8 for y in range(rows)]  # lines of 128 bytes before each row's first one
        places = [y * lines + first for y, first in enumerate(firsts)]
        assert max(places) + across // pack < movement.tile_bytes(word, False, True) // movement.PACK_BYTES
        assert [p % 8 for p in places] == firsts
        for first in range(rows - 8 * pack + 1):
            assert {p % 8 for p in places[first : first + 8 * pack : pack]} == set(range(8))


@pytest.mark.parametrize("dtype", [int8, float16, float32, float64], ids=str)
@pytest.mark.parametrize("across", [33, 65, 129, 130, 1033])
def test_tiles_of_odd_rows_are_alike_and_fit_whatever_lies_before_them(across, dtype):
    (call,) = calls(
        transpose, {"X": ((2, 131, across), dtype)}, {"Out": ((2, across, 131), dtype)}, {"perm": (0, 2, 1)}
    )
    pack = movement.PACK_BYTES // dtype.itemsize
    tiles, wide = int(call.args[9]), int(call.args[11])
    assert (tiles - 1) * wide < across <= tiles * wide
    odd = across % 2 == 1 and dtype.itemsize in movement.ODD_TILES
    lines = (movement.ODD_TILES if odd else movement.TILES)[dtype.itemsize][0] // pack + 1
    assert defined(call, "ODD") == str(int(odd)) and wide + pack - 1 <= lines * pack


EMPTY = [
    (transpose, {"X": ((0, 3), float32)}, {"Out": ((3, 0), float32)}, {"perm": (1, 0)}),
    (concat, {"X": [((0, 3), float32)] * 2}, {"Out": ((0, 3), float32)}, {"axis": 0}),
    (split, {"X": ((0, 4), float32)}, {"Out": [((0, 2), float32)] * 2},
     {"axis": 1, "num": 2, "sections": None}),
    (movement.expand, {"X": ((1, 3), float32)}, {"Out": ((0, 3), float32)}, {}),
    (movement.tile, {"X": ((2,), float32)}, {"Out": ((0,), float32)}, {"repeat_times": (0,)}),
    (creation.sum, {"X": [((0,), float32)] * 20}, {"Out": ((0,), float32)}, {}),
    (creation.fill_constant, {}, {"Out": ((0, 2), float32)}, {"value": 1.0}),
    (creation.assign_value, {}, {"Out": ((0, 3), float32)}, {"values": ()}),
    (creation.arange, {}, {"Out": ((0,), int64)}, {"start": 0, "step": 1}),
    (index.gather, {"X": ((2, 3), float32), "Index": ((0,), int64)}, {"Out": ((0, 3), float32)}, {"axis": 0}),
    (index.one_hot, {"X": ((0,), int64)}, {"Out": ((0, 4), float32)}, {"depth": 4}),
    (index.tril_triu, {"X": ((0, 3), float32)}, {"Out": ((0, 3), float32)}, {"diagonal": 0, "lower": True}),
    (random.uniform_random, {}, {"Out": ((0, 2), float32)}, {"min": 0.0, "max": 1.0, "seed": 0}),
    (random.dropout, {"X": ((0, 3), float32)}, {"Out": ((0, 3), float32), "Mask": ((0, 3), np.dtype("uint8"))},
     {"p": 0.5, "mode": "upscale_in_train", "is_test": False, "seed": 0}),
    (update.sgd, {"Param": ((0,), float32), "Grad": ((0,), float32), "LearningRate": ((1,), float32)},
     {"ParamOut": ((0,), float32)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("bind", "ins", "outs", "attrs"), EMPTY, ids=lambda x: getattr(x, "__name__", ""))
def test_nothing_is_launched_for_an_empty_output(bind, ins, outs, attrs):
    assert calls(bind, ins, outs, attrs) == []


def test_positions_that_pick_nothing_are_looked_at():
    gathered = index.gather, {"X": ((2, 0), float32), "Index": ((3,), int64)}, {"Out": ((3, 0), float32)}, {"axis": 0}
    added = (index.embedding_grad, {"Ids": ((3,), int64), "Out_grad": ((3, 0), float32)},
             {"W_grad": ((5, 0), float32)}, {"padding_idx": None})  # fmt: skip
    assert [[call.function for call in calls(*one)] for one in (gathered, added)] == [["look_at"], ["look_at"]]


def test_an_empty_sum_is_defined():
    ids, grad = ((0,), int64), ((0, 4), float32)
    (call,) = calls(index.embedding_grad, {"Ids": ids, "Out_grad": grad}, {"W_grad": ((5, 4), float32)},
                    {"padding_idx": None})  # fmt: skip
    assert isinstance(call, Fill) and call.value == 0
    (call,) = calls(optimizer.squared_l2_norm, {"X": ((0, 4), float32)}, {"Out": ((), float32)})
    assert (call.function, call.args[1]) == ("total", 0)


@pytest.mark.parametrize(
    ("classes", "dtype", "trains", "expected"),
    [(50304, bfloat16, True, (512, 2, True)), (50304, bfloat16, False, (1024, 1, False)),
     (128256, bfloat16, True, (1024, 1, False)), (50304, float32, True, (1024, 1, True)),
     (25000, float32, True, (512, 2, True)), (13000, float64, True, (256, 2, True))],
)  # fmt: skip
def test_a_multiprocessor_works_on_two_rows_of_scores_where_it_can_keep_both(classes, dtype, trains, expected):
    """(threads, blocks on a multiprocessor, whether a row is kept as a whole)"""
    ins = {"X": ((300, 64), dtype), "W": ((64, classes), dtype), "Label": ((300,), int64)}
    outs = {"Loss": ((300,), dtype)} | ({"DX": ((300, 64), dtype)} if trains else {})
    attrs = OPS["fused_linear_cross_entropy"].bind_attrs({})
    found = calls(OPS["fused_linear_cross_entropy"].gpu_bind, ins, outs, attrs)
    call = next(c for c in found if isinstance(c, Launch) and c.function == "loss_and_gradient")
    whole = call.shared == classes * np.dtype(dtype).itemsize
    assert (call.block[0], int(defined(call, "BLOCKS")), whole) == expected
    assert expected[1] * (call.shared + 2048) <= Device().shared


def test_whole_buffers_are_copied_as_they_are():
    (call,) = calls(concat, {"X": [((2, 3), float32)]}, {"Out": ((2, 3), float32)}, {"axis": 1})
    assert isinstance(call, Copy)
    n = movement.SMALL_PART // 4 + 4
    first, second = calls(concat, {"X": [((n,), float32)] * 2}, {"Out": ((2 * n,), float32)}, {"axis": 0})
    assert isinstance(first, Copy) and isinstance(second, Copy)
    assert (first.destination.offset, second.destination.offset) == (0, 4 * n)


def test_small_parts_are_one_launch():
    (call,) = calls(concat, {"X": [((2, 3), float32)] * 2}, {"Out": ((4, 3), float32)}, {"axis": 0})
    assert (call.function, call.grid) == ("parts", (2, 1, 1))
    many = calls(concat, {"X": [((2, 3), float32)] * 70}, {"Out": ((2, 210), float32)}, {"axis": 1})
    assert [call.grid for call in many] == [(movement.PARTS, 1, 1), (6, 1, 1)]
    assert [defined(call, "WIDTH") for call in many] == ["64", "8"]


def test_parts_with_words_of_one_width_are_one_launch():
    """Rows of other lengths and numbers are no reason for two; wide words must not become narrow ones."""
    binder = Binder()
    binder.begin(0)
    shapes = ((768, 768), (768,), (3, 8), (768, 767))
    wide = Buffer((768, 2304), bfloat16)
    shown = [wide.spread(shape, (2304, 1)[-len(shape) :], 768) for shape in shapes]
    movement.bring_all(binder, [(Buffer(shape, bfloat16), there) for shape, there in zip(shapes, shown, strict=True)])
    assert [(defined(call, "W"), call.grid) for call in binder.calls] == [
        ("Pack<u64, 2>", (768 * 96 // 512 + 2, 1, 1)), ("unsigned short", (768 * 767 // 512 + 1, 1, 1)),
    ]  # fmt: skip


def test_a_view_of_the_same_memory_is_not_copied():
    x = Buffer((4, 6), float32)
    for out, copies in ((x.view((3, 8)), 0), (Buffer((3, 8), float32), 1)):
        binder = Binder()
        binder.begin(0)
        reshape(binder, {"X": x}, {"Out": out}, {})
        assert len(binder.calls) == copies
    a, b = Buffer((4,), float32, ptr=512), Buffer((2,), float32, ptr=512).view((2,))
    assert movement.place(a) == movement.place(b)


@pytest.mark.parametrize(
    ("n", "size", "passes"),
    [(1, 1, 1), (1000, 255, 1), (1000, 256, 2), (8192, 50257, 2), (10**6, 2**16 - 1, 2), (10**6, 10**6, 3)],
)
def test_radix_passes_cover_all_keys_and_their_sentinel(n, size, passes, monkeypatch):
    monkeypatch.setattr(bin_rows, "MOST", 0)
    recorded = calls(
        index.embedding_grad, {"Ids": ((n,), int64), "Out_grad": ((n, 64), bfloat16)},
        {"W_grad": ((size, 64), bfloat16)}, {"padding_idx": None},
    )  # fmt: skip
    launches = [c for c in recorded if isinstance(c, Launch)]
    (counted,) = (c for c in launches if c.function == "radix_count")
    placed = [c for c in launches if c.function == "radix_place"]
    assert [int(c.args[-3]) for c in placed] == list(range(0, 8 * passes, 8))
    assert [int(c.args[-2]) for c in placed] == [0] * (passes - 1) + [1]
    assert size < 256**passes and int(counted.args[9]) == passes
    per_block, blocks = 1 << int(counted.args[8]), counted.grid[0]
    assert {(1 << int(c.args[-4]), int(c.args[-1])) for c in placed} == {(per_block, blocks)}
    assert per_block % add_rows.SORTERS == 0 and blocks * per_block >= n > (blocks - 1) * per_block
    zeros = [c.grid[0] - blocks for c in placed]  # blocks that write them, once it is known where
    assert zeros[:-1] == [0] * (passes - 1) and (zeros[-1] > 0) == (passes > 1)
    assert any(isinstance(c, Fill) for c in recorded) == (passes == 1)
    assert blocks <= add_rows.SORT_BLOCKS


@pytest.mark.parametrize(
    ("n", "size", "width", "dtype", "bins"),
    [
        (65536, 50304, 1024, bfloat16, True), (1, 1, 256, bfloat16, True), (2**17, 2**17, 64, float64, True),
        (2**17 + 1, 2**18, 1024, float32, False), (64, 64, 1023, float32, False), (64, 64, 124, float32, False),
        (65536, 1000, 1024, float32, False), (2**17, 2**20 + 1, 256, bfloat16, False),
    ],
)  # fmt: skip
def test_bins_serve_few_items_and_rows_of_whole_packs(n, size, width, dtype, bins):
    recorded = calls(
        index.embedding_grad, {"Ids": ((n,), int64), "Out_grad": ((n, width), dtype)},
        {"W_grad": ((size, width), dtype)}, {"padding_idx": None},
    )  # fmt: skip
    names = [c.function for c in recorded if isinstance(c, Launch)]
    assert (names == ["put_into_bins", "bin_sums"]) == bins and ("radix_count" in names) != bins


@given(st.integers(1, 2**17), st.lists(st.integers(1, 3000), max_size=50))
def test_tables_of_crowded_keys_hold_whatever_the_ids(n, counts):
    """At most n items in keys of the given counts; the rest is the worst for a table."""
    ins, outs = {"Ids": ((n,), int64), "Out_grad": ((n, 128), float32)}, {"W_grad": ((n, 128), float32)}
    sums = calls(index.embedding_grad, ins, outs, {"padding_idx": None})[-1]
    names, before, units, parts = (sums.args[i].shape for i in (4, 6, 9, 11))
    for rest in (bin_rows.BIN + 1, bin_rows.CHUNK + 1):
        kept = [c for i, c in enumerate(counts) if c > bin_rows.BIN and sum(counts[: i + 1]) <= n]
        kept += [rest] * ((n - sum(kept)) // rest)
        cut = [-(-c // bin_rows.CHUNK) for c in kept]
        assert len(kept) <= names[0] == before[0] and before[1] * bin_rows.TILE >= n
        assert sum(cut) <= units[0] and sum(c for c in cut if c > 1) <= parts[0]


@pytest.mark.parametrize(
    ("bind", "ins", "outs", "attrs"),
    [
        (transpose, {"X": ((65537, 32832), int8)}, {"Out": ((32832, 65537), int8)}, {"perm": (1, 0)}),
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


def test_the_launches_of_updates_and_norms_do_not_depend_on_the_device():
    def grids(multiprocessors, bind, ins, outs):
        binder = Binder(Device("sm_80", multiprocessors))
        binder.begin(0)
        bind(binder, ins, outs, {})
        return [c.grid[0] for c in binder.calls]

    x, scalar = Buffer((2**26,), float32), Buffer((), float32)
    ins = {"Param": x, "Grad": x, "LearningRate": scalar}
    for multiprocessors in (10, 132):
        assert grids(multiprocessors, update.sgd, ins, {"ParamOut": x}) == [2**26 // update.CHUNK]
        blocks = 2**26 // optimizer.NORM_CHUNK
        assert grids(multiprocessors, optimizer.squared_l2_norm, {"X": x}, {"Out": scalar}) == [blocks, 1]


# variants that no sample reaches

VARIANTS = [
    *((transpose, {"X": (shape, dtype)}, {"Out": (shape[::-1], dtype)}, {"perm": (1, 0)})
      for dtype in (float64, float32, float16, int8) for shape in ((512, 1024), (511, 1023))),
    (transpose, {"X": ((2, 40, 3, 40, 3, 40), float32)}, {"Out": ((40, 3, 40, 3, 40, 2), float32)},
     {"perm": (5, 4, 3, 2, 1, 0)}),
    (transpose, {"X": ((64, 64, 8), float16)}, {"Out": ((64, 64, 8), float16)}, {"perm": (1, 0, 2)}),
    (transpose, {"X": ((2**22, 8, 99), float32)}, {"Out": ((8, 2**22, 99), float32)}, {"perm": (1, 0, 2)}),
    (transpose, {"X": ((3,) * 8, float32)}, {"Out": ((3,) * 8, float32)}, {"perm": (7, 6, 5, 4, 3, 2, 1, 0)}),
    *((index.embedding_grad, {"Ids": ((8192,), int64), "Out_grad": ((8192, width), dtype)},
       {"W_grad": ((50257, width), dtype)}, {"padding_idx": None})
      for dtype in (float64, float32, float16, bfloat16) for width in (3, 64, 1023, 1024, 4096)),
    *((index.embedding, {"Ids": ((64,), dtype), "W": ((99, width), float32)}, {"Out": ((64, width), float32)},
       {"padding_idx": 1}) for dtype in (int64, int32, int8) for width in (1023, 4096)),
    *((index.tril_triu, {"X": ((HUGE // 64, 64), dtype)}, {"Out": ((HUGE // 64, 64), dtype)},
       {"diagonal": 0, "lower": lower}) for dtype in (float64, float16, bool_) for lower in (True, False)),
    *((bind, {}, {"Out": ((4096,), dtype)}, {"min": 0.0, "max": 1.0, "mean": 0.0, "std": 1.0, "seed": 0})
      for dtype in (float64, float32, float16, bfloat16) for bind in (
          random.uniform_random, random.gaussian_random, random.truncated_gaussian_random)),
    *((random.dropout, {"X": ((4096,), dtype)}, {"Out": ((4096,), dtype), "Mask": ((4096,), np.dtype("uint8"))},
       {"p": 0.5, "mode": "upscale_in_train", "is_test": False, "seed": 0})
      for dtype in (float64, float32, float16, bfloat16)),
    *((update.sgd, {"Param": (shape, dtype), "Grad": (shape, dtype), "LearningRate": ((1,), rate)},
       {"ParamOut": (shape, dtype)}, {})  # with the other updates, which are compiled together
      for dtype in (float64, float32, float16, bfloat16) for rate in (float32, float64)
      for shape in ((4096,), (4099,))),
    *((optimizer.squared_l2_norm, {"X": ((4096,), dtype)}, {"Out": ((), float32)}, {})
      for dtype in (float64, float32, float16, bfloat16)),
    *((norm.layer_norm_grad,
       {"X": ((99, n), dtype), "Y_grad": ((99, n), dtype), "Scale": ((n,), dtype), "Mean": ((99,), float32),
        "Variance": ((99,), float32)},
       {"X_grad": ((99, n), dtype), "Scale_grad": ((n,), dtype), "Bias_grad": ((n,), dtype)},
       {"begin_norm_axis": 1, "epsilon": 1e-5})
      for dtype in (float32, float16, bfloat16) for n in (512, 1024, 4096, 8192)),
    (creation.assign_value, {}, {"Out": ((64,), bfloat16)}, {"values": (1.0,) * 64}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "arch"), checkered(VARIANTS, ["sm_80", "sm_90a"]), ids=lambda x: getattr(x[0], "__name__", x)
)
def test_kernels_compile_without_spills(variant, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    for source in {call.source for call in calls(*variant) if isinstance(call, Launch)}:
        cubin = compile_source(source, arch)
        assert cubin.spilled_bytes == 0
        assert not re.search(r"[1-9]\d* bytes stack frame", cubin.log)
