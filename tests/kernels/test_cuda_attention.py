"""The exact CUDA attention, run on a CPU: several tiles, split work, odd sizes, every modifier; and the registry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import AttrError, PlaceError
from minigraph.kernels.cuda.attention import attention
from minigraph.kernels.cuda.attention.exact import kernel as attention_exact
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.opdef import OPS
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.ops.attention.attention_grad import memory_efficient_attention_grad as backward
from minigraph.types import TensorType, bfloat16, float16, float32, float64
from tests.support import opcheck
from tests.support.cuda_host import COMPILER, Bound, build
from tests.support.opcheck import type_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

SLOTS = ("Q", "K", "V", "Bias", "Mask", "CuSeqlensQ", "CuSeqlensK", "Key", "Blocks")
ONE = Device(multiprocessors=1)  # nothing is split


def recorded(bind: Any, opdef: Any, inputs: dict[str, Any], attrs: dict[str, Any], device: Device) -> Bound:
    types = opdef.infer_types({s: [type_of(x)] for s, x in inputs.items() if x is not None}, attrs)
    return Bound(
        bind, {s.name: inputs.get(s.name) for s in opdef.inputs},
        {s.name: types[s.name][0] if s.name in types else None for s in opdef.outputs}, attrs, device=device,
    )  # fmt: skip


def bound(*arguments: Any) -> tuple[Any, Any]:
    """Outputs and the fault record of what `recorded` gives."""
    return recorded(*arguments).run()


def both(
    inputs: dict[str, Any], device: Device | None = None, dtype: Any = float64,
    kernel: attention.AttentionKernel = attention.KERNELS[-1], sums_read: bool = True, **attrs: Any,
) -> dict[str, Any]:  # fmt: skip
    """{slot: (found, exact)} of forward and backward; exact is the reference in float64 of the same numbers.

    sums_read   LogSumExp has a gradient, too
    """
    attrs, device = forward.bind_attrs(attrs), device or Device()
    rng = np.random.default_rng(3)
    typed = {s: x.astype(dtype) if x is not None and x.dtype == float64 else x for s, x in inputs.items()}
    wide = {s: x.astype(float) if x is not None and s in ("Q", "K", "V", "Bias") else x for s, x in typed.items()}
    with np.errstate(all="ignore"):
        out, sums = forward.reference(*(wide.get(s) for s in SLOTS), **attrs)
        d = rng.normal(size=out.shape).astype(dtype)
        statistics = float64 if dtype == float64 else float32
        sums_grad = {"LogSumExp_grad": rng.normal(size=sums.shape).astype(statistics)} if sums_read else {}
        more = {"Out": out, "LogSumExp": sums, "Out_grad": d.astype(float)}
        more |= {slot: x.astype(float) for slot, x in sums_grad.items()}
        grads = backward.reference(*(({**wide, **more}).get(s.name) for s in backward.inputs), **attrs)
    given = {**typed, "Out": out.astype(dtype), "LogSumExp": sums.astype(statistics), "Out_grad": d, **sums_grad}
    ways = (kernel.forward, forward, typed), (kernel.backward, backward, given)
    made = [recorded(*way, attrs, device) for way in ways]
    build([k for m in made for k in m.kernels])
    (found, fault), (found_grads, _) = (m.run() for m in made)
    assert not fault.any()
    exact = {"Out": out, "LogSumExp": sums, **dict(zip(backward.output_names, grads, strict=True))}
    return {s: (x, exact[s]) for s, x in {**found, **found_grads}.items() if x is not None}


def near(results: dict[str, Any], tolerance: float = 1e-11) -> None:
    for slot, (found, exact) in results.items():
        found, exact = found.astype(float), np.asarray(exact)
        largest = max(1.0, float(np.max(np.abs(exact[np.isfinite(exact)]), initial=0)))
        np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance * largest, err_msg=slot)


def qkv(rng, b=1, sq=70, sk=90, h=2, hk=1, d=4, dv=4) -> dict[str, Any]:
    shapes = {"Q": (b, sq, h, d), "K": (b, sk, hk, d), "V": (b, sk, hk, dv)}
    return {slot: rng.normal(size=shape) for slot, shape in shapes.items()}


@pytest.mark.parametrize("device", [None, ONE], ids=["split", "whole"])
@pytest.mark.parametrize(
    "attrs",
    [{}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (9, 4)},
     {"causal": True, "window": (5, 0), "bottom_right": True}, {"layout": "bhsd", "scale": -0.3}],
    ids=str,
)  # fmt: skip
def test_tiles_of_rows_and_columns(rng, device, attrs):
    inputs = qkv(rng, sq=70, sk=150)
    if attrs.get("layout") == "bhsd":
        inputs = {s: np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for s, x in inputs.items()}
    near(both(inputs, device, **attrs))


@pytest.mark.parametrize("kernel", [k for k in attention.KERNELS if k.name in ("exact", "mma")], ids=lambda k: k.name)
def test_log_sum_exp_that_nobody_reads(rng, kernel):
    near(both(qkv(rng), None, float32, kernel, sums_read=False), 2e-6)


@pytest.mark.parametrize("kernel", [k for k in attention.KERNELS if k.name in ("exact", "mma")], ids=lambda k: k.name)
@pytest.mark.parametrize("grad", [math.nan, math.inf])
def test_the_gradient_of_an_infinite_log_sum_exp_counts_nothing(rng, kernel, grad):
    """Of queries that see no key, and of those whose keys Mask hides all by a number."""
    mask = np.ones((40, 60), np.bool_)
    mask[5:9] = False
    for more, attrs in (({}, {"causal": True}), ({"Mask": mask}, {"masked_score": -1e9}), ({"Mask": mask}, {})):
        inputs = {**qkv(rng, 1, 60 if not more else 40, 40 if not more else 60), **more}
        if not more:
            attrs |= {"bottom_right": True}  # the first 20 queries see nothing
        attrs = forward.bind_attrs(attrs)
        typed = {s: x.astype(float32) if x.dtype == float64 else x for s, x in inputs.items()}
        with np.errstate(all="ignore"):
            out, sums = forward.reference(*(typed.get(s) for s in SLOTS), **attrs)
        given = {**typed, "Out": out, "LogSumExp": sums, "Out_grad": rng.normal(size=out.shape).astype(float32)}
        infinite = np.isinf(sums)
        assert infinite.any() and not infinite.all()
        results = []
        for value in (grad, 0):
            given["LogSumExp_grad"] = np.where(infinite, value, 0.5).astype(float32)
            results.append(bound(kernel.backward, backward, given, attrs, Device())[0])
        for slot, x in results[1].items():
            if x is not None:
                assert np.isfinite(x).all(), slot
                np.testing.assert_array_equal(results[0][slot], x, err_msg=slot)


@pytest.mark.parametrize(("d", "dv"), [(1, 3), (17, 5), (33, 64), (40, 130)])
def test_head_sizes(rng, d, dv):
    near(both(qkv(rng, sq=20, sk=37, d=d, dv=dv)))


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("d", [8, 72])
def test_shorter_floats(rng, dtype, d):
    unit = {float32: 2e-6, float16: 4e-3, bfloat16: 4e-2}[dtype]
    near(both(qkv(rng, sq=40, sk=70, d=d, dv=d), dtype=dtype, causal=True), unit)


@pytest.mark.parametrize("dtype", [float64, float32, bfloat16], ids=str)
def test_what_is_seen_and_dropped_as_arrays(dtype):
    """What second derivatives are written out with, beside the operator's samples."""
    opdef = OPS["attention_sight"]
    for call in opcheck.samples(opdef):
        inputs = {s: x[0].astype(dtype) if x[0].dtype == float64 else x[0] for s, x in call.inputs.items()}
        found, _ = bound(attention.attention_sight, opdef, inputs, call.attrs, Device())
        seen, kept = opdef.reference(*(inputs.get(s.name) for s in opdef.inputs), **call.attrs)
        np.testing.assert_array_equal(found["Seen"], seen)
        np.testing.assert_allclose(found["Kept"], kept, rtol=1e-7)
        assert found["Kept"].dtype == (float64 if dtype == float64 else float32)


