"""Programs and values in 16 bits, without an optimizer: Paddle's `cast_model_to_fp16` and `cast_parameters_to_fp16`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from minigraph.compiler.mixed_precision import MixedPrecision, cast_program, gray_of
from minigraph.errors import AttrError, ProgramError, require
from minigraph.program import Program, Variable
from minigraph.program.scope import Scope, global_scope
from minigraph.types import float16, float32

from .guards import MARKS
from .lists import AutoMixedPrecisionLists, check_half

LEVELS = ("O0", "OD", "O1", "O2")


def cast_model_to_fp16(
    program: Program, amp_lists: AutoMixedPrecisionLists | None = None, use_fp16_guard: bool = True,
    dest_type: Any = float16, level: str = "O2", use_promote: bool = False,
) -> set[str]:  # fmt: skip
    """Let operators of `program` compute in 16 bits, before `append_backward` or in a test program.

    use_fp16_guard  only those that were appended inside `fp16_guard()`
    dest_type       float16 or bfloat16
    level           O1, O2 or OD, as in `decorate`
    use_promote     accepted; an operator beside float32 activations always computes in float32, unless it is a product
    Returns the names of the parameters that have 16 bits now (O2), for `cast_parameters_to_fp16`.
    """
    require(isinstance(program, Program), f"cast_model_to_fp16 takes a Program, not {program!r}"[:200], ProgramError)
    half, level = check_half(dest_type), check_level(level)
    lists = amp_lists if amp_lists is not None else AutoMixedPrecisionLists(dtype=half)
    check_lists(lists)
    facts = MixedPrecision(
        half, level, frozenset(lists.white_list), gray_of(level, lists.gray_list) - lists.white_list,
        frozenset(lists.never(level)), frozenset(lists.black_varnames or ()), MARKS if use_fp16_guard else None,
    )  # fmt: skip
    if level != "O0":
        cast_program(program, facts)
    return facts.narrowed


def cast_parameters_to_fp16(
    place: Any, program: Program, scope: Scope | None = None, to_fp16_var_names: Collection[str] | None = None,
    dest_type: Any = float16, rewrite_master_weight: bool = False, master_weights: Mapping[str, Variable] | None = None,
) -> None:  # fmt: skip
    """Round values of parameters that a scope (the global one for None) holds in float32 to 16 bits.

    place                  where programs run; values come there when one does
    to_fp16_var_names      which; for None all parameters of `program` that have the type `dest_type`
    rewrite_master_weight  write the value before rounding into the parameter's float32 copy,
    master_weights         which is this variable
    """
    half, scope = check_half(dest_type), scope if scope is not None else global_scope()
    masters, exact = (master_weights or {}) if rewrite_master_weight else {}, list[str]()
    with scope.lock, scope.turn.begin():
        for p in program.all_parameters():
            chosen = p.dtype == half if to_fp16_var_names is None else p.name in to_fp16_var_names
            if not chosen or not scope.has(p.name):
                continue
            value, new = scope.released(p.name), dict[str, np.ndarray]()
            if value.dtype != half:
                with np.errstate(over="ignore"):
                    new[p.name] = value.astype(half)
            if p.name in masters:
                exact.append(masters[p.name].name)
                new[exact[-1]] = value.astype(float32, copy=False)
            with scope.replacing(new, "rounding of parameters"):
                for name, array in new.items():
                    scope.take(name, array)
        scope.were_set(exact)  # later than the parameters, which are their roundings


def check_level(level: Any) -> str:
    """`level` in capitals, one of LEVELS."""
    known = isinstance(level, str) and level.upper() in LEVELS
    hint = None if isinstance(level, str) else "give init_loss_scaling by its name"  # Paddle's older form has it there
    require(known, f"level must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, is {level!r}"[:200], AttrError, hint)
    return level.upper()


def check_lists(lists: Any) -> None:
    """Refuse what is no AutoMixedPrecisionLists."""
    fits = isinstance(lists, AutoMixedPrecisionLists)
    require(fits, f"amp_lists must be AutoMixedPrecisionLists, is {lists!r}"[:200], AttrError)
