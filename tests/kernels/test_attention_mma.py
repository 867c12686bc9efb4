"""Attention by mma.sync, run on a CPU: all types and tiles, every modifier, padding; which calls it takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minigraph.kernels.cuda.attention import attention
from minigraph.kernels.cuda.attention.mma import kernel
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.ops.attention.attention_grad import memory_efficient_attention_grad as backward
from minigraph.types import as_dtype, bfloat16, float16, float32, float64
from tests.kernels.test_cuda_attention import ONE, both, bound, low, qkv
from tests.kernels.test_cuda_attention import near as exactly_near
from tests.support.cuda_host import COMPILER
from tests.support.grades import graded

KERNEL = next(k for k in attention.KERNELS if k.name == "mma")
on_host = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
DEVICES = {"clusters": Device(), "parts in memory": Device("sm_80", 108), "whole": ONE}
HEAD_SIZES = (32, 32), (64, 64), (8, 40), (33, 7), (96, 128), (128, 96)
UNIT = {float32: 2e-6, float16: 2e-3, bfloat16: 1.6e-2}  # of the largest number


def near(inputs: dict[str, Any], device: Device | None = None, dtype: Any = float32, **attrs: Any) -> dict[str, Any]:
    results = both(inputs, device, dtype, KERNEL, **attrs)
    assert_near(results, dtype)
    return results


def assert_near(results: dict[str, Any], dtype: Any) -> None:
    for slot, (found, exact) in results.items():
        largest = max(1.0, float(np.max(np.abs(exact[np.isfinite(exact)]), initial=0)))
        np.testing.assert_allclose(found.astype(float), exact, rtol=0, atol=UNIT[dtype] * largest, err_msg=slot)


@on_host
@pytest.mark.parametrize(
    ("dtype", "d", "dv"),
    graded(
        ((dtype, *sizes) for dtype in (float32, float16, bfloat16) for sizes in HEAD_SIZES),
        now=lambda dtype, d, dv: (d, dv) in {float32: ((8, 40), (33, 7), (128, 96)), float16: ((64, 64),)}.get(
            dtype, ((32, 32), (33, 7), (96, 128))),
    ),
    ids=str,
)
def test_types_and_head_sizes(rng, dtype, d, dv):
    near(qkv(rng, sq=70, sk=100, d=d, dv=dv), ONE, dtype)


@on_host
@pytest.mark.parametrize("d", [160, 192, 256])
def test_wide_heads_of_16_bits(rng, d):
    near(qkv(rng, sq=40, sk=50, d=d, dv=d), ONE, bfloat16, causal=True)


@on_host
@pytest.mark.parametrize(
    ("device", "attrs"),
    graded(
        ((device, attrs) for device in DEVICES for attrs in (
            {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (9, 4)},
            {"causal": True, "window": (5, 0), "bottom_right": True}, {"layout": "bhsd", "scale": -0.3}, {"scale": 0.0},
        )),
        now=lambda device, attrs: (device == "clusters") != ("window" in attrs),
    ),
    ids=str,
)  # fmt: skip
def test_tiles_of_rows_and_columns(rng, device, attrs):
    inputs = qkv(rng, sq=170, sk=150, h=4, hk=2)
    if attrs.get("layout") == "bhsd":
        inputs = {s: np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for s, x in inputs.items()}
    near(inputs, DEVICES[device], **attrs)


@on_host
@pytest.mark.parametrize("shape", [(1, 2, 40, 60), (2, 1, 1, 60), (2, 40, 1), (60,)], ids=str)
def test_biases_that_broadcast(rng, shape):
    near({**qkv(rng, 2, 40, 60), "Bias": rng.normal(size=shape)}, causal=True)


@on_host
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("masked_score", [-math.inf, -2.0])
def test_masks_and_dropout(rng, dtype, masked_score):
    mask = rng.random((2, 1, 40, 75)) < 0.6
    mask[:, :, 3:5] = False
    inputs = {**qkv(rng, 2, 40, 75), "Mask": mask, "Key": np.array([11, 4, 9])}
    near(inputs, dtype=dtype, masked_score=masked_score, dropout=0.3)


@on_host
@pytest.mark.parametrize("fill", [-1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_queries_whose_keys_are_all_masked_by_a_number(rng, device, fill):
    inputs = {**qkv(rng, 2, 40, 150), "Mask": np.broadcast_to(rng.random((40, 1)) < 0.5, (40, 150)).copy()}
    near(inputs, device, masked_score=fill, causal=True, bottom_right=True)


@on_host
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_masked_keys_that_outweigh_low_scores(rng, device, dropout):
    results = both(low(rng, 40, 150), device, float32, KERNEL, masked_score=-1e3, dropout=dropout)
    exactly_near(results, 1e-3)  # scores of -1e3 have four digits behind the point


@on_host
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_queries_whose_masked_keys_alone_count(rng, device):
    """Bias hides those that Mask shows."""
    mask = rng.random((40, 150)) < 0.5
    bias = np.where(mask, rng.choice([-math.inf, -2e9], size=mask.shape), 0.0)
    bias[::3] = rng.normal(size=(14, 150))
    near({**qkv(rng, 2, 40, 150), "Mask": mask, "Bias": bias}, device, masked_score=-1e9)


@on_host
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_queries_whose_keys_a_bias_hides_all(rng, device, dtype):
    """All scores of such a query are the lowest number: LogSumExp says nothing about how many they are."""
    bias = np.where(rng.random((40, 150)) < 0.5, np.finfo(np.float32).min * 0.99, rng.normal(size=(40, 150)))
    bias[3:9] = np.finfo(np.float32).min * 0.99  # in bfloat16, too
    results = both({**qkv(rng, 2, 40, 150), "Bias": bias}, device, dtype, KERNEL, causal=True, bottom_right=True)
    sums, exact = results.pop("LogSumExp")
    np.testing.assert_array_equal(sums < -2e38, exact < -2e38)  # exponents of 2 do not reach as far
    assert_near(results, dtype)


@on_host
@pytest.mark.parametrize("attrs", [{}, {"causal": True, "bottom_right": True}, {"window": (3, 8)}], ids=str)
def test_packed_sequences(rng, attrs):
    inputs = qkv(rng, 1, 80, 110, 4, 2)
    inputs["CuSeqlensQ"] = np.array([0, 3, 3, 50, 77], np.int32)
    inputs["CuSeqlensK"] = np.array([0, 20, 25, 25, 108], np.int32)
    near(inputs, **attrs)


@on_host
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_lies_behind_the_last_sequence_does_not_leak(rng, dtype):
    """Nor does what lies beside the arrays: the host's guards are no numbers either."""
    inputs = qkv(rng, 1, 80, 110, 4, 2)
    inputs["CuSeqlensQ"], inputs["CuSeqlensK"] = np.array([0, 30, 77]), np.array([0, 50, 101])
    inputs["K"][:, 101:], inputs["V"][:, 101:] = np.inf, np.nan
    typed = {s: x.astype(dtype) if x.dtype == float64 else x for s, x in inputs.items()}
    found, _ = bound(KERNEL.forward, forward, typed, forward.bind_attrs({}), ONE)
    assert np.isfinite(found["Out"].astype(float)).all()