BIASES = [(1, 2, 40, 60), (2, 2, 40, 60), (40, 60), (2, 1, 1, 60), (2, 40, 1), (1, 1, 1, 1), (2, 1, 40, 60), (60,)]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_gradients_of_biases_that_broadcast(rng, shape):
    near(both({**qkv(rng, 2, 40, 60), "Bias": rng.normal(size=shape)}, causal=True))


def test_bias_in_float32_beside_16_bits(rng):
    inputs = {**qkv(rng, 1, 20, 30), "Bias": rng.normal(size=(20, 30))}
    attrs = forward.bind_attrs({})
    typed = {s: x.astype(float32 if s == "Bias" else bfloat16) for s, x in inputs.items()}
    found, _ = bound(attention_exact.forward, forward, typed, attrs, Device())
    exact, _ = forward.reference(*(typed[s].astype(float) if s in typed else None for s in SLOTS), **attrs)
    near({"Out": (found["Out"], exact)}, 2.0**-8)


@pytest.mark.parametrize("masked_score", [-math.inf, -2.0])
def test_masks_and_dropout_over_several_tiles(rng, masked_score):
    inputs = {**qkv(rng, 2, 40, 75), "Mask": rng.random((2, 1, 40, 75)) < 0.6, "Key": np.array([11, 4, 9])}
    near(both(inputs, masked_score=masked_score, dropout=0.3))


