"""What test_ops asks of every operator: its samples as calls, run by the reference and by a Program."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from minigraph.opdef import OPS, OpDef
from minigraph.program import Program, Variable
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import FLOATS, TensorType, as_dtype, float64

Slots = dict[str, list[np.ndarray]]  # slot -> arrays: one, or those of a list slot
STEP = 1e-5  # of central differences
ALONE = 24  # elements whose slopes are looked at one by one
DIRECTIONS = 3  # in which all elements of larger arrays move together
NO_NUMBER = {"f": np.nan, "V": np.nan, "i": -77, "u": 77, "b": True}  # poison by kind of data type

ALWAYS_FLOAT64 = ("Beta1Pow", "Beta2Pow")
STATISTICS = frozenset({"LogSumExp", "LogSumExp_grad"})
STATES = (
    "Velocity", "Moment", "Moment1", "Moment2", "Moment2Max", "InfNorm", "MeanSquare", "MeanGrad", "AvgSquaredGrad",
    "AvgSquaredUpdate", "MasterParam",
)  # float32 where parameters have 16 bits


@dataclass
class Call:
    """One sample of an operator."""

    opdef: OpDef
    number: int
    inputs: Slots
    attrs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.opdef.type}-{self.number}"

    def with_inputs(self, change: Callable[[np.ndarray], np.ndarray]) -> Call:
        """The call with every array changed."""
        inputs = {slot: [change(x) for x in xs] for slot, xs in self.inputs.items()}
        return Call(self.opdef, self.number, inputs, self.attrs)

    def as_dtype(self, dtype: Any) -> Call:
        """The call with float inputs rounded to `dtype`; statistics have at least float32."""
        changed = self.with_inputs(lambda x: x.astype(dtype) if x.dtype in FLOATS else x)
        if as_dtype(dtype).itemsize == 2:
            for slot in STATISTICS & self.inputs.keys():
                changed.inputs[slot] = [x.astype(np.float32) for x in self.inputs[slot]]
        return changed

    def for_gpu(self, dtype: Any) -> Call:
        """Likewise, but for slots that an operator wants in another type."""
        changed = self.as_dtype(dtype)
        for slot, arrays in self.inputs.items():
            if slot in ALWAYS_FLOAT64:
                changed.inputs[slot] = arrays
            elif slot in STATES and as_dtype(dtype).itemsize == 2:
                changed.inputs[slot] = [x.astype(np.float32) for x in arrays]
        return changed

    @property
    def places(self) -> list[tuple[str, int]]:
        """(slot, position) of every array."""
        return [(slot, i) for slot, xs in self.inputs.items() for i in range(len(xs))]

    @property
    def float_places(self) -> list[tuple[str, int]]:
        return [(slot, i) for slot, i in self.places if self.inputs[slot][i].dtype in FLOATS]


def samples(opdef: OpDef) -> list[Call]:
    """The operator's samples, the same in every run."""
    rng = np.random.default_rng(zlib.crc32(opdef.type.encode()))
    calls = []
    for number, (values, attrs) in enumerate(opdef.samples_function(rng)):
        inputs = {}
        for slot, value in zip(opdef.inputs, values, strict=False):
            if value is not None:
                inputs[slot.name] = [np.array(v) for v in (value if slot.variadic else [value])]
        calls.append(Call(opdef, number, inputs, opdef.bind_attrs(attrs)))
    return calls


def all_calls() -> list[Call]:
    return [call for opdef in OPS.values() if opdef.samples_function for call in samples(opdef)]


def type_of(x: Any) -> TensorType:
    return TensorType(np.shape(x), np.asarray(x).dtype)


def inferred_types(call: Call, change: Callable[[TensorType], TensorType] = lambda t: t) -> dict[str, list[TensorType]]:
    types = {slot: [change(type_of(x)) for x in xs] for slot, xs in call.inputs.items()}
    return call.opdef.infer_types(types, call.attrs)


