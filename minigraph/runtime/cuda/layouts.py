"""Layouts: where the blocks of temporary memory lie, and in which order calls run, kept for plans of smaller sizes.

A plan whose calls touch blocks as those of a larger plan do lies where that one lies: each of its blocks fits into the
place of its like. So it needs no search of its own, takes no more memory, and waits for no other calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from weakref import ref

from minigraph.runtime.memory import Life

from .graph_streams import OnStream, assign_streams
from .order import Unit

KEPT = 8  # layouts of one program: its calls touch blocks in a few ways


class Asked(NamedTuple):
    """What a layout follows from besides sizes.

    own           numbers of the blocks that lie in the arena;  loose: how many lie there that no call touches
    given, kept   those that hold something before the first call, and after the last
    absent        calls that do not belong to a run;  reuse: blocks whose lives do not overlap share memory
    """

    units: Sequence[Unit]
    own: Sequence[int]
    loose: int
    given: Collection[int]
    kept: Collection[int]
    absent: Collection[int]
    reuse: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """The order of calls, and the place of each block of the arena.

    sizes     bytes of the blocks: first those of `asked.own`, then the loose ones; as `lives` and `offsets`
    outside   bytes of the blocks that lie elsewhere, by number
    """

    asked: Asked
    sizes: Sequence[int]
    outside: Mapping[int, int]
    order: list[int]
    lives: list[Life]
    offsets: list[int]

    @cached_property
    def streams(self) -> list[OnStream]:
        """The calls in order with their streams of the captured graph, and what they wait for."""
        own = dict(zip(self.asked.own, self.sizes, strict=False))
        places = {n: (at, at + own[n]) for n, at in zip(self.asked.own, self.offsets, strict=False) if own[n]}
        return assign_streams(self.order, self.asked.units, places, {**self.outside, **own})

    def holds(self, asked: Asked, sizes: Sequence[int]) -> bool:
        """Whether blocks of these sizes, which calls touch in the same way, fit into the places of these."""
        return len(sizes) == len(self.sizes) and all(map(int.__le__, sizes, self.sizes)) and self.asked == asked


@dataclass
class Layouts:
    """Layouts of plans of one program that are there, the latest one last."""

    _known: list[ref[Layout]] = field(default_factory=list)

    @property
    def known(self) -> list[Layout]:
        """Those of which a plan is left: memory for them is there."""
        return [layout for one in self._known if (layout := one()) is not None]

    def fitting(self, asked: Asked, sizes: Sequence[int]) -> Layout | None:
        """One that holds blocks of these sizes."""
        return next((one for one in reversed(self.known) if one.holds(asked, sizes)), None)

    def keep(self, layout: Layout) -> None:
        """Remember a layout in the place of those that it stands for."""
        known = self.known
        if layout not in known:
            left = [one for one in known if not layout.holds(one.asked, one.sizes)]
            self._known = [ref(one) for one in (*left, layout)][-KEPT:]
