"""LookAhead: an optimizer takes k steps, and then slow weights go a part of the way.

    slow += alpha * (parameter - slow);  parameter = slow     in each k-th run

Source: Zhang and others, Lookahead Optimizer, arXiv:1907.08610.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from minigraph.errors import AttrError, ProgramError, require, shortened
from minigraph.optimizer.settings import positive_int
from minigraph.optimizer.states import persistable
from minigraph.optimizer.updates import go_back
from minigraph.optimizer.wrapped import Wrapping, all_or_nothing, rule_of
from minigraph.program import (
    Operator,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from minigraph.program.builder import Builder, builder_of
from minigraph.program.operator import masters_of
from minigraph.program.whole.settled import Settled, as_it_is
from minigraph.types import int64, tensor_type


def share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1]."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
    require(number, f"{name} must be a number in [0, 1], is {value!r}", AttrError)
    return float(value)


class LookAhead(Settled, Wrapping):
    """`minimize` as of the optimizer inside, then the steps of the slow weights.

    alpha  how far slow weights go, in [0, 1]
    k      runs between two of their steps; slow weights begin as the parameters are after the first run, as in Paddle
    What is not here is looked for in the optimizer inside.
    """

    settings: ClassVar[Any] = {
        "alpha": share, "k": positive_int, "name": as_it_is, "inner_optimizer": as_it_is,
    }  # fmt: skip

    def __init__(self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5, name: str | None = None) -> None:
        shown = shortened(repr(inner_optimizer))
        rule = rule_of(inner_optimizer)
        if rule is None:
            raise ProgramError(f"LookAhead is made of an optimizer, not of {shown}")
        self.inner_optimizer, self._optimizer, self._rule = inner_optimizer, inner_optimizer, rule
        self.alpha, self.k, self.name = alpha, k, f"{name}_" if name else ""

    def minimize(
        self, loss: Variable, startup_program: Program | None = None, parameters: Any = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[tuple[Any, Any]]]:  # fmt: skip
        """Append backward, updates and slow weights: (update operators, [(parameter, gradient)])."""
        program = builder_of(loss).block.program
        with all_or_nothing(program, startup_program, self):
            ops, pairs = self.inner_optimizer.minimize(loss, startup_program, parameters, no_grad_set)
            return [*ops, *self._steps(program, pairs)], pairs

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append clipping, weight decay, updates and slow weights."""
        program = next((p.program for p, grad in params_grads if grad is not None), default_main_program())
        with all_or_nothing(program, None, self):
            return [*self.inner_optimizer.apply_gradients(params_grads), *self._steps(program, params_grads)]

    def _steps(self, program: Program, pairs: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append the steps of the slow weights, skipped with the updates: those operators that change a state."""
        trained, g = [p for p, grad in pairs if grad is not None], Builder(program.global_block())
        first, skip = len(g.block.ops), self._rule._rates[program.id].skip
        with program.emitting("optimize"):
            self._append(g, default_startup_program().global_block(), trained)
            if skip is not None:
                go_back(g, first, skip)
        self.settle("minimize")
        return [op for op in g.block.ops[first:] if any(v.persistable for v in op.output_vars)]

    def _append(self, g: Builder, startup: Any, params: list[Any]) -> None:
        step = persistable(g.block, startup, f"{self.name}lookahead_step", 0, tensor_type((), int64))[0]
        one, k, none = (g.fill_constant(shape=(), value=n, dtype=int64) for n in (1, self.k, 0))
        ran = g.elementwise_add(step, one)
        first, meets = g.equal(ran, one), g.equal(g.elementwise_mod(ran, k), none)
        masters = masters_of(g.block.ops)
        for p in params:
            fast: Any = masters.get(p, p)  # the next update goes on from a float32 copy
            kept = persistable(g.block, startup, f"{p.name}_{self.name}slow", 0.0, fast.type)[0]
            slow = g.where(first, fast, kept)
            moved = g.elementwise_add(g.scale(fast, scale=self.alpha), g.scale(slow, scale=1 - self.alpha))
            g.where(meets, moved, slow, out={"Out": kept})
            g.where(meets, moved, fast, out={"Out": fast})
            if fast is not p:
                g.cast(fast, dtype=p.dtype, out={"Out": p})
        g.assign(ran, out={"Out": step})
