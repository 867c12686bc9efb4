"""Which of our kernels for products a bench lets run, for arms that compare them with the library's ways."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

FOLDER = "minigraph.kernels.cuda.matmul"


@contextmanager
def only(names: Sequence[str]) -> Iterator[None]:
    """What is bound here takes these kernels before the library, whatever a product's size, and no other of ours.

    names   files of kernels/cuda/matmul, such as hopper_product; none for the library alone
    """
    registry, modules = _registry(), _modules(names)
    kernels, least = registry.KERNELS, [module.LEAST for module in modules]
    registry.KERNELS = tuple(registry.row(m)._replace(preferred=lambda binder, product: True) for m in modules)
    for module in modules:
        module.LEAST = 0
    try:
        yield
    finally:
        registry.KERNELS = kernels
        for module, before in zip(modules, least, strict=True):
            module.LEAST = before


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """What is bound here does not take these kernels; all else is chosen as ever."""
    registry = _registry()
    kernels, left_out = registry.KERNELS, [registry.row(module) for module in _modules(names)]
    registry.KERNELS = tuple(kernel for kernel in kernels if kernel not in left_out)
    try:
        yield
    finally:
        registry.KERNELS = kernels


def _registry() -> Any:
    return importlib.import_module(f"{FOLDER}.registry")


def _modules(names: Sequence[str]) -> list[Any]:
    return [importlib.import_module(f"{FOLDER}.{name}") for name in names]
