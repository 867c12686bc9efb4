"""GradientMergeOptimizer: gradients of several runs are added up, and one update follows.

    merged = gradient in the first of k runs, else merged + gradient;  in the k-th: update with merged / k (avg)

Every run is the same program, on a GPU one captured graph: a counter on the device decides what changes. In the runs
between, updates are skipped by the flag that a gradient's overflow uses, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from minigraph.errors import ProgramError, require, shortened
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import NO_GRADIENT
from minigraph.optimizer.settings import LOW_PRECISION, positive_int
from minigraph.optimizer.states import persistable
from minigraph.optimizer.wrapped import all_or_nothing, rule_of
from minigraph.program import Operator, Program, Variable, default_startup_program
from minigraph.program.builder import Builder, builder_of
from minigraph.program.whole.settled import Settled, as_it_is
from minigraph.types import float32, int64, tensor_type

MERGED = "@GRAD@GradientMerge"


class GradientMergeOptimizer(Settled):
    """`minimize` as of the optimizer inside, whose updates come with the gradients of `k_steps` runs.

    k_steps  feed so many batches in as many runs: with avg and losses that are means it is the update of one batch of
             k_steps times the rows
    avg      the mean of the gradients; False takes their sum
    Clipping and weight decay see the merged gradients. A learning rate scheduler stands still between two calls of its
    step(): call it once in k_steps runs. What is not here is looked for in the optimizer inside.
    """

    settings: ClassVar[Any] = {"k_steps": positive_int, "avg": as_flag, "inner_optimizer": as_it_is}

    def __init__(self, inner_optimizer: Any, k_steps: int = 1, avg: bool = True) -> None:
        rule, shown = rule_of(inner_optimizer), shortened(repr(inner_optimizer))
        if rule is None:
            raise ProgramError(f"GradientMergeOptimizer is made of an optimizer of mg.optimizer, not of {shown}")
        self.inner_optimizer, self._rule = inner_optimizer, rule
        self._set_k_steps(k_steps)
        self._set_avg(avg)

    def _set_k_steps(self, k_steps: int) -> None:
        self.k_steps = k_steps

    def _set_avg(self, avg: bool) -> None:
        self.avg = avg

    def backward(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Sequence[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None, callbacks: Any = None,
    ) -> list[tuple[Any, Any]]:  # fmt: skip
        """Append the gradients of one batch only: [(parameter, gradient)], for apply_gradients."""
        return self.inner_optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append the sums, clipping, weight decay, updates and the return of the sums to 0."""
        pairs = [(p, grad) for p, grad in params_grads if grad is not None]
        require(pairs, "there is no gradient to apply", NO_GRADIENT)
        program = pairs[0][0].program
        with all_or_nothing(program, None, self.inner_optimizer), program.emitting("optimize"):
            g, startup = Builder(program.global_block()), default_startup_program().global_block()
            begins, waits = self._turn(g, startup)
            factor = 1 / self.k_steps if self.avg else 1.0
            merged = [(p, _merged(g, startup, p, grad, begins, factor)) for p, grad in pairs]
            updates = self._updated(g, merged, waits)
        self.settle("minimize")
        return updates

    def minimize(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Sequence[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[tuple[Any, Any]]]:  # fmt: skip
        """Append backward, sums and update of `loss`: (update operators, [(parameter, gradient of one batch)])."""
        program = builder_of(loss).block.program
        with all_or_nothing(program, startup_program, self.inner_optimizer):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self.apply_gradients(pairs), pairs

    def _turn(self, g: Builder, startup: Any) -> tuple[Variable, Variable]:
        """(whether this run is the first since an update, whether it is not the last before the next one)"""
        step = persistable(g.block, startup, "gradient_merge_step", 0, tensor_type((), int64))[0]
        none, one, k = (g.fill_constant(shape=(), value=n, dtype=int64) for n in (0, 1, self.k_steps))
        begins, ran = g.equal(step, none), g.elementwise_add(step, one)
        waits = g.less_than(ran, k)
        g.where(waits, ran, none, out={"Out": step})
        return begins, waits

    def _updated(self, g: Builder, merged: list[tuple[Any, Any]], waits: Variable) -> list[Operator]:
        """Updates that are skipped while this run waits, or where the user's own flag says so.

        A decorated optimizer adds overflow of the merged gradients, and leaves its loss scale alone in runs that wait.
        """
        own = self._rule._auxiliary_vars
        given = own.get("found_inf")
        own["found_inf"] = waits if given is None else g.logical_or(g.reshape(given, shape=()), waits)
        try:
            return self.inner_optimizer.apply_gradients(merged)
        finally:
            own.pop("found_inf")
            if given is not None:
                own["found_inf"] = given

    def __getattr__(self, name: str) -> Any:
        if name == "inner_optimizer":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.inner_optimizer, name)


def _merged(g: Builder, startup: Any, p: Any, grad: Variable, begins: Variable, factor: float) -> Variable:
    """`factor` times the sum of a parameter's gradients since the last update; of 16-bit ones added up in float32."""
    wide = grad.dtype in LOW_PRECISION
    type = grad.type.with_dtype(float32) if wide else grad.type
    total = persistable(g.block, startup, p.name + MERGED, 0.0, type)[0]
    before = g.where(begins, g.fill_constant(shape=(), value=0.0, dtype=type.dtype), total)
    g.elementwise_add(before, g.cast(grad, dtype=float32) if wide else grad, out={"Out": total})
    whole = g.scale(total, scale=factor)
    return g.cast(whole, dtype=grad.dtype) if wide else whole
