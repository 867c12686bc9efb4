"""BuildStrategy: which rewrites a CompiledProgram applies. All off unless said otherwise.

PASSES is the whole pipeline, one row for each flag, applied in this order. A row says after which
others it must stand and with which flags it cannot be on together, and why. In another order results
would be the same, only less would be rewritten. docs/add_a_fusion.md says how to add a pass: a file in
passes/, a row here, a field of BuildStrategy with its line of documentation, a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from minigraph.errors import AttrError, require
from minigraph.errors.kinds import CONFLICT
from minigraph.passes.accumulation.fuse_grad_accumulation import fuse_grad_accumulation
from minigraph.passes.attention.memory_efficient_attention import memory_efficient_attention
from minigraph.passes.common_subexpression_elimination import common_subexpression_elimination
from minigraph.passes.communication.fuse_all_reduce_ops import fuse_all_reduce_ops
from minigraph.passes.constant_folding import constant_folding
from minigraph.passes.dead_code_elimination import dead_code_elimination
from minigraph.passes.elementwise.fuse_elementwise import fuse_elementwise
from minigraph.passes.foreach.fuse_foreach import fuse_foreach
from minigraph.passes.fuse_activation_grad import fuse_activation_grad
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.passes.fuse_matmul_transpose import fuse_matmul_transpose
from minigraph.passes.fuse_parallel_linears import fuse_parallel_linears
from minigraph.passes.last_layer.fuse_linear_cross_entropy import fuse_linear_cross_entropy
from minigraph.passes.recompute import recompute
from minigraph.passes.recompute_norms import recompute_norms
from minigraph.passes.remove_redundant_cast import remove_redundant_cast
from minigraph.passes.remove_redundant_transpose import remove_redundant_transpose
from minigraph.passes.updates.foreach_optimizer_ops import foreach_optimizer_ops
from minigraph.passes.updates.fuse_all_optimizer_ops import fuse_adamw, fuse_all_optimizer_ops
from minigraph.program.copies import NotPickled
from minigraph.runtime.options import RunOptions

from .execution_strategy import GradientScaleStrategy, ReduceStrategy
from .fields import checked, unknown

Pass = Callable[..., int]  # of a Graph, a PassReport, and the values of `options`
CHUNK = "linear_cross_entropy_chunk_bytes", "linear_cross_entropy_chunk_rows"


@dataclass(frozen=True)
class PassRow:
    """One row of PASSES.

    flag       the field of BuildStrategy; also the name of the pass and of its file
    apply      the pass
    after      {flag that must stand above: why}
    conflicts  {flag that cannot be on as well: why}; said by one of the two
    in_all     whether BuildStrategy.all() turns it on: it changes no result but by rounding
    options    fields of BuildStrategy that the pass takes as arguments
    rounds     whether results differ by the rounding of the program's own types; `validate`, which
               computes in float64, then allows for it
    mends      whether it may give numbers where the program gives NaN; `validate` then allows for that too
    """

    flag: str
    apply: Pass
    after: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)
    in_all: bool = True
    rounds: bool = False
    mends: bool = False
    options: tuple[str, ...] = ()


PASSES: tuple[PassRow, ...] = (
    PassRow("memory_efficient_attention", memory_efficient_attention, mends=True),
    PassRow("constant_folding", constant_folding, rounds=True),
    PassRow(
        "dead_code_elimination", dead_code_elimination,
        after={"constant_folding": "a forward operator whose gradient became a constant can go"},
    ),
    PassRow(
        "common_subexpression_elimination", common_subexpression_elimination,
        after={"constant_folding": "constants that were computed in different ways become equal operators"},
    ),
    PassRow("remove_redundant_cast", remove_redundant_cast),
    PassRow(
        "remove_redundant_transpose", remove_redundant_transpose,
        after={"remove_redundant_cast": "transposes meet where casts stood between them"},
    ),
    PassRow(
        "fuse_matmul_transpose", fuse_matmul_transpose,
        after={
            "dead_code_elimination": "a transpose that only dead operators read besides can go",
            "remove_redundant_transpose": "of several transposes in a row a product would take the last one only",
        },
    ),
    PassRow(
        "fuse_linear_cross_entropy", fuse_linear_cross_entropy,
        options=(*CHUNK, "fuse_grad_accumulation", "fuse_foreach"),
        after={
            "remove_redundant_cast": "the last layer and its loss meet where casts stood between them",
            "fuse_matmul_transpose": "a tied embedding is read instead of its transpose",
        },
    ),
    PassRow(
        "fuse_gemm_epilogue", fuse_gemm_epilogue,
        after={
            "fuse_linear_cross_entropy": "it looks for the product and the bias of the last layer",
            "dead_code_elimination": "a value inside that only dead operators read can go",
            "remove_redundant_cast": "product, bias and activation meet where casts stood between them",
            "fuse_matmul_transpose": "the fused operator takes the product's transposes along, later nobody would",
        },
    ),
    PassRow(
        "fuse_parallel_linears", fuse_parallel_linears,
        after={"fuse_gemm_epilogue": "a layer is one operator, whose gradient is one operator"},
    ),
    PassRow(
        "fuse_grad_accumulation", fuse_grad_accumulation, options=("fuse_foreach",),
        after={
            "fuse_parallel_linears": "the gradients of their input would stand in a chain of additions",
            "fuse_linear_cross_entropy": "the products of the last layer's gradients would be gone",
            "fuse_gemm_epilogue": "a layer's gradients would not stand in one operator any more",
        },
    ),
    PassRow(
        "fuse_activation_grad", fuse_activation_grad,
        after={
            "fuse_gemm_epilogue": "the mask is kept by the fused operator of the layer below",
            "fuse_grad_accumulation": "the other gradient would stand behind a reshape",
        },
    ),
    PassRow(
        "fuse_adamw", fuse_adamw, in_all=False,
        after={
            "dead_code_elimination": "a clipped gradient that only dead operators read besides can go",
            "fuse_gemm_epilogue": "it replaces operators that write gradients",
        },
    ),
    PassRow(
        "fuse_all_optimizer_ops", fuse_all_optimizer_ops,
        after={"fuse_adamw": "it takes the updates of one type out of these"},
        conflicts={"foreach_optimizer_ops": "both rewrite the same parameter updates"},
    ),
    PassRow(
        "foreach_optimizer_ops", foreach_optimizer_ops, in_all=False,
        after={"fuse_adamw": "updates that are fused are no single ones"},
    ),
    PassRow(
        "fuse_foreach", fuse_foreach,
        after={
            "dead_code_elimination": "what nobody reads need not be written for any tensor",
            "common_subexpression_elimination": "a number that many tensors read is computed once",
            "fuse_all_optimizer_ops": "clipping and weight decay cost nothing inside an update",
            "foreach_optimizer_ops": "clipping and weight decay are operations on the whole list there",
        },
    ),
    PassRow("recompute_norms", recompute_norms, options=("recompute",),
            after={"fuse_parallel_linears": "a gradient that is cut in two is not found"}),
    PassRow(
        "fuse_elementwise", fuse_elementwise,
        after={
            "recompute_norms": "a norm inside a fused operator is not found",
            "dead_code_elimination": "what nobody reads need not be written by a fused operator",
            "common_subexpression_elimination": "inside a fused operator nobody finds what is computed twice",
            "remove_redundant_cast": "inside a fused operator nobody finds the casts",
            "fuse_gemm_epilogue": "bias and activation cost nothing in a product's epilogue",
            "fuse_foreach": "operators on many tensors that were joined one by one have no common body",
            "fuse_all_optimizer_ops": "clipping and weight decay cost nothing inside an update",
            "foreach_optimizer_ops": "clipping and weight decay are operations on the whole list there",
        },
    ),
    PassRow(
        "recompute", recompute, in_all=False, options=("recompute_segments",),
        after={
            "memory_efficient_attention": "probabilities that nobody keeps need not be computed again",
            "dead_code_elimination": "what nobody reads would be computed twice",
            "common_subexpression_elimination": "it would take copies for what is computed twice",
            "fuse_linear_cross_entropy": "the scores of the last layer are not kept anyway",
            "fuse_gemm_epilogue": "a product and its activation are computed again as one operator",
            "fuse_elementwise": "cuts lie where few bytes are handed on, and inside a kernel there are none",
        },
    ),
    PassRow(
        "fuse_all_reduce_ops", fuse_all_reduce_ops, options=("fuse_grad_size_in_MB", "all_reduce_dtype"),
        after={
            "fuse_gemm_epilogue": "buckets take gradients in the order in which the operators that run write them",
            "fuse_all_optimizer_ops": "a bucket ends where an update reads one of its gradients",
            "recompute": "what is computed again comes before the gradients that wait for it",
        },
    ),
)  # fmt: skip


RUN_FLAGS = {  # what Plans read instead of a pass -> field of RunOptions
    "allow_cuda_graph_capture": "capture",
    "enable_inplace": "inplace",
    "memory_optimize": "reuse",
    "autotune": "autotune",
    "multi_tensor_mode": "multi_tensor",
    "attention_kernel": "attention",
    "check_nan_inf": "check_nan_inf",
}


ALIASES = {"fuse_dot_product_attention": "memory_efficient_attention"}  # Paddle's name -> the field


@dataclass(init=False)
class BuildStrategy(NotPickled):
    """Switches of a compilation. Setting a field that does not exist is an error with the nearest name.

    memory_efficient_attention        attention that is written out becomes one operator without the matrix of its
                                      probabilities, gradients included; alias fuse_dot_product_attention, as in Paddle
    constant_folding                  values that depend on constants only are computed while compiling
    dead_code_elimination             values without a reader are not computed
    common_subexpression_elimination  a value that is computed twice is computed once
    remove_redundant_cast             casts to a wider type and back go, where that is exact
    remove_redundant_transpose        transposes in a row become one, or none
    fuse_matmul_transpose             matrix products read operands instead of their transposes
    fuse_linear_cross_entropy         the last layer and its cross entropy become one operator without all scores;
                                      linear_cross_entropy_chunk_bytes of scores exist at a time, or scores of
                                      linear_cross_entropy_chunk_rows; give one or none
    fuse_gemm_epilogue                bias and activation become part of matrix products, gradients included
    fuse_parallel_linears             linear layers of one input, such as Q, K and V, become one product
    fuse_grad_accumulation            gradients are added to others by the products that compute them; those of
                                      slices that fill an array are joined
    fuse_activation_grad              relu's gradient becomes part of the product before it that has no bias
    fuse_foreach                      operators that compute the same on many tensors become one operator on lists: an
                                      update that a user writes is one launch for all parameters
    recompute_norms                   what norms give is computed again for backward instead of kept
    fuse_elementwise                  chains of elementwise operators, around normalisations too, become one kernel
    fuse_all_optimizer_ops            the update of all parameters, clipping and weight decay included, is one operator
    fuse_adamw                        all updates of type adamw are one operator
    foreach_optimizer_ops             each elementary operation of the updates runs once over the whole list
    recompute                         what only backward still reads is computed again instead of kept, in
                                      recompute_segments; None takes the root of the number of operators
    fuse_all_reduce_ops               ranks reduce gradients in buckets of fuse_grad_size_in_MB, sent in the type
                                      all_reduce_dtype: "auto" is their own, "bfloat16" half the bytes of float32

    Of the run, on unless switched off:
    allow_cuda_graph_capture  on a GPU the calls of a step are captured once and launched as one CUDA graph
    enable_inplace            an operator may write over an input that nobody reads later
    memory_optimize           values whose lives do not overlap share memory
    and off unless switched on:
    autotune                  on a GPU the ways to compute a product are timed when a Plan is made: epilogues, kernels;
                              the clearly fastest is kept, and remembered on disk
    multi_tensor_mode         how a GPU kernel over many tensors learns where they lie: a "table" in device memory,
                              "struct4k" or "struct32k" by value, in "arena"s, a table and "unified" memory of states;
                              "auto" takes struct32k where one launch is enough, else a table; "paged" does, too, and
                              keeps large states in pinned memory of the host (docs/paged_states.md)
    attention_kernel          which kernel must compute attention on a GPU: "wgmma", "mma" or "exact"; an error where
                              it cannot. "auto" takes the best
    check_nan_inf             each float result is looked at: the first operator that gives NaN or an infinity is an
                              error that names it, and such a run changes nothing (docs/check_nan_inf.md). Slow;
                              set_flags({"FLAGS_check_nan_inf": 1}) does the same for all programs

    verify               "off" checks nothing. "structure" checks the graph's invariants after all passes; where one
                         is broken, or a pass fails, the passes run again with a check after each, to name it.
                         "each_pass" checks after each pass at once. It also runs the program before and after each
                         pass in float64 on made-up data and compares every value that both have
    debug_graphviz_path  a path: the graph before and after is written there in DOT (see dump files)
    keep_history         `compiled.history` and `compiled.at(i)` come without compiling again
    dump_dir             a folder: the program's text is written there, 00_input.txt and 01_<pass>.txt, ... after
                         each pass that is on

    The fields of Paddle's BuildStrategy that follow are accepted; `explain()` names each one that is
    switched on without a pass here.
    """

    _instead: ClassVar[str] = "make another one with the same flags, BuildStrategy(**vars(strategy))"

    memory_efficient_attention: bool = False
    constant_folding: bool = False
    dead_code_elimination: bool = False
    common_subexpression_elimination: bool = False
    remove_redundant_cast: bool = False
    remove_redundant_transpose: bool = False
    fuse_matmul_transpose: bool = False
    fuse_linear_cross_entropy: bool = False
    linear_cross_entropy_chunk_bytes: int | None = None
    linear_cross_entropy_chunk_rows: int | None = None
    fuse_gemm_epilogue: bool = False
    fuse_parallel_linears: bool = False
    fuse_grad_accumulation: bool = False
    fuse_activation_grad: bool = False
    fuse_foreach: bool = False
    recompute_norms: bool = False
    fuse_elementwise: bool = False
    fuse_all_optimizer_ops: bool = False
    fuse_adamw: bool = False
    foreach_optimizer_ops: bool = False
    recompute: bool = False
    recompute_segments: int | None = None
    fuse_all_reduce_ops: bool = False
    fuse_grad_size_in_MB: float = 32.0
    all_reduce_dtype: str = "auto"
    allow_cuda_graph_capture: bool = True
    enable_inplace: bool = True
    memory_optimize: bool = True
    autotune: bool = False
    multi_tensor_mode: str = "auto"
    attention_kernel: str = "auto"
    check_nan_inf: bool = False
    verify: str = "structure"
    debug_graphviz_path: str = ""
    keep_history: bool = False
    dump_dir: str = ""

    fuse_elewise_add_act_ops: bool = False
    fuse_bn_act_ops: bool = False
    fuse_bn_add_act_ops: bool = False
    fuse_relu_depthwise_conv: bool = False
    fused_attention: bool = False
    fused_feedforward: bool = False
    fuse_broadcast_ops: bool = False
    enable_auto_fusion: bool = False
    enable_addto: bool = False
    build_cinn_pass: bool = False
    sequential_run: bool = False
    cache_runtime_context: bool = False
    sync_batch_norm: bool = False
    enable_sequential_execution: bool = False
    fix_op_run_order: bool = False
    remove_unnecessary_lock: bool = False
    enable_backward_optimizer_op_deps: bool = False
    fuse_resunit: bool = False
    reduce_strategy: ReduceStrategy = ReduceStrategy.AllReduce
    gradient_scale_strategy: GradientScaleStrategy = GradientScaleStrategy.CoeffNumDevice

    ReduceStrategy: ClassVar[Any] = ReduceStrategy
    GradientScaleStrategy: ClassVar[Any] = GradientScaleStrategy

    def __init__(self, **flags: Any) -> None:
        for name, value in flags.items():
            setattr(self, name, value)

    @classmethod
    def all(cls, **flags: Any) -> BuildStrategy:
        """Every rewrite that changes no result but by rounding; `flags` are set on top of that.

        Flags of the run keep their defaults: `BuildStrategy.all(autotune=True)` turns that on too.
        """
        return cls(**{step.flag: True for step in PASSES if step.in_all} | flags)

    def __copy__(self) -> BuildStrategy:
        """One with the same fields, which can be set."""
        return BuildStrategy(**{f.name: getattr(self, f.name) for f in fields(self)})

    def __deepcopy__(self, memo: dict[int, Any]) -> BuildStrategy:
        return self.__copy__()

    def __setattr__(self, name: str, value: Any) -> None:
        known, name = {f.name: f for f in fields(self)}, ALIASES.get(name, name)
        if name not in known:
            raise unknown(name, known)
        if self.__dict__.get("_compiled"):
            raise AttrError(
                f"{name} is set after the strategy was compiled, it would have no effect",
                hint="make a new BuildStrategy and a new CompiledProgram",
            )  # fmt: skip
        value = checked(name, value, known[name].default)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ALIASES:
            return getattr(self, ALIASES[name])
        raise unknown(name, [f.name for f in fields(self)])

    def freeze(self) -> None:
        """No field can be set any more. Flags that cannot be on together are refused."""
        for step in PASSES:
            for other, why in step.conflicts.items():
                both = getattr(self, step.flag) and getattr(self, other)
                require(
                    not both, f"{step.flag} and {other} cannot be on together: {why}", CONFLICT,
                    f"set one of them to False; BuildStrategy.all() sets {step.flag if step.in_all else other}",
                )  # fmt: skip
        require(
            not (self.foreach_optimizer_ops and self.multi_tensor_mode == "paged"), "foreach_optimizer_ops and"
            " multi_tensor_mode='paged' cannot be on together: elementary operations do not know what states are",
            CONFLICT, "set foreach_optimizer_ops to False; fuse_all_optimizer_ops pages states",
        )  # fmt: skip
        both = None not in [getattr(self, name) for name in CHUNK]
        require(not both, f"{' and '.join(CHUNK)} say the same in two ways", CONFLICT, "leave one None")
        self.__dict__["_compiled"] = True

    def run_options(self) -> RunOptions:
        """The options that Plans read."""
        options = RunOptions(**{option: getattr(self, flag) for flag, option in RUN_FLAGS.items()})
        return options.checking() if options.check_nan_inf else options

    def chosen(self) -> str:
        """The fields that decide what the rewritten program is, as far as they are not the defaults; in words."""
        names = [name for step in PASSES for name in (step.flag, *step.options)]
        defaults = {f.name: f.default for f in fields(self)}
        pairs = [(n, getattr(self, n)) for n in (*names, "reduce_strategy", "gradient_scale_strategy")]
        return ", ".join(f"{n}={v}" for n, v in dict(pairs).items() if v != defaults[n]) or "the defaults"

    def idle_flags(self) -> list[str]:
        """Flags that are on although no pass implements them."""
        passes = {step.flag for step in PASSES} | RUN_FLAGS.keys() | {"keep_history"}
        return [f.name for f in fields(self) if getattr(self, f.name) is True and f.name not in passes]
