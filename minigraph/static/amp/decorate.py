"""`decorate`: mixed precision by one line."""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import NOT_OFFERED
from minigraph.optimizer import Optimizer
from minigraph.optimizer.wrapped import layers_of, rule_of
from minigraph.types import float16

from .lists import AutoMixedPrecisionLists, check_half
from .model import check_level, check_lists
from .optimizer import OptimizerWithMixedPrecision
from .settings import Settings, check_scale, check_steps_and_ratios, dynamic_scaling

NEW = {"init_loss_scaling": 2**16, "incr_every_n_steps": 2000, "decr_every_n_nan_or_inf": 1, "decr_ratio": 0.5}
OLD = {"init_loss_scaling": 2**15, "incr_every_n_steps": 1000, "decr_every_n_nan_or_inf": 2, "decr_ratio": 0.8}


def _check_takes(optimizer: Any, master_grad: bool) -> Optimizer:
    """The optimizer whose updates these are; refuse what decorate cannot wrap."""
    rule = rule_of(optimizer)
    twice = any(isinstance(layer, OptimizerWithMixedPrecision) for layer in layers_of(optimizer))
    merges = hasattr(optimizer, "k_steps")
    if rule is None or twice:
        what, hint = f"decorate takes an optimizer of mg.optimizer, not {optimizer!r}"[:200], None
        hint = "give it the decorated optimizer: GradientMergeOptimizer(decorate(optimizer))" if merges else hint
        raise AttrError(what, hint=hint)
    require(
        not master_grad, "master_grad=True is not here: gradients have the type of their parameter", NOT_OFFERED,
        "level O1 keeps parameters and their gradients in float32",
    )  # fmt: skip
    return rule


def decorate(
    optimizer: Any, amp_lists: AutoMixedPrecisionLists | None = None, level: str = "O1", dtype: Any = "float16",
    master_weight: bool | None = None, master_grad: bool = False, init_loss_scaling: float | None = None,
    incr_every_n_steps: int | None = None, decr_every_n_nan_or_inf: int | None = None, incr_ratio: float = 2.0,
    decr_ratio: float | None = None, use_dynamic_loss_scaling: bool | None = None, use_amp_guard: bool = False,
    use_promote: bool = False, use_pure_fp16: bool | None = None, use_fp16_guard: bool | None = None,
    use_bf16: bool | None = None,
) -> OptimizerWithMixedPrecision:  # fmt: skip
    """An optimizer whose `minimize` first lets the program compute in 16 bits.

    optimizer        of mg.optimizer, or a RecomputeOptimizer around one. RecomputeOptimizer and GradientMergeOptimizer
                     may also stand around what is returned
    amp_lists        which operators do; AutoMixedPrecisionLists() for None
    level            O1: products and what follows them in 16 bits, parameters in float32
                     O2: parameters in 16 bits too, and all operators but losses and sums
                     OD: products only;  O0: nothing is changed
    dtype            float16, with a loss scale, or bfloat16, without one
    master_weight    at O2 parameters are updated in float32 copies, unless it is False
    use_amp_guard    only operators that were appended inside fp16_guard or bf16_guard
    init_loss_scaling         65536
    incr_every_n_steps        2000 good steps in a row, after which the scale is multiplied by incr_ratio
    decr_every_n_nan_or_inf   1 bad step, after which it is multiplied by decr_ratio, 0.5
    use_dynamic_loss_scaling  False keeps the scale; True takes it from bfloat16, which needs none
    use_promote               accepted; an operator beside float32 activations computes in float32 in any case
    A step whose gradients have overflowed changes neither parameters nor states nor counters of the optimizer.
    use_pure_fp16 (O2), use_fp16_guard or use_bf16 choose Paddle's older form, which begins with 32768, 1000, 2, 0.8.
    """
    rule = _check_takes(optimizer, master_grad)
    older = {use_pure_fp16, use_fp16_guard, use_bf16} != {None}
    if older:
        level, dtype = "O2" if use_pure_fp16 else "O1", "bfloat16" if use_bf16 else "float16"
        use_amp_guard = bool(use_pure_fp16) if use_fp16_guard is None else use_fp16_guard and bool(use_pure_fp16)
    half, level, usual = check_half(dtype), check_level(level), OLD if older else NEW
    lists = amp_lists if amp_lists is not None and level != "OD" else AutoMixedPrecisionLists(dtype=half)
    check_lists(lists)
    given = {
        "init_loss_scaling": init_loss_scaling, "incr_every_n_steps": incr_every_n_steps,
        "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf, "decr_ratio": decr_ratio,
    }  # fmt: skip
    numbers = {name: usual[name] if value is None else value for name, value in given.items()}
    dynamic = dynamic_scaling(use_dynamic_loss_scaling, half)
    scale = check_scale(numbers.pop("init_loss_scaling"))
    if half != float16 and (init_loss_scaling is None or use_dynamic_loss_scaling):
        scale = 1.0
    if level == "O2" and rule.multi_precision != (master_weight is not False):
        rule.multi_precision = master_weight is not False
    steps = check_steps_and_ratios(incr_ratio=incr_ratio, **numbers)
    return OptimizerWithMixedPrecision(
        optimizer, Settings(lists, level, half, scale, dynamic, bool(use_amp_guard), steps)
    )
