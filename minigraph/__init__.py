"""minigraph: a static-graph deep-learning framework with graph rewriting, after Paddle's static API."""

import sys

import numpy

from . import ops  # isort: skip  # noqa: F401  (first: everything else asks for operators)
from minigraph.kernels.cores import get_num_threads, set_num_threads
from minigraph.nn.param_attr import ParamAttr
from minigraph.runtime import version
from minigraph.runtime.flags import get_flags, set_flags, traceback_length
from minigraph.runtime.seeds import seed
from minigraph.static.mode import enable_static, in_dynamic_mode, no_grad
from minigraph.static.objects import load, save
from minigraph.tensor import foreach, math_op_patch

from . import (
    base,
    cuda,
    device,
    distributed,
    incubate,
    io,
    linalg,
    metric,
    nn,
    onnx,
    optimizer,
    paddle_names,
    profiler,
    reader,
    regularizer,
    static,
    tensor,
    utils,
)
from .base import framework
from .cuda import get_float32_matmul_precision, set_float32_matmul_precision
from .device import (
    get_cudnn_version,
    get_device,
    is_compiled_with_cinn,
    is_compiled_with_cuda,
    is_compiled_with_custom_device,
    is_compiled_with_distribute,
    is_compiled_with_ipu,
    is_compiled_with_rocm,
    is_compiled_with_xpu,
    set_device,
)
from .errors import MinigraphError
from .errors.flags import check_flags
from .errors.tracebacks import install as _show_tracebacks_short
from .program import Variable
from .program.default_dtype import get_default_dtype, set_default_dtype
from .reader.decorator import batch
from .static import create_parameter
from .tensor import *  # noqa: F403  the functions on Variables: exactly tensor.__all__
from .types import (
    CPUPlace,
    CUDAPlace,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from .types import bool_ as bool

__version__ = version.VERSION
Tensor, dtype = Variable, numpy.dtype  # in static mode a tensor is a Variable

__all__ = [
    "CPUPlace", "CUDAPlace", "MinigraphError", "ParamAttr", "Tensor", "Variable", "base", "batch", "bfloat16", "bool",
    "create_parameter", "cuda", "device", "distributed", "dtype", "enable_static", "float16", "float32", "float64",
    "foreach", "framework", "get_cudnn_version", "get_default_dtype", "get_device", "get_flags",
    "get_float32_matmul_precision", "get_num_threads", "in_dynamic_mode", "incubate", "int8", "int16", "int32",
    "int64", "io", "is_compiled_with_cinn", "is_compiled_with_cuda", "is_compiled_with_custom_device",
    "is_compiled_with_distribute", "is_compiled_with_ipu", "is_compiled_with_rocm", "is_compiled_with_xpu", "linalg",
    "load", "math_op_patch", "metric", "nn", "no_grad", "onnx", "optimizer", "profiler", "reader", "regularizer",
    "save", "seed", "set_default_dtype", "set_device", "set_flags", "set_float32_matmul_precision", "set_num_threads",
    "static", "tensor", "uint8", "utils",
]  # fmt: skip
__all__ += tensor.__all__

if traceback_length() == "short":
    _show_tracebacks_short()

check_flags(
    [
        sys.modules[__name__], base, base.io, distributed, incubate, incubate.optimizer, io, linalg, metric, nn,
        nn.functional, nn.initializer, onnx, optimizer, optimizer.lr, profiler, reader, regularizer, static,
        static.amp, static.nn, tensor, Variable,
    ],
    but=[static.Executor.run],
)  # fmt: skip
paddle_names.explain_missing(
    {
        "": sys.modules[__name__], "base": base, "base.framework": framework, "device": device,
        "framework": framework, "incubate": incubate, "io": io, "linalg": linalg, "metric": metric, "nn": nn,
        "nn.functional": nn.functional, "nn.initializer": nn.initializer, "optimizer": optimizer, "optimizer.lr":
        optimizer.lr, "reader": reader, "regularizer": regularizer, "static": static, "static.amp": static.amp,
        "static.nn": static.nn, "tensor": tensor,
        "Variable": Variable, "Program": static.Program, "Block": static.Block, "Operator": static.Operator,
        "Executor": static.Executor, "BuildStrategy": static.BuildStrategy,
        "ExecutionStrategy": static.ExecutionStrategy, "Layer": nn.Layer,
        "Optimizer": optimizer.Optimizer, "utils": utils, "utils.unique_name": utils.unique_name,
    }
)  # fmt: skip