@pytest.mark.parametrize("device", [None, ONE], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_queries_whose_keys_are_all_masked_by_a_number(rng, device, dtype):
    inputs = {**qkv(rng, 2, 40, 150), "Mask": np.broadcast_to(rng.random((40, 1)) < 0.5, (40, 150)).copy()}
    results = both(inputs, device, dtype, masked_score=-1e9, causal=True, bottom_right=True)
    near(results, 1e-11 if dtype == float64 else 2e-6)


def low(rng: np.random.Generator, sq: int, sk: int) -> dict[str, Any]:
    """Every third query has scores about -1e3, every third ones far below."""
    inputs = {**qkv(rng, 2, sq, sk), "Mask": rng.random((2, 1, sq, sk)) < 0.5, "Key": np.array([11, 4, 9])}
    width = inputs["Q"].shape[-1]
    inputs["K"][..., 0] = 1 + rng.normal(size=inputs["K"].shape[:-1]) / 1000
    inputs["Q"][:, ::3, :, 0], inputs["Q"][:, 1::3, :, 0] = -1e3 * width**0.5, -4e3 * width**0.5
    return inputs


@pytest.mark.parametrize("device", [None, ONE], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_masked_keys_that_outweigh_low_scores(rng, device, dtype, dropout):
    results = both(low(rng, 40, 150), device, dtype, masked_score=-1e3, dropout=dropout)
    near(results, 1e-10 if dtype == float64 else 1e-3)


@pytest.mark.parametrize("device", [None, ONE], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_queries_whose_masked_keys_alone_count(rng, device, dtype):
    """Bias hides those that Mask shows."""
    mask = rng.random((40, 150)) < 0.5
    bias = np.where(mask, rng.choice([-math.inf, -2e9], size=mask.shape), 0.0)
    bias[::3] = rng.normal(size=(14, 150))
    results = both({**qkv(rng, 2, 40, 150), "Mask": mask, "Bias": bias}, device, dtype, masked_score=-1e9)
    near(results, 1e-11 if dtype == float64 else 2e-6)


@pytest.mark.parametrize("device", [None, ONE], ids=["split", "whole"])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_queries_whose_keys_a_bias_hides_all(rng, device, dtype):
    """LogSumExp rounds away how many keys they are: all of it in float32, the most of it in float64."""
    bias = np.where(rng.random((2, 1, 40, 150)) < 0.5, np.finfo(np.float32).min, rng.normal(size=(2, 1, 40, 150)))
    bias[:, :, 3:9] = -1e9 if dtype == float64 else np.finfo(np.float32).min
    results = both({**qkv(rng, 2, 40, 150), "Bias": bias}, device, dtype, causal=True, bottom_right=True)
    near(results, 1e-11 if dtype == float64 else 2e-6)


@pytest.mark.parametrize("attrs", [{}, {"causal": True, "bottom_right": True}, {"window": (3, 8)}], ids=str)
@pytest.mark.parametrize("lengths", [np.int32, np.int64])
def test_packed_sequences(rng, attrs, lengths):
    inputs = qkv(rng, 1, 80, 110, 4, 2)
    inputs["CuSeqlensQ"] = np.array([0, 3, 3, 50, 77], lengths)
    inputs["CuSeqlensK"] = np.array([0, 20, 25, 25, 108], lengths)
    near(both(inputs, **attrs))


@pytest.mark.parametrize("lengths", [(0, 9, 5, 10), (1, 2, 3, 10), (0, 2, 3, 11)])
def test_cumulative_lengths_that_are_none_are_a_fault(rng, lengths):
    inputs = {**qkv(rng, 1, 10, 10), "CuSeqlensQ": np.array(lengths), "CuSeqlensK": np.array([0, 2, 3, 10])}
    _, fault = bound(attention_exact.forward, forward, inputs, forward.bind_attrs({}), Device())
    assert fault[0] == 1 and fault[1] == 3 and fault[2] in lengths


def test_hidden_values_do_not_leak(rng):
    clean = qkv(rng, 1, 40, 80)
    mask = np.arange(80) < 50
    spoiled = {s: x.copy() for s, x in clean.items()}
    spoiled["K"][:, 50:], spoiled["V"][:, 50:] = np.inf, np.nan
    for device in (None, ONE):
        right = both({**clean, "Mask": mask}, device)
        for slot, (found, _) in both({**spoiled, "Mask": mask}, device).items():
            np.testing.assert_allclose(found, right[slot][0], rtol=1e-12, atol=1e-12, err_msg=slot)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1, 1)])
