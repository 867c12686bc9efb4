"""OptimizerWithMixedPrecision: an optimizer that first casts the program, and scales the loss.

    minimize = cast the program -> loss * scale -> gradients -> overflow? -> updates, unless -> next scale

All of a step is operators, so a captured graph runs it without the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minigraph.compiler.mixed_precision import narrow_initial_values
from minigraph.errors import ProgramError, require
from minigraph.errors.kinds import ORDER
from minigraph.optimizer.states import persistable
from minigraph.optimizer.wrapped import Wrapping, rule_of
from minigraph.program import Operator, Program, Variable, default_startup_program, program_guard
from minigraph.program.blocks.restored import as_before_on_error
from minigraph.program.builder import Builder
from minigraph.program.operator import masters_of
from minigraph.program.scope import Scope
from minigraph.types import float32, int32, tensor_type

from .model import cast_model_to_fp16, cast_parameters_to_fp16
from .settings import Settings

ParamsGrads = list[tuple[Any, Any]]


class OptimizerWithMixedPrecision(Wrapping):
    """What `decorate` returns; it has the methods of the optimizer, too."""

    def __init__(self, optimizer: Any, settings: Settings) -> None:
        rule = rule_of(optimizer)
        assert rule is not None
        self._optimizer, self._rule, self._settings = optimizer, rule, settings
        self._program: Program | None = None
        self._startup: Program | None = None
        self._loss_scaling: Variable | None = None
        self._steps: tuple[Variable, ...] = ()  # good and bad ones in a row
        self._scaled_loss: Variable | None = None
        self._narrowed: set[str] = set()

    def get_loss_scaling(self) -> Variable:
        """The variable with the loss scale of the next step, float32 [1]."""
        require(self._loss_scaling is not None, "there is no loss scale before minimize", ORDER)
        assert self._loss_scaling is not None
        return self._loss_scaling

    def get_scaled_loss(self) -> Variable | None:
        """The loss times the loss scale, of which gradients are taken; None before `backward`."""
        return self._scaled_loss

    # appending operators

    def minimize(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> tuple[list[Operator], ParamsGrads]:  # fmt: skip
        """Cast the program, append backward and updates; returns (update operators, [(parameter, scaled gradient)]).

        Where anything is refused, both programs stay as they were.
        """
        with self._all_or_nothing(loss, startup_program):
            params_grads = self._backward(loss, parameter_list, no_grad_set, None)
            return self._apply(params_grads), params_grads

    def backward(
        self, loss: Variable, startup_program: Program | None = None, parameter_list: Any = None,
        no_grad_set: Any = None, callbacks: Any = None,
    ) -> ParamsGrads:  # fmt: skip
        """Cast the program and append gradients of the scaled loss only, for `apply_gradients`."""
        with self._all_or_nothing(loss, startup_program):
            return self._backward(loss, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append the check for overflow, clipping, weight decay, updates and the next loss scale."""
        require(self._scaled_loss is not None, "apply_gradients comes after backward", ORDER)
        with self._all_or_nothing(self._scaled_loss, self._startup):
            return self._apply(params_grads)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[tuple[Any, Any]]
    ) -> list[Operator]:
        """`apply_gradients` with Paddle's arguments."""
        with program_guard(loss.program, startup_program):
            return self.apply_gradients(params_grads)

    def amp_init(
        self, place: Any, scope: Scope | None = None, test_program: Program | None = None,
        use_fp16_test: bool = False, rewrite_master_weight: bool = False,
    ) -> None:  # fmt: skip
        """Round what a scope (the global one for None) holds in float32 of parameters that have 16 bits.

        The startup program gives 16 bits by itself: it is for values that came from elsewhere.
        test_program           is cast likewise: at O2, or with use_fp16_test
        rewrite_master_weight  float32 copies of parameters get these values, too
        """
        require(self._program is not None, "amp_init comes after minimize", ORDER)
        assert self._program is not None
        if self._narrowed:
            cast_parameters_to_fp16(
                place, self._program, scope, self._narrowed, self._settings.half, rewrite_master_weight,
                self._master_weights(),
            )  # fmt: skip
        if test_program is not None and (self._narrowed or use_fp16_test):
            self._cast(test_program)

    @contextmanager
    def _all_or_nothing(self, loss: Any, startup: Program | None) -> Iterator[None]:
        require(isinstance(loss, Variable), f"loss must be a variable, is {loss!r}"[:200], ProgramError)
        startup = startup if startup is not None else default_startup_program()
        require(isinstance(startup, Program), f"startup_program must be a Program, is {startup!r}"[:200], ProgramError)
        before = dict(self.__dict__)
        main, filling = loss.block, startup.global_block()
        rates = dict(self._rule._rates)
        with as_before_on_error(main), as_before_on_error(filling), program_guard(main.program, startup):
            self._startup = startup
            try:
                yield
            except BaseException:
                self.__dict__.update(before)
                self._rule._rates = rates
                raise

    def _backward(self, loss: Variable, parameter_list: Any, no_grad_set: Any, callbacks: Any) -> ParamsGrads:
        program, facts = loss.program, self._settings
        assert self._startup is not None
        self._program, self._narrowed = program, self._cast(program)
        narrow_initial_values(self._startup, self._narrowed, facts.half)
        self._make_states()
        self._scaled_loss = self._scaled(loss)
        return self._optimizer.backward(
            self._scaled_loss, self._startup, parameter_list, no_grad_set, callbacks
        )

    def _scaled(self, loss: Variable) -> Variable:
        """The loss in float32 at least, times the loss scale. No test program has these operators."""
        g = Builder(loss.block)
        with loss.program.emitting("optimize"):
            wide: Variable = g.cast(loss, dtype=float32) if loss.dtype.itemsize == 2 else loss
            if not self._settings.scales:
                return wide
            scale = g.reshape(self._loss_scaling, shape=loss.shape)
            scale = scale if scale.dtype == wide.dtype else g.cast(scale, dtype=wide.dtype)
            return g.elementwise_mul(wide, scale)

    def _cast(self, program: Program) -> set[str]:
        facts = self._settings
        return cast_model_to_fp16(program, facts.lists, facts.guarded, facts.half, facts.level)

    def _make_states(self) -> None:
        """The loss scale and the counters, which the startup program fills."""
        assert self._program is not None and self._startup is not None
        main, startup, facts = self._program.global_block(), self._startup.global_block(), self._settings
        self._loss_scaling = persistable(
            main, startup, "loss_scaling", facts.init_loss_scaling, tensor_type((1,), float32)
        )[0]
        if facts.dynamic:
            number = tensor_type((1,), int32)
            self._steps = tuple(
                persistable(main, startup, name, 0, number)[0] for name in ("num_good_steps", "num_bad_steps")
            )

    def _apply(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        pairs = [(p, grad) for p, grad in params_grads if grad is not None]
        if not self._settings.scales or not pairs:
            return self._optimizer.apply_gradients(pairs)
        assert self._program is not None
        g, given = Builder(self._program.global_block()), dict(self._rule._auxiliary_vars)
        with self._program.emitting("optimize"):
            divided = self._rule.changes_gradients(p for p, _ in pairs)
            grads, found = g.check_finite_and_unscale(
                [grad for _, grad in pairs], self._loss_scaling, needs=["Out"] if divided else []
            )
            if divided:  # clipping and decay see gradients as they are, each divided in float32 and rounded once
                pairs = [(p, grad) for (p, _), grad in zip(pairs, grads, strict=True)]
            else:
                self._share(g, "grad_scale", g.reciprocal(self._loss_scaling), g.elementwise_mul)
            self._share(g, "found_inf", found, g.logical_or)
        try:
            updates = self._optimizer.apply_gradients(pairs)
        finally:
            self._rule._auxiliary_vars = given
        if self._settings.dynamic:
            self._append_next_scale(g, found, given.get("found_inf"))
        return updates

    def _share(self, g: Builder, key: str, own: Variable, joined: Any) -> None:
        """Give all updates a number, `joined` with the one that they have from elsewhere."""
        other = self._rule._auxiliary_vars.get(key)
        self._rule._set_auxiliary_var(key, own if other is None else joined(own, g.reshape(other, shape=(1,))))

    def _append_next_scale(self, g: Builder, found: Variable, stands: Variable | None) -> None:
        """The scale of the next step; a step that is skipped for a reason from elsewhere (`stands`) counts for none."""
        assert self._program is not None
        states = (self._loss_scaling, *self._steps)
        slots = ("LossScaling", "OutGoodSteps", "OutBadSteps")
        with self._program.emitting("optimize"):
            out = dict(zip(slots, states, strict=True)) if stands is None else None
            following = g.update_loss_scaling(found, *states, out=out, **self._settings.steps_and_ratios)
            if stands is not None:
                for state, value in zip(states, following, strict=True):
                    g.where(g.reshape(stands, shape=(1,)), state, value, out={"Out": state})

    def _master_weights(self) -> dict[str, Variable]:
        """{parameter: its float32 copy}"""
        assert self._program is not None
        return {p.name: copy for p, copy in masters_of(self._program.ops).items()}
