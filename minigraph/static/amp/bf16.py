"""`static.amp.bf16`: Paddle's older names of mixed precision for bfloat16 alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from minigraph.program import Program
from minigraph.program.scope import Scope
from minigraph.types import bfloat16

from .decorate import decorate
from .guards import bf16_guard
from .lists import AutoMixedPrecisionLists
from .model import cast_model_to_fp16, cast_parameters_to_fp16
from .optimizer import OptimizerWithMixedPrecision


class AutoMixedPrecisionListsBF16(AutoMixedPrecisionLists):
    """AutoMixedPrecisionLists for bfloat16, with other words: bf16 for white, fp32 for black."""

    def __init__(
        self, custom_bf16_list: Iterable[str] | None = None, custom_fp32_list: Iterable[str] | None = None,
        custom_fp32_varnames: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(custom_bf16_list, custom_fp32_list, custom_fp32_varnames, bfloat16)

    @property
    def bf16_list(self) -> set[str]:
        """Operators that always compute in bfloat16: white_list."""
        return self.white_list

    @property
    def fp32_list(self) -> set[str]:
        """Operators that never do: black_list."""
        return self.black_list

    @property
    def fp32_varnames(self) -> set[str]:
        """Variables whose operators never do: black_varnames."""
        return self.black_varnames


def decorate_bf16(
    optimizer: Any, amp_lists: AutoMixedPrecisionLists | None = None, use_pure_bf16: bool = False,
    use_bf16_guard: bool | None = None,
) -> OptimizerWithMixedPrecision:  # fmt: skip
    """`decorate(optimizer, dtype="bfloat16")`, at level O2 with use_pure_bf16, else at O1.

    use_bf16_guard  at O2 only operators that were appended inside `bf16_guard()`, unless it is False
    Parameters of O2 are updated in float32 copies, as `decorate` does it.
    """
    guarded = bool(use_pure_bf16) and use_bf16_guard is not False
    return decorate(
        optimizer, amp_lists, "O2" if use_pure_bf16 else "O1", bfloat16, use_amp_guard=guarded
    )


def cast_model_to_bf16(
    program: Program, startup_prog: Program | None = None, amp_lists: AutoMixedPrecisionLists | None = None,
    use_bf16_guard: bool = True,
) -> set[str]:  # fmt: skip
    """`cast_model_to_fp16` to bfloat16 at level O2; `startup_prog` stays as it is, cast_parameters_to_bf16 rounds."""
    return cast_model_to_fp16(program, amp_lists, use_bf16_guard, bfloat16)


def rewrite_program_bf16(
    main_prog: Program, amp_lists: AutoMixedPrecisionLists | None = None
) -> None:
    """`cast_model_to_fp16` to bfloat16 at level O1: parameters stay float32."""
    cast_model_to_fp16(main_prog, amp_lists, False, bfloat16, "O1")


def cast_parameters_to_bf16(
    place: Any,
    program: Program,
    scope: Scope | None = None,
    to_bf16_var_names: Collection[str] | None = None,
) -> None:
    """`cast_parameters_to_fp16` to bfloat16."""
    cast_parameters_to_fp16(place, program, scope, to_bf16_var_names, bfloat16)


def convert_float_to_uint16(in_list: Any) -> np.ndarray:
    """The upper 16 bits of float32 numbers, as uint16: bfloat16, rounded towards zero."""
    return np.asarray(np.asarray(in_list, np.float32).view(np.uint32) >> 16, np.uint16)


__all__ = [
    "AutoMixedPrecisionListsBF16", "bf16_guard", "cast_model_to_bf16", "cast_parameters_to_bf16",
    "convert_float_to_uint16", "decorate_bf16", "rewrite_program_bf16",
]  # fmt: skip
