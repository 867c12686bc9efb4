"""An operator that shows its input while a program runs."""

from __future__ import annotations

import sys

import numpy as np

from minigraph.errors import AttrError, require
from minigraph.opdef import op

PHASES = ("forward", "backward", "both")


@op(traits={"side_effect", "reports"}, gpu="record.host")
def print(
    X, *, first_n: int = -1, message: str = "", summarize: int = 20, print_phase: str = "both",
    tensor_name: str = "", print_type: bool = True, print_shape: bool = True, rng=(0, 0, 0),
):  # fmt: skip
    """A copy of X; X is written to standard output.

    first_n      only in the first n runs of the program in a scope, -1 in all; `rng` counts the runs
    summarize    elements shown, -1 all
    print_phase  "backward" shows only the gradient, "forward" only X
    """
    if print_phase != "backward" and (first_n < 0 or rng[2] < first_n):
        parts = [tensor_name] if tensor_name else []
        if print_type:
            parts.append(f"type {X.dtype.name}")
        if print_shape:
            parts.append(f"shape {list(X.shape)}")
        elements = X.reshape(-1) if summarize < 0 else X.reshape(-1)[:summarize]
        values = " ".join(str(v) for v in elements.tolist()) + (" ..." if elements.size < X.size else "")
        parts.append(f"[{values}]")
        sys.stdout.write(f"{message}  {'  '.join(parts)}\n" if message else f"{'  '.join(parts)}\n")
    return np.array(X)


@print.infer
def _(X, *, first_n, message, summarize, print_phase, tensor_name, print_type, print_shape):
    require(print_phase in PHASES, f"print_phase {print_phase!r} is none of {', '.join(PHASES)}", AttrError)
    return X


@print.grad
def _(g, Out_grad, *, first_n, message, summarize, print_phase, tensor_name, print_type, print_shape):
    if print_phase == "forward":
        return g.assign(Out_grad)
    return g.print(
        Out_grad, first_n=first_n, message=message, summarize=summarize, print_phase="forward",
        tensor_name=f"{tensor_name}@GRAD" if tensor_name else "", print_type=print_type, print_shape=print_shape,
    )  # fmt: skip


@print.samples
def _(rng):
    yield (rng.normal(size=(2, 3)),), {"message": "x", "summarize": 2}
    yield (rng.normal(size=(2, 3)),), {"print_phase": "backward", "first_n": 0}
    yield (np.array(1.5),), {"first_n": 1}
    yield (np.zeros((0, 2)),), {}