@on_host
@pytest.mark.parametrize("size", graded([2, 3, 8], now=lambda size: size == 3))
def test_blocks_of_a_cluster_add_up(rng, monkeypatch, size):
    """Also where a block of it sees no key, where rows are no multiple of its size, and in all that changes scores."""
    whole = kernel.cut_of
    monkeypatch.setattr(kernel, "cut_of", lambda *args: whole(*args)._replace(cluster=size, splits=1))
    near(qkv(rng, sq=70, sk=150, d=32, dv=24), window=(9, 4))
    near(qkv(rng, sq=50, sk=20, d=24, dv=72))
    mask = rng.random((2, 1, 40, 75)) < 0.6
    mask[:, :, 3:5] = False
    near({**qkv(rng, 2, 40, 75), "Mask": mask, "Key": np.array([11, 4, 9])}, masked_score=-1e9, dropout=0.3)


@on_host
def test_float32_is_not_rounded_to_tf32_unless_that_is_allowed(rng):
    inputs = qkv(rng, 1, 64, 64, 1, 1, 32, 32)
    typed = {s: x.astype(float32) for s, x in inputs.items()}
    wide = [x.astype(float) for x in typed.values()]
    exact, _ = forward.reference(*wide, *[None] * 5, **forward.bind_attrs({}))

    def run(tf32: bool) -> float:
        def bind(binder: Binder, *slots: Any) -> None:
            binder.tf32 = tf32
            KERNEL.forward(binder, *slots)

        return float(np.abs(bound(bind, forward, typed, forward.bind_attrs({}), ONE)[0]["Out"] - exact).max())

    assert run(False) < 1e-6 < 1e-4 < run(True) < 1e-2


