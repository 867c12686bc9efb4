"""RunOptions: what a BuildStrategy says about the run of a program, not about its operators."""

from __future__ import annotations

from typing import NamedTuple


class RunOptions(NamedTuple):
    """How a Plan runs its steps.

    capture   on a GPU the steps of the second run become one CUDA graph, which later runs launch
    inplace   an operator may write over an input that nobody reads later
    reuse     values whose lives do not overlap share memory
    multi_tensor  on a GPU, how kernels over lists of tensors learn their addresses (kernels/cuda/record/tensors.py)
    autotune  on a GPU the ways to compute a product are timed when a Plan is made, and the fastest are kept
    attention  on a GPU, the kernel of attention that is wanted (kernels/cuda/attention/attention.py)
    check_nan_inf  every float result is looked at; set it by `checking`
    """

    capture: bool = True
    inplace: bool = True
    reuse: bool = True
    autotune: bool = False
    multi_tensor: str = "auto"
    attention: str = "auto"
    check_nan_inf: bool = False

    def checking(self) -> RunOptions:
        """The same with check_nan_inf. Nothing is written over, so that a run that fails can be undone."""
        return self._replace(check_nan_inf=True, inplace=False)


DEFAULT = RunOptions()
