"""Workspaces of products as small as the algorithms that will run allow, known before memory is laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .binder import Call, Choice, Gemm, every_call


class Algorithm(NamedTuple):
    """What the library would run: `nbytes` of workspace, and its own description of it."""

    nbytes: int
    form: bytes | None = None


def fit_workspaces(
    calls: Sequence[Call], chosen: Callable[[Gemm], Algorithm | None], every: bool = False
) -> None:
    """Give each product its algorithm, and each workspace the size that its products need.

    chosen   the algorithm of a product; None where the library has none
    every    whether any variant of a Choice may run, not the first one whose products the library has
    """
    sizes: dict[int, int] = {}
    products = [product for call in calls for product in _running(call, chosen, every)]
    for product, algorithm in products:
        sizes[id(product.workspace)] = max(sizes.get(id(product.workspace), 0), algorithm.nbytes)
    for product, algorithm in products:
        product.algorithm = algorithm.form
        if product.workspace is not None:
            product.workspace.shape = (sizes[id(product.workspace)],)


def _running(
    call: Call, chosen: Callable[[Gemm], Algorithm | None], every: bool
) -> list[tuple[Gemm, Algorithm]]:
    """The products of a call that may run, with their algorithms."""
    if isinstance(call, Gemm):
        algorithm = chosen(call)
        return [] if algorithm is None else [(call, algorithm)]
    if not isinstance(call, Choice):
        return []
    found: list[tuple[Gemm, Algorithm]] = []
    for variant in call.variants.values():
        products = [c for c in every_call(variant) if isinstance(c, Gemm)]
        own = [(c, algorithm) for c in products if (algorithm := chosen(c)) is not None]
        if len(own) < len(products):
            continue
        found += own
        if not every:
            break
    return found
