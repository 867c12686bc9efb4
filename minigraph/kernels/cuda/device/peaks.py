"""Peaks of a GPU, from its clocks and what each multiprocessor does in a cycle. Needs a GPU.

Operations of a multiprocessor in a cycle are those of NVIDIA's whitepapers on A100, GA102, H100 and Blackwell, without
sparsity and with sums in float32.
"""

from __future__ import annotations

import cupy

from minigraph.kernels.peaks import Peaks

CLOCK, MEMORY_CLOCK, BUS_WIDTH, MULTIPROCESSORS = 13, 36, 37, 16  # cudaDeviceAttr; clocks in kHz, the bus in bits
IN_A_CYCLE = {  # compute capability: float64, float32, float32 rounded to TF32, 16 bits
    80: (128, 128, 1024, 2048), 86: (4, 256, 256, 512), 90: (256, 256, 2048, 4096), 100: (128, 256, 4096, 8192),
}  # fmt: skip


def peaks(index: int, tf32: bool) -> Peaks:
    """The roofline of GPU `index`; without products where its compute capability is not in the table."""
    asked = cupy.cuda.runtime.deviceGetAttribute
    clock, memory, bus, count = (asked(a, index) for a in (CLOCK, MEMORY_CLOCK, BUS_WIDTH, MULTIPROCESSORS))
    name = cupy.cuda.runtime.getDeviceProperties(index)["name"].decode()
    double, single, rounded, half = IN_A_CYCLE.get(int(cupy.cuda.Device(index).compute_capability), (0, 0, 0, 0))
    rate = clock * 1e3 * count
    flops = {"float64": double, "float32": rounded if tf32 else single, "float16": half, "bfloat16": half}
    known = {dtype: n * rate for dtype, n in flops.items() if n}
    return Peaks(name, 2 * memory * 1e3 * bus / 8, known, "its largest clocks" + (", TF32" if tf32 else ""))
