"""Data parallel: a program as one of several ranks runs it, each with its part of a batch.

    loss@GRAD = 1 / ranks  ->  backward  ->  w@GRAD = c_allreduce_sum(w@GRAD)  ->  clip, decay, update

The collectives are operators like others and write their gradient's next value, so what reads gradients to update
parameters (clipping by a global norm, the check for overflow, sums over several runs) sees those of the whole batch on
each rank, and no rewrite can take it across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from minigraph.errors import ProgramError, require

from .operator import Operator
from .program import Program
from .prune import seeds_loss
from .variable import GRAD_SUFFIX, Variable

REDUCE = ("c_allreduce_sum", "c_allreduce_coalesced", "c_reduce_shards")
SCALES = ("CoeffNumDevice", "One", "Customized")


def reduce_gradients(program: Program, loss_name: str | None, ranks: int, scale: str = "CoeffNumDevice") -> int:
    """Let `program` reduce the gradients that its updates read, over so many ranks; how many there are.

    loss_name   whose gradient begins as 1 / ranks; None only for a program that updates nothing
    scale       what the loss's gradient begins with: "CoeffNumDevice" 1 / ranks, so that gradients are means over the
                ranks; "One" 1, so that they are sums; "Customized" what is fed as `<loss>@GRAD`
    """
    require(scale in SCALES, f"scale {scale!r} is none of {', '.join(SCALES)}", ProgramError)
    grads = gradients_of(program)
    if not grads:
        return 0
    if any(is_reduction(op) for op in program.ops):
        raise ProgramError(f"program {program.name} reduces its gradients already")
    _begin(program, loss_name, ranks, scale)
    places = _places(program, grads)
    old, block = list(program.ops), program.global_block()
    made: dict[int, list[Operator]] = {}
    for v in grads:
        with program.emitting("backward", site=old[places[v.name]].site):
            op = block.append_op("c_allreduce_sum", {"X": v}, {"Out": v})
        made.setdefault(places[v.name], []).append(op)
    program.ops[:] = [each for i, op in enumerate(old) for each in (op, *made.get(i, ()))]
    return len(grads)


def is_reduction(op: Any) -> bool:
    """Whether an operator is what `reduce_gradients` put in for a gradient, or what took its place."""
    return op.type in REDUCE and op.role == "backward" and op.forward is None


def is_collective(program: Program) -> bool:
    """Whether ranks must run a program together."""
    return any("collective" in op.opdef.traits for op in program.ops)


def gradients_of(program: Program) -> list[Variable]:
    """The gradients that updates read, before clipping and the like, in the order in which they are written.

    An update is an operator of an optimizer, or one of yours that writes a parameter.
    """
    writers: dict[str, Operator] = {}  # the operator that writes a variable last, as the walk below gets on
    later = {name: op for op in program.ops for name in op.output_arg_names}
    found: dict[str, Variable] = {}
    for op in program.ops:
        if "optimizer" in op.opdef.traits and op.role == "optimize":
            for grad, param in zip(op.inputs["Grad"], op.inputs["Param"], strict=True):
                own = {v.name: v for v in _begins_at([grad], writers, {}) if v.type.is_float}
                require(own, f"the update of {param.name} reads no gradient that ranks could reduce", ProgramError)
                found |= own
        elif op.role != "backward" and any(getattr(v, "trainable", False) for v in op.output_vars):
            found |= {v.name: v for v in _begins_at(op.input_vars, writers, later) if v.type.is_float}
        writers.update((v.name, op) for v in op.output_vars)
    order = {name: i for i, op in enumerate(program.ops) for name in op.output_arg_names}
    return sorted(found.values(), key=lambda v: order[v.name])


def _begins_at(
    values: Iterable[Variable], writers: Mapping[str, Operator], later: Mapping[str, Operator]
) -> Iterator[Variable]:
    """What values are made of behind backward: those that operators of backward have written.

    later  who writes what nobody has written yet: a state that the run before has made of its gradients
    """
    waiting, seen = [*values], set[str]()
    while waiting:
        v = waiting.pop()
        op = writers.get(v.name) or later.get(v.name)
        if v.name in seen or op is None:
            continue
        seen.add(v.name)
        if op.role == "backward":
            yield v
        elif "optimizer" not in op.opdef.traits:
            waiting += op.input_vars


def _places(program: Program, grads: Sequence[Variable]) -> dict[str, int]:
    """{gradient: position of the operator behind which it is reduced}: the last one of backward that uses it."""
    names, places, read = {v.name for v in grads}, dict[str, int](), dict[str, Operator]()
    for i, op in enumerate(program.ops):
        for name in names.intersection((*op.input_arg_names, *op.output_arg_names)):
            if op.role != "backward":
                read.setdefault(name, op)
            elif name in read:
                raise ProgramError(
                    f"{name} is used by backward behind {read[name].type}, which needs it reduced", call=op.call(),
                    site=op.site, hint="take all gradients before the first apply_gradients()",
                )  # fmt: skip
            else:
                places[name] = i
    return places


def _begin(program: Program, loss_name: str | None, ranks: int, scale: str) -> None:
    """Let the loss's gradient begin as `scale` says."""
    require(loss_name is not None, "the program updates parameters, and loss_name is None", ProgramError,
            "with_data_parallel(loss_name=loss.name)")  # fmt: skip
    assert loss_name is not None
    seed = _seed(program, loss_name)
    if scale == "Customized":
        program.ops.remove(seed)
    elif scale == "CoeffNumDevice":
        seed.attrs["value"] = seed.attrs["value"] / ranks


def _seed(program: Program, loss_name: str) -> Operator:
    """The operator with which the gradient of the loss begins: of mixed precision's scaled loss, if there is one."""
    program.global_block().var(loss_name)  # refuses a name that is none
    names = {loss_name}
    for op in program.ops:
        if op.role == "optimize" and not names.isdisjoint(op.input_arg_names):
            names.update(name for name in op.output_arg_names if GRAD_SUFFIX not in name)
        if seeds_loss(op) and any(name == n + GRAD_SUFFIX for n in names for name in op.output_arg_names):
            return op
    raise ProgramError(
        f"{loss_name} is not the loss of which program {program.name} takes gradients",
        hint="loss_name is the name of what was given to minimize() or append_backward(), which comes first",
    )
