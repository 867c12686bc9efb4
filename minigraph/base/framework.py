"""Paddle's `base.framework` and `framework`: programs and their parts under the names of their old places."""

from minigraph.device import (
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_distribute,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
)
from minigraph.nn.param_attr import ParamAttr
from minigraph.program import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
)
from minigraph.program.default_dtype import get_default_dtype, set_default_dtype
from minigraph.program.variable import GRAD_SUFFIX
from minigraph.runtime.flags import get_flags, set_flags
from minigraph.runtime.seeds import seed
from minigraph.static.mode import enable_static, in_dynamic_mode, no_grad
from minigraph.static.objects import load, save
from minigraph.static.places import cpu_places, cuda_places, device_guard
from minigraph.types import CPUPlace, CUDAPlace
from minigraph.types import as_dtype as convert_np_dtype_to_dtype_

from . import compiled as core

in_dygraph_mode = in_dynamic_mode


def grad_var_name(var_name: str) -> str:
    """`x@GRAD` for x."""
    return var_name + GRAD_SUFFIX


def is_parameter(var: Variable) -> bool:
    """Whether it is a Parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether it keeps its value between runs."""
    return var.persistable


__all__ = [
    "Block", "CPUPlace", "CUDAPlace", "Operator", "ParamAttr", "Parameter", "Program", "Variable",
    "convert_np_dtype_to_dtype_", "core", "cpu_places", "cuda_places", "default_main_program",
    "default_startup_program", "device_guard", "enable_static", "get_default_dtype", "get_flags", "grad_var_name",
    "in_dygraph_mode", "in_dynamic_mode", "is_compiled_with_cinn", "is_compiled_with_cuda",
    "is_compiled_with_distribute", "is_compiled_with_rocm", "is_compiled_with_xpu", "is_parameter",
    "is_persistable", "load", "name_scope", "no_grad", "program_guard", "save", "seed", "set_default_dtype",
    "set_flags",
]  # fmt: skip
