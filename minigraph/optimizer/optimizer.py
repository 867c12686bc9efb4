"""Optimizer: what all update rules share.

    minimize(loss)  =  backward  ->  clip  ->  weight decay  ->  one update operator per parameter

Updates stand in the order of the parameters' names, with the role "optimize". States and the
learning rate are persistable variables that the startup program fills.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .. import unique_name
from ..backward import append_backward
from ..builder import Builder, builder_of
from ..errors import AttrError, DTypeError, ProgramError, require
from ..program import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from ..regularizer import L2Decay, WeightDecayRegularizer
from ..scope import global_scope
from ..types import TensorType, bfloat16, float16, float32, float64, tensor_type
from .lr import LRScheduler

ParamsGrads = list[tuple[Any, Any]]


class Optimizer:
    """Base of the update rules; a subclass appends the update of one parameter.

    learning_rate    a number, or an LRScheduler, whose value the Executor writes before each run
    parameters       what to train; all trainable parameters that the loss depends on for None
    weight_decay     a number (L2) or a regularizer; a parameter's own regularizer beats it
    grad_clip        a ClipGradBy... object
    multi_precision  without effect for float32 and float64 parameters; refused for 16-bit ones
    name             stands in the names of the states, between parameter and state
    """

    def __init__(
        self, learning_rate: Any = 0.001, parameters: Any = None, weight_decay: Any = None, grad_clip: Any = None,
        multi_precision: bool = False, name: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(learning_rate, LRScheduler):
            learning_rate = check_number("learning_rate", learning_rate)
        if weight_decay is not None and not isinstance(weight_decay, WeightDecayRegularizer):
            weight_decay = L2Decay(check_number("weight_decay", weight_decay))
        require(
            grad_clip is None or callable(grad_clip), f"grad_clip must be a ClipGradBy... object, is {grad_clip!r}",
            AttrError,
        )  # fmt: skip
        self.learning_rate, self.regularization = learning_rate, weight_decay
        self.grad_clip: Any = grad_clip
        self.multi_precision, self.name = bool(multi_precision), name
        self.parameters = None if parameters is None else _as_list("parameters", parameters)
        self._rates: dict[int, _Rate] = {}  # by program id
        self._startup: Block | None = None  # where states are initialised, while updates are appended

    def append_update(self, g: Builder, param: Parameter, grad: Variable, lr: Variable) -> None:
        """Append the operator that updates `param`."""
        raise NotImplementedError

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
                self._check_first(loss.program)
            params_grads = self.backward(loss, startup_program, parameters, no_grad_set)
            return self._apply(params_grads), params_grads

    def backward(
        self, loss: Variable, startup_program: Program | None = None, parameters: Any = None,
        no_grad_set: Iterable[Any] | None = None, callbacks: Any = None,
    ) -> ParamsGrads:  # fmt: skip
        """Append the gradients only: [(parameter, gradient)], for `apply_gradients`."""
        chosen = self.parameters if parameters is None else _as_list("parameters", parameters)
        if chosen is not None and isinstance(loss, Variable):
            chosen = [p if isinstance(p, Variable) else loss.block.var(p) for p in chosen]
            chosen = list({id(p): p for p in chosen if not p.stop_gradient}.values())
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
        self._startup, rates = startup.global_block(), dict(self._rates)
        with program.global_block().whole(), self._startup.whole():
            try:
                yield
            except BaseException:
                self._rates = rates
                raise

    def _apply(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Operator]:
        pairs = sorted(((p, g) for p, g in params_grads if g is not None), key=lambda pair: pair[0].name)
        require(pairs, "there is no gradient to apply", ProgramError)
        params = [p for p, _ in pairs]
        for p, following in itertools.pairwise(params):
            require(p is not following, f"parameter {p.name} has two gradients", ProgramError)
        program = params[0].program
        self._check_first(program)
        low = next((p for p in params if p.dtype in (float16, bfloat16)), None)
        require(
            low is None or not self.multi_precision,
            f"multi_precision=True needs float32 copies of 16-bit parameters such as {low}, there are none",
            DTypeError,
        )
        with program.emitting("optimize"):
            if self.grad_clip is not None:
                pairs = self.grad_clip(pairs)
            pairs = [(p, self._regularized(p, grad)) for p, grad in pairs]
            rate = self._rates[program.id] = self._create_rate(program, params)
            g, first = Builder(program.global_block()), len(program.ops)
            for p, grad in pairs:
                self.append_update(g, p, grad, rate.times(g, p.optimize_attr["learning_rate"]))
        return [op for op in program.ops[first:] if "optimizer" in op.opdef.traits]

    def _check_first(self, program: Program) -> None:
        require(
            program.id not in self._rates, f"this {type(self).__name__} updates program {program.name} already",
            ProgramError, "call minimize once per program; for two losses minimize their sum or use two optimizers",
        )  # fmt: skip

    def _regularized(self, param: Parameter, grad: Variable) -> Variable:
        regularizer = getattr(param, "regularizer", None) or self.regularization
        return regularizer(param, grad, grad.block) if regularizer is not None else grad

    def state(
        self, param: Parameter, what: str, value: float = 0.0, type: TensorType | None = None
    ) -> Variable:
        """A new persistable `<param>_<what>_0` that starts as `value`, by default shaped like the parameter."""
        if type is None:
            type = param.type.with_dtype(float32) if param.dtype in (float16, bfloat16) else param.type
        middle = f"{self.name}_{what}" if self.name else what
        return self._persistable(param.block, f"{param.name}_{middle}", value, type)[0]

    def _persistable(self, block: Block, key: str, value: float, type: TensorType) -> tuple[Variable, Operator]:
        """A new persistable variable, and the startup operator that fills it."""
        assert self._startup is not None
        name = unique_name.generate(key)
        while block.has_var(name) or self._startup.has_var(name):
            name = unique_name.generate(key)
        own, initial = (
            b.create_var(name, type=type, persistable=True, stop_gradient=True) for b in (block, self._startup)
        )
        Builder(self._startup).fill_constant(shape=type.shape, value=value, dtype=type.dtype, out={"Out": initial})
        return own, self._startup.ops[-1]

    # the learning rate

    def _create_rate(self, program: Program, params: Sequence[Parameter]) -> _Rate:
        dtype = float64 if all(p.dtype == float64 for p in params) else float32
        block = program.global_block()
        variable, initial = self._persistable(block, "learning_rate", self.get_lr(), tensor_type((1,), dtype))
        if isinstance(self.learning_rate, LRScheduler):
            program.lr_schedulers.append((variable, self.learning_rate))
        return _Rate(variable, initial)

    def get_lr(self) -> float:
        """The learning rate of the next run."""
        return float(self.learning_rate()) if isinstance(self.learning_rate, LRScheduler) else self.learning_rate

    def set_lr(self, value: float) -> None:
        """Set the learning rate: in the global scope where it lives there, and in the startup program."""
        require(
            not isinstance(self.learning_rate, LRScheduler), "the learning rate follows an LRScheduler", ProgramError,
            "call the scheduler's step(), or make the optimizer with a number",
        )  # fmt: skip
        self.learning_rate = check_number("learning_rate", value)
        for rate in self._rates.values():
            rate.set(self.learning_rate)


class _Rate:
    """The learning rate variable of one program, and its multiples for parameters with a factor."""

    def __init__(self, variable: Variable, initial: Operator) -> None:
        self.variable, self.initial = variable, initial
        self.scaled: dict[float, Variable] = {1.0: variable}

    def times(self, g: Builder, factor: float) -> Variable:
        factor = check_number("ParamAttr.learning_rate", factor)
        if factor not in self.scaled:
            self.scaled[factor] = g.scale(self.variable, scale=factor)
        return self.scaled[factor]

    def set(self, value: float) -> None:
        self.initial.attrs["value"] = value
        self.initial.block.program.version += 1
        array = global_scope().arrays.get(self.variable.name)
        if array is not None:
            array[...] = value


def check_number(name: str, value: Any, below: float = math.inf) -> float:
    """`value` as a float; it must lie in [0, below)."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    wanted = ">= 0 and finite" if below == math.inf else f"in [0, {below:g})"
    require(0 <= number < below, f"{name} must be a number {wanted}, is {value!r}", AttrError)
    return number


def _as_list(name: str, value: Any) -> list[Any]:
    """A list of Parameters or their names."""
    fact = f"{name} must be a list of Parameters or names"
    if isinstance(value, (str, Variable, Mapping)) or not isinstance(value, Iterable):
        raise AttrError(f"{fact}, is {value!r}"[:200])
    found = list(value)
    for p in found:
        require(isinstance(p, (str, Variable)), f"{fact}, holds {p!r}"[:200], AttrError)
    return found
