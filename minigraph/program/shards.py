"""Updates that ranks share: each has a piece of every state and updates its piece of every parameter (ZeRO-1).

    w@GRAD -> c_reduce_shards -> a piece -> adamw(piece of w, pieces of its states) -> c_gather_shards -> w

Where something besides the update reads the reduced gradient, such as clipping, it is reduced whole and a piece is
taken of it. Source: Rajbhandari and others, ZeRO, arXiv:1910.02054.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from minigraph.errors import ProgramError, require
from minigraph.opdef import get_op
from minigraph.types import TensorType

from .operator import Operator
from .program import Program
from .reductions import is_reduction
from .variable import Variable

SHARD_SUFFIX = "@SHARD"


class Shard(Variable):
    """A rank's piece of a state.

    whole       the state's name in the user's program;  whole_type: its type there
    """

    whole: str
    whole_type: TensorType


def share_updates(program: Program, ranks: int, fetches: Collection[str]) -> list[str]:
    """Let ranks share the updates of a program whose gradients are reduced; what stays whole, with the reason."""
    old, remarks = list(program.ops), list[str]()
    read = Counter(name for op in old for name in {*op.input_arg_names})
    used = Counter(name for op in old for name in {*op.input_arg_names, *op.output_arg_names})
    reductions = {op.output_arg_names[0]: op for op in old if is_reduction(op)}
    placed: dict[int, list[Operator]] = {}  # what comes in the place of an operator
    gathered: dict[str, Operator] = {}  # by parameter
    for op in old:
        if "optimizer" not in op.opdef.traits or op.role != "optimize":
            continue
        why = _stays_whole(op, used)
        if why is not None:
            remarks.append(f"{op.type} of {op.inputs['Param'][0].name} stays whole: {why}")
            continue
        (grad,) = op.inputs["Grad"]
        reduction = reductions.get(grad.name)
        alone = reduction is not None and read[grad.name] == 2 and grad.name not in fetches  # the reduction, the update
        for state in _states(op):
            require(
                state.name not in fetches, f"fetch target {state.name!r} lies in pieces on {ranks} ranks", ProgramError,
                "program.state_dict() and static.save bring states together",
            )  # fmt: skip
        before, own = _shared(program, op, ranks, reduction if alone else None)
        if alone:
            placed[id(reduction)] = before
            before = []
        *update, gathered[op.inputs["Param"][0].name] = own
        placed[id(op)] = [*before, *update]
    program.ops[:] = list(_in_order(old, placed, gathered))
    _drop_unused(program)
    return remarks


def _in_order(
    old: list[Operator], placed: dict[int, list[Operator]], gathered: dict[str, Operator]
) -> Iterator[Operator]:
    """All operators; parameters are gathered before they are used again, at the latest behind the last update.

    So updates can be joined.
    """
    waiting: dict[str, Operator] = {}
    left = len(gathered)
    for op in old:
        for name in dict.fromkeys((*op.input_arg_names, *op.output_arg_names)):
            if name in waiting:
                yield waiting.pop(name)
        yield from placed.get(id(op), [op])
        if "optimizer" in op.opdef.traits and id(op) in placed:
            name = op.inputs["Param"][0].name
            waiting[name], left = gathered[name], left - 1
            if not left:
                yield from waiting.values()
                waiting = {}


def _stays_whole(op: Operator, used: Mapping[str, int]) -> str | None:
    """The reason; used: how many operators read or write a variable."""
    (param,) = op.inputs["Param"]
    if "layerwise" in op.opdef.traits:
        return "its step depends on norms of the whole parameter"
    others = [state.name for state in _states(op) if used[state.name] > 1]
    if others:
        return f"other operators use {others[0]} as well"
    return "it has no elements" if param.type.size == 0 else None


def _states(op: Operator) -> list[Variable]:
    """What an update keeps for each element of its parameter."""
    slots = [s.removesuffix("Out") for s in op.outputs if s != "ParamOut" and not s.endswith("PowOut")]
    return [op.inputs[slot][0] for slot in slots if slot in op.inputs]


def _shared(
    program: Program, op: Operator, ranks: int, reduction: Operator | None
) -> tuple[list[Operator], list[Operator]]:
    """(how a piece of the gradient is made, the update of a piece and what surrounds it), which leave the block."""
    block, states = program.global_block(), {v.name: v for v in _states(op)}
    (param,), (grad,) = op.inputs["Param"], op.inputs["Grad"]
    first = len(block.ops)

    def emit(kind: str, like: Operator, inputs: dict[str, Any], outputs: dict[str, Any], attrs: Any) -> None:
        with program.emitting(like.role, site=like.site):
            block.append_op(kind, inputs, outputs, attrs).number = op.number  # prune names updates by these

    def piece(v: Variable) -> Variable:
        return block.create_var(v.name + SHARD_SUFFIX, type=_piece_type(v, ranks), stop_gradient=True)

    nranks, grad_piece, param_piece = {"nranks": ranks}, piece(grad), piece(param)
    given = reduction.inputs["X"][0] if reduction is not None else grad
    kind = "c_shards" if reduction is None else "c_reduce_shards"
    emit(kind, reduction or op, {"X": [given]}, {"Out": [grad_piece]}, nranks)
    emit("c_shards", op, {"X": [param]}, {"Out": [param_piece]}, nranks)
    stands = {param.name: param_piece, grad.name: grad_piece} | {n: _state_piece(v, ranks) for n, v in states.items()}
    inputs = {slot: [stands.get(v.name, v) for v in vs] for slot, vs in op.inputs.items()}
    outputs = {slot: [stands.get(v.name, v) for v in vs] for slot, vs in op.outputs.items()}
    emit(op.type, op, inputs, outputs, dict(op.attrs))
    emit("c_gather_shards", op, {"X": [param_piece], "Like": [param]}, {"Out": [param]}, nranks)
    made = block.ops[first:]
    del block.ops[first:]
    return made[:1], made[1:]


def _state_piece(state: Variable, ranks: int) -> Shard:
    name, type = state.name + SHARD_SUFFIX, _piece_type(state, ranks)
    v = Shard(state.block, name, type, persistable=True, stop_gradient=True, site=state.site)
    v.__dict__.update(whole=state.name, whole_type=state.type)
    return state.block._add(v)


def _piece_type(v: Variable, ranks: int) -> TensorType:
    return get_op("c_shards").infer_types({"X": [v.type]}, {"nranks": ranks})["Out"][0]


def _drop_unused(program: Program) -> None:
    """Take out states of which only pieces are left."""
    used = {v.name for op in program.ops for v in (*op.input_vars, *op.output_vars)}
    whole = {v.whole for v in program.vars.values() if isinstance(v, Shard)}
    for name in whole - used:
        dict.pop(program.vars, name)
