"""Programs: building, differentiating, compiling, running, saving."""

from ..backward import append_backward, gradients
from ..compiler import CompiledProgram
from ..executor import Executor, cpu_places, cuda_places
from ..param_attr import ParamAttr
from ..program import (
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
from ..scope import Scope, global_scope, scope_guard
from ..strategy import BuildStrategy
from . import amp, nn
from .debug import Print
from .input import InputSpec, create_parameter, data
from .io import load, load_program_state, save, set_program_state

__all__ = [
    "Block", "BuildStrategy", "CompiledProgram", "Executor", "InputSpec", "Operator", "ParamAttr", "Parameter", "Print",
    "Program", "Scope", "Variable", "amp", "append_backward", "cpu_places", "create_parameter", "cuda_places", "data",
    "default_main_program", "default_startup_program", "global_scope", "gradients", "load", "load_program_state",
    "name_scope", "nn", "program_guard", "save", "scope_guard", "set_program_state",
]  # fmt: skip
