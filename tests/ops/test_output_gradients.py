"""Every float output of every operator: a loss that depends on it alone has the right gradient, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minigraph.errors import ProgramError
from minigraph.opdef import OPS
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import TensorType, float64
from tests.support import opcheck
from tests.support.opcheck import Call

UPDATES = "optimizer"  # the trait of operators whose outputs carry no gradient by definition
BEHIND_BACKWARD = {"check_finite_and_unscale", "update_loss_scaling"}  # they see gradients, nobody differentiates them
REFUSED = {  # outputs that depend on float inputs and have no rule, and why
    ("slogdeterminant", "Sign"): "it jumps, and is constant elsewhere",
    ("fused_linear_cross_entropy", "ZLoss"): "a part of Loss, for people to look at",
    ("fused_linear_cross_entropy", "DX"): "a gradient itself",
    ("fused_linear_cross_entropy", "DW"): "a gradient itself",
    ("fused_linear_cross_entropy", "DBias"): "a gradient itself",
}


def float_outputs() -> Iterator[Any]:
    """(call, slot) for each float64 output slot, with the samples that reach it: the largest two."""
    found: dict[tuple[str, str], list[Call]] = {}
    for call in opcheck.all_calls():
        if call.opdef.traits & {UPDATES, "random"} or call.opdef.type in BEHIND_BACKWARD:
            continue
        if not call.float_places or opcheck.is_at_a_jump(call):
            continue
        for slot, arrays in opcheck.reference(call).items():
            if all(np.asarray(x).dtype == float64 for x in arrays) and size(arrays):
                found.setdefault((call.opdef.type, slot), []).append(call)
    for (op_type, slot), calls in found.items():
        for number, call in enumerate(sorted(calls, key=lambda c: sum(map(size, c.inputs.values())))[-2:]):
            yield pytest.param(call, slot, id=f"{op_type}-{slot}-{number}")


def size(arrays: Any) -> int:
    return sum(np.size(x) for x in arrays)


def is_refused(call: Call, slot: str) -> bool:
    """Operators without a rule are refused in all of their outputs: grad operators, and those that passes make."""
    no_rule = call.opdef.differentiable and call.opdef.grad_function is None
    return no_rule or (call.opdef.type, slot) in REFUSED


@pytest.mark.parametrize(("call", "slot"), list(float_outputs()))
def test_the_gradient_through_an_output_is_its_slope_or_an_error(call, slot):
    rng = np.random.default_rng(5)
    outputs = opcheck.reference(call)
    weights = {slot: [rng.normal(size=np.shape(x)) for x in outputs[slot]]}
    if is_refused(call, slot):
        with pytest.raises(ProgramError) as caught:
            opcheck.program_gradients(call, weights, call.float_places)
        text = str(caught.value)
        assert call.opdef.type in text and "opcheck.py" in text  # where the program was built
        assert f"no gradient flows through {slot} of" in text or "has no gradient rule" in text
        return
    places = [p for p in call.float_places if call.inputs[p[0]][p[1]].dtype == float64]
    found = opcheck.program_gradients(call, weights, places) if call.opdef.differentiable else None
    for number, place in enumerate(places):
        grad = found[number] if found else np.zeros(())  # what has no gradient has the slope 0
        opcheck.check_slopes(call, weights, place, grad)


def test_outputs_that_are_refused_are_outputs_without_a_rule():
    for op_type, slot in REFUSED:
        assert slot in OPS[op_type].output_names
        assert f"{slot}_grad" not in OPS[op_type].grad_parameters


def test_the_error_names_operator_slot_line_and_way_out():
    program = Program()
    types = {"x": ((4, 3), "float64"), "w": ((3, 5), "float64"), "label": ((4, 1), "int64")}
    x, w, label = (
        program.global_block().create_var(name, shape=shape, dtype=dtype, is_data=True, stop_gradient=name != "w")
        for name, (shape, dtype) in types.items()
    )
    g = Builder(program.global_block())
    loss, z_loss, *_ = g.fused_linear_cross_entropy(x, w, label, z_loss=0.01, needs=["ZLoss"])
    both = g.elementwise_add(g.reduce_sum(loss), g.reduce_sum(z_loss))
    before = len(program.ops)
    with pytest.raises(ProgramError) as caught:
        gradients(both, [w])
    text = str(caught.value)
    for words in ("fused_linear_cross_entropy", "ZLoss", "test_output_gradients.py", "stop_gradient = True"):
        assert words in text
    assert len(program.ops) == before  # nothing is left of the attempt
    z_loss.stop_gradient = True
    assert gradients(both, [w])[0] is not None


def program_of_x() -> tuple[Program, Any, Builder]:
    program = Program()
    x = program.global_block().create_var("x", type=TensorType((3,), float64), is_data=True, stop_gradient=False)
    return program, x, Builder(program.global_block())


@pytest.mark.parametrize("constant", ["fill_constant", "floor", "assign_value"])
def test_no_gradient_flows_to_what_a_constant_overwrote(constant):
    """x * c has the gradient c where the variable of c held 2 x before."""
    program, x, g = program_of_x()
    h = g.scale(x, scale=2.0)
    if constant == "floor":
        g.floor(g.scale(x, scale=0.0, bias=5.5), out={"Out": h})
    elif constant == "fill_constant":
        g.fill_constant(shape=(3,), value=5.0, dtype="float64", out={"Out": h})
    else:
        g.assign_value(values=(5.0, 5.0, 5.0), shape=(3,), dtype="float64", out={"Out": h})
    (grad,) = gradients(g.reduce_sum(g.elementwise_mul(h, x)), [x])
    (found,) = Executor().run(program, {"x": np.arange(3.0)}, [grad], scope=Scope())
    np.testing.assert_array_equal(found, [5, 5, 5])


def test_the_gradient_of_a_constant_is_there_where_it_is_wanted():
    program, x, g = program_of_x()
    c = g.fill_constant(shape=(3,), value=5.0, dtype="float64")
    c.stop_gradient = False
    (grad,) = gradients(g.reduce_sum(g.elementwise_mul(c, x)), [c])
    (found,) = Executor().run(program, {"x": np.arange(3.0)}, [grad], scope=Scope())
    np.testing.assert_array_equal(found, [0, 1, 2])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_norm_of_shorter_floats_has_a_gradient_of_their_type(dtype):
    program = Program()
    x = program.global_block().create_var("x", shape=(4,), dtype=dtype, is_data=True, stop_gradient=False)
    g = Builder(program.global_block())
    (grad,) = gradients(g.squared_l2_norm(x), [x])
    assert grad.dtype == x.dtype
    value = np.array([0.5, -1.0, 2.0, 3.0]).astype(x.dtype)
    (found,) = Executor().run(program, {"x": value}, [grad], scope=Scope())
    np.testing.assert_array_equal(found.astype(float), 2 * value.astype(float))
