"""The calls of a BoundProgram as a KernelList, for who wants to look at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from minigraph.kernels.cuda.record.buffer import Buffer, owner, root_and_offset
from minigraph.kernels.cuda.record.call import Call
from minigraph.opdef.body import parse_body
from minigraph.program import Operator
from minigraph.runtime.cuda.bind import BoundProgram
from minigraph.runtime.kernel_list import Kernel, KernelList

EMPTY: Mapping[int, Sequence[Buffer]] = MappingProxyType({})


def kernel_list(bound: BoundProgram) -> KernelList:
    """What runs in the planned order; of variants the best one, which the library may lack."""
    ops = operators(bound)
    calls = {i: bound.binder.joined.get(i, bound.binder.calls[i]) for i in bound.order if i not in bound.binder.gone}
    tables = {id(table.buffer): table.words.buffers for table in bound.binder.tables}
    return KernelList(
        listed(one, ops.get(i), bound.binder.device.arch, tables) for i, call in calls.items() for one in _first([call])
    )


def operators(bound: BoundProgram) -> dict[int, Operator]:
    """The operator of each recorded call."""
    return {i: step.op for step, span in zip(bound.schedule.steps, bound.spans, strict=True) for i in span}


def _first(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls, with the best variant in the place of a Choice."""
    for call in calls:
        best = call.ways()[0]
        if len(best) == 1 and best[0] is call:
            yield call
        else:
            yield from _first(best)


def listed(call: Call, op: Operator | None, arch: str, tables: Mapping[int, Sequence[Buffer]] = EMPTY) -> Kernel:
    """A call as lists show it; `tables` has the buffers whose addresses a table holds."""
    named = [b for table in call.operands for b in tables.get(id(owner(table)), ())]
    parts = {(id(root), offset, b.nbytes) for b in (*call.operands, *named) for root, offset in [root_and_offset(b)]}
    nbytes = sum(size for _, _, size in parts)
    source, *others = [source for source, _ in call.kernels()] or [""]
    return Kernel(
        call.title(), getattr(call, "grid", None), getattr(call, "block", None), nbytes, op, _members(op), source, arch,
        others=tuple(others),
    )  # fmt: skip


def _members(op: Operator | None) -> tuple[str, ...]:
    """The types of the operators that were fused into one, or its own."""
    if op is None:
        return ()
    body = op.attrs.get("body")
    return tuple(m.opdef.type for m in parse_body(tuple(body))) if body else (op.type,)
