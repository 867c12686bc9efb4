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

SCALES = {"avg": "CoeffNumDevice", "sum": "One", "customized": "Customized"}


class DistributedStrategy:
    """What a script may choose; buckets are flags of BuildStrategy, for CompiledProgram(main, strategy).

    gradient_scale_configs  {"scale_strategy": "avg"}: gradients are means over the ranks; "sum", or "customized", where
                            `<loss>@GRAD` is fed
    """

    gradient_scale_configs: dict[str, str]

    def __init__(self) -> None:
        self.__dict__["gradient_scale_configs"] = {"scale_strategy": "avg"}

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__
        require(name in known, f"DistributedStrategy has no field {name!r} here", AttrError,
                nearest(name, known) or "fusions are fields of static.BuildStrategy")  # fmt: skip
        fits = isinstance(value, dict) and value.keys() == {"scale_strategy"} and value["scale_strategy"] in SCALES
        require(fits, f"{name} is {{'scale_strategy': one of {', '.join(SCALES)}}}, not {value!r}", AttrError)
        known[name] = value

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
