"""bind_program: a Schedule bound to recorded GPU calls and laid out in memory. Needs no GPU.

    Schedule
      -> values.py     a Buffer for each value; which of them the Scope owns; pieces: gpu_pieces.py
      -> recording.py  the calls of each step, by bind functions of kernels/cuda
      -> staging.py    what travels between host and GPU in one copy
      -> joins.py      calls that become one launch
      -> layout/       the order of the calls, offsets in one arena, streams of the captured graph

Binding needs shapes only; addresses come when the arena is allocated and the Scope's arrays are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.workspace import Settling
from minigraph.kernels.one_piece import in_a_row
from minigraph.program import Program
from minigraph.program.prune import Prune
from minigraph.runtime.memory import Life, most_live
from minigraph.runtime.options import DEFAULT, RunOptions
from minigraph.runtime.parallel.gpu_pieces import lay_pieces
from minigraph.runtime.schedule import Schedule, Show
from minigraph.types import TensorType

from .checks import Checks
from .joins import candidates, joins
from .layout.graph_streams import OnStream
from .layout.placement import ArenaLayout, place
from .layout.units import Units, structure_of
from .operators import Operators
from .recording import record
from .sizes import Siblings
from .staging import Staging, staging_of
from .strided import show, show_but_lists, show_changes_of_shape
from .values import sharing_of, value_buffers

AS_RECORDED = Settling()


@dataclass(frozen=True)
class BoundProgram:
    """A Schedule with Buffers and recorded calls, as `bind_program` makes it.

    buffers    of the values, by number;  outside: those whose memory the Scope owns, by name
    results    (buffer, name): temporary values that are copied to persistables at the end
    spans      for each step the range of its calls in `binder.calls`
    once       positions of calls that depend on shapes only: they run once, and `constants` holds what they write
    checks     kernels that look for NaN, and what their record says; None where nobody looks
    order, offsets, arena_bytes, layout   see `Placement`
    """

    program: Program
    schedule: Schedule
    binder: Binder
    buffers: list[Buffer]
    outside: dict[str, Buffer]
    results: list[tuple[Buffer, str]]
    spans: list[range]
    once: frozenset[int]
    constants: list[tuple[Buffer, int]]
    constant_bytes: int
    staging: Staging
    units: Units
    checks: Checks | None
    order: list[int]
    offsets: list[tuple[Buffer, int]]
    arena_bytes: int
    layout: ArenaLayout

    @property
    def blocks(self) -> list[tuple[Buffer, Life]]:
        """What lies in the arena, and the numbers of the calls in order during which it is needed."""
        placed = zip(self.offsets, self.layout.lives, strict=True)
        return [(b, Life(b.nbytes, life.first, life.last)) for (b, _), life in placed]

    @property
    def live_bytes(self) -> int:
        """The most bytes of blocks that are needed at once."""
        return most_live([life for _, life in self.blocks])

    def streams(self) -> list[OnStream]:
        """The calls in order with their streams of a CUDA graph."""
        return self.layout.streams

    @property
    def paged_bytes(self) -> int:
        """Bytes of states that lie in pinned memory of the host."""
        return sum({id(b): b.nbytes for b in self.binder.paged}.values())

    @cached_property
    def not_captured(self) -> tuple[int, str] | None:
        """(step, reason) where the calls cannot become a CUDA graph."""
        if not any([call.on_host for call in self.binder.calls]):
            return None
        for position, span in enumerate(self.spans):
            if any(self.binder.calls[i].on_host for i in span):
                return position, "no CUDA graph of this program: the host takes part in each run"
        return None


def _show(options: RunOptions) -> Show:
    """What finds the values that show the memory of others."""
    if options.check_nan_inf:
        return show_changes_of_shape
    return show_but_lists if options.multi_tensor in ("arena", "paged") else show


def bind_program(
    program: Program, feeds: Mapping[str, TensorType], fetches: Sequence[str], prune: Prune = False,
    device: Device | None = None, seed: int = 0, options: RunOptions = DEFAULT,
    settling: Settling = AS_RECORDED, tf32: bool = False, room: int = 0, siblings: Siblings | None = None,
) -> BoundProgram:  # fmt: skip
    """Record the calls of a program for feeds of these types, and lay out its memory.

    device    the GPU, an H200 for None
    settling  which of the recorded calls of an operator will run: kernels/cuda/record/workspace.py
    room      bytes of the arena that is there: a plan that fits into it is laid out in less time
    siblings  what is known of plans of this program that differ in the sizes of their feeds, and in fetches, only
    """
    checking = options.check_nan_inf
    siblings = siblings or Siblings()
    schedule, sharing, outline = siblings.schedule(
        program, feeds, fetches, prune, _show(options), options.inplace,
        partial(sharing_of, checking=checking, inplace=options.inplace),
    )  # fmt: skip
    binder = Binder(
        device or Device(), seed=seed, multi_tensor=options.multi_tensor, tf32=tf32, attention=options.attention,
        autotune=options.autotune, sure=settling.sure,
    )  # fmt: skip
    binder.notes += schedule.remarks
    checks = Checks(schedule, program, binder) if checking else None
    values = value_buffers(schedule, sharing)
    if options.inplace:
        lay_pieces(values, sharing.reports + checking)
    binder.outside = frozenset(id(b) for b in values.outside.values())
    operators = Operators(binder, values, settling.settle, siblings.earlier, siblings.templates, outline)
    recorded = record(schedule, operators, sharing.reports, checks)
    # a kernel over lists may have taken what a step writes into an arena of its own: such a step runs each time
    written = {p: [values.buffers[i] for i in schedule.steps[p].written] for p in sharing.constant}
    alone = [p for p in written if all(b.owner is None for b in written[p])]
    once = frozenset(i for p in alone for i in recorded.spans[p])
    constants, constant_bytes = in_a_row(b for p in alone for b in written[p])
    staging = staging_of(recorded)
    structure, blocks = structure_of(
        recorded, once, {id(b) for b, _ in constants}, staging, siblings.structures
    )
    units = Units(list(structure.units), blocks)
    joined = joins(binder.calls, candidates(binder.calls, once), units.units)
    binder.joined, binder.gone = joined.launches, frozenset(joined.taken)
    elsewhere = {id(b) for b in values.outside.values()} | {id(b) for b, _ in (*staging.fields, *constants)}
    absent = once | binder.gone
    placement = place(recorded, structure, units, elsewhere, absent, options.reuse, room, siblings.layouts)
    return BoundProgram(
        program, schedule, binder, values.buffers, values.outside, values.results, recorded.spans, once, constants,
        constant_bytes, staging, units, checks, *placement,
    )  # fmt: skip
