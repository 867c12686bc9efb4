"""What will run of recorded calls, known before memory is laid out: variants, algorithms, how large workspaces are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from .call import Call, every_call
from .calls import Gemm


class Algorithm(NamedTuple):
    """What the library would run, in its own form, or one of `others`: `nbytes` of workspace for any of them."""

    nbytes: int
    form: bytes | None = None
    others: tuple[bytes, ...] = ()


Chosen = Callable[[Gemm], Algorithm | None]
Note = Callable[[str], None]


class Settling(NamedTuple):
    """What a BoundProgram asks about the calls of an operator; by default they stay as they are recorded.

    settle   which of them will run: `settled`; what a report should say of it is told to the function that comes second
    sure     whether these will, so that no other way to compute the same needs to be recorded
    """

    settle: Callable[[Sequence[Call], Note], list[Call]] = lambda calls, note: list(calls)
    sure: Callable[[Sequence[Call]], bool] = lambda calls: False


def settling(chosen: Chosen) -> Settling:
    """By the algorithms that a library chooses, where nothing is timed."""
    return Settling(lambda calls, note: settled(calls, chosen), partial(will_run, chosen=chosen))


def will_run(calls: Sequence[Call], chosen: Chosen) -> bool:
    """Whether a variant that comes first is the one that runs: the library has all that it needs."""
    products = (product for call in every_call(calls) for product in call.products())
    return all(not product.tried_first and chosen(product) is not None for product in products)


def settled(calls: Sequence[Call], chosen: Chosen, every: bool = False) -> list[Call]:
    """The calls of one operator, in the place of each Choice the variant that will run, if that is sure.

    Each product gets its algorithm, and each workspace the size that is needed.

    chosen   the algorithm of a product; None where the library has none
    every    whether any variant of a Choice may run, not the first one whose products the library has
    """
    sizes: dict[int, int] = {}
    products = [product for call in calls for product in _running(call, chosen, every)]
    for product, algorithm in products:
        sizes[id(product.workspace)] = max(sizes.get(id(product.workspace), 0), algorithm.nbytes)
    for product, algorithm in products:
        product.algorithm, product.others = algorithm.form, algorithm.others
        if product.workspace is not None:
            product.workspace.shape = (sizes[id(product.workspace)],)
    return list(calls) if every else [one for call in calls for one in call.opened()]


def _running(call: Call, chosen: Chosen, every: bool) -> list[tuple[Gemm, Algorithm]]:
    """The products of a call that may run, with their algorithms."""
    known: list[tuple[Gemm, Algorithm]] = []
    for way in call.ways():
        products = [product for one in every_call(way) for product in one.products()]
        own = [(product, algorithm) for product in products if (algorithm := chosen(product)) is not None]
        if len(own) < len(products):
            continue
        known += own
        if not every:
            break
    return known
