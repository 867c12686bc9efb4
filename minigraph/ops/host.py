"""Operators that the host computes in the middle of a run: functions of Python, and checks of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigraph.errors import KernelError, require
from minigraph.errors.kinds import ASSERTED, NO_GRADIENT
from minigraph.opdef import Arrays, FunctionAttr, Ints, Texts, op
from minigraph.opdef.inner import as_flag, check_flag
from minigraph.types import TensorType, type_of


@op("Out*?", traits={"control", "side_effect", "reports"})
def py_func(X: Arrays, *, function: FunctionAttr, types: Texts, kept: Ints = (), backward: FunctionAttr | None = None,
            skipped: Ints = ()):  # fmt: skip
    """What a function of Python returns for arrays of the host.

    types     of the results, as "f32[4,-1]"
    kept      positions in what the function returns that are results; all for an empty list
    backward  takes X, the results and the gradients of the results, and returns a gradient or None for each X
    skipped   positions in X and the results that backward does not take
    """
    returned, wanted = function(*(np.array(x) for x in X)), [type_of(t) for t in types]
    values = list(returned) if isinstance(returned, (list, tuple)) else [returned] if wanted else []
    if kept:
        require(len(values) > max(kept), f"{function.name} returned {len(values)} values", KernelError)
        values = [values[i] for i in kept]
    require(
        len(values) == len(wanted), f"{function.name} returned {len(values)} values, not {len(wanted)}", KernelError
    )
    return [_checked(function.name, i, v, t) for i, (v, t) in enumerate(zip(values, wanted, strict=True))]


@py_func.infer
def _(X, *, function, types, kept, backward, skipped):
    return [type_of(t) for t in types]


@py_func.grad
def _(g, X, Out, Out_grad, *, function, types, kept, backward, skipped):
    if backward is None:
        raise NO_GRADIENT(
            f"py_func of {function.name} has no backward_func", hint="pass one, or set stop_gradient = True on its"
            " results",
        )  # fmt: skip
    wanted = [i for i, v in enumerate(X) if g.is_active(v)]
    given = [v for i, v in enumerate([*X, *Out]) if i not in skipped]
    types = [str(X[i].type) for i in wanted]
    grads = iter(g.py_func([*given, *Out_grad], function=backward, types=types, kept=wanted, needs=["Out"]))
    return [next(grads) if i in wanted else None for i in range(len(X))]


def _checked(name: str, i: int, value: Any, wanted: TensorType) -> np.ndarray:
    """A value as an array; it must have the type that was declared."""
    require(value is not None, f"result {i} of {name} is None, wanted is {wanted}", KernelError)
    array = np.array(value)  # a copy: the function may fill its own array anew in its next call
    if array.dtype != wanted.dtype and not isinstance(value, np.ndarray):  # numbers and lists have no type
        array = array.astype(wanted.dtype)
    found = TensorType(array.shape, array.dtype)
    require(wanted.accepts(found), f"result {i} of {name} is {array.dtype}{list(array.shape)}, not {wanted}")
    return array


@op(traits={"side_effect", "reports", "nondifferentiable"}, gpu="record.host")
def check_true(Cond, Data: Arrays = None, *, summarize: int = 20, message: str = ""):  # type: ignore[assignment]
    """A copy of Cond, one bool; where it is False the run fails, and the error shows Data.

    summarize  elements of each of Data that are shown, -1 all
    """
    if not as_flag(Cond):
        shown = [_shown(x, summarize) for x in Data or ()]
        raise ASSERTED(f"{message or 'an assertion does not hold'}{': ' * bool(shown)}{'; '.join(shown)}")
    return np.array(Cond)


@check_true.infer
def _(Cond, Data, *, summarize, message):
    check_flag("cond", Cond)
    return Cond


def _shown(x: np.ndarray, summarize: int) -> str:
    elements = x.reshape(-1) if summarize < 0 else x.reshape(-1)[:summarize]
    more = " ..." if elements.size < x.size else ""
    return f"{x.dtype.name}{list(x.shape)} [{' '.join(str(v) for v in elements.tolist())}{more}]"
