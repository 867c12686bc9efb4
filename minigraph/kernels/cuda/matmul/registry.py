"""Which kernels compute a product: the registry, and the order in which an operator records them.

KERNELS is best first. Those that were measured to be faster for a product come before the library's ways,
the others behind them; the first that can run does, unless `autotune` takes times. A new kernel is a file with
the functions of a ProductKernel and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from minigraph.kernels.cuda.elementwise.reduce import bind_column_sum
from minigraph.kernels.cuda.record.binder import Binder

from . import hopper_product, hopper_tf32, narrow_product, small_product
from .product import Product

Ways = dict[str, Callable[[], None]]  # what records each way to compute the same, by name


class ProductKernel(NamedTuple):
    """A kernel of ours for products.

    name       what explain() calls it, for a product
    offered    whether it is meant for such a product on this GPU
    refusal    why it cannot compute one that it is offered for, or None
    preferred  whether it was measured to be faster than the library for such a product
    bind       records it
    adds_up    whether it also computes the sums of the columns, which others leave to a kernel behind them
    """

    name: Callable[[Product], str]
    offered: Callable[[Binder, Product], bool]
    refusal: Callable[[Product], str | None]
    preferred: Callable[[Binder, Product], bool]
    bind: Callable[[Binder, Product], None]
    adds_up: Callable[[Product], bool] = lambda _: False


def row(module: object) -> ProductKernel:
    """The functions of these names in a kernel's file."""
    return ProductKernel(**{n: getattr(module, n) for n in ProductKernel._fields if hasattr(module, n)})


KERNELS: tuple[ProductKernel, ...] = tuple(map(row, (narrow_product, hopper_product, small_product, hopper_tf32)))


def ways(binder: Binder, product: Product, library: Ways) -> Ways:
    """The library's ways and our kernels' to compute a product, in the order in which they are preferred."""
    first: Ways = {}
    last: Ways = {}
    for kernel in KERNELS:
        if not kernel.offered(binder, product):
            continue
        preferred, why = kernel.preferred(binder, product), kernel.refusal(product)
        if why is None:
            (first if preferred else last)[kernel.name(product)] = partial(_bind, kernel, binder, product)
        elif preferred:
            binder.note(f"the {kernel.name(product)} is left out: {why}")
    return first | library | dict(reversed(last.items()))


def _bind(kernel: ProductKernel, binder: Binder, product: Product) -> None:
    kernel.bind(binder, product)
    if not kernel.adds_up(product):
        add_up(binder, product)


def add_up(binder: Binder, product: Product) -> None:
    """The sums of the columns of a result that lies there, where they are wanted."""
    if product.epilogue.totals is not None:
        bind_column_sum(binder, product.out, product.epilogue.totals)


def record(binder: Binder, offered: Ways) -> None:
    """Record these ways; one of them runs."""
    if len(offered) > 1:
        return binder.choose(offered)
    next(iter(offered.values()))()
