"""What passes without patterns do to a Graph: let readers read another value, take operators out.

A function refuses, with a reason and the graph unchanged, where results would change. Rules
(passes/engine/rule.py) do not use this file: their engine does the same for whole matches.
"""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.ir.graph import Graph, OpNode, VarNode

from .rule import refuse_unless


def require_temporary(v: VarNode) -> None:
    """Refuse unless `v` can disappear: it is not fetched or persistable, and it is written once."""
    refuse_unless(v.pinned is None, "{} is {}, it must be written", v.name, v.pinned)
    refuse_unless(v.version == 0 and v.next_version is None, "{} is updated in place", v.name)


def require_readable(graph: Graph, v: VarNode, readers: list[OpNode]) -> None:
    """Refuse unless `v` holds its value at the place of each of `readers`, which stand in order."""
    for reader in (readers[0], readers[-1]) if readers else ():
        problem = graph.order_problem(reader.rank, [v])
        refuse_unless(not problem, "{} cannot read {} instead: {}", reader, v.name, problem)


def read_instead(graph: Graph, old: VarNode, new: VarNode) -> None:
    """Let all readers of `old` read `new`, which has the same value; `old` stays, unread."""
    require_temporary(old)
    readers = old.consumers
    require_readable(graph, new, readers)
    for reader in readers:
        for slot, i in list(old.read_by[reader]):
            graph.set_input(reader, slot, i, new)


def is_unread(op: OpNode) -> bool:
    """Whether no output of `op` is read, fetched or persistable."""
    for vs in op.outputs.values():
        for v in vs:
            if v.read_by or v.persistable or v.next_version is not None or v.pinned is not None:
                return False
    return True


def take_out(graph: Graph, op: OpNode) -> None:
    """Remove an unread operator with its outputs; its grad operators then belong to no operator."""
    for grad in list(op.grads):
        unlink(graph, grad)
    graph.remove_op(op)
    for v in op.output_vars:
        graph.remove_var(v)


def take_place(graph: Graph, old: OpNode, new: OpNode) -> None:
    """Let `new` write the only output of `old`, which goes, instead of its own."""
    (out,), (own,) = old.output_vars, new.output_vars
    forward, slot = old.forward, old.grad_slot
    graph.remove_op(old)
    graph.set_output(new, next(iter(new.outputs)), 0, out)
    graph.remove_var(own)
    if forward is not None:
        graph.link(new, forward)
        new.grad_slot = slot


def take_out_unread(graph: Graph, ops: Iterable[OpNode | None]) -> None:
    """Remove unread operators among `ops`, and operators that become unread by that, as dead_code_elimination does."""
    waiting = [*ops]
    while waiting:
        op = waiting.pop()
        if op is None or op not in graph or op.grads or "side_effect" in op.opdef.traits or not is_unread(op):
            continue
        waiting += [v.producer for v in op.input_vars]
        take_out(graph, op)


def unlink(graph: Graph, grad: OpNode) -> None:
    """Make a grad operator an ordinary one, and those of the same gradient that read what it writes.

    What enters the others is not the gradient of the forward operator's output any more, so a rule
    that replaced them would compute from the wrong value.
    """
    forward = grad.forward
    if forward is None:
        return
    graph.link(grad, None)
    for v in grad.output_vars:
        for reader in v.consumers:
            if reader.forward is forward:
                unlink(graph, reader)
