"""`static.amp`: mixed precision. One line, `optimizer = static.amp.decorate(optimizer, ...)`, before `minimize`."""

from . import bf16
from .decorate import decorate
from .guards import bf16_guard, fp16_guard
from .lists import AutoMixedPrecisionLists, CustomOpLists
from .model import cast_model_to_fp16, cast_parameters_to_fp16
from .optimizer import OptimizerWithMixedPrecision

__all__ = [
    "AutoMixedPrecisionLists", "CustomOpLists", "OptimizerWithMixedPrecision", "bf16", "bf16_guard",
    "cast_model_to_fp16", "cast_parameters_to_fp16", "decorate", "fp16_guard",
]  # fmt: skip
