"""Operators that are one expression at every element, and the gradients of those on two operands.

A gradient whose operand was broadcast is written whole, in the type that sums are kept in, and
then summed; one launch writes what flows into both operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.types import FLOATS

from .pointwise import bind_pointwise
from .reduce import accumulator, bind_sum_to

Bind = Callable[[Binder, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], None]
Expressions = str | Mapping[str, str]
Shape = tuple[int, ...]


def aligned(shape: Shape, ndim: int, axis: int) -> Shape:
    """`shape` of Y with sizes of 1 appended, so that its first axis meets axis `axis` of X of rank `ndim`."""
    return shape if axis == -1 or len(shape) >= ndim else shape + (1,) * (ndim - axis - len(shape))


def bind_expression(
    form: Expressions | Callable[[Mapping[str, Any]], Expressions],
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any],
) -> None:  # fmt: skip
    """Each output is its expression of the inputs and of the attributes that are numbers.

    form   the expression of the only output, {output slot: expression}, or what gives them from attributes
    """
    found = form(attrs) if callable(form) else form
    wanted = {name: out for name, out in outs.items() if out is not None}
    expressions = {name: found if isinstance(found, str) else found[name] for name in wanted}
    named = set(re.findall(r"[A-Za-z_]\w*", " ".join(expressions.values())))
    inputs = {name: x for name, x in ins.items() if name in named and x is not None}
    scalars = {name: v for name, v in attrs.items() if name in named and isinstance(v, (int, float))}
    bind_pointwise(binder, wanted, inputs, expressions, scalars, operand_shapes(ins, attrs))


def operand_shapes(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Shape]:
    """The shapes in which operands meet, where attribute `axis` places Y inside X."""
    axis = attrs.get("axis", -1)
    return {"Y": aligned(ins["Y"].shape, ins["X"].ndim, axis)} if axis != -1 else {}


def elementwise_pow(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """X ** Y; a negative power of an int is reported."""
    X, Y, Out = ins["X"], ins["Y"], outs["Out"]
    shapes = operand_shapes(ins, attrs)
    if X.dtype in FLOATS:
        return bind_pointwise(binder, {"Out": Out}, {"X": X, "Y": Y}, {"Out": "power(X, Y)"}, shapes=shapes)
    fault, step = binder.report("a negative power of an integer")
    refused = "(look((Fault*)p_fault), Y < 0 ? report((Fault*)p_fault, s_step, Y, i64(o_Out) + i) : void())"
    bind_pointwise(
        binder, {"Out": Out}, {"X": X, "Y": Y, "fault": fault}, {"Out": f"({refused}, power(X, Y))"},
        {"step": int(step)}, shapes | {"fault": ()},
    )  # fmt: skip


def _gradients(x_grad: str, y_grad: str) -> Bind:
    """The grad operator in which X gets `x_grad` and Y `y_grad`, summed to their shapes."""

    def bind(binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        shapes = operand_shapes(ins, attrs)
        whole: dict[str, Buffer] = {}
        sums = []
        for slot, expression in (("Y", y_grad), ("X", x_grad)):
            out = outs.get(f"{slot}_grad")
            if out is None:
                continue
            shape, full = (shapes[slot] if slot in shapes else ins[slot].shape), ins["Out_grad"].shape
            if expression == "Out_grad":  # Y first: X_grad may be Out_grad itself
                bind_sum_to(binder, ins["Out_grad"], out, shape)
            elif shape == full:
                whole[f"{slot}_grad"] = out if out.shape == full else out.view(full)
            else:
                whole[f"{slot}_grad"] = binder.scratch(full, accumulator("SUM", out.dtype))
                sums.append((whole[f"{slot}_grad"], out, shape))
        if whole:
            expressions = {name: x_grad if name == "X_grad" else y_grad for name in whole}
            named = set(re.findall(r"[A-Za-z_]\w*", " ".join(expressions.values())))
            inputs = {name: x for name, x in ins.items() if name in named}
            bind_pointwise(binder, whole, inputs, expressions, shapes=shapes)
        for buffer, out, shape in sums:
            bind_sum_to(binder, buffer, out, shape)

    return bind


GRADIENTS = {  # of X and of Y at an element where nothing was broadcast
    "elementwise_add_grad": ("Out_grad", "Out_grad"),
    "elementwise_sub_grad": ("Out_grad", "-Out_grad"),
    "elementwise_mul_grad": ("Out_grad * Y", "Out_grad * X"),
    "elementwise_div_grad": ("Out_grad / Y", "-(Out_grad / Y * Out)"),
    "elementwise_pow_grad": (
        "Out_grad * (Y == C(0) ? C(0) : Y * power(X, Y - C(1)))",
        "Out_grad * power(X, Y) * log(X == C(0) && Y >= C(0) ? C(1) : X)",
    ),
    "elementwise_max_grad": ("Y <= X ? Out_grad : C(0)", "Y <= X ? C(0) : Out_grad"),
    "elementwise_min_grad": ("Y >= X ? Out_grad : C(0)", "Y >= X ? C(0) : Out_grad"),
    "where_grad": ("Condition ? Out_grad : C(0)", "Condition ? C(0) : Out_grad"),
}
elementwise_add_grad = _gradients(*GRADIENTS["elementwise_add_grad"])
elementwise_mul_grad = _gradients(*GRADIENTS["elementwise_mul_grad"])
elementwise_div_grad = _gradients(*GRADIENTS["elementwise_div_grad"])
elementwise_pow_grad = _gradients(*GRADIENTS["elementwise_pow_grad"])
elementwise_max_grad = _gradients(*GRADIENTS["elementwise_max_grad"])
elementwise_min_grad = _gradients(*GRADIENTS["elementwise_min_grad"])
where_grad = _gradients(*GRADIENTS["where_grad"])


def elementwise_sub_grad(
    binder: Binder, ins: Mapping[str, Any], outs: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Out_grad and -Out_grad; the smaller array is the one negated."""
    Out_grad, X_grad, Y_grad = ins["Out_grad"], outs.get("X_grad"), outs.get("Y_grad")
    if Y_grad is not None:
        source, shape = Out_grad, operand_shapes(ins, attrs).get("Y") or Y_grad.shape
        if shape != Out_grad.shape:
            bind_sum_to(binder, Out_grad, Y_grad, shape)
            source = Y_grad
        bind_pointwise(binder, {"Y_grad": Y_grad}, {"D": source}, {"Y_grad": "-D"}, shapes={"D": Y_grad.shape})
    if X_grad is not None:
        bind_sum_to(binder, Out_grad, X_grad, X_grad.shape)
