"""The tensor-core kernels of attention without a GPU: which calls they take, windows, tensor maps, launches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from minigraph.kernels.cuda.attention import attention
from minigraph.kernels.cuda.attention.hopper import kernel
from minigraph.kernels.cuda.record.binder import Binder, Device, i32
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap
from minigraph.ops.attention.attention import memory_efficient_attention, seen_positions
from minigraph.types import as_dtype
from tests.kernels.test_cuda_compile import require_clean
from tests.support import cuda_host

ROWS = kernel.ROWS
ATTRS = memory_efficient_attention.bind_attrs({})
BF16 = as_dtype("bfloat16")


def slots(queries=100, keys=77, heads=4, groups=2, width=64, dtype=BF16, layout="bshd", value_width=None):
    def buffer(size, count, width):
        return Buffer((2, size, count, width) if layout == "bshd" else (2, count, size, width), dtype)

    k = buffer(keys, heads // groups, width)
    return {"Q": buffer(queries, heads, width), "K": k, "V": buffer(keys, heads // groups, value_width or width)}


def test_plain_calls_are_taken():
    widths = 8, 64, 72, 128, 200, 256
    for dtype, width, layout in itertools.product(("float16", "bfloat16"), widths, ("bshd", "bhsd")):
        ins = slots(width=width, dtype=as_dtype(dtype), layout=layout)
        attrs = {**ATTRS, "layout": layout, "causal": True, "window": (5, 0)}
        assert kernel.reasons(ins, attrs, "sm_90a") == []


@pytest.mark.parametrize(
    ("changes", "attrs", "arch", "reason"),
    [
        ({}, {}, "sm_80", "sm_90"),
        ({"dtype": np.dtype("float32")}, {}, "sm_90a", "16-bit"),
        ({"width": 264}, {}, "sm_90a", "head dimensions 264"),
        ({"width": 60}, {}, "sm_90a", "head dimensions 60"),
        ({"value_width": 32}, {}, "sm_90a", "64 and 32"),
        ({}, {"dropout": 0.1}, "sm_90a", "dropped"),
        ({}, {"scale": -1.0}, "sm_90a", "not positive"),
        ({}, {"scale": 0.0}, "sm_90a", "not positive"),
        ({"queries": 0}, {}, "sm_90a", "size is 0"),
        ({"keys": 0}, {}, "sm_90a", "size is 0"),
    ],
)  # fmt: skip
def test_other_calls_are_refused_and_go_to_other_kernels(changes, attrs, arch, reason):
    ins, attrs = slots(**changes), {**ATTRS, **attrs}
    (why,) = kernel.reasons(ins, attrs, arch)
    assert reason in why
    binder = Binder(Device(arch))
    binder.begin(0)
    assert attention.chosen(binder, ins, attrs).name != "wgmma"
    assert f"not by wgmma: {why}" in binder.notes[-1][1]


@pytest.mark.parametrize("slot", ["Bias", "Mask", "CuSeqlensQ", "CuSeqlensK"])
def test_modifiers_are_refused(slot):
    (why,) = kernel.reasons({**slots(), slot: Buffer((3,), np.dtype("int64"))}, ATTRS, "sm_90a")
    assert slot in why


@pytest.mark.parametrize("sizes", [(7, 7), (5, 9), (9, 5), (1, 4)])
@pytest.mark.parametrize("window", [None, (0, 0), (2, 1), (0, 3), (20, 20)])
@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_is_what_the_operator_says(sizes, window, bottom_right, causal):
    ins = slots(*sizes)
    attrs = {**ATTRS, "window": window, "bottom_right": bottom_right, "causal": causal}
    low, high = kernel.window_of(attrs, kernel.shape_of(ins["Q"], ins["K"], attrs))
    i, j = np.arange(sizes[0])[:, None], np.arange(sizes[1])[None, :]
    expected = seen_positions(*sizes, causal, bottom_right, window, None, None, None, None)
    np.testing.assert_array_equal((j >= i + low) & (j <= i + high), expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_tensor_map_addresses_the_elements_of_an_array(layout):
    """Axes are (element, row, head, batch): an index times its stride finds the element."""
    ins = slots(queries=5, heads=3, groups=1, width=8, layout=layout)
    q = ins["Q"]
    made = kernel._map(q, layout, 128)
    array = np.arange(math.prod(q.shape)).reshape(q.shape)
    width, rows, heads, batches = made.sizes
    row, head, batch = made.strides
    for b, h, s, d in itertools.product(range(batches), range(heads), range(rows), range(width)):
        place = (b, s, h, d) if layout == "bshd" else (b, h, s, d)
        assert array[place] == b * batch + h * head + s * row + d


def test_a_tensor_map_is_an_argument_of_128_bytes():
    made = TensorMap(Buffer((2, 4, 2, 8), BF16), (8, 4, 2, 2), (16, 8, 64), 64)
    assert made.nbytes == 128
    assert made.buffers == [made.buffer]
    with pytest.raises(AssertionError):
        TensorMap(Buffer((2, 4, 2, 9), BF16), (9, 4, 2, 2), (18, 9, 72), 64)  # rows must be multiples of 16 bytes


@pytest.mark.parametrize(
    ("queries", "width", "attrs", "pair"),
    [(256, 128, {}, 2), (200, 104, {}, 2), (257, 128, {}, 1), (100, 128, {}, 1), (256, 128, {"causal": True}, 1),
     (256, 128, {"window": (9, 9)}, 1), (384, 64, {}, 1), (256, 256, {}, 1)],
)  # fmt: skip
def test_blocks_are_pairs_where_tiles_of_wide_heads_see_the_same_keys(queries, width, attrs, pair):
    binder = Binder(Device())
    binder.begin(0)
    ins = slots(queries=queries, keys=3000, width=width)
    kernel.forward(binder, ins, {"Out": ins["Q"]}, {**ATTRS, **attrs})
    (call,) = binder.calls
    assert f"#define PAIR {pair}\n" in call.source
    assert call.grid[0] % pair == 0 and call.grid[0] <= Device().multiprocessors
    order = binder.tables[-1].arrays[0]
    assert order.shape[1] * pair == call.grid[0]
    tiles = -(-queries // (pair * (192 if width == 64 else 128)))
    assert set(order[..., 0].ravel().tolist()) == set(range(-1, 2 * 4 * tiles))


def test_queries_that_see_nothing_read_a_tile_behind_the_last_key():
    """It holds zeros, and NaN in a value that nobody sees must not count."""
    binder = Binder(Device())
    binder.begin(0)
    ins = slots(queries=1000, keys=100, width=64)
    kernel.forward(binder, ins, {"Out": ins["Q"]}, {**ATTRS, "window": (0, 0)})
    order = binder.tables[-1].arrays[0].reshape(-1, 4)
    spans = {(b, e) for t, b, e, _ in order.tolist() if t >= 0}
    assert spans == {(0, 1), (1, 2)}  # 128 keys are a tile
    nothing = {t % 6 for t, b, _, _ in order.tolist() if t >= 0 and b == 1}
    assert nothing == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("width", [192, 256])
def test_wide_heads_have_a_kernel_for_each_gradient_that_is_wanted(width):
    ins = slots(width=width)
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 4, 100), np.dtype("float32"))}
    for wanted in ({"Q"}, {"K"}, {"V"}, {"Q", "K", "V"}):
        binder = Binder(Device())
        binder.begin(0)
        outs = {f"{s}_grad": ins[s] if s in wanted else None for s in "QKV"}
        kernel.backward(binder, whole, outs, ATTRS)
        kernels = ["attention_wide_prepare", *["attention_wide_backward"] * len(wanted)]
        assert [call.function for call in binder.calls] == kernels
        assert all(call.shared <= Device().shared for call in binder.calls)


@pytest.mark.parametrize("width", [64, 128])
def test_unwanted_gradients_are_not_computed(width):
    ins = slots(width=width)
    whole = {**ins, "Out": Buffer(ins["Q"].shape, BF16), "Out_grad": Buffer(ins["Q"].shape, BF16),
             "LogSumExp": Buffer((2, 4, 100), np.dtype("float32"))}  # fmt: skip
    for wanted in ({"Q"}, {"K"}, {"V"}, {"Q", "K", "V"}):
        binder = Binder(Device())
        binder.begin(0)
        outs = {f"{s}_grad": Buffer(ins[s].shape, BF16) if s in wanted else None for s in "QKV"}
        kernel.backward(binder, whole, outs, ATTRS)
        functions = [call.function for call in binder.calls]
        assert functions == ["attention_prepare", "attention_backward", "attention_finish"][: 3 if "Q" in wanted else 2]
        assert all(call.shared <= Device().shared for call in binder.calls)


def test_blocks_go_round_where_all_of_them_run_at_once():
    assert kernel.goes_around(4, 32, 32, 132)
    assert kernel.goes_around(1, 64, 128, 132)
    for lines, blocks, tiles in ((64, 8, 8), (5, 32, 32), (1, 67, 67), (4, 1, 8), (4, 8, 7)):
        assert not kernel.goes_around(lines, blocks, tiles, 132)
    for attrs, around in (({}, 1), ({"causal": True}, 0), ({"window": (900, 900)}, 0)):
        ins = slots(queries=1000, keys=1000, heads=2)
        whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 2, 1000), np.dtype("float32"))}
        binder = Binder(Device())
        binder.begin(0)
        kernel.backward(binder, whole, {f"{s}_grad": ins[s] for s in "QKV"}, {**ATTRS, **attrs})
        assert f"#define AROUND {around}" in binder.calls[1].source
        assert [call.together for call in binder.calls] == [False, bool(around), False]


def test_heads_together_fill_the_device_and_their_tiles_lie_in_the_cache():
    together = [kernel.lines_together(tiles, 1, 132) for tiles in (4, 8, 16, 32, 64, 128, 256, 2048)]
    assert together == [132, 66, 33, 16, 8, 5, 3, 1]
    assert kernel.lines_together(8, 8, 132) == 8


def test_forward_takes_small_tiles_where_large_ones_end_half_empty():
    """Of 192 rows: 256, 512 and 1024 rows end within one; measured for causal, and for 256 without a band."""

    def tiles(size, banded, width=64):
        return kernel.forward_tiles(kernel.Shape(2, 4, 1, size, size, width), banded)

    assert [tiles(size, True)[0] for size in (256, 512, 1024, 1536, 2048, 4096)] == [2, 2, 2, 3, 3, 3]
    assert [tiles(size, False)[0] for size in (256, 512, 1024, 1536, 2048, 4096)] == [2, 3, 3, 3, 3, 3]
    assert tiles(100, True) == (3, 128) and tiles(1024, True, 256) == (2, 80)


def test_backwards_blocks_stay_where_registers_allow():
    """One for each multiprocessor, or for each 128 keys where these are fewer, heads are wide, or blocks go round."""
    for size, width, grid, stays in ((1024, 64, 132, 1), (1024, 128, 8 * 32, 0), (128, 64, 32, 1), (300, 64, 24, 0)):
        batch = 2 if size == 300 else 8
        ins = {s: Buffer((batch, size, 4, width), BF16) for s in ("Q", "K", "V", "Out", "Out_grad")}
        ins["LogSumExp"] = Buffer((batch, 4, size), np.dtype("float32"))
        binder = Binder(Device())
        binder.begin(0)
        kernel.backward(binder, ins, {f"{s}_grad": ins[s] for s in "QKV"}, ATTRS)
        assert f"#define STAYS {stays}\n" in binder.calls[1].source
        assert binder.calls[1].grid[0] == grid


def backward_scratch(queries, width, groups=1):
    ins = slots(queries, queries, heads=4, groups=groups, width=width)
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 4, queries), np.dtype("float32"))}
    binder = Binder(Device())
    binder.begin(0)
    kernel.backward(binder, whole, {f"{s}_grad": ins[s] for s in "QKV"}, ATTRS)
    return sum(b.nbytes for b in binder.scratches[-1])


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_kernels_compile_without_spills(width, dtype):
    ins = slots(width=width, dtype=as_dtype(dtype))
    sums = Buffer((2, 4, 100), np.dtype("float32"))
    binder = Binder(Device())
    binder.begin(0)
    for causal in (False, True):  # tiles of other sizes
        kernel.forward(binder, ins, {"Out": ins["Q"], "LogSumExp": sums}, {**ATTRS, "causal": causal})
        for size in (256, 4096):  # blocks in pairs; tiles of other sizes
            long = slots(queries=size, keys=size, width=width, dtype=as_dtype(dtype))
            kernel.forward(binder, long, {"Out": long["Q"]}, {**ATTRS, "causal": causal})
    assert any("#define PAIR 2" in call.source for call in binder.calls) == (width == 128)
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": sums}
    kernel.backward(binder, whole, {f"{s}_grad": ins[s] for s in "QKV"}, ATTRS)
    ins = slots(queries=300, keys=300, width=width, dtype=as_dtype(dtype))  # few blocks, which go round
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 4, 300), np.dtype("float32"))}
    kernel.backward(binder, whole, {f"{s}_grad": ins[s] for s in "QKV"}, ATTRS)
    assert any("#define AROUND 1" in call.source for call in binder.calls) == (width <= 128)
    for call in binder.calls:
        require_clean(call, "memory_efficient_attention", "sm_90a")


@pytest.mark.parametrize("width", [64, 128])
def test_backward_keeps_one_float32_copy_of_the_gradient_of_q(width):
    for queries in (4096, 65536):
        numbers = 8 * 2 * 4 * queries  # log-sum-exp and sum(dOut * Out)
        assert backward_scratch(queries, width) <= (4 * 2 * 4 * queries * width + numbers) * 1.001


WALKS = """
extern "C" __global__ void walks(int* to, int tiles, int lines, int together, int queries, int keys, int key_heads,
                                 int low, int high) {
    const Walk walk(blockIdx.x, lines, together, queries, keys, key_heads, low, high);
    int* own = to + blockIdx.x * (3 + tiles);
    own[0] = walk.block, own[1] = walk.batch * key_heads + walk.key_head, own[2] = walk.start;
    for (int i = 0; i < tiles; i++) own[3 + i] = i < walk.begin || i >= walk.end ? -1 : walk.before(i);
}
"""


def walks(step, lines, together, queries, keys, key_heads, low, high, around=0):
    """For each ticket: block; line (batch and head of K); the first tile of queries; how many add to each before."""
    tiles, blocks = -(-queries // step), -(-keys // ROWS)
    binder = Binder(Device())
    binder.begin(0)
    to = Buffer((blocks * lines, 3 + tiles), np.dtype("int32"))
    head = f"#define STEP {step}\n#define AROUND {around}\nconstexpr int ROWS = {ROWS};\n"
    source = read_source("record/prelude.cuh") + head + read_source("attention/hopper/order.cuh") + WALKS
    args = map(i32, (tiles, lines, together, queries, keys, key_heads, low, high))
    binder.launch_source(source, "walks", blocks * lines, 1, to, *args)
    memory = cuda_host.Memory()
    cuda_host.run(binder, memory)
    found = memory.arrays[to]
    return found[:, 0], found[:, 1], found[:, 2], found[:, 3:]


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("seed", range(40))
def test_blocks_add_in_the_order_of_tickets_to_every_tile_that_they_see(seed):
    """So the order is the same in every run, and no block waits for one that starts after it."""
    rng = np.random.default_rng(seed)
    step, together, key_heads, batch = (int(rng.choice(x)) for x in ((64, 128), range(1, 6), (1, 2, 3), (1, 2)))
    queries, keys = (int(n) for n in rng.integers(1, 1500, 2))
    far, (a, b) = kernel.UNBOUNDED, sorted(int(n) for n in rng.integers(-1500, 1500, 2))
    low, high = ((-far, far), (-far, b), (a, b), (a, far))[seed % 4]
    block, line, _, before = walks(step, batch * key_heads, together, queries, keys, key_heads, low, high)
    every = itertools.product(range(-(-keys // ROWS)), range(batch * key_heads))
    assert sorted(zip(block.tolist(), line.tolist(), strict=True)) == sorted(every)
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    seen = (j >= i + low) & (j <= i + high)
    for own, tile in itertools.product(range(batch * key_heads), range(before.shape[1])):
        turns, blocks = before[line == own, tile], block[line == own]
        np.testing.assert_array_equal(turns[turns >= 0], np.arange((turns >= 0).sum()))
        for turn, n in zip(turns, blocks, strict=True):
            part = seen[tile * step : (tile + 1) * step, n * ROWS : (n + 1) * ROWS]
            assert turn >= 0 or not part.any(), f"block {n} leaves out tile {tile}"


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("seed", range(40))
def test_blocks_that_go_round_end_where_those_of_one_head_find_room(seed):
    """In whatever order they run, tickets one after the other: each tile gets its blocks in one order."""
    rng = np.random.default_rng(seed)
    step, lines, blocks = (int(rng.choice(x)) for x in ((64, 128), range(1, 5), range(2, 9)))
    keys = int(rng.integers(ROWS * (blocks - 1), ROWS * blocks)) + 1
    queries = int(rng.integers(step * (blocks - 1), 1500)) + 1
    far = kernel.UNBOUNDED
    block, line, start, before = walks(step, lines, 1, queries, keys, lines, -far, far, around=1)
    tiles, room = before.shape[1], int(rng.integers(blocks, 2 * blocks + 3))
    assert (before[np.arange(len(block)), start] == 0).all()  # nobody waits at first
    for own, tile in itertools.product(range(lines), range(tiles)):
        assert sorted(before[line == own, tile]) == list(range(blocks))
    added, waiting, running = np.zeros((lines, tiles), int), list(range(len(block))), {}
    while waiting or running:
        while waiting and len(running) < room:
            running[waiting.pop(0)] = 0
        places = {ticket: (line[ticket], (start[ticket] + done) % tiles) for ticket, done in running.items()}
        ready = [ticket for ticket, place in places.items() if added[place] == before[ticket, place[1]]]
        assert ready, f"{len(running)} blocks wait for each other"
        ticket = int(rng.choice(ready))
        added[places[ticket]] += 1
        running[ticket] += 1
        if running[ticket] == tiles:
            del running[ticket]
    assert (added == blocks).all()
