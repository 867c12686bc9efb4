"""Attention over a table of blocks, the CUDA kernels run on a CPU: kernels, sizes of blocks, modifiers, skipping."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from minigraph.kernels.cuda.attention import attention
from minigraph.kernels.cuda.attention.hopper import kernel as hopper
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.ops.attention.attention_grad import memory_efficient_attention_grad as backward
from minigraph.types import TensorType, bfloat16, bool_, float16, float32, float64
from tests.gpu.attention_small import hiding
from tests.kernels.test_attention_mma import DEVICES, UNIT
from tests.kernels.test_cuda_attention import ONE, both, bound, qkv
from tests.support.cuda_host import COMPILER
from tests.support.grades import checkered, graded

on_host = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
EXACT, MMA = (next(k for k in attention.KERNELS if k.name == name) for name in ("exact", "mma"))
KEY = np.array([11, 4, 9])


def table(rng: np.random.Generator, queries: int, keys: int, size: int, *heads: int, share: float = 0.4) -> np.ndarray:
    """Blocks; the last queries see nothing, and no query the first keys."""
    blocks = rng.random((*heads, -(-queries // size), -(-keys // size))) < share
    blocks[..., -1, :] = blocks[..., 0] = False
    return blocks


def near(inputs: dict[str, Any], kernel: Any, dtype: Any, device: Device | None = None, **attrs: Any) -> dict[str, Any]:
    results = both(inputs, device, dtype, kernel, **attrs)
    unit = 1e-11 if dtype == float64 else UNIT[dtype]
    for slot, (found, exact) in results.items():
        largest = max(1.0, float(np.max(np.abs(exact[np.isfinite(exact)]), initial=0)))
        np.testing.assert_allclose(found.astype(float), exact, rtol=0, atol=unit * largest, err_msg=slot)
    return results


@on_host
@pytest.mark.parametrize(
    ("size", "device"),
    graded(
        ((size, device) for size in (1, 7, 16, 32, 64, 96, 200) for device in DEVICES),
        now=lambda size, device: size in (32, 200) or (size == 7 and device == "clusters"),
    ),
)
@pytest.mark.parametrize(("kernel", "dtype"), [(EXACT, float64), (MMA, float32)], ids=["exact", "mma"])
def test_sizes_of_blocks(rng, kernel, dtype, size, device):
    inputs = qkv(rng, sq=150, sk=230, h=4, hk=2, d=8, dv=8)
    inputs["Blocks"] = table(rng, 150, 230, size)
    results = near(inputs, kernel, dtype, DEVICES[device], block_size=size)
    out, sums = results["Out"][0], results["LogSumExp"][0]
    assert not out[:, (149 // size) * size :].any() and (sums[..., (149 // size) * size :] == -math.inf).all()
    for slot in ("K_grad", "V_grad"):
        assert not results[slot][0][:, : min(size, 230)].any(), slot


@on_host
@pytest.mark.parametrize(
    ("dtype", "sizes"), checkered([float16, bfloat16], [(64, 64), (128, 32), (192, 64), (72, 24)]), ids=str
)
def test_tensor_cores_of_16_bits(rng, dtype, sizes):
    d, size = sizes
    inputs = {**qkv(rng, sq=140, sk=150, d=d, dv=d), "Blocks": table(rng, 140, 150, size)}
    near(inputs, MMA, dtype, ONE, block_size=size)


MODIFIERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"causal": True}), ({}, {"causal": True, "bottom_right": True}), ({}, {"window": (70, 9)}),
    ({"Bias": (1, 4, 130, 150)}, {}), ({"Bias": "hides"}, {}), ({"Mask": 1}, {"causal": True}),
    ({"Mask": 1}, {"masked_score": -1e9}), ({"Mask": 1}, {"masked_score": -2.0}), ({"Key": 1}, {"dropout": 0.3}),
    ({}, {"layout": "bhsd", "scale": -0.3}),
]  # fmt: skip
HEADS = (), (1,), (4,)  # of a table: one for all, in two ways, or one for each


@on_host
@pytest.mark.parametrize(
    ("more", "attrs", "heads"),
    graded(
        ((*modifier, heads) for modifier in MODIFIERS for heads in HEADS),
        now=lambda more, attrs, heads: heads == (4,) or attrs in ({"causal": True}, {"masked_score": -1e9}),
    ),
    ids=str,
)
@pytest.mark.parametrize(("kernel", "dtype"), [(EXACT, float64), (MMA, float32)], ids=["exact", "mma"])
def test_beside_every_modifier(rng, kernel, dtype, more, attrs, heads):
    inputs = {**qkv(rng, sq=130, sk=150, h=4, hk=2), "Blocks": table(rng, 130, 150, 32, *heads)}
    if "Bias" in more:
        inputs["Bias"] = hiding(130, 150) if more["Bias"] == "hides" else rng.normal(size=more["Bias"])
    if "Mask" in more:
        inputs["Mask"] = rng.random((1, 1, 130, 150)) < 0.6
        inputs["Mask"][:, :, 40:43] = False
    if "Key" in more:
        inputs["Key"] = KEY
    if attrs.get("layout") == "bhsd":
        inputs |= {s: np.ascontiguousarray(inputs[s].transpose(0, 2, 1, 3)) for s in "QKV"}
    near(inputs, kernel, dtype, ONE if more else None, block_size=32, **attrs)


@on_host
@pytest.mark.parametrize(("kernel", "dtype"), [(EXACT, float64), (MMA, float32)], ids=["exact", "mma"])
def test_operands_of_rank_3(rng, kernel, dtype):
    inputs = {s: x[:, :, 0].copy() for s, x in qkv(rng, sq=130, sk=150).items()}
    near({**inputs, "Blocks": table(rng, 130, 150, 64)}, kernel, dtype, block_size=64)


@on_host
@pytest.mark.parametrize(
    ("size", "form"),
    checkered([32, 64], [(EXACT, float64), (MMA, float32), (MMA, bfloat16)]),
    ids=lambda x: x if isinstance(x, int) else f"{x[0].name} {x[1]}",
)
def test_tiles_that_nobody_sees_are_not_read(rng, form, size):
    """NaN in skipped keys and values, and in queries that see nothing, would show if a tile were read."""
    kernel, dtype = form
    inputs = qkv(rng, sq=256, sk=320, d=32, dv=32)
    blocks = rng.random((4 * 64 // size, 5 * 64 // size)) < 0.5
    blocks[:, 64 // size : 128 // size] = blocks[128 // size : 192 // size] = False
    attrs, typed = forward.bind_attrs({"block_size": size}), {s: x.astype(dtype) for s, x in inputs.items()}
    wide = {s: x.astype(float) for s, x in typed.items()}
    with np.errstate(all="ignore"):
        out, sums = forward.reference(*wide.values(), *(None,) * 5, blocks, **attrs)
        d = rng.normal(size=out.shape).astype(dtype)
        exact = backward.reference(*wide.values(), out, sums, d.astype(float), *(None,) * 5, blocks, **attrs)
    for slot, at in (("K", slice(64, 128)), ("V", slice(64, 128)), ("Q", slice(128, 192))):
        typed[slot][:, at] = math.nan
    typed["Blocks"] = blocks
    more = {"Out": out.astype(dtype), "LogSumExp": sums.astype(float64 if dtype == float64 else float32), "Out_grad": d}
    found, _ = bound(kernel.forward, forward, typed, attrs, ONE)
    grads, _ = bound(kernel.backward, backward, {**typed, **more}, attrs, ONE)
    unit = 1e-11 if dtype == float64 else UNIT[dtype]
    results = [(found["Out"], out), *((grads[f"{s}_grad"], x) for s, x in zip("QKV", exact, strict=False))]
    for x, right in results:
        np.testing.assert_allclose(x.astype(float), right, rtol=0, atol=unit * max(1, np.abs(right).max()))


def test_hopper_kernels_leave_tables_to_others():
    q = Buffer((1, 256, 4, 64), bfloat16)
    ins = {"Q": q, "K": q, "V": q, "Blocks": Buffer((4, 4), bool_)}
    attrs = forward.bind_attrs({"block_size": 64})
    assert "Blocks is given" in hopper.reasons(ins, attrs, "sm_90a")
    binder = Binder(Device())
    assert attention.chosen(binder, ins, attrs).name == "mma"
    assert "not by wgmma: Blocks is given" in binder.notes[0][1]


def test_a_table_costs_dense_kernels_nothing():
    """The text that NVRTC gets differs by one definition, and kernels take no argument more."""
    q = Buffer((1, 256, 4, 64), bfloat16)
    attrs, texts = forward.bind_attrs({}), []
    out, sums = forward.infer_types({s: [TensorType((1, 256, 4, 64), bfloat16)] for s in "QKV"}, attrs).values()
    for more, own in (({}, {}), ({"Blocks": Buffer((4, 4), bool_)}, {"block_size": 64})):
        binder = Binder(Device())
        binder.begin(0)
        outs = {"Out": Buffer(out[0].shape, bfloat16), "LogSumExp": Buffer(sums[0].shape, float32)}
        MMA.forward(binder, {"Q": q, "K": q, "V": q, **more}, outs, {**attrs, **own})
        texts.append((binder.calls[0].source, len(binder.calls[0].args)))
    (dense, few), (sparse, many) = texts
    changed = [a for a, b in zip(dense.splitlines(), sparse.splitlines(), strict=True) if a != b]
    assert changed == ["#define BLOCK 0"] and many == few + 2
