"""What a report shows, as plain data for JSON: operators, steps, refusals, source lines, memory.

Everything that repeats stands once in a table and is named by its position there:

    values   [name, type]
    sites    [file, line, number of the first line shown, lines]
    states   an operator as it was at one time, see `_Tables.state`
    initial  {key of an operator: state}; steps change it: [key, state before, state after], -1 for none
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from typing import Any

from minigraph.errors import CallSite, FeedError
from minigraph.ir.recorded import OpState, Slots
from minigraph.passes.engine.history import History
from minigraph.passes.engine.log import PassReport
from minigraph.program import Program
from minigraph.program.text.summary import HEADERS
from minigraph.runtime.memory_report import MemoryReport

from .timeline import timeline

AROUND = 3  # lines shown before and after the user's line
LONGEST = 4000  # characters of an attribute


class _Tables:
    """The tables, filled as things are named."""

    def __init__(self, scopes: Mapping[int, str]) -> None:
        self.scopes = scopes
        self.values: dict[tuple[str, str], int] = {}
        self.sites: dict[CallSite, int] = {}
        self.states: list[OpState] = []
        self._known: dict[int, int] = {}

    def value(self, name: str, type: str) -> int:
        return self.values.setdefault((name, type), len(self.values))

    def site(self, site: CallSite | None) -> int:
        return -1 if site is None else self.sites.setdefault(site, len(self.sites))

    def number(self, state: OpState | None) -> int:
        """The position of a state; -1 for None."""
        if state is None:
            return -1
        if id(state) not in self._known:
            self._known[id(state)] = len(self.states)
            self.states.append(state)
        return self._known[id(state)]

    def slots(self, slots: Slots) -> list[Any]:
        return [[slot, [self.value(v.name, str(v.type)) for v in vs]] for slot, vs in slots.items() if vs]

    def rows(self) -> list[list[Any]]:
        """[type, inputs, outputs, attributes, role, scope, site, rank, block, pass that made it] of each state."""
        order = {rank: i for i, rank in enumerate(sorted({s.rank for s in self.states}))}
        return [
            [
                s.type, self.slots(s.inputs), self.slots(s.outputs), _attrs(s), s.role, self._scope(s),
                self.site(s.site), order[s.rank], s.rank[0], s.rewriter or "",
            ]
            for s in self.states
        ]  # fmt: skip

    def _scope(self, state: OpState) -> str:
        """Its name scope; that of its forward operator for a gradient, which has none."""
        return state.scope_name or (self.scopes.get(state.forward, "") if state.forward is not None else "")


def _attrs(state: OpState) -> list[list[str]]:
    shown = []
    for name, value in state.attrs.items():
        if name in state.opdef.attrs:
            text = "\n".join(map(str, value)) if isinstance(value, tuple) and name == "body" else str(value)
            shown.append([name, text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."])
    return shown


def facts(
    before: Program, after: Program, history: History, reports: Mapping[str, PassReport],
    memory: MemoryReport | FeedError | None, profile: Any = None,
) -> dict[str, Any]:
    """All that the page shows; `profile` is a Profiler, which stands above this package."""
    scopes = _scopes(history)
    tables = _Tables(scopes)
    initial = [[key, tables.number(state)] for key, state in history.initial.items()]
    steps = [
        {
            "flag": step.flag, "rule": step.rule, "what": step.what, "reason": step.reason,
            "site": tables.site(step.site),
            "changes": [[key, tables.number(old), tables.number(new)] for key, (old, new) in step.changes.items()],
        }
        for step in history
    ]  # fmt: skip
    refusals = [
        {"flag": name, "rule": r.rule, "where": r.where, "reason": r.reason, "site": tables.site(r.site)}
        for name, report in reports.items() for r in report.refused
    ]  # fmt: skip
    return {
        "name": before.name, "states": tables.rows(), "initial": initial, "steps": steps, "refusals": refusals,
        "passes": [_pass(report) for report in reports.values()],
        "data": [tables.value(v.name, str(v.type)) for v in before.vars.values() if v.is_data],
        "parameters": [v.name for v in before.vars.values() if v.persistable],
        "fetched": sorted({*before.fetched, *after.fetched}),
        "summary": [HEADERS, before.summary().totals(), after.summary().totals()],
        "memory": _memory(memory), "times": [row.to_dict() for row in profile.rows()] if profile is not None else [],
        "timeline": timeline(after, profile.runs) if profile is not None else None,
        "values": [list(v) for v in tables.values], "sites": _sites(tables.sites),
    }  # fmt: skip


def _scopes(history: History) -> dict[int, str]:
    """{key of an operator: its name scope}, of all that ever were."""
    scopes = {key: state.scope_name for key, state in history.initial.items()}
    for step in history:
        scopes.update((key, new.scope_name) for key, (_, new) in step.changes.items() if new is not None)
    return scopes


def _pass(report: PassReport) -> dict[str, Any]:
    miss = report.miss.reason if report.miss is not None and not report.applied and not report.refused else ""
    return {"flag": report.name, "applied": len(report.applied), "refused": len(report.refused), "miss": miss}


def _sites(sites: Iterable[CallSite]) -> list[list[Any]]:
    """Each line with its neighbours; no lines where the file cannot be read."""
    shown = []
    for site in sites:
        first = max(site.line - AROUND, 1)
        lines = [linecache.getline(site.filename, n).rstrip("\n") for n in range(first, site.line + AROUND + 1)]
        shown.append([str(site).rpartition(":")[0], site.line, first, lines if any(lines) else []])
    return shown


def _memory(report: MemoryReport | FeedError | None) -> dict[str, Any] | None:
    """Lives of all blocks, or why there are none."""
    if report is None:
        return None
    if isinstance(report, FeedError):
        return {"why": report.fact, "hint": report.hint or ""}
    return {
        "place": str(report.place), "planned": report.planned, "live": report.live, "apart": report.apart,
        "persistable": report.persistable, "at": report.at,
        "ranks": [report.traffic.line(), *report.traffic.lines()] if report.traffic is not None else [],
        "running": [f"{op.type} {next(iter(op.output_arg_names), '')}" for op in report.running],
        "residents": [
            [r.name, str(r.type), r.nbytes, r.first, r.last, r.op.type if r.op is not None else "feed"]
            for r in report.residents
        ],
    }  # fmt: skip
