"""fleet: Paddle's names for data parallel training in several processes.

    fleet.init(is_collective=True);  fleet.distributed_optimizer(optimizer).minimize(loss);  exe.run(main, ...)
"""

from __future__ import annotations

from typing import Any

from minigraph.errors import AttrError, ProgramError, nearest, require
from minigraph.kernels.groups import present
from minigraph.program import Variable
from minigraph.program.reductions import reduce_gradients

from .parallel import barrier, init_parallel_env

COMPILED = "static.CompiledProgram(main, static.BuildStrategy({}))"
NOT_HERE = "it is not here: remove it"
# fields of Paddle's class: what they are here, and what a script says for another value
FIELDS: dict[str, tuple[Any, str]] = {
    "fuse_all_reduce_ops": (True, COMPILED.format("fuse_all_reduce_ops=...")),
    "fuse_grad_size_in_MB": (32, COMPILED.format("fuse_all_reduce_ops=True, fuse_grad_size_in_MB=...")),
    "fp16_allreduce": (False, COMPILED.format("fuse_all_reduce_ops=True, all_reduce_dtype='float16'")),
    "sharding": (False, "without fleet's optimizer: static.CompiledProgram(main).with_data_parallel(loss.name,"
                 " strategy) where strategy.reduce_strategy is static.BuildStrategy.ReduceStrategy.Reduce"),
    "amp": (False, "static.amp.decorate(optimizer) before fleet.distributed_optimizer"),
    "recompute": (False, COMPILED.format("recompute=True")),
    "gradient_merge": (False, "incubate.optimizer.GradientMergeOptimizer(optimizer) before"
                       " fleet.distributed_optimizer"),
    "lamb": (False, "optimizer.Lamb"),
    "build_strategy": (None, "static.CompiledProgram(main, build_strategy)"),
    "find_unused_parameters": (False, "no flag is needed: a program says which parameters have gradients"),
    "without_graph_optimization": (True, "static.CompiledProgram(main, static.BuildStrategy.all())"),
    **dict.fromkeys(("sync_nccl_allreduce", "split_data"), (True, NOT_HERE)),
    **dict.fromkeys(("nccl_comm_num", "hierarchical_allreduce_inter_nranks"), (1, NOT_HERE)),
    **dict.fromkeys((
        "a_sync", "lars", "dgc", "localsgd", "adaptive_localsgd", "pipeline", "tensor_parallel", "sync_batch_norm",
        "use_hierarchical_allreduce", "heter_ccl_mode", "asp", "qat", "auto", "semi_auto", "elastic",
    ), (False, NOT_HERE)),
}  # fmt: skip
CONFIGS = {f"{name}_configs": name for name in (
    "sharding", "amp", "recompute", "gradient_merge", "lamb", "lars", "dgc", "localsgd", "adaptive_localsgd",
    "pipeline", "tensor_parallel", "a_sync", "hybrid",
)}  # fmt: skip
SCALES = {"avg": "CoeffNumDevice", "sum": "One", "customized": "Customized"}


class DistributedStrategy:
    """What a script may choose. Paddle's other fields have one value here; an error says what to write for another.

    gradient_scale_configs  {"scale_strategy": "avg"}: gradients are means over the ranks; "sum", or "customized", where
                            `<loss>@GRAD` is fed
    """

    gradient_scale_configs: dict[str, str]

    def __init__(self) -> None:
        self.__dict__["gradient_scale_configs"] = {"scale_strategy": "avg"}

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            return FIELDS[name][0]
        raise AttributeError(f"DistributedStrategy has no field {name!r} here")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIELDS or name in CONFIGS:
            only, instead = FIELDS.get(CONFIGS.get(name, name), (None, NOT_HERE))
            fits = name in FIELDS and type(value) is type(only) and value == only
            require(fits, f"DistributedStrategy.{name} cannot be {value!r}"[:200], AttrError, instead)
            return
        hint = nearest(name, (*FIELDS, *CONFIGS, *self.__dict__)) or "fusions are fields of static.BuildStrategy"
        require(name in self.__dict__, f"DistributedStrategy has no field {name!r} here", AttrError, hint)
        fits = isinstance(value, dict) and value.keys() == {"scale_strategy"} and value["scale_strategy"] in SCALES
        require(fits, f"{name} is {{'scale_strategy': one of {', '.join(SCALES)}}}, not {value!r}", AttrError)
        self.__dict__[name] = value

    @property
    def scale(self) -> str:
        """As reduce_gradients names it."""
        return SCALES[self.gradient_scale_configs["scale_strategy"]]


class DistributedOptimizer:
    """An optimizer whose updates read the gradients of all ranks; what is not here is the optimizer's own."""

    def __init__(self, optimizer: Any, strategy: DistributedStrategy) -> None:
        self.inner_opt, self.strategy = optimizer, strategy

    def minimize(
        self, loss: Variable, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> Any:
        """The optimizer's minimize; then each gradient is reduced before its update."""
        require(isinstance(loss, Variable), f"loss must be a variable, is {loss!r}"[:200], ProgramError)
        made = self.inner_opt.minimize(loss, startup_program, parameter_list, no_grad_set)
        if present().size > 1:
            reduce_gradients(loss.program, loss.name, present().size, self.strategy.scale)
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "inner_opt":  # a copy asks before it has one
            raise AttributeError(name)
        return getattr(self.inner_opt, name)


def init(role_maker: Any = None, is_collective: bool = True, strategy: DistributedStrategy | None = None) -> None:
    """Join the processes that a launcher has started; Paddle's parameter servers are not here."""
    require(role_maker is None and is_collective, "fleet trains collectively here: is_collective=True", AttrError)
    init_parallel_env()
    if strategy is not None:
        _chosen[:] = [strategy]


def distributed_optimizer(optimizer: Any, strategy: DistributedStrategy | None = None) -> DistributedOptimizer:
    """An optimizer for the present group."""
    chosen = strategy if strategy is not None else _chosen[-1]
    require(isinstance(chosen, DistributedStrategy), f"strategy is {chosen!r}, not a DistributedStrategy", AttrError)
    return DistributedOptimizer(optimizer, chosen)


def worker_num() -> int:
    """How many ranks there are."""
    return present().size


def worker_index() -> int:
    """The number of this rank."""
    return present().rank


def is_first_worker() -> bool:
    """Whether this is rank 0."""
    return present().rank == 0


barrier_worker = barrier
_chosen = [DistributedStrategy()]  # what `init` was given last
