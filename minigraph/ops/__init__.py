"""Operators: one file per family, each operator with its reference, types, gradient and samples."""

from . import (  # noqa: F401
    activation,
    compare,
    creation,
    elementwise,
    embedding,
    gemm_epilogue,
    index,
    join,
    loss,
    matmul,
    norm,
    optimizer,
    print,
    random,
    reduce,
    shape,
    softmax,
    unary,
)
