"""The tensor-core kernels of attention without a GPU: which calls they take, windows, tensor maps, launches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from minigraph.kernels.cuda import attention, attention_hopper
from minigraph.kernels.cuda.binder import Binder, Device
from minigraph.kernels.cuda.buffer import Buffer
from minigraph.kernels.cuda.hopper import TensorMap
from minigraph.ops.attention import memory_efficient_attention, seen_positions
from minigraph.types import as_dtype

ATTRS = memory_efficient_attention.bind_attrs({})
BF16 = as_dtype("bfloat16")


def slots(queries=100, keys=77, heads=4, groups=2, width=64, dtype=BF16, layout="bshd", value_width=None):
    def buffer(size, count, width):
        return Buffer((2, size, count, width) if layout == "bshd" else (2, count, size, width), dtype)

    k = buffer(keys, heads // groups, width)
    return {"Q": buffer(queries, heads, width), "K": k, "V": buffer(keys, heads // groups, value_width or width)}


def test_plain_calls_are_taken():
    for dtype, width, layout in itertools.product(("float16", "bfloat16"), (8, 64, 72, 128), ("bshd", "bhsd")):
        ins = slots(width=width, dtype=as_dtype(dtype), layout=layout)
        attrs = {**ATTRS, "layout": layout, "causal": True, "window": (5, 0)}
        assert attention_hopper.reasons(ins, attrs, "sm_90a") == []


@pytest.mark.parametrize(
    ("changes", "attrs", "arch", "reason"),
    [
        ({}, {}, "sm_80", "sm_90"),
        ({"dtype": np.dtype("float32")}, {}, "sm_90a", "16-bit"),
        ({"width": 136}, {}, "sm_90a", "head dimensions 136"),
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
    (why,) = attention_hopper.reasons(ins, attrs, arch)
    assert reason in why
    binder = Binder(Device(arch))
    binder.begin(0)
    assert attention.chosen(binder, ins, attrs).name != "wgmma"
    assert f"not by wgmma: {why}" in binder.notes[-1][1]


@pytest.mark.parametrize("slot", ["Bias", "Mask", "CuSeqlensQ", "CuSeqlensK"])
def test_modifiers_are_refused(slot):
    (why,) = attention_hopper.reasons({**slots(), slot: Buffer((3,), np.dtype("int64"))}, ATTRS, "sm_90a")
    assert slot in why


@pytest.mark.parametrize("sizes", [(7, 7), (5, 9), (9, 5), (1, 4)])
@pytest.mark.parametrize("window", [None, (0, 0), (2, 1), (0, 3), (20, 20)])
@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_is_what_the_operator_says(sizes, window, bottom_right, causal):
    ins = slots(*sizes)
    attrs = {**ATTRS, "window": window, "bottom_right": bottom_right, "causal": causal}
    low, high = attention_hopper.window_of(attrs, attention_hopper.shape_of(ins["Q"], ins["K"], attrs))
    i, j = np.arange(sizes[0])[:, None], np.arange(sizes[1])[None, :]
    expected = seen_positions(*sizes, causal, bottom_right, window, None, None)
    np.testing.assert_array_equal((j >= i + low) & (j <= i + high), expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_a_tensor_map_addresses_the_elements_of_an_array(layout):
    """Axes are (element, row, head, batch): an index times its stride finds the element."""
    ins = slots(queries=5, heads=3, groups=1, width=8, layout=layout)
    q = ins["Q"]
    made = attention_hopper._map(q, layout, 128)
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


@pytest.mark.parametrize("width", [64, 128])
def test_unwanted_gradients_are_not_computed(width):
    ins = slots(width=width)
    whole = {**ins, "Out": Buffer(ins["Q"].shape, BF16), "Out_grad": Buffer(ins["Q"].shape, BF16),
             "LogSumExp": Buffer((2, 4, 100), np.dtype("float32"))}  # fmt: skip
    for wanted in ({"Q"}, {"K"}, {"V"}, {"Q", "K", "V"}):
        binder = Binder(Device())
        binder.begin(0)
        outs = {f"{s}_grad": Buffer(ins[s].shape, BF16) if s in wanted else None for s in "QKV"}
        attention_hopper.backward(binder, whole, outs, ATTRS)
        functions = [call.function for call in binder.calls]
        assert functions[0] == "attention_prepare"
        assert ("attention_backward_query" in functions) == ("Q" in wanted)
        assert ("attention_backward_key" in functions) == bool(wanted & {"K", "V"})
        for call in binder.calls:
            call.check()
            assert call.shared <= Device().shared
