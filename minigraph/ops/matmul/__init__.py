"""Products of matrices."""

from . import gemm_epilogue, matmul  # noqa: F401