def apply(function: Callable[..., Any], call: Call, **injected: Any) -> Slots:
    """{output slot: arrays} of a kernel; every optional output is asked for."""
    args = []
    for slot in call.opdef.inputs:
        xs = call.inputs.get(slot.name)
        args.append(None if xs is None else xs if slot.variadic else xs[0])
    parameters = _parameters(function)
    if "needs" in parameters:
        injected["needs"] = frozenset(call.opdef.output_names)
    if "rng" in parameters:
        injected["rng"] = (7, 0, 0)
    with np.errstate(all="ignore"):
        results = function(*args, **call.attrs, **injected)
    if len(call.opdef.outputs) == 1 or not isinstance(results, tuple):
        results = (results,)
    outputs = {}
    for slot, result in zip(call.opdef.outputs, results, strict=True):
        if result is not None:
            outputs[slot.name] = list(result) if slot.variadic else [result]
    return outputs


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def reference(call: Call) -> Slots:
    return apply(call.opdef.reference, call)


def built(call: Call) -> tuple[Program, dict[str, list[Variable]], dict[str, list[Variable]]]:
    """A Program of this one operator, its input and its output variables."""
    program = Program()
    block = program.global_block()
    variables = {
        slot: [
            block.create_var(f"{slot}_{i}", type=type_of(x), is_data=True, stop_gradient=True)
            for i, x in enumerate(xs)
        ]
        for slot, xs in call.inputs.items()
    }
    variadic = {slot.name for slot in call.opdef.inputs if slot.variadic}
    args = {slot: vs if slot in variadic else vs[0] for slot, vs in variables.items()}
    Builder(block).emit(call.opdef.type, needs=call.opdef.output_names, **args, **call.attrs)
    return program, variables, program.ops[-1].outputs


def feed_of(call: Call) -> dict[str, np.ndarray]:
    return {f"{slot}_{i}": x for slot, xs in call.inputs.items() for i, x in enumerate(xs)}


def executed(call: Call) -> Slots:
    """{output slot: arrays} of a Program run twice: the second run must repeat the first."""
    program, _, outputs = built(call)
    names = [(slot, v) for slot, vs in outputs.items() for v in vs]
    exe, scope = Executor(), Scope()
    first, second = (
        exe.run(program, feed_of(call), [v for _, v in names], scope=scope) for _ in range(2)
    )
    results: Slots = {}
    for (slot, v), a, b in zip(names, first, second, strict=True):
        assert isinstance(b, np.ndarray), f"{v.name} is a {type(b).__name__} in the second run"
        assert v.type.accepts(type_of(a)), f"{v} became {type_of(a)}"
        if "random" not in call.opdef.traits:
            np.testing.assert_array_equal(a.astype(float), b.astype(float))
        results.setdefault(slot, []).append(a)
    return results


def run_op(op_type: str, *inputs: Any, **attrs: Any) -> np.ndarray:
    """The single output of an operator on arrays, through a Program."""
    block = Program().global_block()
    arrays = [np.asarray(x) for x in inputs]
    variables = [block.create_var(f"v{i}", type=type_of(x), is_data=True) for i, x in enumerate(arrays)]
    out = Builder(block).emit(op_type, *variables, **attrs)
    feed = {v.name: x for v, x in zip(variables, arrays, strict=True)}
    return Executor().run(block.program, feed, [out], scope=Scope())[0]


JUMPS = {"round": 0.5, "floor": 0.0, "ceil": 0.0, "trunc": 0.0}  # operator: behind each whole number


def is_at_a_jump(call: Call) -> bool:
    """Whether this is one of functions with steps at a place where it has no slope."""
    arrays = (x for given in call.inputs.values() for x in given)
    at = JUMPS.get(call.opdef.type)
    return at is not None and any((np.abs(x - np.trunc(x)) == at).any() for x in arrays)


def differentiable_outputs(call: Call) -> list[str]:
    """Output slots through which the gradient rule takes a gradient, where they hold float64."""
    taken = call.opdef.grad_parameters
    return [
        slot for slot, types in inferred_types(call).items()
        if f"{slot}_grad" in taken and all(t.dtype == float64 for t in types)
    ]  # fmt: skip


