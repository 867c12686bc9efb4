"""How a program is cut: pieces of operators that run in one go, and between them operators that the host decides.

    piece 0 | cond | piece 1 | while_loop | piece 2

There is a piece, maybe without operators, before each such operator and at the end. What a later part
reads is fetched from the piece that writes it; the last piece gives what the run fetches.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigraph.errors.kinds import COMPUTED_FEED
from minigraph.program import Operator, Program, Variable


class Piece:
    """Operators of a program that run in one go; a plan sees it as a Program of these."""

    def __init__(self, program: Program, ops: Sequence[Operator]) -> None:
        self.name, self.origin, self.vars, self.before = program.name, program.origin, program.vars, program.before
        self.parent = program.parent
        self.ops, self.random_seed, self.notes = list(ops), program.random_seed, list[Any]()
        self.fetched: tuple[str, ...] = ()
        self.version = program.version


@dataclass
class CutPiece:
    """A piece, and the operator behind it that the host decides; None behind the last one.

    reads    values that the piece takes from earlier parts or from feeds;  fetches: those that later ones need of it
    needed   values that later parts read
    """

    piece: Piece
    control: Operator | None
    reads: list[str] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    needed: frozenset[str] = frozenset()


def is_cut(program: Program) -> bool:
    """Whether the host has to decide something while the program runs."""
    return any("control" in op.opdef.traits for op in program.ops)


def cut(program: Program, ops: Iterable[Operator], fetches: Sequence[str], fed: Collection[str]) -> list[CutPiece]:
    """The parts of a program for these fetches."""
    parts, ahead = list[CutPiece](), list[Operator]()
    for op in ops:
        if "control" in op.opdef.traits:
            parts.append(CutPiece(Piece(program, ahead), op))
            ahead = []
        else:
            ahead.append(op)
    parts.append(CutPiece(Piece(program, ahead), None))
    live = set(fetches)
    persistable = {name for name, v in program.vars.items() if v.persistable and name not in fed}
    for part in reversed(parts):
        last = part.control is None
        part.needed = frozenset(live)
        if part.control is not None:
            names = itertools.chain(*values_read(part.control, fed).values())
            live = (live - set(part.control.output_arg_names)) | {name for name in names if name is not None}
        read, written = _read_and_written(part.piece.ops)
        part.fetches = list(fetches) if last else sorted(live & (written | persistable))
        part.reads = sorted((read | (set(fetches) - written if last else set())) - persistable)
        live = (live - written - persistable) | set(part.reads)
    _check_feeds(program, parts, fed)
    return parts


def values_read(op: Operator, fed: Collection[str]) -> dict[str, list[str | None]]:
    """{slot: names of the values that the run hands over}; None for parameters and states that blocks read in the
    Scope, and for what is not read. A state that is fed is handed over: a block that reads the Scope refuses it."""
    taken: dict[str, list[list[Any]]] = {}  # slot -> for each block that takes it the variables that do
    for name, slots in op.opdef.blocks.items():
        inputs = iter(op.attrs[name].inputs)
        for slot in slots:
            taken.setdefault(slot, []).append([next(inputs) for _ in op.inputs.get(slot, ())])
    read: dict[str, list[str | None]] = {}

    def is_state(v: Variable) -> bool:
        return v.persistable and v.name not in fed

    for slot, vs in op.inputs.items():
        inner, unread = taken.get(slot, []), slot in op.opdef.no_need_buffer
        read[slot] = [
            None if unread or (is_state(v) and inner and all(own[i].persistable for own in inner)) else v.name
            for i, v in enumerate(vs)
        ]
    return read


def _read_and_written(ops: Sequence[Operator]) -> tuple[set[str], set[str]]:
    """(names that are read before they are written, names that are written)."""
    read, written = set[str](), set[str]()
    for op in ops:
        read.update(name for name in op.input_arg_names if name not in written)
        written.update(op.output_arg_names)
    return read, written


def _check_feeds(program: Program, parts: Sequence[CutPiece], fed: Collection[str]) -> None:
    """A value that is fed for a computed variable must be read before it is overwritten."""
    waiting = {name for name in fed if not program.vars[name].is_data}
    for part in parts:
        for op in (*part.piece.ops, *([part.control] if part.control is not None else ())):
            waiting.difference_update(op.input_arg_names)
            for name in waiting.intersection(op.output_arg_names):
                raise COMPUTED_FEED(
                    f"feed {name!r} would have no effect: {op.type} computes it", site=op.site,
                    hint="with use_prune=True the operators before a fed value are left out",
                )  # fmt: skip
