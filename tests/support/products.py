"""Products for the tests of our kernels for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minigraph.kernels.cuda.matmul import registry
from minigraph.kernels.cuda.matmul.product import Epilogue, Product
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer


def product_of(
    a: Buffer, b: Buffer, out: Buffer, shape: tuple[int, int, int], trans_a: bool = False, trans_b: bool = False,
    **around: Any,
) -> Product:  # fmt: skip
    return Product(a, b, out, shape, trans_a, trans_b, Epilogue(**around))


@contextmanager
def only(*modules: Any) -> Iterator[None]:
    """These kernels are the only ones of ours."""
    kernels = registry.KERNELS
    registry.KERNELS = tuple(map(registry.row, modules))
    try:
        yield
    finally:
        registry.KERNELS = kernels


def ways_of(module: Any, binder: Binder, product: Product) -> tuple[list[str], list[tuple[int, str]]]:
    """The ways to compute a product by the library and one kernel, in order, and remarks."""
    with only(module):
        return list(registry.ways(binder, product, {"library": lambda: None})), binder.notes
