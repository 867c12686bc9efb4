"""Operators that are one expression at every element, and the gradients of those on two operands.

A gradient whose operand was broadcast is written whole, in the type that sums are kept in, and
then summed; one launch writes what flows into both operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.types import FLOATS

from .pointwise import bind_pointwise
from .reduce import accumulator, bind_sum_to

Expressions = str | Mapping[str, str]
Form = Expressions | Callable[[Mapping[str, Any]], Expressions]
Shape = tuple[int, ...]


def aligned(shape: Shape, ndim: int, axis: int) -> Shape:
    """`shape` of Y with sizes of 1 appended, so that its first axis meets axis `axis` of X of rank `ndim`."""
    return shape if axis == -1 or len(shape) >= ndim else shape + (1,) * (ndim - axis - len(shape))


def bind_expression(
    form: Form, binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any],
) -> None:  # fmt: skip
    """Each output is its expression of the inputs and of the attributes that are numbers.

    form   the expression of the only output, {output slot: expression}, or what gives them from attributes
    """
    wanted = {name: out for name, out in outs.items() if out is not None}
    expressions = expressions_of(form, wanted, attrs)
    named = _names(expressions)
    inputs = {name: x for name, x in ins.items() if name in named and x is not None}
    scalars = {name: v for name, v in attrs.items() if name in named and isinstance(v, (int, float))}
    bind_pointwise(binder, wanted, inputs, expressions, scalars, operand_shapes(ins, attrs))


def expressions_of(form: Form, outputs: Iterable[str], attrs: Mapping[str, Any]) -> dict[str, str]:
    """{output slot: C++ expression} of an operator's fact `cuda`."""
    text = form(attrs) if callable(form) else form
    return {slot: text if isinstance(text, str) else text[slot] for slot in outputs}


def _names(expressions: Mapping[str, str]) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(expressions.values())))


def operand_shapes(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Shape]:
    """The shapes in which operands meet, where attribute `axis` places Y inside X."""
    axis = attrs.get("axis", -1)
    return {"Y": aligned(ins["Y"].shape, ins["X"].ndim, axis)} if axis != -1 else {}


def _bind_refusing(
    expression: str, refused: str, wrong: str, binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> None:  # fmt: skip
    """Out = an expression of X and Y; of ints, a Y for which `refused` holds is reported as `wrong`."""
    X, Y, Out = ins["X"], ins["Y"], outs["Out"]
    shapes = operand_shapes(ins, attrs)
    if X.dtype in FLOATS:
        return bind_pointwise(binder, {"Out": Out}, {"X": X, "Y": Y}, {"Out": expression}, shapes=shapes)
    fault, step = binder.report(wrong)
    looked = f"(look((Fault*)p_fault), {refused} ? report((Fault*)p_fault, s_step, Y, i64(o_Out) + i) : void())"
    bind_pointwise(
        binder, {"Out": Out}, {"X": X, "Y": Y, "fault": fault}, {"Out": f"({looked}, {expression})"},
        {"step": int(step)}, shapes | {"fault": ()},
    )  # fmt: skip


elementwise_pow = partial(_bind_refusing, "power(X, Y)", "Y < 0", "a negative power of an integer")
floor_divide = partial(_bind_refusing, "floor_quotient(X, Y)", "Y == 0", "no divisor of an integer")
elementwise_mod = partial(_bind_refusing, "floor_rest(X, Y)", "Y == 0", "no divisor of an integer")


def bind_gradients(
    form: Mapping[str, str], binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """The gradients of X and of Y: `form` at an element where nothing was broadcast, summed to their shapes."""
    shapes, full = operand_shapes(ins, attrs), ins["Out_grad"].shape
    whole: dict[str, Buffer] = {}
    sums = []
    for slot in ("Y", "X"):  # Y first: X_grad may be Out_grad itself
        name, out = f"{slot}_grad", outs.get(f"{slot}_grad")
        if out is None:
            continue
        shape = shapes[slot] if slot in shapes else ins[slot].shape
        if form[name] in ("Out_grad", "-Out_grad"):
            _hand_on(binder, ins["Out_grad"], out, shape, form[name] != "Out_grad")
        elif shape == full:
            whole[name] = out if out.shape == full else out.view(full)
        else:
            whole[name] = binder.scratch(full, accumulator("SUM", out.dtype))
            sums.append((whole[name], out, shape))
    if whole:
        expressions = {name: form[name] for name in whole}
        named = _names(expressions)
        inputs = {name: x for name, x in ins.items() if name in named}
        bind_pointwise(binder, whole, inputs, expressions, shapes=shapes)
    for buffer, out, shape in sums:
        bind_sum_to(binder, buffer, out, shape)


def _hand_on(binder: Binder, grad: Buffer, out: Buffer, shape: Shape, negative: bool) -> None:
    """`grad`, or -`grad`, summed to the shape of an operand; the smaller array is the one negated."""
    if not negative or shape != grad.shape:
        bind_sum_to(binder, grad, out, shape)
        grad = out
    if negative:
        bind_pointwise(binder, {"Y_grad": out}, {"D": grad}, {"Y_grad": "-D"}, shapes={"D": out.shape})
