"""Which of our kernels for products a bench lets run, for arms that compare them with the library's ways."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FOLDER = "minigraph.kernels.cuda.matmul"


@contextmanager
def only(names: Sequence[str]) -> Iterator[None]:
    """What is bound here takes these kernels before the library, whatever a product's size, and no other of ours.

    names   files of kernels/cuda/matmul, such as hopper_product; none for the library alone
    """
    registry = importlib.import_module(f"{FOLDER}.registry")
    modules = [importlib.import_module(f"{FOLDER}.{name}") for name in names]
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