def program_gradients(call: Call, weights: Slots, wanted: list[tuple[str, int]]) -> list[np.ndarray]:
    """Gradients of sum(outputs * weights) for the `wanted` inputs; zeros where there is none."""
    program, variables, outputs = built(call)
    g = Builder(program.global_block())
    feed, losses = feed_of(call), []
    for slot, arrays in weights.items():
        for i, (v, w) in enumerate(zip(outputs[slot], arrays, strict=True)):
            weight = program.global_block().create_var(f"weight_{slot}_{i}", type=type_of(w), is_data=True)
            losses.append(g.reduce_sum(g.elementwise_mul(v, weight)))
            feed[weight.name] = w
    inputs = [variables[slot][i] for slot, i in wanted]
    grads = gradients(losses, inputs)
    fetches = [v for v in grads if v is not None]
    fetched = iter(Executor().run(program, feed, fetches, scope=Scope()))
    return [
        next(fetched) if v is not None else np.zeros(x.shape) for v, x in zip(grads, inputs, strict=True)
    ]


def check_slopes(
    call: Call, weights: Slots, place: tuple[str, int], grad: np.ndarray, allowed: float = 1e-8, alone: float = ALONE
) -> None:
    """`grad` is what central differences of the reference say, in float64.

    Of arrays of more than `alone` elements all move together, each by its own random share of a step: that one element
    of the gradient is wrong shows in every such direction.
    """
    slot, i = place
    x = call.inputs[slot][i]
    rng = np.random.default_rng(x.size)
    if x.size <= alone:
        directions = [row.reshape(x.shape) for row in np.eye(x.size)]
    else:
        directions = [rng.uniform(0.5, 1, x.shape) * rng.choice([-1, 1], x.shape) for _ in range(DIRECTIONS)]
    expected = [_slope(call, weights, x, direction) for direction in directions]
    found = [(grad * direction).sum() for direction in directions]
    np.testing.assert_allclose(found, expected, rtol=allowed, atol=allowed, err_msg=str(place))


def _slope(call: Call, weights: Slots, x: np.ndarray, direction: np.ndarray) -> float:
    """How sum(outputs * weights) changes as the input x goes in this direction."""
    centre, sides = x.copy(), []
    for step in (STEP, -STEP):
        x[...] = centre + step * direction
        sides.append(_copies(reference(call)))
    x[...] = centre
    return sum(
        float(np.sum(_difference(a, b) / (2 * STEP) * w))
        for name, ws in weights.items()
        for a, b, w in zip(sides[0][name], sides[1][name], ws, strict=True)
    )


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b, and 0 where both are the same infinity."""
    return np.subtract(a, b, where=a != b, out=np.zeros_like(a))


def _copies(outputs: Slots) -> Slots:
    """Arrays that do not change with the inputs of which they may be views."""
    return {slot: [np.array(x) for x in xs] for slot, xs in outputs.items()}


def poisoned(t: TensorType) -> np.ndarray:
    """An array of garbage."""
    return np.full(t.shape, NO_NUMBER[t.dtype.kind], t.dtype)


def strided(x: np.ndarray) -> Iterator[np.ndarray]:
    """Arrays equal to x that do not lie contiguously: every other element, backwards, Fortran order."""
    if x.ndim:
        wide = np.zeros(tuple(2 * s for s in x.shape), x.dtype)
        view = wide[tuple(slice(None, None, 2) for _ in x.shape)]
        view[...] = x
        yield view
        backwards = tuple(slice(None, None, -1) for _ in x.shape)
        yield np.ascontiguousarray(x[backwards])[backwards]
    yield np.array(x, order="F")


def tolerance(dtype: Any, expected: np.ndarray, call: Call) -> np.ndarray:
    """What a result in `dtype` may differ from the float64 result of the same rounded inputs.

    A float16 or bfloat16 result is computed in float32 and rounded once: twice that rounding error.
    """
    dtype = as_dtype(dtype)
    size = np.abs(np.where(np.isfinite(expected), expected, 0)).astype(float)
    largest = max([1.0, *(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in _floats(call)), size.max(initial=0)])
    if dtype == np.float64:
        return size * 1e-13 + largest * 1e-13
    computed = 4 * float(np.finfo(np.float32).eps) * largest
    if dtype == np.float32:
        return size * 2 * float(np.finfo(np.float32).eps) + computed
    unit = 2.0**-8 if dtype == as_dtype("bfloat16") else 2.0**-11  # half the distance of two neighbours
    return size * 2 * unit + computed


def _floats(call: Call) -> list[np.ndarray]:
    return [call.inputs[slot][i].astype(float) for slot, i in call.float_places]
