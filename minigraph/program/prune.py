"""Parts of a program that run without the rest: what fetched values need, and what a test needs.

Both keep whole operators in their order. Paddle 2.6.2 says which: `Executor._prune_program` and `core.prune_backward`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .operator import Operator
from .variable import AGAIN_SUFFIX, GRAD_SUFFIX

GRADIENTS = "gradients/"  # name scope of the operators with which static.gradients begins
Prune = bool | tuple[Operator, ...]  # False: all runs; else what fetches need, and all updates (True) or these


def pruned_ops(
    ops: Sequence[Operator], fetches: Collection[str], prune: Prune = True, fed: Collection[str] = ()
) -> list[Operator]:
    """The operators that `prune` keeps: updates, and what these and the fetched values depend on.

    fed   names of computed values that are fed: each takes the place of the first operator that writes it
    A fetched value that an update writes, a parameter, is read after the updates that run and asks for none.
    """
    updates = {op for op in ops if op.role == "optimize"} if prune is True else set(prune or ())
    kept = _needed(ops, fetches, updates, fed)
    while prune and (beside := _beside(ops, kept) | _given_back(ops, kept)):
        updates |= beside
        kept = _needed(ops, fetches, updates, fed)
    return kept


def _beside(ops: Sequence[Operator], kept: Sequence[Operator]) -> set[Operator]:
    """Operators that step a state which others read that are kept: a loss scale, a count of runs, a running average.

    Without them each run would read the same. A running average goes with those of its batches that are computed.
    """
    read, stands = {name for op in kept for name in op.input_arg_names}, set(kept)
    return {op for op in ops if op not in stands and not read.isdisjoint(_stepped(op, read))}


def _given_back(ops: Sequence[Operator], kept: Collection[Operator]) -> set[Operator]:
    """Operators that give states what kept branches and loops wrote into them: the branch runs, and so it is written.

    Such a state went in as a copy, or as a variable of the loop.
    """
    stands, found = set(kept), set[Operator]()
    copied: dict[str, str] = {}  # copy -> state
    went_in: dict[str, set[str]] = {}  # what a branch or loop makes -> the states that it may have written
    for op in ops:
        if "control" in op.opdef.traits and op in stands:
            looped = [v.name for v in op.inputs["X"] if v.persistable] if op.type == "while_loop" else []
            states = {*looped, *(copied[name] for name in op.input_arg_names if name in copied)}
            went_in.update(dict.fromkeys(op.output_arg_names, states))
        elif op.type == "assign":
            (source,), (target,) = op.inputs["X"], op.outputs["Out"]
            if source.persistable:
                copied[target.name] = source.name
            if target.name in went_in.get(source.name, ()) and op not in stands:
                found.add(op)
    return found


def _stepped(op: Operator, read: Collection[str]) -> list[str]:
    """The states that an operator writes for those that read them. Parameters, which updates write, are chosen.

    read  what operators read that are kept
    """
    traits = op.opdef.traits
    if "statistic" in traits:
        return op.output_arg_names if all(name in read for name in op.input_arg_names) else []
    if op.role != "optimize" or "optimizer" in traits:
        return []
    return [v.name for v in op.output_vars if v.persistable and not v.is_parameter]


def _needed(
    ops: Sequence[Operator], fetches: Collection[str], updates: Collection[Operator], fed: Collection[str]
) -> list[Operator]:
    """These updates, and what they and the fetched values depend on."""
    makers: dict[str, Operator] = {}
    for op in ops if fed else ():
        for name in op.output_arg_names:
            if name in fed:
                makers.setdefault(name, op)
    read: set[str] = set()  # by operators that are kept and stand below
    wanted, kept = set(fetches), []
    for op in reversed(ops):
        written = op.output_arg_names
        own = [name for name in written if makers.get(name) is op]
        read.difference_update(own)
        wanted.difference_update(own)
        fetched = op.role != "optimize" and not wanted.isdisjoint(written)
        if fetched or op in updates or not read.isdisjoint(written):
            kept.append(op)
            read.update(op.input_arg_names)
    return kept[::-1]


def ops_for_test(ops: Sequence[Operator]) -> list[Operator]:
    """The operators of a test program: the forward ones that need no training, and what they read.

    Training is what depends on the seed of a loss, and every update. Gradients that `static.gradients` appended are
    values like others: they stay where a forward operator reads them, and all of them where nothing is trained.
    """
    if not any(op.role == "optimize" or seeds_loss(op) for op in ops):
        return list(ops)
    trained = _trained(ops)
    read: set[str] = set()
    kept = []
    for op in reversed(ops):
        own = op not in trained and (op.role == "forward" or _joins_roles(op))
        if own or (op.role != "optimize" and not read.isdisjoint(op.output_arg_names)):
            kept.append(op)
            read.update(op.input_arg_names)
    return kept[::-1]


def seeds_loss(op: Operator) -> bool:
    """Whether `append_backward` begins here, not `static.gradients`."""
    begins = op.role == "backward" and op.type == "fill_constant" and op.forward is None
    return begins and not op.scope_name.endswith(GRADIENTS)


def _trained(ops: Iterable[Operator]) -> set[Operator]:
    """Updates, and what depends on the seed of a loss.

    Parameters and states have a value without updates, so what reads them after an update does not depend on it.
    """
    trained: set[Operator] = set()
    names: set[str] = set()
    for op in ops:
        if op.role == "optimize":
            trained.add(op)
            names.update(v.name for v in op.output_vars if not v.persistable)
        elif _joins_roles(op):
            names.update(name for name in op.output_arg_names if not _is_value(name))
        elif seeds_loss(op) or not names.isdisjoint(op.input_arg_names):
            trained.add(op)
            names.update(op.output_arg_names)
        else:
            names.difference_update(op.output_arg_names)
    return trained


def _joins_roles(op: Operator) -> bool:
    """Whether passes put forward operators into one with their gradients: it runs in a test for their values."""
    return op.role == "backward" and any(_is_value(name) for name in op.output_arg_names)


def _is_value(name: str) -> bool:
    """Whether it names what forward computes, not a gradient, and not what only gradients read."""
    return GRAD_SUFFIX not in name and AGAIN_SUFFIX not in name
