"""constant_folding: values that depend on constants only are computed while compiling.

    f(constants)              ->  fill_constant, where all elements are equal bit for bit
                              ->  assign_value, else, of at most LITERAL elements
    f(shape of X, constants)  ->  the same two, where X has a known shape
    reduce_sum_grad(X, c)     ->  fill_any_like(X, c), where X is large: kernels that read it can make it themselves.
                                  The same holds for reduce_mean_grad. A loss ends in one of the two

Constants are the outputs of operators without inputs. The text form carries the result in the
attributes `value` or `values`: NaN (without its payload), infinities and -0.0 come back from it.
Constants are computed as on a CPU: in the operator's own type, 16-bit floats in float32 and rounded
once. At most EVALUATED elements are computed; of a pointwise function of equal elements it is one.

Refused is a value that is differentiated, persistable, updated in place or larger. An operator that
fails when it is computed is left to the run, and so is one that makes NaN or an infinity: there
check_nan_inf names it. Masks of -inf that the user wrote are constants. Random operators are none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.opdef.reference import computed, run_reference
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.redirect import is_unread, take_out, unlink
from minigraph.passes.engine.rule import Refused, refuse_unless
from minigraph.types import TensorType, float64, normalize_axes

RULE = "Constant"
LITERAL, EVALUATED = 256, 1 << 16  # elements
LEFT_ALONE = {"random", "side_effect", "optimizer"}
SPREADS = {"reduce_sum_grad", "reduce_mean_grad"}  # Out_grad in X's shape


def constant_folding(graph: Graph, report: PassReport) -> int:
    """Find the values of constants, write down those that are read, take out operators that are then unread."""
    known: dict[VarNode, np.ndarray] = {}
    constants: list[OpNode] = []
    for op in graph.ops:
        if not LEFT_ALONE.isdisjoint(op.opdef.traits) or not _is_constant(op, known):
            continue
        try:
            known.update(_evaluated(op, known))
            constants.append(op)
        except Refused as no:
            report.refuse(RULE, op.label(), str(no), op.site)
    freed: set[OpNode | None] = set()
    for op in reversed(constants):  # readers first: what only they read need not be written down
        sources = [v.producer for v in op.input_vars]
        if op in freed and not op.grads and is_unread(op):
            take_out(graph, op)
        elif sources:
            try:
                report.apply(_fold(graph, op, known, report.name))
            except Refused as no:
                report.refuse(RULE, op.label(), str(no), op.site)
                continue
        freed.update(sources)
    report.applied.reverse()
    return len(report.applied)


def _is_constant(op: OpNode, known: dict[VarNode, np.ndarray]) -> bool:
    """Whether all that matters to `op` is known: values, or shapes where only these are used."""
    opdef = op.opdef
    for slot, vs in op.inputs.items():
        for v in vs:
            if v not in known and (opdef.reads_all or not v.type.is_static or slot not in opdef.unread(op.outputs)):
                return False
    return True


def _evaluated(op: OpNode, known: dict[VarNode, np.ndarray]) -> dict[VarNode, np.ndarray]:
    """{output: value}; refuses an operator that would take long or that fails."""
    types = op.opdef.infer_types({s: [v.type for v in vs] for s, vs in op.inputs.items()}, op.attrs)
    inputs = {slot: [known[v] if v in known else _zeros(v.type) for v in vs] for slot, vs in op.inputs.items()}
    if _is_spread(op, known):
        return {op.outputs["X_grad"][0]: _spread(op, inputs["Out_grad"][0])}
    arrays, attrs = [a for each in inputs.values() for a in each], op.attrs
    if "uniform" in op.opdef.traits or ("elementwise" in op.opdef.traits and all(map(_is_uniform, arrays))):
        inputs = {slot: [a[(slice(1),) * a.ndim] for a in each] for slot, each in inputs.items()}
        attrs = {**attrs, "shape": (1,) * len(attrs["shape"])} if "shape" in attrs else attrs
    else:
        most = max([t.size for each in types.values() for t in each] + [a.size for a in arrays])
        refuse_unless(most <= EVALUATED, f"{most} elements are too many to compute while compiling")
    values = {}
    for slot, results in _computed(op, inputs, attrs).items():
        for v, result, t in zip(op.outputs.get(slot, ()), results, types[slot], strict=False):
            values[v] = _compact(result.astype(t.dtype), t)
    given = {kind for a in (*arrays, *op.attrs.values()) for kind in _not_finite(a)}
    made = {kind for value in values.values() for kind in _not_finite(value)} - given
    refuse_unless(not made, f"it makes {' and '.join(sorted(made))}")
    return values


def _not_finite(value: Any) -> set[str]:
    """What of nan, inf and -inf a constant or an attribute holds."""
    if not isinstance(value, (np.ndarray, float, tuple)):
        return set()
    numbers = np.atleast_1d(value)
    numbers = numbers[(slice(1),) * numbers.ndim] if _is_uniform(numbers) else numbers
    if numbers.dtype.kind in "biuUO" or np.isfinite(numbers).all():
        return set()
    return {str(x) for x in np.unique(numbers[~np.isfinite(numbers)].astype(float64))}


def _is_spread(op: OpNode, known: dict[VarNode, np.ndarray]) -> bool:
    """Whether one number is given to all elements of a large sum or mean."""
    large = op.type in SPREADS and op.inputs["X"][0].type.size > EVALUATED
    return large and _is_uniform(known[op.inputs["Out_grad"][0]])


def _spread(op: OpNode, grad: np.ndarray) -> np.ndarray:
    """The number that the operator writes, a share of it for a mean, computed as the reference does."""
    x, axis = op.inputs["X"][0].type, op.attrs["axis"]
    share = computed(grad)[(0,) * grad.ndim]
    if op.type == "reduce_mean_grad":
        share = share / share.dtype.type(math.prod(x.shape[a] for a in normalize_axes(axis, x.ndim)))
    return np.broadcast_to(np.asarray(share).astype(x.dtype), x.shape)


def _computed(op: OpNode, inputs: dict[str, list[np.ndarray]], attrs: dict[str, Any]) -> dict[str, list[Any]]:
    """{output slot: arrays}; refuses where computing them fails."""
    try:
        with np.errstate(all="ignore"):
            return run_reference(op.opdef, inputs, attrs, op.outputs)
    except (MinigraphError, ValueError, IndexError, OverflowError) as problem:
        raise Refused(f"it fails: {problem.fact if isinstance(problem, MinigraphError) else problem}") from None


def _fold(graph: Graph, op: OpNode, known: dict[VarNode, np.ndarray], rewriter: str) -> Applied:
    """Let one operator without inputs write each output of `op`."""
    refuse_unless(not op.grads, f"{op.label()} is differentiated")
    for v in op.output_vars:
        refuse_unless(not v.persistable, f"{v.name} is persistable")
        refuse_unless(v.version == 0 and v.next_version is None, f"{v.name} is updated in place")
    calls = [(v, *_written_down(known[v])) for v in op.output_vars]
    like: dict[str, list[VarNode]] = {}
    if _is_spread(op, known):  # fill_constant has no place in a kernel of its readers
        like = {"X": op.inputs["X"]}
        calls = [(v, "fill_any_like", {"value": attrs["value"]}) for v, _, attrs in calls]
    unlink(graph, op)
    graph.remove_op(op)
    for i, (v, op_type, attrs) in enumerate(calls):  # ranks before all that may stand behind op
        opdef = get_op(op_type)
        graph.add_op(
            OpNode(
                opdef, dict(like), {"Out": [v]}, opdef.bind_attrs(attrs), rank=(*op.rank, -1, i), role=op.role,
                site=op.site, number=op.number, scope_name=op.scope_name, rewriter=rewriter,
            )
        )  # fmt: skip
    new = ", ".join(f"{v.name} = {op_type}" for v, op_type, _ in calls)
    return Applied(RULE, new, (op.label(),), op.site, op.role)


def _written_down(value: np.ndarray) -> tuple[str, dict[str, Any]]:
    """The operator without inputs that makes `value`."""
    if _is_uniform(value) and value.size:
        first = value[(0,) * value.ndim].item()
        return "fill_constant", {"shape": value.shape, "value": first, "dtype": value.dtype}
    refuse_unless(value.size <= LITERAL, f"{value.size} elements are too many for a literal")
    return "assign_value", {"values": value.reshape(-1).tolist(), "shape": value.shape, "dtype": value.dtype}


def _compact(value: np.ndarray, t: TensorType) -> np.ndarray:
    """`value` with the shape of `t`; equal elements, bit for bit, are kept once."""
    if value.size and value.shape == t.shape:
        elements = np.frombuffer(value.tobytes(), np.uint8).reshape(value.size, -1)
        if not (elements == elements[0]).all():
            return value
        value = value[(slice(1),) * value.ndim].reshape(())
    return np.broadcast_to(value, t.shape)


def _is_uniform(value: np.ndarray) -> bool:
    return value.size <= 1 or not any(value.strides)


def _zeros(t: TensorType) -> np.ndarray:
    return np.broadcast_to(np.zeros((), t.dtype), t.shape)
