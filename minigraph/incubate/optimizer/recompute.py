"""RecomputeOptimizer: an optimizer whose backward computes values again between checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minigraph.compiler.checkpoints import recompute_between
from minigraph.errors import ProgramError, require, shortened
from minigraph.errors.kinds import ORDER
from minigraph.optimizer.wrapped import Wrapping, all_or_nothing
from minigraph.program import Operator, Program, Variable, default_main_program
from minigraph.program.builder import builder_of


class RecomputeOptimizer(Wrapping):
    """`minimize` as of the optimizer inside; what lies between two checkpoints is computed again, not kept.

        optimizer = mg.incubate.optimizer.RecomputeOptimizer(mg.optimizer.Adam(1e-3))
        optimizer._set_checkpoints([hidden1, hidden2])
        optimizer.minimize(loss)

    Updates are the same bits as those of the optimizer alone. What is not here is looked for in it.
    """

    def __init__(self, optimizer: Any) -> None:
        fits = all(hasattr(optimizer, name) for name in ("backward", "apply_gradients"))
        require(fits, f"RecomputeOptimizer is made of an optimizer, not of {shortened(repr(optimizer))}", ProgramError)
        self._optimizer, self._checkpoints = optimizer, None
        self._built = frozenset[int]()  # programs that have their gradients, by id

    def _set_checkpoints(self, checkpoints: list[Any]) -> None:
        """Variables that forward computes, or their names, of a program whose minimize or backward comes."""
        listed = isinstance(checkpoints, list) and all(isinstance(c, (str, Variable)) for c in checkpoints)
        shown = shortened(repr(checkpoints))
        require(listed, f"checkpoints is a list of variables or names, not {shown}", ProgramError)
        programs = {c.program.id for c in checkpoints if isinstance(c, Variable)} or {default_main_program().id}
        late = "checkpoints are set after minimize, they would have no effect"
        require(self._built.isdisjoint(programs), late, ORDER, "set them before")
        self._checkpoints = checkpoints

    def backward(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Sequence[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None, callbacks: Any = None,
    ) -> list[tuple[Any, Any]]:  # fmt: skip
        """Append the gradients only: [(parameter, gradient)], for apply_gradients."""
        require(
            self._checkpoints is not None, "RecomputeOptimizer has no checkpoints", ORDER,
            "call _set_checkpoints([...]) first",
        )  # fmt: skip
        with all_or_nothing(builder_of(loss).block.program, startup_program, self):
            pairs = self._optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)
            recompute_between(loss.program, self._checkpoints)
        self._built |= {loss.program.id}
        return pairs

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append clipping, weight decay and updates."""
        return self._optimizer.apply_gradients(params_grads)

    def minimize(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Sequence[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[tuple[Any, Any]]]:  # fmt: skip
        """Append backward and update of `loss`: (update operators, [(parameter, gradient)])."""
        with all_or_nothing(builder_of(loss).block.program, startup_program, self):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self._optimizer.apply_gradients(pairs), pairs
