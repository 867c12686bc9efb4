"""gelu and its slope as the kernel for large products has them, in float32 on a CPU, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.matmul.product import activation_text, slope_text
from minigraph.kernels.cuda.record.compile import read_source
from minigraph.opdef import OPS
from minigraph.types import float32
from tests.support.cuda_host import COMPILER, launch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")

KERNEL = """
extern "C" __global__ void each(const float* x, float* to, int n) {
    for (int i = 0; i < n; i++) to[i] = %s(x[i]);
}
"""
FAR = np.geomspace(40, 2.0**60, 2048)
NUMBERS = np.concatenate([np.linspace(-40, 40, 1 << 14), FAR, -FAR])


def computed(x, form, slope):
    """What the kernel's function gives for each."""
    text = {"SLOPE": f"({slope_text(form)})"} if slope else {"GELU": f"({activation_text(form)})"}
    defines = {"T": "bf16", "PTX_T": '"bf16"', "TANH": int(form == "gelu_tanh"), **text}
    head = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    functions = read_source("record/prelude.cuh") + head + read_source("matmul/hopper_product.cuh")
    source = functions + KERNEL % ("slope" if slope else "gelu")
    x, to = np.ascontiguousarray(x), np.empty_like(x)
    launch(source, "each", (1, 1, 1), (1, 1, 1), (x.ctypes.data, to.ctypes.data, np.int32(x.size)))
    return to.astype(float)


@pytest.mark.parametrize("slope", [False, True], ids=["gelu", "slope"])
@pytest.mark.parametrize("form", ["gelu", "gelu_tanh"])
def test_they_are_exact(form, slope):
    """The slope of a large number is 1, whatever its square."""
    x = NUMBERS.astype(float32)
    z, approximate = x.astype(float), form == "gelu_tanh"
    if slope:
        exact = OPS["gelu_grad"].reference(z, np.ones_like(z), approximate=approximate)
    else:
        exact = OPS["gelu"].reference(z, approximate=approximate)
    errors = np.abs(computed(x, form, slope) - exact) / np.maximum(np.abs(exact), 1)
    assert errors.max() < (1e-5 if slope and approximate else 4e-7), z[errors.argmax()]
