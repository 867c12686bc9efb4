"""Latest: what an Executor knows of its latest call, so that a call like it finds its plan at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.program.scope import Scope

from . import flags
from .backend import Backend
from .seeds import seed_of_run


@dataclass(slots=True)
class Ready:
    """A plan with its key among all plans, and whether it changes values of the Scope on this rank without the others.
    """

    key: Any
    plan: Any
    alone: bool


@dataclass(slots=True)
class Latest:
    """The call of the latest run: where the next one is like it, nothing else needs to be looked at but its feeds.

    source        the Program or CompiledProgram
    settings      those of the backend
    own, version  the user's Program in it, and how often that had been changed
    rewritten     how often the program that runs had been changed
    masters       {16-bit persistable that it writes: its float32 copy, or ""} by name
    writes        whether the program that runs changes values of the Scope
    ready         the plans that are there for this call, by name, array class, type and shape of each feed
    kinds         these classes
    """

    source: Any
    own: Program
    version: int
    fetches: tuple[str, ...]
    prune: Prune
    seed: int
    backend: Backend
    settings: Any
    flags: dict[str, bool]
    program: Program
    rewritten: int
    masters: dict[str, str]
    writes: bool
    ready: dict[Any, Ready] = field(default_factory=dict)
    kinds: set[type] = field(default_factory=set)

    def serves(self, source: Any, fetches: tuple[str, ...], prune: Prune, scope: Scope) -> bool:
        """Whether this call differs in its feeds at the most."""
        return (
            source is self.source and fetches == self.fetches and prune == self.prune
            and self.own.version == self.version and self.program.version == self.rewritten
            and self.settings == self.backend.settings() and self.flags is flags.values
            and seed_of_run(self.program, scope) == self.seed
        )  # fmt: skip

    def plan_for(self, feed: Any) -> Ready | None:
        """The plan for feeds that need no conversion; None where none is there."""
        if type(feed) is not dict:
            return None
        found = []
        for name, array in feed.items():
            if type(array) not in self.kinds:
                return None
            found.append((name, type(array), array.dtype, array.shape))
        return self.ready.get(tuple(found))

    def keep(self, arrays: Mapping[str, Any], ready: Ready) -> None:
        """Feeds like these find this plan from now on."""
        self.ready[tuple([(name, type(a), a.dtype, a.shape) for name, a in arrays.items()])] = ready
        self.kinds |= {type(a) for a in arrays.values()}
