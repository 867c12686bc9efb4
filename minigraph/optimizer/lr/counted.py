"""Learning rates of Paddle's older scripts: operators of the program, which count its runs by themselves.

    rate = mg.optimizer.lr.exponential_decay(0.1, decay_steps=1000, decay_rate=0.9)
    mg.optimizer.SGD(rate).minimize(loss)      # no scheduler.step(): each run is the next step

Each gives a float32 Variable [1] of the default main program. All of one program share one counter, whose first run is
step 0, with noam_decay as the first of them step 1. A copy for tests neither counts nor has the rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from minigraph.errors import AttrError, ProgramError, require
from minigraph.program import Variable, default_main_program, default_startup_program
from minigraph.program.builder import Builder, alone
from minigraph.tensor import cast, ceil, cos, exp, floor, full, maximum, minimum, where
from minigraph.types import float32, int64, tensor_type

P = ParamSpec("P")
COUNTER = "@LR_DECAY_COUNTER@"


def _part_of_update(function: Callable[P, Variable]) -> Callable[P, Variable]:
    """Decorator: operators that it appends belong to the update, and have no gradient."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Variable:
        with default_main_program().emitting("optimize"):
            rate = function(*args, **kwargs)
        rate.stop_gradient = True
        return rate

    return alone(run)


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """An int64 Variable [1] that is `begin` in the first run and grows by `step` before it is read in each.

    A counter whose name is known already is that one; the program that has it counts it once.
    """
    name = counter_name or "@STEP_COUNTER@"
    block, startup = default_main_program().global_block(), default_startup_program().global_block()
    if block.has_var(name):
        return block.var(name)
    for what, value in (("begin", begin), ("step", step)):
        fits = isinstance(value, int) and not isinstance(value, bool)
        require(fits, f"{what} must be an int, is {value!r}", AttrError)
    type = tensor_type((1,), int64)
    with block.whole(), startup.program.undone_on_error(), block.program.emitting("optimize"):
        counter, first = (
            b.create_var(name, type=type, persistable=True, stop_gradient=True) for b in (block, startup)
        )
        Builder(startup).fill_constant(shape=[1], value=begin - step, dtype=int64, out={"Out": first})
        Builder(block).increment(counter, step=step, out={"Out": counter})
    return counter


def _steps(begin: int = 0) -> Variable:
    """The step of this run, float32 [1]."""
    return cast(autoincreased_step_counter(COUNTER, begin), float32)


def _parts(decay_steps: float, staircase: bool) -> Variable:
    """step / decay_steps, whole ones alone where it goes down in stairs."""
    parts = _steps() / decay_steps
    return floor(parts) if staircase else parts


@_part_of_update
def noam_decay(d_model: float, warmup_steps: float, learning_rate: Any = 1.0) -> Variable:
    """learning_rate * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)"""
    step = _steps(begin=1)
    return learning_rate * d_model**-0.5 * minimum(step**-0.5, step * warmup_steps**-1.5)


@_part_of_update
def exponential_decay(
    learning_rate: Any, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate * decay_rate^(step / decay_steps)"""
    return learning_rate * decay_rate ** _parts(decay_steps, staircase)


@_part_of_update
def natural_exp_decay(
    learning_rate: Any, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate * exp(-decay_rate * step / decay_steps)"""
    return learning_rate * exp(_parts(decay_steps, staircase) * -decay_rate)


@_part_of_update
def inverse_time_decay(
    learning_rate: Any, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """learning_rate / (1 + decay_rate * step / decay_steps)"""
    return learning_rate / (1.0 + decay_rate * _parts(decay_steps, staircase))


@_part_of_update
def polynomial_decay(
    learning_rate: Any, decay_steps: float, end_learning_rate: float = 0.0001, power: float = 1.0, cycle: bool = False
) -> Variable:
    """(learning_rate - end) * (1 - step / decay_steps)^power + end

    The end holds after decay_steps; with `cycle` decay_steps are the next multiple of themselves.
    """
    step: Any = _steps()
    most: Any = maximum(ceil(step / decay_steps), full([1], 1.0, float32)) * decay_steps if cycle else decay_steps
    left = 1.0 - (step / most if cycle else minimum(step, full([1], float(decay_steps), float32)) / most)
    return (learning_rate - end_learning_rate) * left**power + end_learning_rate


@_part_of_update
def piecewise_decay(boundaries: Sequence[float], values: Sequence[float]) -> Variable:
    """values[i] where step < boundaries[i], the last one behind all of them."""
    require(len(values) == len(boundaries) + 1, f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, got"
            f" {len(values)}", AttrError)  # fmt: skip
    step, rate = _steps(), full([1], float(values[-1]), float32)
    for boundary, value in [*zip(boundaries, values, strict=False)][::-1]:
        rate = where(step < float(boundary), full([1], float(value), float32), rate)
    return rate


@_part_of_update
def cosine_decay(learning_rate: Any, step_each_epoch: float, epochs: float) -> Variable:
    """learning_rate / 2 * (cos(floor(step / step_each_epoch) * pi / epochs) + 1)"""
    epoch = floor(_steps() / step_each_epoch)
    return learning_rate * 0.5 * (cos(epoch * (math.pi / epochs)) + 1.0)


@_part_of_update
def linear_lr_warmup(learning_rate: Any, warmup_steps: float, start_lr: float, end_lr: float) -> Variable:
    """From start_lr towards end_lr in the first `warmup_steps` runs, then `learning_rate`, a number or one of these."""
    step = _steps()
    rate = learning_rate if isinstance(learning_rate, Variable) else full([1], float(learning_rate), float32)
    require(rate.shape == (1,), f"learning_rate must have shape [1], is {rate}", ProgramError)
    rising = float(start_lr) + (float(end_lr) - float(start_lr)) * (step / float(warmup_steps))
    return where(step < float(warmup_steps), rising, rate)
