"""Attention's backward for Hopper, run on a CPU: blocks that stay take tickets, load ahead, add to dQ in one order."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from minigraph.kernels.cuda.attention.hopper import kernel
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.kernels.cuda.record.compile import read_source
from tests.gpu.attention_small import qkv
from tests.gpu.check import call_of
from tests.kernels.test_attention_hopper_host import HEADER, maps_of_the_host
from tests.support import cuda_host, opcheck
from tests.support.grades import graded

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler on this machine")
__all__ = ["maps_of_the_host"]  # a fixture

NAMES = "tiles.cuh", "order.cuh", "backward.cu", "backward_blocks.cu"
FILES = [f"attention/hopper/{name}" for name in NAMES]
RAW = "extern __shared__ __align__(1024) unsigned char raw[];"
ASM = {  # inline PTX
    r'asm\("ex2.*?\);': "y = exp2f(x);",
    r'asm\("cvt\.rn\." PTX_T.*?\);': "y = two_of(PTX_T, low, high);",
    r'asm\("cvt\.rn\.f16x2.*?\);': 'y = two_of("f16", low, high);',
    r'do asm volatile\("ld\.acquire.*?\);': "do leave(), seen = *turn;",
    r'asm volatile\("st\.release.*?\);': "*turn = before + 1, ++progress;",
    r'asm volatile\("stmatrix.*?"r"\((piece_address.*?\))\),\s*' + r'"r"\((.*?)\)[ ,:]*' * 4 + r'"memory"\);':
        r"store_transposed(\1, \2, \3, \4, \5);",
    r'asm volatile\("st\.shared\.v4\.f32.*?"r"\((.*?)\), "f"\((dq\[j\]).*?;': r"memcpy(at_address(\1), &\2, 16);",
}  # fmt: skip


def on_host(source: str) -> str:
    """The kernels' text with the host's copies, barriers and products."""
    files = "".join(read_source(name) for name in FILES)
    assert RAW in files
    files = files.replace(RAW, "unsigned char* raw = windows[host_thread->rank] + 1024;")
    for device, host in ASM.items():
        files, count = re.subn(device, host, files, flags=re.DOTALL)
        assert count, device
    assert "asm" not in files
    behind = source.split(read_source("tensor_cores/hopper.cuh"))[1]
    defines = behind.split(read_source(FILES[0]))[0]
    defines = "\n".join(line for line in defines.splitlines() if line.startswith("#define"))
    return f"{read_source('record/prelude.cuh')}{defines}\n{HEADER}{files}"


def run(inputs, dtype, blocks, **attrs):
    """(found, exact) gradients, and the launches; `blocks` multiprocessors."""
    call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype)
    forward = opcheck.reference(call.as_dtype("float64"))
    more = {slot: forward[slot][0] for slot in ("Out", "LogSumExp")}
    more["Out_grad"] = np.random.default_rng(5).normal(size=more["Out"].shape)
    call = call_of("memory_efficient_attention_grad", {**inputs, **more}, **attrs).as_dtype(dtype)
    exact = opcheck.reference(call.as_dtype("float64"))
    memory, binder = cuda_host.Memory(), Binder(Device(multiprocessors=blocks))
    binder.begin(0)
    ins = {slot: Buffer(x.shape, x.dtype) for slot, (x,) in call.inputs.items()}
    for slot, buffer in ins.items():
        memory.put(buffer, call.inputs[slot][0])
    outs = {f"{s}_grad": Buffer(ins[s].shape, ins[s].dtype) for s in "QKV"}
    for buffer in outs.values():
        memory.put(buffer)
    kernel.backward(binder, ins, outs, call.attrs)
    launches = [dataclasses.replace(c, source=on_host(c.source)) for c in binder.calls if isinstance(c, Launch)]
    binder.calls[:] = launches
    cuda_host.run(binder, memory)
    return {slot: memory.arrays[b].copy() for slot, b in outs.items()}, {s: x[0] for s, x in exact.items()}, launches


def require_near(found, exact):
    for slot, x in found.items():
        error = np.linalg.norm(x.astype(float) - exact[slot])
        assert error <= 5e-3 * np.linalg.norm(exact[slot]) + 1e-6, f"{slot}: {error}"


@pytest.mark.parametrize("seed", graded(range(12), now=lambda seed: seed < 6))
def test_backward_is_what_the_reference_says(seed):
    """Windows, causal, groups of heads, keys that nobody sees, sizes that fill no tile, wide heads."""
    rng = np.random.default_rng(seed)
    d, blocks = (64, 128, 64, 40)[seed % 4], int(rng.integers(1, 4))
    heads, group = int(rng.choice((1, 2))), int(rng.choice((1, 2)))
    sq, sk = int(rng.integers(1, 400)), int(rng.integers(1, 500))
    kinds = ({"causal": True}, {"causal": True, "bottom_right": True}, {"window": tuple(rng.integers(0, 300, 2))}, {})
    attrs = dict(kinds[(seed // 4 + seed) % 4])
    if "window" in attrs:
        attrs["window"] = tuple(int(n) for n in attrs["window"])
    found, exact, launches = run(qkv(2, sq, sk, heads * group, heads, d), "bfloat16", blocks, **attrs)
    grid, tickets = launches[1].grid[0], -(-sk // 128) * heads * 2
    assert grid == (min(tickets, blocks) if d <= 64 else tickets)
    require_near(found, exact)


@pytest.mark.parametrize("d", [64, 128])
def test_tiles_of_queries_that_see_no_key_have_no_gradient(d):
    """Nobody adds to their sums, which hold what was there before."""
    found, exact, _ = run(qkv(1, 300, 40, 1, 1, d), "bfloat16", 2, causal=True, bottom_right=True)
    assert (found["Q_grad"][:, :256].astype(float) == 0).all()
    require_near(found, exact)