@on_host
@pytest.mark.parametrize("d", [32, 64, 128])
def test_queries_that_see_few_keys_of_a_loss_of_squares(rng, d):
    """dP - delta is the small difference of two large sums there, which tensor cores cut off: a query of one key has a
    score's gradient of 2 LogSumExp and nothing else. The plain computation in float32 is what it is held to."""
    attrs = forward.bind_attrs({"causal": True})
    q, k, v = (x.astype(float32) for x in qkv(rng, sq=48, sk=48, h=2, hk=2, d=d, dv=d).values())
    out, sums = bound(KERNEL.forward, forward, {"Q": q, "K": k, "V": v}, attrs, Device())[0].values()
    given = {"Q": q, "K": k, "V": v, "Out": out, "LogSumExp": sums, "Out_grad": 2 * out, "LogSumExp_grad": 2 * sums}
    found, _ = bound(KERNEL.backward, backward, given, attrs, Device())
    plain, exact = (_gradients_of_squares(*(x.astype(t) for x in (q, k, v))) for t in (float32, float64))
    for slot, own, right in zip(("Q_grad", "K_grad", "V_grad"), plain, exact, strict=True):
        error, allowed = np.abs(found[slot] - right).max(), 2 * np.abs(own - right).max()
        allowed += 2 * float(np.finfo(np.float32).eps) * np.abs(right).max()
        assert error <= allowed, f"{slot} errs by {error:.3g}, {error / allowed:.3g} of what is allowed"


