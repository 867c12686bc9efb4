"""BuildStrategy: which rewrites a CompiledProgram applies. All off unless said otherwise.

PASSES is the whole pipeline: flag -> pass, applied in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from .errors import AttrError, nearest
from .ir.graph import Graph
from .passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from .passes.log import PassReport

Pass = Callable[[Graph, PassReport], int]

PASSES: tuple[tuple[str, Pass], ...] = (("fuse_gemm_epilogue", fuse_gemm_epilogue),)


class UnknownField(AttrError, AttributeError):
    """A BuildStrategy has no such field."""


@dataclass(init=False)
class BuildStrategy:
    """Switches of a compilation. Setting a field that does not exist is an error with the nearest name.

    fuse_gemm_epilogue   bias and relu/gelu become part of matrix products, gradients included
    verify               "structure" checks the graph's invariants after each pass, "off" does not;
                         "each_pass" also runs the program before and after each pass in float64 on
                         made-up data and compares every value that both have
    debug_graphviz_path  a path: the graph before and after is written there in DOT (see dump files)

    The fields of Paddle's BuildStrategy that follow are accepted; `explain()` names each one that is
    switched on without a pass here.
    """

    fuse_gemm_epilogue: bool = False
    verify: str = "structure"
    debug_graphviz_path: str = ""

    fuse_elewise_add_act_ops: bool = False
    fuse_bn_act_ops: bool = False
    fuse_bn_add_act_ops: bool = False
    fuse_relu_depthwise_conv: bool = False
    fuse_dot_product_attention: bool = False
    fused_attention: bool = False
    fused_feedforward: bool = False
    fuse_adamw: bool = False
    fuse_all_optimizer_ops: bool = False
    fuse_all_reduce_ops: bool = False
    fuse_broadcast_ops: bool = False
    enable_auto_fusion: bool = False
    enable_inplace: bool = False
    enable_addto: bool = False
    memory_optimize: bool = False
    build_cinn_pass: bool = False
    sequential_run: bool = False
    allow_cuda_graph_capture: bool = False
    cache_runtime_context: bool = False
    sync_batch_norm: bool = False

    def __init__(self, **flags: Any) -> None:
        for name, value in flags.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        known = {f.name: f for f in fields(self)}
        if name not in known:
            raise UnknownField(
                f"BuildStrategy has no field {name!r}", hint=nearest(name, known) or "its docstring lists them"
            )
        if self.__dict__.get("_compiled"):
            raise AttrError(
                f"{name} is set after the strategy was compiled, it would have no effect",
                hint="make a new BuildStrategy and a new CompiledProgram",
            )  # fmt: skip
        wanted = type(known[name].default)
        if value is None and wanted is bool:  # Paddle's memory_optimize = None
            value = False
        if wanted is bool and isinstance(value, int) and value in (0, 1):
            value = bool(value)
        if not isinstance(value, wanted):
            raise AttrError(f"{name} must be a {wanted.__name__}, is {value!r}")
        if name == "verify" and value not in ("off", "structure", "each_pass"):
            raise AttrError(f"verify must be off, structure or each_pass, is {value!r}")
        object.__setattr__(self, name, value)

    def freeze(self) -> None:
        """No field can be set any more."""
        self.__dict__["_compiled"] = True

    def idle_flags(self) -> list[str]:
        """Flags that are on although no pass implements them."""
        passes = {flag for flag, _ in PASSES}
        return [f.name for f in fields(self) if getattr(self, f.name) is True and f.name not in passes]
