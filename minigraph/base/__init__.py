"""Paddle's `base`: what older scripts take from `paddle.base` (and `paddle.fluid` before)."""

from minigraph.io import DataFeeder
from minigraph.nn import initializer
from minigraph.nn.initializer import set_global_initializer
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.weight_norm import WeightNormParamAttr
from minigraph.program import backward, unique_name
from minigraph.runtime import executor
from minigraph.runtime.flags import get_flags, set_flags
from minigraph.static import (
    BuildStrategy,
    CompiledProgram,
    ExecutionStrategy,
    Executor,
    Program,
    Scope,
    Variable,
    append_backward,
    cpu_places,
    cuda_places,
    default_main_program,
    default_startup_program,
    device_guard,
    global_scope,
    gradients,
    name_scope,
    program_guard,
    scope_guard,
)
from minigraph.static.mode import in_dynamic_mode as in_dygraph_mode
from minigraph.types import CPUPlace, CUDAPlace

from . import compiled as core
from . import framework, io
from .compiled import (
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
)

__all__ = [
    "BuildStrategy", "CPUPlace", "CUDAPlace", "CompiledProgram", "DataFeeder", "ExecutionStrategy", "Executor",
    "ParamAttr", "Program", "Scope", "Variable", "WeightNormParamAttr", "append_backward", "backward", "core",
    "cpu_places", "cuda_places", "default_main_program", "default_startup_program", "device_guard", "executor",
    "framework", "get_flags", "global_scope", "gradients", "in_dygraph_mode", "initializer", "io",
    "is_compiled_with_cinn", "is_compiled_with_cuda", "is_compiled_with_rocm", "is_compiled_with_xpu", "name_scope",
    "program_guard", "scope_guard", "set_flags", "set_global_initializer", "unique_name",
]  # fmt: skip
