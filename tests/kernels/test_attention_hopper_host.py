"""Attention's forward for Hopper, run on a CPU with the copies, barriers and products of cuda_host_hopper.h."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from minigraph.kernels.cuda.attention.hopper import kernel as attention_hopper
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap
from minigraph.types import as_dtype
from tests.gpu.attention_small import qkv
from tests.gpu.check import call_of
from tests.support import cuda_host, opcheck
from tests.support.grades import graded

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler on this machine")

HEADER = (Path(__file__).parents[1] / "support" / "cuda_host_hopper.h").read_text(encoding="utf-8")
FORWARD = "attention/hopper/forward.cu"
SHARED = {  # what lies in shared memory, in the window of a block
    "extern __shared__ unsigned char raw[];": "unsigned char* raw = windows[host_thread->rank] + 1024;",
    "__shared__ Barriers barriers;": "Barriers& barriers = *(Barriers*)windows[host_thread->rank];",
}
ASM = {  # inline PTX
    r'asm\("ex2.*\);': "y = exp2f(x);",
    r'asm\("cvt\.rn\." PTX_T.*\);': "y = two_of(PTX_T, low, high);",
    r'asm volatile\("bar\.(sync|arrive) %0, 256;" ::"r"\((.*?)\) : "memory"\);': r"named_\1(\2, 256);",
}


def on_host(source: str) -> str:
    """The kernel's text with the host's copies, barriers and products."""
    files = read_source("attention/hopper/tiles.cuh") + read_source(FORWARD)
    for device, host in SHARED.items():
        assert device in files
        files = files.replace(device, host)
    for device, host in ASM.items():
        files, count = re.subn(device, host, files)
        assert count, device
    assert "asm" not in files.replace("constexpr", "")
    behind = source.split(read_source("tensor_cores/hopper.cuh"))[1]
    defines = behind.split(read_source("attention/hopper/tiles.cuh"))[0]
    defines = "\n".join(line for line in defines.splitlines() if line.startswith("#define"))
    return f"{read_source('record/prelude.cuh')}{defines}\n{HEADER}{files}"


@pytest.fixture(autouse=True)
def maps_of_the_host(monkeypatch):
    """A tensor map as cuda_host_hopper.h reads it."""

    def packed(self: TensorMap) -> np.ndarray:
        words = [self.buffer.address, *self.sizes, *self.strides, self.box[1]]
        return np.array([*words, *[0] * (16 - len(words))], np.uint64)

    monkeypatch.setattr(TensorMap, "packed", packed)


def run(inputs, dtype, blocks, runs=1, **attrs):
    """Out and LogSumExp of each run, what they should be, and the launch's source; `blocks` multiprocessors."""
    call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype)
    expected = opcheck.reference(call.as_dtype("float64"))
    memory, binder = cuda_host.Memory(), Binder(Device(multiprocessors=blocks))
    binder.begin(0)
    ins, outs = {}, {}
    for slot in "QKV":
        ins[slot] = Buffer(call.inputs[slot][0].shape, as_dtype(dtype))
        memory.put(ins[slot], call.inputs[slot][0])
    for slot, kind in (("Out", dtype), ("LogSumExp", "float32")):
        outs[slot] = Buffer(expected[slot][0].shape, as_dtype(kind))
        memory.put(outs[slot])
    attention_hopper.forward(binder, ins, outs, call.attrs)
    (launch,), (table,) = binder.calls, binder.tables
    source = launch.source
    binder.calls[:] = [dataclasses.replace(launch, source=on_host(source))]
    found = []
    for _ in range(runs):
        cuda_host.run(binder, memory)
        assert memory.arrays[table.buffer].tobytes() == table.packed().tobytes(), "the next run finds other counters"
        binder.tables.clear()  # written once
        found.append({slot: memory.arrays[buffer].copy() for slot, buffer in outs.items()})
        for buffer in outs.values():
            memory.arrays[buffer].view(np.uint8)[...] = cuda_host.GARBAGE
    return found, {slot: x[0] for slot, x in expected.items()}, source


NEAR = {"bfloat16": 4e-3, "float16": 5e-4}  # ||found - exact|| / ||exact||


