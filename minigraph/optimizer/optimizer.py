"""Optimizer: what all update rules share.

    minimize(loss)  =  backward  ->  clip  ->  weight decay  ->  one update operator per parameter

Updates stand in the order of the parameters' names, with the role "optimize". States and the
learning rate are persistable variables that the startup program fills.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

from minigraph.errors import AttrError, ProgramError, call_site, require
from minigraph.errors.kinds import ORDER, UNKNOWN_ATTR
from minigraph.opdef import get_op
from minigraph.program import (
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from minigraph.program.backward import append_backward
from minigraph.program.builder import Builder, as_variable, builder_of
from minigraph.program.garbage import without_collection
from minigraph.program.scope import Scope, global_scope
from minigraph.types import FLOATS, TensorType

from .gradients import ParamsGrads, clipped, given_gradients, scaled, trainable
from .lr import LRScheduler
from .settings import (
    FixedOnceUsed,
    as_list,
    check_number,
    check_of,
    clip_rule,
    distinct,
    read_groups,
    regularizer,
)
from .states import Rate, Shared, persistable, rate_of, state_type
from .updates import append_operators, append_updates, suffix

FLAGS = {"SkipUpdate": "found_inf", "GradScale": "grad_scale"}  # slot -> Paddle's name of what all updates share


class Optimizer(FixedOnceUsed):
    """Base of the update rules.

    learning_rate    a number, an LRScheduler, whose value the Executor writes before each run, or a float Variable [1]
                     of the program, as the functions of lr such as exponential_decay give
    parameters       what to train, or a list of groups {"params": [...], hyperparameter: value, ...} in which
                     learning_rate is a factor; all trainable parameters that the loss depends on for None
    weight_decay     a number (L2) or a regularizer; a parameter's own regularizer beats it
    grad_clip        a ClipGradBy... object
    multi_precision  16-bit parameters are updated in float32 copies; without effect for others
    name             stands in the names of the states, between parameter and state

    A subclass says which operator updates a parameter, and with which states and numbers:
        op_type   the operator
        states    {slot: name} of arrays like the parameter, which begin as `initial`
        powers    {slot: (name, hyperparameter)} of float64 numbers, which begin as the hyperparameter
        hyper     {hyperparameter: its check}: attributes of the object that groups may set otherwise
        renamed   {attribute of the operator: hyperparameter} where the names differ
    """

    op_type = ""
    states: ClassVar[Mapping[str, str]] = {}
    powers: ClassVar[Mapping[str, tuple[str, str]]] = {}
    hyper: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}
    initial = 0.0

    def __init__(
        self, learning_rate: Any = 0.001, parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None,
        multi_precision: bool = False, name: str | None = None, **hyper: Any,
    ) -> None:  # fmt: skip
        self.learning_rate, self.regularization = checked_rate(learning_rate), regularizer(weight_decay)
        self.grad_clip: Any = clip_rule(grad_clip)
        self.multi_precision, self.name = bool(multi_precision), name
        for key, value in hyper.items():
            setattr(self, key, check_of(self, key)(key, value))
        self._auxiliary_vars: dict[str, Any] = {}
        self.parameters, self._groups = read_groups(type(self).__name__, self.hyper, parameters)
        self._rates: dict[int, Rate] = {}  # by program id
        self._shared = Shared()  # by all updates that are being appended

    @cached_property
    def _named(self) -> list[tuple[str, str]]:
        """(attribute of the operator, hyperparameter that it is)."""
        names = [(attr, self.renamed.get(attr, attr)) for attr in get_op(self.op_type).attrs]
        return [(attr, name) for attr, name in names if name in self.hyper]

    def attrs(self, param: Parameter) -> dict[str, Any]:
        """Attributes of the operator that updates `param`."""
        return {attr: self.of(param, name) for attr, name in self._named}

    def wanted_states(self, param: Parameter) -> Mapping[str, str]:
        """The states that the update of `param` has."""
        return self.states

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        """Append the operator that updates `param`."""
        append_operators(self, g, [(param, grad)], lr)

    def is_one_operator(self, param: Parameter) -> bool:
        """Whether the update of `param` is the operator alone; else `append_update` builds more around it."""
        return True

    def _set_auxiliary_var(self, key: str, var: Any) -> None:
        """Give all updates one number on the device, as Paddle's mixed precision does.

        found_inf   a bool variable: where it is true, a step changes neither parameters nor states
        grad_scale  a float variable that multiplies the gradients first, such as 1 / loss scale: inside the update,
                    or before it where they are clipped or decay, rounded to their type
        """
        require(key in FLAGS.values(), f"there is no auxiliary variable {key!r}", UNKNOWN_ATTR)
        self._auxiliary_vars[key] = as_variable(var, key)

    # hyperparameters and groups

    def of(self, param: Parameter, name: str) -> Any:
        """A hyperparameter as it holds for `param`: its group's, else the optimizer's."""
        group = self._groups.get(param._name, {}) if self._groups else {}
        return group[name] if name in group else getattr(self, name)

    # appending operators

    def minimize(
        self, loss: Variable, startup_program: Program | None = None, parameters: Any = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], ParamsGrads]:  # fmt: skip
        """Append backward and update of `loss`; returns (update operators, [(parameter, gradient)]).

        startup_program  gets the initialisation of the states; the default startup program for None
        parameters       beats the `parameters` that the optimizer was made with
        """
        with self._all_or_nothing(builder_of(loss).block.program, startup_program):
            if isinstance(loss, Variable):
                check_first(self._rates, loss.program, self)
            params_grads = self.backward(loss, startup_program, parameters, no_grad_set)
            return self._apply(params_grads), params_grads

    def backward(
        self, loss: Variable, startup_program: Program | None = None, parameters: Any = None,
        no_grad_set: Iterable[Any] | None = None, callbacks: Any = None,
    ) -> ParamsGrads:  # fmt: skip
        """Append the gradients only: [(parameter, gradient)], for `apply_gradients`."""
        chosen = self.parameters if parameters is None else distinct(as_list("parameters", parameters))
        if chosen is not None and isinstance(loss, Variable):
            chosen = trainable(chosen, loss)
        return append_backward(loss, chosen, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        """Append clipping, weight decay and updates; pairs whose gradient is None are left out."""
        program = next((p.program for p, g in params_grads if g is not None), default_main_program())
        with self._all_or_nothing(program, None):
            return self._apply(params_grads)

    @contextmanager
    def _all_or_nothing(self, program: Program, startup: Program | None) -> Iterator[None]:
        """Where something is refused inside, both programs stay as they were."""
        startup = startup if startup is not None else default_startup_program()
        require(isinstance(startup, Program), f"startup_program must be a Program, is {startup!r}", ProgramError)
        self._shared, rates = Shared(startup.global_block()), dict(self._rates)
        with without_collection(), program.global_block().whole(), startup.undone_on_error():
            try:
                yield
            except BaseException:
                self._rates = rates
                raise
            finally:
                self._shared = Shared()  # it would keep the startup program

    def _apply(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        pairs = given_gradients(params_grads)
        params = [p for p, _ in pairs]
        program = params[0].program
        check_first(self._rates, program, self)
        with program.emitting("optimize"):
            self._shared.flags = {s: v for s, key in FLAGS.items() if (v := self._auxiliary_vars.get(key)) is not None}
            pairs = [(p, self._regularized(p, grad)) for p, grad in clipped(self._scaled(pairs), self._clip_of)]
            rate = self._rates[program.id] = Rate.of(params, self.learning_rate, self._shared)
            g, first = Builder(program.global_block()), len(program.ops)
            startup, site = self._shared.startup.program, call_site()  # one line wrote all updates
            with program.emitting("optimize", site=site), startup.emitting(startup.emission.role, site=site):
                for factor, some in itertools.groupby(pairs, lambda pair: self._rate_factor(pair[0])):
                    append_updates(self, g, list(some), rate.times(g, factor))
        self._shared.settle(program, self.grad_clip, self._groups)
        return _lasting(self, program.ops[first:])

    def _scaled(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Gradients times grad_scale where clipping or weight decay must see them so; else the updates do it."""
        if "GradScale" not in self._shared.flags or not self.changes_gradients(p for p, _ in pairs):
            return pairs
        return scaled(pairs, self._shared.flags.pop("GradScale"))

    def changes_gradients(self, params: Iterable[Parameter]) -> bool:
        """Whether clipping or weight decay reads a gradient before its update does."""
        return any(self._clip_of(p) or self._regularizer_of(p) for p in params)

    def _rate_factor(self, param: Parameter) -> float:
        factor = param.optimize_attr["learning_rate"] * self._groups.get(param._name, {}).get("rate_factor", 1.0)
        return check_number("ParamAttr.learning_rate", factor)

    def _clip_of(self, param: Parameter) -> Any:
        return self._groups.get(param._name, {}).get("grad_clip", self.grad_clip)

    def _regularizer_of(self, param: Parameter) -> Any:
        return getattr(param, "regularizer", None) or self.of(param, "regularization")

    def _regularized(self, param: Parameter, grad: Variable) -> Variable:
        regularizer = self._regularizer_of(param)
        return self._shared.used(regularizer)(param, grad, grad.block) if regularizer is not None else grad

    def state(self, param: Parameter, what: str, value: float = 0.0, type: TensorType | None = None) -> Variable:
        """A new persistable `<param>_<what>_0` that starts as `value`, by default shaped like the parameter."""
        type = state_type(param) if type is None else type
        shared = self._shared
        return persistable(param.block, shared.startup, param.name + suffix(self, what), value, type, shared.fills)[0]

    # the learning rate

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """The variable of the learning rate in a program, the default one for None; None before `minimize`."""
        rate = self._rates.get((program if program is not None else default_main_program()).id)
        return rate.variable if rate is not None else None

    def get_lr(self, scope: Scope | None = None) -> float:
        """The rate of the next run in `scope` (the global one for None); of the default program, else the latest."""
        number = rate_of(self.learning_rate)
        rate = self._rates.get(default_main_program().id) or next(reversed(self._rates.values()), None)
        if rate is None or isinstance(self.learning_rate, LRScheduler):
            return number
        return rate.held_in(scope if scope is not None else global_scope(), number)

    def set_lr(self, value: float, scope: Scope | None = None) -> None:
        """Set the learning rate of the next step: in `scope`, the global one for None, and in the startup program."""
        require(
            isinstance(self.learning_rate, float), "the learning rate follows an LRScheduler or a Variable",
            ProgramError, "call the scheduler's step(), or make the optimizer with a number",
        )  # fmt: skip
        self.__dict__["learning_rate"] = check_number("learning_rate", value)
        for rate in self._rates.values():
            rate.set(self.learning_rate, scope if scope is not None else global_scope())


def _lasting(optimizer: Any, new: list[Operator]) -> list[Operator]:
    """Those of the operators that an optimizer appended which change a parameter or a state; there must be some."""
    found = [op for op in new if "optimizer" in op.opdef.traits or any(v.persistable for v in op.output_vars)]
    fact = f"append_update of {type(optimizer).__name__} writes no parameter and no state"
    require(len(found) > 0, fact, ProgramError, "mg.assign(new, output=param) writes in place")
    return found


def checked_rate(rate: Any) -> Any:
    """`rate`, which must be a number, a scheduler, or a Variable of one float."""
    if not isinstance(rate, Variable):
        return rate if isinstance(rate, LRScheduler) else check_number("learning_rate", rate)
    fits = rate.dtype in FLOATS and rate.shape in ((), (1,))
    require(fits, f"learning_rate must be a float [1], is {rate}", AttrError)
    return rate


def check_first(known: Mapping[int, Any], program: Program, optimizer: Any) -> None:
    """An optimizer has one set of states for a program."""
    require(
        program.id not in known, f"this {type(optimizer).__name__} updates program {program.name} already",
        ORDER, "call minimize once per program; for two losses minimize their sum or use two optimizers",
    )  # fmt: skip
