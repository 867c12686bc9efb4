"""Machine code that is kept on disk from one process to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPTIONS: dict[str, Any] = {"error_model": "numpy"}  # a division by zero gives inf, as in NumPy


def kept(make: Callable[..., Any], signature: Any, **options: Any) -> Callable[..., Any]:
    """njit or cfunc whose machine code is kept on disk, if there is a folder that can be written.

    It lies beside the package or in the user's cache folder; without either, on a full disk or where a crash left half
    of it, it is made once per process.
    """

    def compile_(function: Callable[..., Any]) -> Any:
        try:
            return make(signature, cache=True, **OPTIONS, **options)(function)
        except Exception:  # whatever the folder has; an error of the loop itself comes again
            return make(signature, **OPTIONS, **options)(function)

    return compile_
