"""`static_pylayer`: operators with a gradient of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigraph.errors import require, shortened
from minigraph.errors.kinds import BLOCKS, FOREIGN, NO_GRADIENT, WRONG_OBJECT
from minigraph.program import Variable, default_main_program, unique_name
from minigraph.program.blocks.subprogram import SubProgram
from minigraph.program.builder import whole
from minigraph.tensor.arguments import variables

from .branches import returned
from .structure import described, leaves, packed


@whole
def static_pylayer(
    forward_fn: Callable[..., Any], inputs: Sequence[Variable], backward_fn: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """What forward_fn(*inputs) returns; its gradients are what backward_fn says, not those of its operators.

    inputs       variables; backward_fn returns a gradient for each
    backward_fn  takes the gradients of the results, in order; None where no input gets a gradient
    Variables from outside that forward_fn reads get no gradient through it.
    Errors: ProgramError where backward_fn is None but an input has stop_gradient=False, or returns another number.
    """
    for what, function in (("forward_fn", forward_fn), ("backward_fn", backward_fn)):
        optional = function is None and what == "backward_fn"
        require(optional or callable(function), f"{what} is no function: {function!r}", WRONG_OBJECT)
    given = variables(inputs, "static_pylayer", "inputs")
    if backward_fn is None:
        live = [v for v in given if not v.stop_gradient]
        require(
            not live, f"backward_fn is None, but {live and live[0]} may get a gradient", NO_GRADIENT,
            "stop_gradient = True says that it gets none",
        )  # fmt: skip
        return forward_fn(*given)
    base, block = name or unique_name.generate("static_pylayer"), default_main_program().current_block()
    forward, result = SubProgram.traced(f"{base}.forward", block.program, forward_fn, given, returned)
    results = leaves(result)
    require(results, "forward_fn returns nothing", BLOCKS)
    outs = [block.create_var(unique_name.generate(f"{base}.tmp"), type=v.type) for v in results]
    backward, grads = SubProgram.traced(f"{base}.backward", block.program, backward_fn, outs, returned)
    _check_gradients(given, leaves(grads), grads)
    for sub, values, first in ((forward, results, len(given)), (backward, leaves(grads), len(outs))):
        changed = sub.written()
        require(not changed, f"{sub.name} writes {changed and changed[0]}, which is outside", FOREIGN)
        sub.arrange(sub.inputs[:first], [v for v, _ in sub.captures])
        sub.fetched = tuple(v.name for v in values)
    block.append_op(
        "pylayer", {"X": given, "Input": [v for v, _ in forward.captures], "Later": [v for v, _ in backward.captures]},
        {"Out": outs}, {"forward_block": forward, "backward_block": backward},
    )  # fmt: skip
    return packed(result, iter(outs))


def _check_gradients(inputs: Sequence[Variable], grads: Sequence[Variable], result: Any) -> None:
    require(
        len(grads) == len(inputs), f"backward_fn returns {shortened(described(result))}: {len(grads)} gradients for"
        f" {len(inputs)} inputs", BLOCKS,
    )  # fmt: skip
    for v, grad in zip(inputs, grads, strict=True):
        require(v.type.accepts(grad.type), f"the gradient of {v} would be {grad}")
