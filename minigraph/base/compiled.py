"""Paddle's `base.core`, its part in C++: what scripts ask it for."""

from minigraph.cuda import device_count as get_cuda_device_count
from minigraph.device import (
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_custom_device,
    is_compiled_with_distribute,
    is_compiled_with_ipu,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
)
from minigraph.program import Variable
from minigraph.program.scope import Scope
from minigraph.types import CPUPlace, CUDAPlace

from .io import EOFException

is_compiled_with_dist = is_compiled_with_distribute
is_compiled_with_mkldnn = is_compiled_with_npu = is_compiled_with_rocm

__all__ = [
    "CPUPlace", "CUDAPlace", "EOFException", "Scope", "Variable", "get_cuda_device_count", "is_compiled_with_cinn",
    "is_compiled_with_cuda", "is_compiled_with_custom_device", "is_compiled_with_dist", "is_compiled_with_distribute",
    "is_compiled_with_ipu", "is_compiled_with_mkldnn", "is_compiled_with_npu", "is_compiled_with_rocm",
    "is_compiled_with_xpu",
]  # fmt: skip
