"""Groups: the ranks that compute one step together, and what they can do with arrays.

A transport is a class with one method, `exchange`; all collectives are made of it here. Sums are taken in the order of
the ranks, so they have the same bits on all ranks, for any transport and however gradients are cut into buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from minigraph.errors import KernelError, require
from minigraph.types import bfloat16, float16, float32

WHOLE = 1024  # elements per rank up to which each rank gets all and adds all: one exchange instead of two
Pieces = Sequence[np.ndarray]


def seen_as(received: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Bytes as an array of the type of `like`, and of its shape where it has as many."""
    array = received.view(like.dtype)
    return array.reshape(like.shape) if array.size == like.size else array


class Group:
    """Ranks 0 to size - 1, and which of them this is. Arrays are NumPy's; all ranks call the same in the same order.

    scopes  where each rank has its values, if all of them are in this process
    """

    rank, size = 0, 1
    scopes: Sequence[Any] = ()

    def exchange(self, pieces: Pieces, combine: Callable[[list[np.ndarray]], Any], label: str) -> Any:
        """Give pieces[r] to rank r; what `combine` makes of the pieces that all ranks gave to this one, in their order.

        label  the call, by which errors name it
        The arrays that `combine` sees are only there for so long: it returns no view of them.
        A KernelError names a rank that does not come.
        """
        return combine(list(pieces))

    def all_reduce(self, x: Any, out: np.ndarray | None = None) -> np.ndarray:
        """The sum of what all ranks have; `out` takes it, which may be x."""
        x = np.asarray(x)
        label = _label("all_reduce", x)
        if self.size == 1:
            return _into(x, out)
        if x.size <= WHOLE * self.size:
            return _into(self.exchange([x] * self.size, _sum, label), out)
        parts = np.array_split(x.reshape(-1), self.size)
        own = self.exchange(parts, _sum, label)
        if out is None or not out.flags.c_contiguous:
            return _into(self.exchange([own] * self.size, _joined, label).reshape(x.shape), out)
        flat = out.reshape(-1)
        self.exchange([own] * self.size, lambda parts: np.concatenate(parts, out=flat), label)
        return out

    def broadcast(self, x: Any, root: int = 0) -> np.ndarray:
        """What rank `root` has; the other ranks' x say its shape and type."""
        x = np.asarray(x)
        self._check_root(root)
        none = x.reshape(-1)[:0]
        pieces = [x if self.rank == root else none] * self.size
        return self.exchange(pieces, lambda given: np.array(given[root]), _label("broadcast", x)).reshape(x.shape)

    def reduce(self, x: Any, root: int = 0) -> np.ndarray:
        """The sum of what all ranks have on rank `root`, zeros on the others."""
        x = np.asarray(x)
        self._check_root(root)
        none = x.reshape(-1)[:0]
        pieces = [x if r == root else none for r in range(self.size)]
        total = self.exchange(pieces, _sum, _label("reduce", x))
        return total if self.rank == root else np.zeros_like(x)

    def all_gather(self, x: Any) -> np.ndarray:
        """What all ranks have, joined along the first axis."""
        x = np.asarray(x)
        require(x.ndim > 0, "all_gather joins along the first axis, x has none", hint="x.reshape(1)")
        return self.exchange([x] * self.size, _joined, _label("all_gather", x))

    def reduce_scatter(self, x: Any) -> np.ndarray:
        """Part `rank` of the sum of what all ranks have, cut along the first axis into equal parts."""
        x = np.asarray(x)
        fits = x.ndim > 0 and x.shape[0] % self.size == 0
        require(fits, f"reduce_scatter cuts the first of {list(x.shape)} into {self.size} equal parts")
        return self.exchange(np.split(x, self.size), _sum, _label("reduce_scatter", x))

    def barrier(self) -> None:
        """Return when all ranks have come."""
        self.exchange([np.zeros(1, np.int8)] * self.size, lambda given: None, "barrier")

    def texts(self, text: str) -> list[str]:
        """What all ranks say."""
        own = np.frombuffer(text.encode(), np.uint8)
        return self.exchange([own] * self.size, lambda given: [bytes(g).decode() for g in given], "texts")

    def _check_root(self, root: int) -> None:
        require(0 <= root < self.size, f"root is {root}, there are ranks 0 to {self.size - 1}")


def _label(name: str, x: np.ndarray) -> str:
    return f"{name} {x.dtype.name}{list(x.shape)}"


def _sum(given: list[np.ndarray]) -> np.ndarray:
    """The sum in the order of the ranks; of 16-bit floats in float32, rounded once."""
    dtype = given[0].dtype
    total = given[0].astype(float32 if dtype in (float16, bfloat16) else dtype)
    for x in given[1:]:
        total += x
    return total.astype(dtype, copy=False)


def _joined(given: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(given)


def _into(x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """A copy of x, in `out` where there is one."""
    if out is None:
        return np.array(x)
    out[...] = x
    return out


ALONE = Group()
_everywhere: Group = ALONE  # of the process
_acting: ContextVar[Group | None] = ContextVar("minigraph group", default=None)  # of a thread that is a rank


def present() -> Group:
    """The group in which the calling thread is a rank; one of this rank alone where nobody made another."""
    return _acting.get() or _everywhere


def join(group: Group) -> None:
    """Let this process be a rank of a group from now on."""
    global _everywhere
    _everywhere = group


@contextmanager
def acting(group: Group) -> Iterator[None]:
    """Inside the block the calling thread is a rank of `group`."""
    token = _acting.set(group)
    try:
        yield
    finally:
        _acting.reset(token)


def of_size(nranks: int) -> Group:
    """The present group, which must have so many ranks."""
    group = present()
    if group.size != nranks:
        raise KernelError(
            f"nranks is {nranks}, and {group.size} {'rank runs' if group.size == 1 else 'ranks run'} this program",
            hint="start the program on as many ranks as it was built for",
        )
    return group


class RankError(KernelError):
    """A rank of a group is dead or does not come.

    ranks  their numbers
    """

    def __init__(self, ranks: Sequence[int], fact: str, hint: str | None = None) -> None:
        super().__init__(fact, hint=hint)
        self.ranks = tuple(ranks)
