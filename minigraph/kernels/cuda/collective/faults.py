"""What one rank cannot take, no rank updates by: before the first update all ranks know of each other's faults.

    own fault -> 0 or 1 -> sum over the ranks -> a fault, where another rank has one

There the record names no value: ELSEWHERE stands in the place of its operator.
"""

from __future__ import annotations

import numpy as np

from minigraph.kernels.cuda.record.binder import Binder

from .collective import Collective

ELSEWHERE = 2**63 - 1


def agree_on_faults(binder: Binder) -> None:
    """Record it; all kernels that may report come before, all that look at faults behind."""
    found, defines = binder.scratch((1,), np.float32), {"ELSEWHERE": f"{ELSEWHERE}ll"}
    binder.launch("collective/faults.cu", "tell", 1, 1, binder.fault, found, defines=defines)
    binder.calls.append(Collective("all_reduce", found, found))
    binder.launch("collective/faults.cu", "hear", 1, 1, found, binder.fault, defines=defines)