def test_sizes_of_nothing_and_one(rng, sizes):
    near(both({**qkv(rng, 2, *sizes), "Bias": rng.normal(size=sizes[1])}))


# the registry


def given(dtype: Any = float32, d: int = 64) -> dict[str, Any]:
    return {slot: Buffer((2, 128, 4, d), dtype) for slot in ("Q", "K", "V")}


def test_the_last_kernel_of_the_registry_takes_every_call():
    names = [k.name for k in attention.KERNELS]
    assert len(set(names)) == len(names) and names[-1] == "exact"
    for d in (1, 31, 512):
        assert attention.KERNELS[-1].reasons(given(d=d), forward.bind_attrs({}), "sm_80") == []


def test_what_was_passed_over_is_a_remark_with_its_reason(monkeypatch):
    better = attention.AttentionKernel("better", lambda ins, attrs, arch: [f"{arch} is too old"], None, None)  # type: ignore
    monkeypatch.setattr(attention, "KERNELS", (better, attention.KERNELS[-1]))
    binder = Binder(Device("sm_80", 108))
    binder.begin(0)
    outs = {"Out": Buffer((2, 128, 4, 64), float32), "LogSumExp": None}
    attention.memory_efficient_attention(binder, given(), outs, forward.bind_attrs({}))
    assert binder.notes == [(0, "computed by exact; not by better: sm_80 is too old")]


def test_where_no_kernel_can_all_say_why():
    binder = Binder()
    binder.begin(0)
    with pytest.raises(PlaceError, match="head dimension 513 exceeds 512"):
        attention.memory_efficient_attention(binder, given(d=513), {}, forward.bind_attrs({}))


def test_memory_beside_the_results_is_two_numbers_a_row():
    """Where the blocks fill the device: delta in backward, nothing in forward."""
    t = TensorType((8, 1024, 8, 64), float32)
    binder = Binder()
    binder.begin(0)
    ins = {slot: Buffer(t.shape, t.dtype) for slot in ("Q", "K", "V", "Out", "Out_grad")}
    ins["LogSumExp"] = Buffer((8, 8, 1024), float32)
    attention_exact.forward(binder, ins, {"Out": ins["Out"], "LogSumExp": ins["LogSumExp"]}, forward.bind_attrs({}))
    assert binder.scratches == [[]]
    outs = {f"{s}_grad": Buffer(t.shape, t.dtype) for s in "QKV"}
    attention_exact.backward(binder, ins, outs, forward.bind_attrs({}))
    assert sum(b.nbytes for b in binder.scratches[0]) == 2 * 4 * 8 * 8 * 1024


@pytest.mark.parametrize("name", ["wgmma", "mma", "exact"])
def test_a_name_is_the_kernel(name):
    ins = {slot: Buffer((2, 100, 4, 64), np.dtype("float16")) for slot in "QKV"}
    binder = Binder(attention=name)
    binder.begin(0)
    assert attention.chosen(binder, ins, forward.bind_attrs({})).name == name


def test_names_of_kernels_are_those_of_the_strategy():
    for kernel in attention.KERNELS:
        assert BuildStrategy(attention_kernel=kernel.name).run_options().attention == kernel.name
    assert BuildStrategy().run_options().attention == "auto"
    for name in ("flash", "cudnn"):
        with pytest.raises(AttrError, match="wgmma, mma or exact"):
            BuildStrategy(attention_kernel=name)