def _gradients_of_squares(*arrays: np.ndarray) -> list[np.ndarray]:
    """Of sum(Out^2) + sum(LogSumExp^2) of causal attention, [B, S, H, D], every step in the arrays' type."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in arrays)
    scale = q.dtype.type(q.shape[3] ** -0.5)
    scores = q @ k.swapaxes(2, 3) * scale + np.triu(np.full((q.shape[2], k.shape[2]), -1e4, q.dtype), 1)
    largest = scores.max(axis=3, keepdims=True)
    e = np.exp(scores - largest)
    total = e.sum(axis=3, keepdims=True)
    p, sums = e / total, np.log(total) + largest
    d = 2 * (p @ v)
    dp = d @ v.swapaxes(2, 3)
    ds = (p * (dp - (p * dp).sum(axis=3, keepdims=True)) + 2 * sums * p) * scale
    return [x.transpose(0, 2, 1, 3) for x in (ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ d)]


# which calls


def slots(d: int = 64, dtype: Any = "float32", size: int = 128, **more: Any) -> dict[str, Any]:
    q = Buffer((2, size, 4, d), as_dtype(dtype))
    return {"Q": q, "K": q, "V": q, **more}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "widest"), [("float32", (128, 96)), ("float16", (256, 160)), ("bfloat16", (256, 160))]
)  # fmt: skip
def test_head_dimensions_up_to_what_fits_are_taken(arch, dtype, widest):
    plain, general = widest
    attrs, mask = forward.bind_attrs({"causal": True}), Buffer((128, 128), np.dtype(bool))
    for d in range(1, plain + 1):
        assert kernel.reasons(slots(d, dtype), attrs, arch) == []
    for d in range(1, general + 1):
        assert kernel.reasons(slots(d, dtype, Mask=mask), attrs, arch) == []
    (why,) = kernel.reasons(slots(plain + 1, dtype), attrs, arch)
    assert f"head dimension {plain + 1} exceeds {plain}" in why
    (why,) = kernel.reasons(slots(general + 1, dtype, Mask=mask), attrs, arch)
    assert f"head dimension {general + 1} exceeds {general}" in why


@pytest.mark.parametrize(
    ("ins", "arch", "reason"),
    [
        (slots(), "sm_75", "mma.sync needs sm_80, this is sm_75"),
        (slots(dtype="float64"), "sm_90a", "Q is float64"),
        (slots(size=0), "sm_90a", "a size is 0"),
        (slots(256, "bfloat16"), "sm_89", "bytes of shared memory"),
        (slots(size=1 << 30), "sm_90a", "exceeds 32 bits"),
    ],
)  # fmt: skip
def test_other_calls_are_refused_and_go_to_the_exact_kernels(ins, arch, reason):
    attrs = forward.bind_attrs({})
    (why,) = kernel.reasons(ins, attrs, arch)
    assert reason in why
    binder = Binder(Device(arch))
    binder.begin(0)
    if "32 bits" not in reason:  # which the exact kernels do not take either
        assert attention.chosen(binder, ins, attrs).name == "exact"
        assert f"not by mma: {why}" in binder.notes[-1][1]


@pytest.mark.parametrize("d", [64, 128])
def test_unwanted_gradients_are_not_computed(d):
    ins = slots(d)
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 4, 128), float32)}
    for wanted in ({"Q"}, {"K"}, {"V"}, {"Q", "K", "V"}):
        binder = Binder(Device(multiprocessors=1))
        binder.begin(0)
        outs = {f"{s}_grad": Buffer(ins[s].shape, float32) if s in wanted else None for s in "QKV"}
        kernel.backward(binder, whole, outs, forward.bind_attrs({}))
        functions = [call.function for call in binder.calls]
        assert functions[0] == "attention_mma_prepare"
        assert functions.count("attention_mma_query_grad") == ("Q" in wanted)
        kernels = len(wanted & {"K", "V"}) if d > 64 else bool(wanted - {"Q"})
        assert functions.count("attention_mma_key_grad") == kernels


def test_memory_beside_the_results_is_two_numbers_a_row():
    """Where the blocks fill the device: LSE and delta in backward, nothing in forward."""
    ins = slots(size=1024)
    whole = {**ins, "Out": ins["Q"], "Out_grad": ins["Q"], "LogSumExp": Buffer((2, 4, 1024), float32)}
    binder = Binder(Device(multiprocessors=16))
    binder.begin(0)
    kernel.forward(binder, ins, {"Out": ins["Q"], "LogSumExp": whole["LogSumExp"]}, forward.bind_attrs({}))
    assert binder.scratches == [[]]
    kernel.backward(binder, whole, {f"{s}_grad": ins[s] for s in "QKV"}, forward.bind_attrs({}))
    assert sum(b.nbytes for b in binder.scratches[0]) == 2 * 4 * 2 * 4 * 1024


@pytest.mark.parametrize("size", [1, 127, 512, 513, 4096])
def test_clusters_need_no_memory_besides(size):
    x, sums = Buffer((1, size, 1, 32), float32), Buffer((1, 1, size), float32)
    ins, more = {"Q": x, "K": x, "V": x}, {"Out": x, "Out_grad": x, "LogSumExp": sums}
    binder = Binder(Device())
    binder.begin(0)
    kernel.forward(binder, ins, {"Out": x, "LogSumExp": sums}, forward.bind_attrs({}))
    assert binder.scratches == [[]]
    kernel.backward(binder, {**ins, **more}, {f"{s}_grad": x for s in "QKV"}, forward.bind_attrs({}))
    assert sum(b.nbytes for b in binder.scratches[0]) == 2 * 4 * size
    shared = [c for c in binder.calls if isinstance(c, Launch) and "#define CLUSTER 1\n" not in c.source]
    assert len(shared) == (3 if size > 32 else 0)

