"""append_backward, with checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minigraph.compiler.checkpoints import recompute_between
from minigraph.program import Parameter, Variable, backward
from minigraph.program.builder import alone


@alone
def append_backward(
    loss: Variable,
    parameter_list: Sequence[Any] | None = None,
    no_grad_set: Iterable[Any] | None = None,
    callbacks: Any = None,
    checkpoints: Any = None,
    distop_context: Any = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the gradient of `loss` with respect to the trainable parameters and to what else asks for one.

    loss            a Variable with one element
    parameter_list  Variables or names, Parameters as a rule; all trainable Parameters by default
    no_grad_set     Variables or names through which no gradient flows
    checkpoints     Variables or names that forward computes: backward keeps them, and computes again what lies
                    between two of them instead of keeping it (docs/recompute.md). Results stay the same bits
    callbacks, distop_context
                    Paddle's; refused unless None or empty: operators are not shown while they are
                    appended, and there is one process
    Returns [(parameter, gradient)] in the order of the parameters, without those that the loss
    does not depend on or whose stop_gradient is True. A data variable whose stop_gradient was set to
    False gets its gradient `x@GRAD` too, whatever parameter_list says; it is not in the result, unless
    listed. A loss that depends on nothing that gets a gradient is an error.
    """
    pairs = backward.append_backward(loss, parameter_list, no_grad_set, callbacks, distop_context=distop_context)
    if checkpoints:
        recompute_between(loss.program, checkpoints)
    return pairs


__all__ = ["append_backward"]