def require_near(found, expected, dtype):
    """Out by its norm and the worst element; LogSumExp exactly where no key is seen."""
    out, exact = found["Out"].astype(float), expected["Out"]
    assert np.linalg.norm(out - exact) <= NEAR[dtype] * np.linalg.norm(exact)
    assert np.abs(out - exact).max() <= 4 * NEAR[dtype] * max(np.abs(exact).max(), 1)
    nothing = np.isneginf(expected["LogSumExp"])
    np.testing.assert_array_equal(np.isneginf(found["LogSumExp"]), nothing)
    np.testing.assert_allclose(found["LogSumExp"][~nothing], expected["LogSumExp"][~nothing], rtol=0, atol=1e-5)


def cuts(inputs, blocks, **attrs):
    """How many pieces there are, and how many of them are parts."""
    binder = Binder(Device(multiprocessors=blocks))
    binder.begin(0)
    call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype("bfloat16")
    ins = {slot: Buffer(call.inputs[slot][0].shape, as_dtype("bfloat16")) for slot in "QKV"}
    attention_hopper.forward(binder, ins, {"Out": ins["Q"]}, call.attrs)
    order = binder.tables[-1].arrays[0]
    return int((order[..., 0] >= 0).sum()), int((order[..., 3] >= 0).sum())


