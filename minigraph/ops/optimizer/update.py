"""How update operators are defined: from the plain formula of one parameter, single and fused.

    @update
    def sgd(Param, Grad, LearningRate): ...

defines the operator `sgd` and `fused_sgd`, which updates lists of parameters in one call. Both take,
besides the formula's slots, three optional ones:
    MasterParam  the parameter in float32, which is updated; ParamOut is its rounding to 16 bits
    SkipUpdate   one bool: nothing changes where it is true (a gradient has overflowed)
    GradScale    one float that multiplies the gradient first (clipping, loss scaling)
LearningRate, SkipUpdate and GradScale are one number for all parameters and live on the device.
Hyperparameters are exact doubles; powers of beta are float64 for every parameter, since 1 - Beta2Pow
would lose five digits in float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, require
from minigraph.errors.kinds import COUNT, MIXED_TYPES
from minigraph.kernels.updates import OPTIONAL, PLAIN, SHARED, Slots, slots_of, update_of
from minigraph.opdef import OpDef, op
from minigraph.types import TensorType, bfloat16, bool_, float16, float32, float64

Types = dict[str, Any]


def state_dtype(param: np.dtype) -> np.dtype:
    """The type of a parameter's states: its own, float32 for 16-bit floats."""
    return float32 if param in (float16, bfloat16) else param


def update(formula: Callable[..., Any]) -> OpDef:
    """Define the update operator of this formula and its fused form; returns the single one."""
    slots = slots_of(formula.__name__)
    parameters = list(inspect.signature(formula).parameters.values())
    attrs = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    given = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    assert given + OPTIONAL == slots.inputs, f"{formula.__name__} has the slots {given}, wanted {slots.inputs}"
    optional = {p.name for p in parameters if p.default is None} | {*OPTIONAL}
    outputs = [f"{s}Out" + "?" * (s in optional) for s in slots.updated]
    traits = {"optimizer", "nondifferentiable", "guarded"}
    traits |= {"layerwise"} if PLAIN[formula.__name__].finish else set()
    facts = {
        "traits": traits, "inplace": {f"{s}Out": s for s in slots.updated},
        "gpu": "optimizer.update",
    }  # fmt: skip

    def single(*inputs: Any, **values: Any) -> tuple[Any, ...]:
        return _updated(formula, slots, inputs, values)

    def fused(*inputs: Any, regularization_coeff: float, **values: Any) -> tuple[Any, ...]:
        return _all_updated(formula, slots, inputs, values, regularization_coeff)

    single.__name__, single.__doc__ = formula.__name__, formula.__doc__
    single.__signature__ = inspect.Signature([_slot(s, optional) for s in slots.inputs] + attrs)  # type: ignore[attr-defined]
    fused.__name__, fused.__doc__ = f"fused_{formula.__name__}", (
        f"{formula.__name__} of all parameters in one call.\n\n"
        "    regularization_coeff  times the parameter is added to its scaled gradient (L2 decay)"
    )
    decay = inspect.Parameter("regularization_coeff", inspect.Parameter.KEYWORD_ONLY, default=0.0, annotation="float")
    lists = [_slot(s, optional, "Arrays" if s not in SHARED else inspect.Parameter.empty) for s in slots.inputs]
    fused.__signature__ = inspect.Signature([*lists, *attrs, decay])  # type: ignore[attr-defined]

    kernel = f"minigraph.kernels.cpu.optimizer:{formula.__name__}"
    made = op(", ".join(outputs), cpu=kernel, **facts)(single)
    made.infer(lambda *inputs, **values: _infer(made.type, slots, inputs, values))
    kernel, lists_out = kernel.replace(":", ":fused_"), ", ".join(f"{o}*" for o in outputs)
    together = op(lists_out, cpu=kernel, strided={"Grad"}, **facts)(fused)
    together.infer(lambda *inputs, **values: _infer_lists(made.type, slots, inputs, values))
    together.samples(lambda rng: _samples_of_lists(made, slots, rng))
    return made


def _slot(name: str, optional: set[str], annotation: Any = inspect.Parameter.empty) -> inspect.Parameter:
    default = None if name in optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


# references


def _updated(
    formula: Callable[..., Any], slots: Slots, inputs: tuple[Any, ...], attrs: dict[str, Any]
) -> tuple[Any, ...]:
    """New values of all updated slots, None for those that are absent."""
    values = {s: a for s, a in zip(slots.inputs, inputs, strict=False) if a is not None}
    skip, scale = values.pop("SkipUpdate", None), values.pop("GradScale", None)
    if skip is not None and skip.item():
        return tuple(values.get(s) for s in slots.updated)
    if scale is not None:
        values["Grad"] = values["Grad"] * scale.item()
    master = values.pop("MasterParam", None)
    if master is not None:
        values["Param"] = master
    results = formula(**values, **attrs)
    results = results if isinstance(results, tuple) else (results,)
    return (*results, results[0] if master is not None else None)


