"""The kernels of check_nan_inf compile for all types, without spills, and are launched with fixed sizes."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.elementwise.check_nan_inf import judge, scan
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Launch
from minigraph.kernels.cuda.record.compile import compile_source
from minigraph.types import as_dtype


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_they_compile(arch):
    binder, marks = Binder(Device(arch)), Buffer((5, 6), np.dtype("int64"))
    binder.begin(0)
    for i, dtype in enumerate(("float64", "float32", "float16", "bfloat16")):
        scan(binder, Buffer((3, 2**33), as_dtype(dtype)), marks, i)
    judge(binder, marks, [0, 1], [(2, 6), (3, 0)], 6, 17)
    assert len(binder.calls) == 5
    for call in binder.calls:
        assert isinstance(call, Launch)
        assert call.grid[0] <= 8 * 132
        cubin = compile_source(call.source, arch)
        assert cubin.spilled_bytes == 0
        assert cubin.waits_first or arch == "sm_80"
