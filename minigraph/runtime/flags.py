"""Flags of the process, with Paddle's names: `set_flags`, `get_flags`, and the environment when minigraph is imported.

    FLAGS_check_nan_inf   look at every result of the programs that run; docs/check_nan_inf.md

and MINIGRAPH_TRACEBACK in the environment: `short`, or `full` to see our frames of errors, too; docs/errors.md.

Flags of Paddle that steer what does not exist here (its allocators, cuDNN) are kept and change nothing.

This is the one place that reads the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import AttrError, nearest, require
from minigraph.errors.kinds import UNKNOWN_ATTR

from .options import RunOptions

WORDS = {"0": False, "false": False, "1": True, "true": True}  # in the environment
DEFAULTS = {"FLAGS_check_nan_inf": False}
TRACEBACKS = ("short", "full")
WITHOUT_EFFECT: dict[str, Any] = {  # with Paddle 2.6.2's defaults
    "FLAGS_allocator_strategy": "auto_growth", "FLAGS_benchmark": False, "FLAGS_call_stack_level": 1,
    "FLAGS_conv_workspace_size_limit": 512, "FLAGS_cpu_deterministic": False,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False, "FLAGS_cudnn_deterministic": False,
    "FLAGS_cudnn_exhaustive_search": False, "FLAGS_eager_delete_tensor_gb": 0.0, "FLAGS_embedding_deterministic": 0,
    "FLAGS_enable_cublas_tensor_op_math": False, "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0, "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_gemm_use_half_precision_compute_type": False, "FLAGS_gpu_memory_limit_mb": 0,
    "FLAGS_initial_cpu_memory_in_mb": 500, "FLAGS_initial_gpu_memory_in_mb": 0, "FLAGS_log_memory_stats": False,
    "FLAGS_max_inplace_grad_add": 0, "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_new_executor_serial_run": False, "FLAGS_new_executor_use_cuda_graph": False, "FLAGS_paddle_num_threads": 1,
    "FLAGS_prim_enabled": False, "FLAGS_reallocate_gpu_memory_in_mb": 0, "FLAGS_selected_gpus": "",
    "FLAGS_set_to_1d": False, "FLAGS_sort_sum_gradient": False, "FLAGS_use_autotune": False,
    "FLAGS_use_mkldnn": False, "FLAGS_use_pinned_memory": True, "FLAGS_use_stride_kernel": True,
    "FLAGS_use_system_allocator": False,
}  # fmt: skip


def _from_environment() -> dict[str, bool]:
    """The flags that this process starts with."""
    flags = dict(DEFAULTS)
    for name in DEFAULTS:
        word = os.environ.get(name)
        if word is not None:
            known = word.lower() in WORDS
            require(known, f"environment variable {name} must be 0, 1, true or false, is {word!r}", AttrError)
            flags[name] = WORDS[word.lower()]
    return flags


def traceback_length() -> str:
    """`short` or `full`, as the environment says."""
    word = os.environ.get("MINIGRAPH_TRACEBACK", "short")
    fact = f"environment variable MINIGRAPH_TRACEBACK must be short or full, is {word!r}"
    require(word in TRACEBACKS, fact, AttrError)
    return word


_kept = dict(WITHOUT_EFFECT)
values = _from_environment()  # another dict after each change: whoever keeps one can see whether it still holds


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags of this process: `set_flags({"FLAGS_check_nan_inf": 1})`. Runs that begin later see them.

    flags  {name: 0, 1, False or True}; flags without effect here take what Paddle's take
    An AttrError for an unknown name or another value; then no flag changes.
    """
    global values
    require(isinstance(flags, Mapping), f"flags are a dict {{name: value}}, not a {type(flags).__name__}", AttrError)
    for name, value in flags.items():
        _require_known(name)
        if name in WITHOUT_EFFECT:
            continue
        fits = isinstance(value, (bool, int, np.bool_, np.integer)) and value in (0, 1)
        require(fits, f"{name} must be 0, 1, False or True, is {value!r}", AttrError)
    own = {name: bool(value) for name, value in flags.items() if name in DEFAULTS}
    values = values | own
    _kept.update({name: value for name, value in flags.items() if name not in own})


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """{name: value} of one flag, or of a list of them."""
    named = isinstance(flags, (str, list, tuple))
    require(named, f"get_flags takes a name or a list of names, not {flags!r}", AttrError)
    names = [flags] if isinstance(flags, str) else list(flags)
    for name in names:
        _require_known(name)
    return {name: values[name] if name in values else _kept[name] for name in names}


def _require_known(name: Any) -> None:
    require(
        isinstance(name, str) and (name in DEFAULTS or name in WITHOUT_EFFECT), f"there is no flag {name!r}",
        UNKNOWN_ATTR, nearest(str(name), DEFAULTS) or f"known: {', '.join(DEFAULTS)}",
    )  # fmt: skip


def applied(options: RunOptions, flags: Mapping[str, bool]) -> RunOptions:
    """The options of a run with what the flags turn on besides."""
    return options.checking() if flags["FLAGS_check_nan_inf"] else options
