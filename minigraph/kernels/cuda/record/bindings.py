"""NVIDIA's Python bindings, imported where they are first asked for: a machine without a GPU may lack them."""

from __future__ import annotations

from typing import Any


def driver() -> Any:
    """The CUDA driver's functions, `cuda.bindings.driver`."""
    import cuda.bindings.driver as module

    return module


def nvrtc() -> Any:
    """The compiler's functions, `cuda.bindings.nvrtc`; it needs no GPU."""
    import cuda.bindings.nvrtc as module

    return module
