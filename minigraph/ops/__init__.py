"""Operators: one folder per family, each operator with its reference, types, gradient and samples.

The families have the names of the folders of `kernels/cuda`.
"""

from . import (  # noqa: F401
    attention,
    collective,
    control,
    elementwise,
    foreach_elementwise,
    fused_elementwise,
    host,
    linalg,
    matmul,
    movement,
    optimizer,
    print,
    rows,
)
from .calls import memory_efficient_attention  # noqa: F401
from .deferred import deferred  # noqa: F401
