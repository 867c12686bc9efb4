"""minigraph: a static-graph deep-learning framework with graph rewriting, after Paddle's static API."""

from . import ops  # isort: skip  # noqa: F401  (first: everything else asks for operators)
from minigraph.kernels.cores import get_num_threads, set_num_threads
from minigraph.nn.param_attr import ParamAttr
from minigraph.runtime.flags import get_flags, set_flags
from minigraph.runtime.seeds import seed
from minigraph.static.mode import enable_static, in_dynamic_mode
from minigraph.tensor import foreach, math_op_patch

from . import base, cuda, metric, nn, optimizer, regularizer, static, tensor
from .cuda import get_float32_matmul_precision, set_float32_matmul_precision
from .errors import MinigraphError
from .program import Variable
from .program.default_dtype import get_default_dtype, set_default_dtype
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
from .version import VERSION

__version__ = VERSION

__all__ = [
    "CPUPlace", "CUDAPlace", "MinigraphError", "ParamAttr", "Variable", "base", "bfloat16", "bool", "cuda",
    "enable_static", "float16", "float32", "float64", "foreach", "get_default_dtype", "get_flags",
    "get_float32_matmul_precision", "get_num_threads", "in_dynamic_mode", "int8", "int16", "int32", "int64",
    "math_op_patch", "metric", "nn", "optimizer", "regularizer", "seed", "set_default_dtype", "set_flags",
    "set_float32_matmul_precision", "set_num_threads", "static", "tensor", "uint8",
]  # fmt: skip
__all__ += tensor.__all__