def _all_updated(
    formula: Callable[..., Any], slots: Slots, inputs: tuple[Any, ...], attrs: dict[str, Any], coeff: float
) -> tuple[Any, ...]:
    """The results of a formula for each parameter of a list."""
    given = dict(zip(slots.inputs, inputs, strict=False))
    scale, results = given.pop("GradScale", None), []
    for i in range(len(given["Param"])):
        one: Types = {s: a if s in SHARED or a is None else a[i] for s, a in given.items()}
        if scale is not None:
            one["Grad"] = one["Grad"] * scale.item()
        if coeff:
            one["Grad"] = one["Grad"] + one["Param"] * coeff
        results.append(_updated(formula, slots, tuple(one.get(s) for s in slots.inputs), attrs))
    return tuple(None if column[0] is None else list(column) for column in zip(*results, strict=True))


# types


def _infer(op_type: str, slots: Slots, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    types = dict(zip(slots.inputs, inputs, strict=False))
    check_update(op_type, attrs, types)
    return tuple(types.get(s) for s in slots.updated)


def _infer_lists(op_type: str, slots: Slots, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    types = dict(zip(slots.inputs, inputs, strict=False))
    count = len(types["Param"])
    first = types["Param"][0]
    for slot, column in types.items():
        if slot not in SHARED and column is not None:
            require(len(column) == count, f"Param lists {count} variables, {slot} lists {len(column)}", COUNT)
    kinds = {tuple(t if s in SHARED or t is None else t[i] for s, t in types.items()) for i in range(count)}
    for kind in kinds:  # parameters of one kind need one look
        one: Types = dict(zip(types, kind, strict=True))
        require(
            one["Param"].dtype == first.dtype, f"Param holds {first.dtype} and {one['Param'].dtype}", MIXED_TYPES,
            "one operator for each data type",
        )  # fmt: skip
        check_update(op_type, attrs, one)
    return tuple(types.get(s) for s in slots.updated)


def check_update(op_type: str, attrs: dict[str, Any], types: Types) -> None:
    """Gradient and states fit the parameter; a slot that is one number has one element."""
    param, grad, rate = types["Param"], types["Grad"], types["LearningRate"]
    update, slots = update_of(op_type, attrs), slots_of(op_type)
    require(param.is_float, f"Param is {param}, only floats can be updated", DTypeError)
    require(grad.dtype == param.dtype, f"Param is {param.dtype}, Grad is {grad.dtype}", MIXED_TYPES, "cast Grad")
    require(param.accepts(grad), f"Param is {param}, Grad is {grad}")
    _check_number("LearningRate", rate)
    wanted = param.with_dtype(state_dtype(param.dtype))
    for slot in (*slots.states, *slots.extra, "MasterParam"):
        state = types.get(slot)
        if slot != "MasterParam":
            needed = slot in update.states
            require(needed == (state is not None), f"{slot} is {'missing' if needed else 'given, but not used'}")
        if state is not None:
            require(state.dtype == wanted.dtype, f"{slot} must be {wanted.dtype}, is {state.dtype}", MIXED_TYPES)
            require(wanted.accepts(state), f"{slot} must be {wanted}, is {state}")
    for slot in slots.powers:
        power: TensorType = types[slot]
        require(power.dtype == float64, f"{slot} must be float64, is {power.dtype}", DTypeError)
        require(power.size == 1, f"{slot} must have one element, is {power}", COUNT)
    if (skip := types.get("SkipUpdate")) is not None:
        require(skip.dtype == bool_ and skip.size == 1, f"SkipUpdate must be one bool, is {skip}", DTypeError)
    if (scale := types.get("GradScale")) is not None:
        _check_number("GradScale", scale)


def _check_number(slot: str, type: TensorType) -> None:
    require(type.is_float, f"{slot} must be a float, is {type}", DTypeError)
    require(type.size == 1, f"{slot} must have one element, is {type}", COUNT)


# samples


def _samples_of_lists(single: OpDef, slots: Slots, rng: Any) -> Iterator[Any]:
    """Each sample of the single operator, as a list with a second parameter of another size."""
    assert single.samples_function is not None
    for number, (inputs, attrs) in enumerate(single.samples_function(rng)):
        given = dict(zip(slots.inputs, inputs, strict=False))
        lists = {
            s: a if s in SHARED or a is None else [a, a[:1] if np.ndim(a) else a * 0.5, a] for s, a in given.items()
        }
        yield tuple(lists.values()), {**attrs, "regularization_coeff": 0.25 * (number % 2)}
