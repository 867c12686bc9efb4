"""The kernel for large products, run on a CPU with the copies, barriers and products of cuda_host_hopper.h."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from minigraph.kernels.cuda.matmul.hopper_product import FILES, bind
from minigraph.kernels.cuda.matmul.product import GELU, Epilogue, Product
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.kernels.cuda.tensor_cores.hopper import TensorMap
from minigraph.opdef import OPS
from minigraph.types import as_dtype
from tests.support import cuda_host

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler on this machine")

HEADER = (Path(__file__).parents[1] / "support" / "cuda_host_hopper.h").read_text(encoding="utf-8")
REPLACED = {
    r"__cluster_dims__\(PAIR, 1, 1\)": "__cluster_dims__(2, 1, 1)",
    r"extern __shared__ u8 memory\[\];": "u8* memory = windows[host_thread->rank];",
    r'asm\("cvt\.rn\." PTX_T.*\);': "y = two_of(PTX_T, low, high);",
    r'asm volatile\("mov\.u32 %0, %%ctaid\.x;".*?\);': "block = blockIdx.x;",
}
NEAR = {"bfloat16": 3.3e-3, "float16": 4.1e-4}  # ||found - exact|| / ||exact||: twice that of one rounding


def on_host(source: str) -> str:
    """The kernel's text with the host's copies, barriers and products."""
    files = "".join(map(read_source, FILES))
    for device, host in REPLACED.items():
        files, count = re.subn(device, host, files)
        assert count, device
    assert "asm" not in files
    behind = source.split(read_source("tensor_cores/hopper.cuh"))[1].split(read_source(FILES[0]))[0]
    defines = "\n".join(line for line in behind.splitlines() if line.startswith("#define"))
    return f"{read_source('record/prelude.cuh')}{defines}\n{HEADER}{files}"


@pytest.fixture(autouse=True)
def maps_of_the_host(monkeypatch):
    """A tensor map as cuda_host_hopper.h reads it."""

    def packed(self: TensorMap) -> np.ndarray:
        words = [self.buffer.address, *self.sizes, *self.strides, self.box[1]]
        return np.array([*words, *[0] * (16 - len(words))], np.uint64)

    monkeypatch.setattr(TensorMap, "packed", packed)


def run(kind, shape, dtype, trans=(False, False), blocks=4):
    """{result: (found, exact)} of a product on `blocks` multiprocessors."""
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    rounded = lambda x: x.astype(as_dtype(dtype)).astype(float)  # noqa: E731
    a, b, bias, z = (rounded(rng.normal(size=s)) for s in ((m, k), (k, n), (n,), (m, n)))
    b = rounded(b / k**0.5)
    memory, binder = cuda_host.Memory(), Binder(Device("sm_90a", multiprocessors=blocks))
    binder.begin(0)

    def put(x):
        buffer = Buffer(x.shape, as_dtype(dtype))
        memory.put(buffer, x.astype(as_dtype(dtype)))
        return buffer

    def empty(*shape):
        buffer = Buffer(shape, as_dtype(dtype))
        memory.put(buffer)
        return buffer

    first, second, out = put(a.T if trans[0] else a), put(b.T if trans[1] else b), empty(m, n)
    exact = {out: a @ b}
    form = next((f for f in GELU if kind.endswith(f)), "gelu")
    if kind.startswith("slope"):
        kept, totals = put(z), empty(n)
        around = Epilogue(slope=form, kept=kept, totals=totals)
        exact[out] *= OPS["gelu_grad"].reference(z, np.ones_like(z), approximate=GELU[form])
        exact[totals] = exact[out].sum(axis=0)
    elif kind == "product":
        around = Epilogue()
    else:
        exact[out] += bias
        activation = form if kind != "bias" else "none"
        kept = empty(m, n) if kind.startswith("kept") else None
        around = Epilogue(bias=put(bias), activation=activation, kept=kept)
        exact |= {kept: exact[out]} if kept else {}
        if activation != "none":
            exact[out] = OPS["gelu"].reference(exact[out], approximate=GELU[form])
    product = Product(first, second, out, shape, *trans, around)
    bind(binder, product)
    launch = binder.calls[0]
    binder.calls[0] = dataclasses.replace(launch, source=on_host(launch.source))
    cuda_host.run(binder, memory)
    return {i: (memory.arrays[buffer].astype(float), x) for i, (buffer, x) in enumerate(exact.items())}


def require_near(results, dtype):
    for i, (found, exact) in results.items():
        assert np.isfinite(found).all(), "not every number was written"
        error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        assert error < NEAR[dtype], (i, error)
        assert np.abs(found - exact).max() < 6 * NEAR[dtype] * max(1, np.abs(exact).max()), i


@pytest.mark.parametrize(
    ("kind", "shape", "trans", "dtype"),
    [("kept gelu_tanh", (648, 584, 456), (False, False), "bfloat16"),
     ("slope gelu_tanh", (648, 584, 776), (False, True), "bfloat16"),
     ("gelu", (264, 392, 520), (True, False), "float16"),
     ("bias", (1032, 200, 1096), (False, False), "bfloat16"),
     ("slope gelu", (136, 1288, 456), (True, True), "float16"),
     ("slope gelu_tanh", (712, 520, 1032), (False, False), "bfloat16"),
     ("product", (264, 968, 456), (False, True), "bfloat16")],
)  # fmt: skip
def test_it_is_what_the_reference_says(kind, shape, trans, dtype):
    """Tiles at all edges; each of two pairs of blocks has several."""
    require_near(run(kind, shape, dtype, trans), dtype)
