"""Operators: one file per family, each operator with its reference, types, gradient and samples."""

from . import (  # noqa: F401
    activation,
    attention,
    attention_grad,
    compare,
    creation,
    elementwise,
    embedding,
    fused_elementwise,
    gemm_epilogue,
    index,
    join,
    linear_cross_entropy,
    loss,
    matmul,
    norm,
    optimizer,
    print,
    random,
    random_key,
    reduce,
    shape,
    softmax,
    unary,
)
from .calls import memory_efficient_attention  # noqa: F401