@pytest.mark.parametrize("seed", graded(range(16), now=lambda seed: seed < 10))
def test_forward_is_what_the_reference_says(seed):
    """Windows, causal, groups of heads, sizes that fill no tile; whole tiles and cut ones, pairs of blocks."""
    rng = np.random.default_rng(seed)
    d = (64, 128, 128, 40, 72, 192, 128, 256)[seed % 8]
    heads, group = int(rng.choice((1, 2))), int(rng.choice((1, 2)))
    sq, sk = int(rng.integers(1, 400)), int(rng.integers(1, 500))
    kinds = ({}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": tuple(rng.integers(0, 300, 2))})
    attrs = dict(kinds[(seed // 8 + seed) % 4])
    if "window" in attrs:
        attrs["window"] = tuple(int(n) for n in attrs["window"])
    dtype = ("bfloat16", "float16")[seed // 4 % 2]
    (found,), expected, _ = run(qkv(1, sq, sk, heads * group, heads, d), dtype, int(rng.integers(2, 9)), **attrs)
    require_near(found, expected, dtype)


@pytest.mark.parametrize(
    ("d", "sq", "sk", "heads", "blocks", "attrs", "parts"),
    graded(
        [(128, 256, 1500, 1, 8, {}, True), (128, 250, 1500, 3, 4, {}, True), (128, 512, 300, 3, 4, {}, False),
         (64, 300, 1500, 1, 7, {}, True), (64, 200, 1500, 2, 12, {"causal": True, "bottom_right": True}, True),
         (256, 60, 2000, 1, 4, {}, True), (192, 60, 1500, 1, 4, {}, True)],
        now=lambda d, sq, *_: (d, sq) in {(128, 256), (128, 512), (64, 200), (256, 60)},
    ),
)  # fmt: skip
def test_parts_are_put_together_and_runs_repeat_their_bits(d, sq, sk, heads, blocks, attrs, parts):
    inputs = qkv(1, sq, sk, heads, 1, d)
    whole, cut = cuts(inputs, blocks, **attrs)
    assert (cut > 0) == parts and whole > 0
    found, expected, source = run(inputs, "bfloat16", blocks, runs=2, **attrs)
    assert ("#define PAIR 2\n" in source) == (d == 128)
    require_near(found[0], expected, "bfloat16")
    for slot in ("Out", "LogSumExp"):
        assert found[0][slot].tobytes() == found[1][slot].tobytes()


def test_what_nobody_sees_does_not_count():
    """Queries without keys give zeros, and NaN in keys and values that lie in no tile of theirs stays out."""
    inputs = qkv(1, 400, 300, 1, 1, 64)
    for slot in "KV":
        inputs[slot][:, 160:] = np.nan
    (found,), expected, _ = run(inputs, "bfloat16", 3, window=(0, 0))
    first = {s: (x["Out"][:, :128], x["LogSumExp"][..., :128]) for s, x in (("found", found), ("exact", expected))}
    require_near(*(dict(zip(("Out", "LogSumExp"), first[s], strict=True)) for s in ("found", "exact")), "bfloat16")
    assert not found["Out"][:, 384:].astype(float).any()
    assert np.isneginf(found["LogSumExp"][..., 384:]).all()


# what backward prepares

PREPARES = {  # kernel -> file, and where the constants that it needs lie in it
    "attention_prepare": ("attention/hopper/backward.cu", "template <class U> constexpr bool NEEDS_FINER"),
    "attention_wide_prepare": ("attention/hopper/backward_wide.cu", "enum {"),
}


def prepare_on_host(source: str, function: str) -> str:
    """The text of the kernel that prepares, without those behind it."""
    name, constants = PREPARES[function]
    common, text = read_source("attention/hopper/tiles.cuh"), read_source(name)
    for device, host in ASM.items():
        common = re.sub(device, host, common)
    first, start = text.index(constants), text.index(f'extern "C" __global__ void {function}(')
    before, kernel = text[first : text.index("\n\n", first)], text[start : text.index("\n}\n", start) + 3]
    behind = source.split(read_source("tensor_cores/hopper.cuh"))[1]
    defines = behind.split(read_source("attention/hopper/tiles.cuh"))[0]
    defines = "\n".join(line for line in defines.splitlines() if line.startswith("#define"))
    return f"{read_source('record/prelude.cuh')}{defines}\n{HEADER}{common}{before}\n{kernel}"


def prepared(inputs, d, dtype, **attrs):
    """(found, exact) sums that are taken from dP, [lines, queries]."""
    call = call_of("memory_efficient_attention_grad", inputs, **attrs).as_dtype(dtype)
    memory, binder = cuda_host.Memory(), Binder(Device())
    binder.begin(0)
    ins = {slot: Buffer(x.shape, x.dtype) for slot, (x,) in call.inputs.items()}
    for slot, buffer in ins.items():
        memory.put(buffer, call.inputs[slot][0])
    attention_hopper.backward(binder, ins, {f"{s}_grad": Buffer(ins[s].shape, ins[s].dtype) for s in "QKV"}, call.attrs)
    launch = binder.calls[0]
    binder.calls[:] = [dataclasses.replace(launch, source=prepare_on_host(launch.source, launch.function))]
    binder.tables.clear()
    cuda_host.run(binder, memory)
    numbers = next(memory.arrays[b] for b in launch.args if isinstance(b, Buffer) and b not in ins.values())
    sums = call.inputs["LogSumExp"][0]
    lines, queries = sums.shape[0] * sums.shape[1], sums.shape[2]
    if d <= 128:
        step = 8192 // (-(-d // 64) * 64)
        pairs = numbers.reshape(lines, -1, 2, step).swapaxes(1, 2).reshape(lines, 2, -1)
        found, rest = pairs[:, 1, :queries], pairs[:, 1, queries:]
    else:
        found, rest = numbers[1][:, :queries], numbers[1][:, queries:]
    assert (rest == 0).all()
    out, grad = (call.inputs[slot][0].astype(float) for slot in ("Out", "Out_grad"))
    exact = (out * grad).sum(axis=-1).transpose(0, 2, 1).reshape(lines, queries)
    if "LogSumExp_grad" in call.inputs:
        own = call.inputs["LogSumExp_grad"][0].astype(float)
        exact = exact - np.where(np.isfinite(sums), own, 0).reshape(lines, queries)
    return found, exact


@pytest.mark.parametrize("sums_read", [True, False])
@pytest.mark.parametrize("d", [64, 72, 128, 192, 256])
def test_backward_takes_the_gradient_of_log_sum_exp_from_the_sums(d, sums_read):
    """Where a query sees no key it counts nothing, NaN included; the kernels behind know only the difference."""
    inputs, attrs = qkv(2, 70, 50, 2, 1, d), {"causal": True, "bottom_right": True}
    results = opcheck.reference(call_of("memory_efficient_attention", inputs, **attrs))
    (out,), (sums,) = results["Out"], results["LogSumExp"]
    rng = np.random.default_rng(d)
    inputs |= {"Out": out, "LogSumExp": sums, "Out_grad": rng.normal(size=out.shape)}
    if sums_read:
        inputs["LogSumExp_grad"] = np.where(np.isfinite(sums), rng.normal(size=sums.shape), np.nan)
        assert np.isnan(inputs["LogSumExp_grad"]).any()
    found, exact = prepared(inputs, d, "bfloat16", **attrs)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)
