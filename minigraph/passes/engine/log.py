"""RewriteLog: what each pass applied, what it refused and why, and its nearest miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minigraph.errors import CallSite

WIDEST_NEW, WIDEST_ENTRY = 60, 100  # columns of explain() are aligned up to here; what is longer sticks out


class Reason(Exception):
    """Why something is left alone: `Reason("{} is read", name)`, put together only when it is shown."""

    def __str__(self) -> str:
        reason, *about = self.args
        return reason.format(*about) if about else reason


class Applied(NamedTuple):
    """One rewrite: the new operators, those they replace, and the user's line of the last replaced one.

    why   the rule's equation, "" where the rule is its whole pass
    """

    rule: str
    new: str
    old: tuple[str, ...]
    site: CallSite | None
    role: str = "forward"
    why: str = ""


class Refusal(NamedTuple):
    """A site that looks like the rule's pattern and was left alone."""

    rule: str
    where: str
    reason: str
    site: CallSite | None


@dataclass(frozen=True)
class Miss:
    """The match that got furthest where a rule found nothing."""

    rule: str
    matched: int
    reason: str
    site: CallSite | None


@dataclass
class PassReport:
    """The record of one pass on one graph.

    note   another remark for the user
    told   is called with each rewrite, once the graph has it: the history of a compilation, where one is kept
    """

    name: str
    applied: list[Applied] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    miss: Miss | None = None
    seconds: float = 0.0
    note: str | None = None
    told: Callable[[Applied], None] | None = field(default=None, repr=False)
    _known: set[Refusal] = field(default_factory=set, repr=False)

    def apply(self, entry: Applied) -> None:
        """Note a rewrite, after the graph was changed."""
        self.applied.append(entry)
        if self.told is not None:
            self.told(entry)

    def refuse(self, rule: str, where: str, reason: str, site: CallSite | None) -> None:
        """Note a refusal, once."""
        entry = Refusal(rule, where, reason, site)
        if entry not in self._known:
            self._known.add(entry)
            self.refused.append(entry)

    def missed(self, rule: str, matched: int, reason: object, site: CallSite | None) -> None:
        """Keep the miss that matched most; only its reason is put together."""
        if self.miss is None or matched > self.miss.matched:
            self.miss = Miss(rule, matched, str(reason), site)

    def render(self) -> str:
        """The lines of explain() for this pass."""
        head = f"{len(self.applied)} applied, {len(self.refused)} refused"
        lines = [f"{self.name:<32} {head:<38} {self.seconds * 1e3:.1f} ms"]
        if not self.applied and not self.refused:
            nothing = f"nearest miss: {self.miss.reason}" if self.miss else "no operator that its rules start from"
            lines[0] = f"{self.name:<32} 0 applied; {nothing}"
            if self.miss and self.miss.site:
                lines[0] += f"    {self.miss.site}"
        width = min(max((len(a.new) for a in self.applied), default=0), WIDEST_NEW)
        entries: list[tuple[str, Any]] = [
            (f"  + {a.new:<{width}}   from {', '.join(a.old)}", a.site) for a in self.applied
        ]
        entries += [(f"  - {r.where}   refused by {r.rule}: {r.reason}", r.site) for r in self.refused]
        notes = [f"  ! {self.note}"] if self.note else []
        return "\n".join(lines + _with_sites(entries) + notes)


def _with_sites(entries: Sequence[tuple[str, CallSite | None]]) -> list[str]:
    width = min(max((len(text) for text, _ in entries), default=0), WIDEST_ENTRY)
    return [f"{text:<{width}}    {site}" if site else text for text, site in entries]


def bytes_text(nbytes: int) -> str:
    """A number of bytes as reports have it."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
