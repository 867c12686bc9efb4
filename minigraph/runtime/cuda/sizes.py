"""Sizes of feeds: what plans of one program for several of them share, and which others are likely to come.

Kernels are made for sizes in a few forms: tiles, widths, how many blocks share a sum. A program whose feeds change
their size meets these one by one, and whoever runs it waits for the compiler each time. So when a third size needs a
kernel that was never compiled, those of sizes between the ones that came are compiled along, side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from minigraph.errors import MinigraphError
from minigraph.kernels.cuda.record.moved import Earlier
from minigraph.kernels.cuda.record.templates import Known, Templates
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.runtime.schedule import Schedule, Show
from minigraph.types import TensorType

from .layout.placement import ArenaLayout, Layouts
from .layout.units import Structures
from .operators import Outline
from .resized import ScheduleTemplate, Share, resized
from .values import Sharing

ENOUGH = 3  # sizes: a program with fewer has batches and a last one, or a test
PARTS = 8  # of the largest size, even and odd ones, and its halves, quarters, ...: they meet nearly all forms

Feeds = Mapping[str, TensorType]


@dataclass
class Siblings:
    """What plans of one program that differ in the sizes of their feeds know of each other.

    earlier   what operators recorded that are the same for all sizes
    values    those of such Schedules, as far as what was found for some sizes holds for more
    templates what others recorded, as far as it holds for more sizes
    structures what follows from which buffers their calls touch
    layouts   where blocks of temporary memory lie in the largest that are there
    schedules that of the latest plan that is there, by fetches and names of feeds
    plans     how many there were
    ends      the types of the feeds of two: the least and the largest
    connected the ScopeArrays of the plan that looked at a Scope's arrays last
    """

    earlier: Earlier = field(default_factory=dict)
    values: defaultdict[Any, Templates[ScheduleTemplate]] = field(default_factory=lambda: defaultdict(Templates))
    templates: Known = field(default_factory=dict)
    structures: Structures = field(default_factory=dict)
    layouts: Layouts = field(default_factory=Layouts)
    schedules: WeakValueDictionary[Any, Schedule] = field(default_factory=WeakValueDictionary)
    plans: int = 0
    ends: tuple[Feeds, ...] = ()
    looked_ahead: bool = False
    connected: Callable[[], Any] = lambda: None

    def schedule(
        self, program: Program, feeds: Feeds, fetches: Sequence[str], prune: Prune, show: Show, inplace: bool,
        share: Share,
    ) -> tuple[Schedule, Sharing, Outline | None]:  # fmt: skip
        """The Schedule of a program, which is that of these plans, what `share` makes of it, and the outline of those
        that share buffers in the same way.

        All but fetches and feeds is the same for them.
        """
        key = tuple(fetches), frozenset(feeds)
        like = self.schedules.get(key)
        made = resized(like, feeds, show, share, self.values[key]) if like is not None else None
        if made is None:
            schedule = Schedule(program, feeds, fetches, prune, show=show, inplace=inplace)
            made = schedule, share(schedule), None
        return made

    def keep(self, schedule: Schedule, layout: ArenaLayout) -> None:
        """A plan has this Schedule and lies so."""
        self.schedules[schedule.fetches, frozenset(schedule.feeds)] = schedule
        self.layouts.keep(layout)

    def met(self, feeds: Feeds) -> None:
        """A plan was made for these feeds."""
        known = sorted([*self.ends, dict(feeds)], key=lambda types: sum(t.nbytes for t in types.values()))
        self.plans, self.ends = self.plans + 1, (known[0], known[-1])

    def kernels_ahead(self, bind: Callable[[Feeds], Any]) -> list[tuple[str, str]]:
        """(source, function) of the kernels of BoundPrograms for likely sizes; none but once, and for ENOUGH sizes."""
        if self.looked_ahead or self.plans < ENOUGH:
            return []
        self.looked_ahead, found = True, dict[tuple[str, str], None]()
        for feeds in likely(*self.ends):
            try:
                binder = bind(feeds).binder
            except MinigraphError:  # sizes that do not fit together
                continue
            found |= dict.fromkeys(kernel for _, call in binder.running() for kernel in call.kernels())
        return list(found)


def likely(least: Feeds, largest: Feeds) -> list[Feeds]:
    """Types of feeds whose sizes lie on a line through those of two plans."""
    changes = [(a, b) for name, t in least.items() for a, b in zip(t.shape, largest[name].shape, strict=True) if a != b]
    if not changes:
        return []
    first, last = changes[0]
    sizes = {last * i // PARTS + odd for i in range(1, PARTS) for odd in (0, 1)}
    sizes |= {many * last >> i for i in range(2, last.bit_length() + 2) for many in (2, 3)}

    def at(size: int, a: int, b: int) -> int:
        return a + (b - a) * (size - first) // (last - first)

    return [
        {name: TensorType(tuple(at(size, *pair) for pair in zip(t.shape, largest[name].shape, strict=True)), t.dtype)
         for name, t in least.items()}
        for size in sorted(sizes - {0})
    ]  # fmt: skip
