"""Programs: building, differentiating, compiling, running, saving."""

from minigraph.compiler import CompiledProgram
from minigraph.compiler.execution_strategy import ExecutionStrategy
from minigraph.compiler.strategy import BuildStrategy
from minigraph.nn.param_attr import ParamAttr
from minigraph.nn.weight_norm import WeightNormParamAttr
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
from minigraph.program.backward import gradients
from minigraph.program.scope import Scope, global_scope, scope_guard
from minigraph.runtime.executor import Executor
from minigraph.tensor.indexing.assignment import setitem

from . import amp, nn
from .backward import append_backward
from .debug import Print
from .inference import (
    deserialize_persistables,
    deserialize_program,
    load_from_file,
    load_inference_model,
    normalize_program,
    save_inference_model,
    save_to_file,
    serialize_persistables,
    serialize_program,
)
from .input import InputSpec, create_global_var, create_parameter, data
from .io import load, load_program_state, save, set_program_state
from .metrics import accuracy, auc
from .moving_average import ExponentialMovingAverage
from .places import cpu_places, cuda_places, device_guard
from .py_func import py_func

__all__ = [
    "Block", "BuildStrategy", "CompiledProgram", "ExecutionStrategy", "Executor", "ExponentialMovingAverage",
    "InputSpec", "Operator", "ParamAttr", "Parameter", "Print", "Program", "Scope", "Variable", "WeightNormParamAttr",
    "accuracy", "amp",
    "append_backward", "auc", "cpu_places", "create_global_var", "create_parameter", "cuda_places", "data",
    "default_main_program", "default_startup_program", "deserialize_persistables", "deserialize_program",
    "device_guard", "global_scope", "gradients", "load", "load_from_file", "load_inference_model",
    "load_program_state", "name_scope", "nn", "normalize_program", "program_guard", "py_func", "save",
    "save_inference_model", "save_to_file", "scope_guard", "serialize_persistables", "serialize_program",
    "set_program_state", "setitem",
]  # fmt: skip
