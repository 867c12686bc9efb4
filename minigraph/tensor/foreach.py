"""`mg.foreach`: functions of lists of Variables, one result for each entry.

    v = mg.foreach.lerp(moments, grads, 0.1, out=moments)
    mg.foreach.add(params, v, alpha=-0.01, out=params)

They append the operators that a loop over the list would append, with gradients, so they stand wherever a Program is
built. With `BuildStrategy.fuse_foreach` a sequence of such calls is one operator, on a GPU one launch, whatever the
tensors' shapes are. Entries of one data type share it.

Beside a list may stand a list of the same length, whose entries have the same shapes or one element each, a number, or
one Variable of one element for all. `out` lists Variables that get the results, after all of them are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from minigraph.errors import AttrError, ProgramError, ShapeError, call_site
from minigraph.errors.kinds import COUNT, MIXED_TYPES
from minigraph.program import Variable
from minigraph.program.builder import builder_of, whole
from minigraph.types import broadcast_shapes

from .arguments import constant, describe, is_number, plain, variables
from .creation import assign

Variables = Sequence[Variable]
Partner = Variables | Variable | float
ORDERS = (1, 2, math.inf)


@whole
def add(xs: Variables, ys: Partner, alpha: float = 1.0, out: Variables | None = None) -> list[Variable]:
    """x + alpha * y"""
    return _each("add", out, lambda x, y: x + _times(y, _number("add", "alpha", alpha)), xs=xs, ys=ys)


@whole
def sub(xs: Variables, ys: Partner, alpha: float = 1.0, out: Variables | None = None) -> list[Variable]:
    """x - alpha * y"""
    return _each("sub", out, lambda x, y: x - _times(y, _number("sub", "alpha", alpha)), xs=xs, ys=ys)


@whole
def mul(xs: Variables, ys: Partner, out: Variables | None = None) -> list[Variable]:
    """x * y"""
    return _each("mul", out, lambda x, y: x * y, xs=xs, ys=ys)


@whole
def div(xs: Variables, ys: Partner, out: Variables | None = None) -> list[Variable]:
    """x / y"""
    return _each("div", out, lambda x, y: x / y, xs=xs, ys=_as_variable(xs, ys))


@whole
def addcmul(
    xs: Variables, ys: Partner, zs: Partner, value: float = 1.0, out: Variables | None = None
) -> list[Variable]:  # fmt: skip
    """x + value * y * z"""
    factor = _number("addcmul", "value", value)
    return _each("addcmul", out, lambda x, y, z: x + _times(y * z, factor), xs=xs, ys=ys, zs=zs)


@whole
def addcdiv(
    xs: Variables, ys: Partner, zs: Partner, value: float = 1.0, out: Variables | None = None
) -> list[Variable]:  # fmt: skip
    """x + value * y / z"""
    factor = _number("addcdiv", "value", value)
    ys, zs = (_as_variable(xs, values) for values in (ys, zs))
    return _each("addcdiv", out, lambda x, y, z: x + _times(y / z, factor), xs=xs, ys=ys, zs=zs)


@whole
def lerp(xs: Variables, ys: Partner, weight: Partner, out: Variables | None = None) -> list[Variable]:
    """x + weight * (y - x)"""
    return _each("lerp", out, lambda x, y, w: x + (y - x) * w, xs=xs, ys=ys, weight=weight)


@whole
def sqrt(xs: Variables, out: Variables | None = None) -> list[Variable]:
    """The square root of x."""
    return _each("sqrt", out, lambda x: builder_of(x).sqrt(x), xs=xs)


@whole
def abs(xs: Variables, out: Variables | None = None) -> list[Variable]:
    """|x|; its gradient at 0 is 0."""
    return _each("abs", out, lambda x: builder_of(x).abs(x), xs=xs)


@whole
def sign(xs: Variables, out: Variables | None = None) -> list[Variable]:
    """-1, 0 or 1 with the sign of x; no gradient."""
    return _each("sign", out, lambda x: builder_of(x).sign(x), xs=xs)


@whole
def zero(xs: Variables, out: Variables | None = None) -> list[Variable]:
    """Zeros of the shape and type of x; `zero(xs, out=xs)` sets x to 0."""
    return _each("zero", out, lambda x: builder_of(x).fill_any_like(x, value=0.0), xs=xs)


@whole
def norm(xs: Variables, ord: float = 2, out: Variables | None = None) -> list[Variable]:
    """A norm of all elements of x, of rank 0; float32 for 16-bit floats.

    ord  1: sum of |x|;  2: root of the sum of x^2;  math.inf: largest |x|
    """
    if not is_number(plain(ord)) or ord not in ORDERS:
        raise AttrError(f"ord must be 1, 2 or inf, is {describe(ord)}", call="foreach.norm", site=call_site())
    return _each("norm", out, lambda x: builder_of(x).p_norm(x, porder=float(ord)), xs=xs)


def _each(
    call: str, out: Variables | None, formula: Callable[..., Variable], xs: Variables, **beside: Partner
) -> list[Variable]:  # fmt: skip
    """`formula` of the i-th entries, for every i; then the results go to `out`."""
    call = f"foreach.{call}"
    xs = variables(xs, call, "xs")
    columns = [_partners(call, name, values, xs) for name, values in beside.items()]
    targets = _targets(call, out, xs)
    results = [formula(*row) for row in zip(xs, *columns, strict=True)]
    return [assign(result, to) for result, to in zip(results, targets, strict=True)] if targets else results


def _partners(call: str, name: str, values: Partner, xs: Variables) -> Sequence[Any]:
    """What stands beside each entry of `xs`."""
    if not isinstance(values, (list, tuple)):
        if not (isinstance(values, Variable) or is_number(plain(values))):
            raise ProgramError(
                f"{name} must be a list of Variables, a Variable or a number, is {describe(values)}", call=call,
                site=call_site(),
            )  # fmt: skip
        if isinstance(values, Variable) and values.type.size not in (1, -1):
            raise ShapeError(
                f"{name} is {values}, beside lists may stand one Variable of one element", call=call,
                site=call_site(), hint=f"[{values.name}] * {len(xs)} takes it for every entry",
            )  # fmt: skip
        values = [plain(values)] * len(xs)
    elif not all(is_number(plain(v)) for v in values) or not values:
        values = variables(values, call, name)
    if len(values) != len(xs):
        raise COUNT(
            f"xs lists {len(xs)} Variables, {name} lists {len(values)}", call=call, site=call_site()
        )
    for i, (x, y) in enumerate(zip(xs, values, strict=True)):
        _check_pair(call, f"xs[{i}]", x, f"{name}[{i}]", y)
    return values


def _check_pair(call: str, x_name: str, x: Variable, y_name: str, y: Any) -> None:
    """`y` has the shape of `x`, or one element, and its type."""
    if not isinstance(y, Variable):
        return
    if y.dtype != x.dtype:
        raise MIXED_TYPES(
            f"{x_name} is {x}, {y_name} is {y}", call=call, site=call_site(), hint="mg.cast brings them to one type"
        )
    same = x.type.accepts(y.type) or y.type.accepts(x.type)
    if not same and not (y.type.size == 1 and broadcast_shapes(x.shape, y.shape) == x.shape):
        raise ShapeError(
            f"{x_name} is {x}, {y_name} is {y}", call=call, site=call_site(), hint="same shape, or one element"
        )


def _targets(call: str, out: Variables | None, xs: Variables) -> list[Variable]:
    """The Variables of `out`, none of them twice."""
    if out is None:
        return []
    targets = variables(out, call, "out")
    if len(targets) != len(xs):
        raise COUNT(f"xs lists {len(xs)} Variables, out lists {len(targets)}", call=call, site=call_site())
    names = [v.name for v in targets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ProgramError(f"out lists {twice} twice", call=call, site=call_site())
    return targets


def _number(call: str, name: str, value: Any) -> float:
    value = plain(value)
    if not is_number(value):
        raise ProgramError(f"{name} must be a number, is {describe(value)}", call=f"foreach.{call}", site=call_site())
    return value


def _times(y: Any, factor: float) -> Any:
    return y if factor == 1 else y * factor


def _as_variable(xs: Any, values: Any) -> Any:
    """A number as one Variable for all of `xs`, where operators take no number; anything else as it is."""
    known = isinstance(xs, (list, tuple)) and len(xs) > 0 and all(isinstance(x, Variable) for x in xs)
    if not known or not is_number(plain(values)):
        return values
    made = {x.dtype: constant(plain(values), x.dtype, x) for x in {x.dtype: x for x in xs}.values()}
    return [made[x.dtype] for x in xs]
