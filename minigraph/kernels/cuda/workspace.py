"""Workspaces of products as small as the algorithms that will run allow, known before memory is laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .binder import Call, Choice, Gemm, every_call


def fit_workspaces(calls: Sequence[Call], needed: Callable[[Gemm], int | None], every: bool = False) -> None:
    """Give each workspace the size that its products need.

    needed   bytes for the algorithm of a product; None where the library has none
    every    whether any variant of a Choice may run, not the first one whose products the library has
    """
    sizes: dict[int, int] = {}
    products = [product for call in calls for product in _running(call, needed, every)]
    for product, nbytes in products:
        sizes[id(product.workspace)] = max(sizes.get(id(product.workspace), 0), nbytes)
    for product, _ in products:
        if product.workspace is not None:
            product.workspace.shape = (sizes[id(product.workspace)],)


def _running(call: Call, needed: Callable[[Gemm], int | None], every: bool) -> list[tuple[Gemm, int]]:
    """The products of a call that may run, with what they need."""
    if isinstance(call, Gemm):
        nbytes = needed(call)
        return [] if nbytes is None else [(call, nbytes)]
    if not isinstance(call, Choice):
        return []
    found: list[tuple[Gemm, int]] = []
    for variant in call.variants.values():
        products = [c for c in every_call(variant) if isinstance(c, Gemm)]
        own = [(c, nbytes) for c in products if (nbytes := needed(c)) is not None]
        if len(own) < len(products):
            continue
        found += own
        if not every:
            break
    return found
