"""NVIDIA's Python bindings, imported where they are first asked for: a machine without a GPU may lack them."""

from __future__ import annotations

from typing import Any


def driver() -> Any:
    """The CUDA driver's functions, `cuda.bindings.driver`."""
    return _bindings()[0]


def nvrtc() -> Any:
    """The compiler's functions, `cuda.bindings.nvrtc`; it needs no GPU."""
    return _bindings()[1]


def _bindings() -> tuple[Any, Any]:
    from cuda.bindings import driver, nvrtc  # pyright: ignore[reportAttributeAccessIssue]  # both are extensions

    return driver, nvrtc
