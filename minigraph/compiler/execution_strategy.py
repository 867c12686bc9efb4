"""What else Paddle lets scripts choose about a run; one device and one order leave little of it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from minigraph.errors import AttrError, nearest, require
from minigraph.errors.flags import as_flag
from minigraph.errors.kinds import UNKNOWN_ATTR


class PaddleEnum(Enum):
    """Base of Paddle's enumerations, which are numbers, too."""

    def __int__(self) -> int:
        return self.value


class ReduceStrategy(PaddleEnum):
    """How gradients of several devices meet. There is one here: all are the same."""

    AllReduce = 0
    Reduce = 1
    _NoReduce = 2


class GradientScaleStrategy(PaddleEnum):
    """What a loss's gradient is divided by: the number of devices, one here, or nothing."""

    CoeffNumDevice = 0
    One = 1
    Customized = 2


class ExecutionStrategy:
    """Paddle's settings of its executor: taken, and without effect here.

    num_iteration_per_run must be 1: a run runs the program once.
    """

    num_threads: int
    num_iteration_per_drop_scope: int
    num_iteration_per_run: int
    allow_op_delay: bool
    use_thread_barrier: bool
    use_experimental_executor: bool
    use_cuda: bool

    def __init__(self) -> None:
        numbers = {"num_threads": 0, "num_iteration_per_drop_scope": 100, "num_iteration_per_run": 1}
        flags = dict.fromkeys(("allow_op_delay", "use_thread_barrier", "use_experimental_executor", "use_cuda"), False)
        self.__dict__.update(numbers | flags)

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__
        require(name in known, f"ExecutionStrategy has no field {name!r}", UNKNOWN_ATTR, nearest(name, known))
        if isinstance(known[name], bool):
            known[name] = as_flag(name, value)
            return
        fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0
        require(fits, f"{name} must be an int >= 0, is {value!r}", AttrError)
        once = name != "num_iteration_per_run" or value == 1
        require(once, f"num_iteration_per_run is {value}, a run runs the program once", AttrError, "call run again")
        known[name] = int(value)
