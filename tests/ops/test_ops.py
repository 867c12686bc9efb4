"""Every operator of OPS on its own samples: types, values, gradients and memory."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.errors import ShapeError
from minigraph.opdef import OPS
from minigraph.types import FLOATS, float64
from tests.support import opcheck
from tests.support.every_call import of_every_call
from tests.support.opcheck import Call

CALLS = opcheck.all_calls()
DTYPES = ("float64", "float32", "float16", "bfloat16")
HAS_NO_SAMPLES = {"optimizer", "side_effect"}  # traits of operators that have tests of their own
# Optimizers read states of known sizes, some of them always in float32: float64 samples are enough here.
MODEL_CALLS = [c for c in CALLS if "optimizer" not in c.opdef.traits]

# Differentiable operators without a gradient rule, and why.
MADE = "a pass makes it, after the gradients are there; append_backward refuses it"
# Outputs that a kernel which takes `out` may give in memory of their own: small ones, and such as are summed.
WRITTEN_APART = {
    "elementwise_mul_grad": ("X_grad", "Y_grad"), "elementwise_div_grad": ("X_grad", "Y_grad"), "dropout": ("Mask",),
    "softplus": ("Out",), "memory_efficient_attention_grad": ("Bias_grad",), "c_allreduce_coalesced": ("Out",),
    "fused_elementwise": ("Out",), "matmul": ("Out",), "sum": ("Out",), "check_finite_and_unscale": ("FoundInfinite",),
    "fused_linear_cross_entropy": ("DBias",), "fused_linear_cross_entropy_grad": ("DBias",),
}  # fmt: skip
LISTS = ("add", "sub", "mul", "div", "max", "sqrt", "abs", "sign", "cast", "where", "norm_ratio", "squared_l2_norm",
         "p_norm", "elementwise")  # fmt: skip
OTHERS = "fused_elementwise", "layer_norm_again", "c_shards", "c_reduce_shards", "c_gather_shards"
NO_GRADIENT_RULE = dict.fromkeys([*OTHERS, *(f"foreach_{name}" for name in LISTS)], MADE)
NO_GRADIENT_RULE["nextafter"] = "its result is a neighbour of what it was given; append_backward refuses it"


def is_random(call: Call) -> bool:
    return "random" in call.opdef.traits


def has_gradient(call: Call) -> bool:
    return bool(
        call.opdef.differentiable and call.opdef.grad_function and not is_random(call)
        and call.float_places and all(call.inputs[s][i].dtype == float64 for s, i in call.float_places)
        and opcheck.differentiable_outputs(call) and not opcheck.is_at_a_jump(call)
    )  # fmt: skip


# The definitions


@pytest.mark.parametrize("opdef", list(OPS.values()), ids=lambda o: o.type)
def test_definition_is_complete(opdef):
    assert opdef.reference.__doc__.strip()
    assert opdef.samples_function or opdef.traits & HAS_NO_SAMPLES, "no samples"
    needs_no_rule = not opdef.differentiable or opdef.type.endswith("_grad") or "optimizer" in opdef.traits
    if opdef.grad_function is None:
        assert needs_no_rule or opdef.type in NO_GRADIENT_RULE, "no gradient rule"
    else:
        assert opdef.type not in NO_GRADIENT_RULE
        known = {*opdef.input_names, *opdef.output_names, *(f"{o}_grad" for o in opdef.output_names)}
        assert set(opdef.grad_parameters) <= known
        assert opdef.traits & (HAS_NO_SAMPLES | {"random"}) or any(has_gradient(c) for c in opcheck.samples(opdef)), (
            "no sample checks the gradient rule"
        )


# Types


@of_every_call(CALLS)
def test_inferred_types_are_the_real_ones(call):
    results = opcheck.reference(call)
    inferred = opcheck.inferred_types(call)
    assert inferred.keys() == results.keys()
    for slot, arrays in results.items():
        assert inferred[slot] == [opcheck.type_of(x) for x in arrays]


@of_every_call(MODEL_CALLS)
def test_unknown_sizes_are_accepted(call):
    real = opcheck.inferred_types(call)
    rank = max((x.ndim for xs in call.inputs.values() for x in xs), default=0)
    for axes in ({*range(-rank, 0)}, *({axis} for axis in range(-rank, 0))):

        def hide(t, axes=axes):
            return t.with_shape(-1 if i in axes else s for i, s in enumerate(t.shape, -t.ndim))

        try:
            unknown = opcheck.inferred_types(call, hide)
        except ShapeError as refusal:  # allowed where the rank itself depends on the sizes
            if "known only at run time" not in str(refusal):
                raise
            continue
        assert unknown.keys() == real.keys()
        for slot, types in real.items():
            for u, t in zip(unknown[slot], types, strict=True):
                assert u.accepts(t), f"{slot} of {t} was inferred as {u} with axes {axes} unknown"


# Values


@of_every_call(
    [(c, "float64") for c in CALLS] + [(c, d) for c in MODEL_CALLS if c.float_places for d in DTYPES[1:]]
)
def test_program_computes_the_reference(call, dtype):
    call = call.as_dtype(dtype)
    results = opcheck.executed(call)
    exact = opcheck.reference(call.as_dtype("float64"))
    assert results.keys() == exact.keys()
    if is_random(call):
        return  # another operator number draws other numbers; test_random looks at their values
    for slot, arrays in results.items():
        for result, expected in zip(arrays, exact[slot], strict=True):
            expected = np.asarray(expected)
            assert result.shape == expected.shape
            if result.dtype not in FLOATS:
                np.testing.assert_array_equal(result, expected)
                continue
            result, expected = result.astype(float), expected.astype(float)
            same = (result == expected) | (np.isnan(result) & np.isnan(expected))
            with np.errstate(invalid="ignore"):  # of two infinite ones
                error = np.where(same, 0, np.abs(result - expected))
            allowed = opcheck.tolerance(arrays[0].dtype, expected, call)
            assert (error <= allowed).all(), f"{slot} differs by {error.max()}"


# Gradients


@of_every_call([c for c in CALLS if has_gradient(c)])
def test_gradients_are_the_slopes(call):
    rng = np.random.default_rng(call.number)
    outputs = opcheck.reference(call)
    slots = opcheck.differentiable_outputs(call)
    weights = {s: [rng.normal(size=np.shape(x)) for x in outputs[s]] for s in slots}
    found = opcheck.program_gradients(call, weights, call.float_places)
    for place, grad in zip(call.float_places, found, strict=True):
        opcheck.check_slopes(call, weights, place, grad)
    if len(call.float_places) > 1:  # one input at a time: what nobody wants is left out
        for place, whole in zip(call.float_places, found, strict=True):
            (alone,) = opcheck.program_gradients(call, weights, [place])
            np.testing.assert_allclose(alone, whole, rtol=1e-12, atol=1e-12, err_msg=str(place))
    if len(slots) > 1:  # one output at a time: the others get no gradient; the parts add up
        parts = [opcheck.program_gradients(call, {s: weights[s]}, call.float_places) for s in slots]
        for whole, *pieces in zip(found, *parts, strict=True):
            np.testing.assert_allclose(sum(pieces), whole, rtol=1e-12, atol=1e-12)


@of_every_call([c for c in CALLS if has_gradient(c)], marks=pytest.mark.sweep)
def test_each_element_of_a_gradient_is_its_slope(call):
    outputs = opcheck.reference(call)
    weights = {s: [np.cos(np.ones(np.shape(x)).cumsum()).reshape(np.shape(x)) for x in outputs[s]]
               for s in opcheck.differentiable_outputs(call)}  # fmt: skip
    for place, grad in zip(call.float_places, opcheck.program_gradients(call, weights, call.float_places), strict=True):
        opcheck.check_slopes(call, weights, place, grad, alone=np.inf)


# Memory


@of_every_call(CALLS)
def test_inputs_are_left_alone(call):
    before = call.with_inputs(np.copy)
    guarded = call.with_inputs(np.copy)
    for slot, i in guarded.places:
        guarded.inputs[slot][i].flags.writeable = False
    results = opcheck.apply(call.opdef.cpu_kernel, guarded)
    for slot, i in before.places:
        np.testing.assert_array_equal(guarded.inputs[slot][i], before.inputs[slot][i])
    if call.opdef.shows is None:
        for arrays in results.values():
            for x in arrays:
                for slot, i in guarded.places:
                    assert not np.may_share_memory(x, guarded.inputs[slot][i]), "an output is an input's memory"


@of_every_call([c for c in CALLS if "out" in c.opdef.injected])
def test_planned_outputs_are_written(call):
    plain = opcheck.apply(call.opdef.cpu_kernel, call)
    before = call.with_inputs(np.copy)
    for given in (call, call.with_inputs(lambda x: next(opcheck.strided(x)))):
        out = planned_outputs(call)
        planned = opcheck.apply(call.opdef.cpu_kernel, given, out=out)
        assert_same(planned, plain, rtol=0 if given is call else 1e-13)
        for slot, to in zip(call.opdef.outputs, out, strict=True):
            pairs = zip(planned.get(slot.name, ()), to if isinstance(to, list) else [to], strict=False)
            lies = all(x.size == 0 or np.may_share_memory(x, array) for x, array in pairs)
            assert lies or slot.name in WRITTEN_APART.get(call.opdef.type, ()), slot.name
    for slot, i in before.places:
        np.testing.assert_array_equal(call.inputs[slot][i], before.inputs[slot][i])
    assert_same(opcheck.apply(call.opdef.cpu_kernel, call, out=(None,) * len(out)), plain)


def planned_outputs(call):
    """An array of its own for every output, as a plan has it."""
    types = opcheck.inferred_types(call)
    arrays = {name: [opcheck.poisoned(t) for t in own] for name, own in types.items()}
    return tuple(arrays.get(s.name) if s.variadic else arrays.get(s.name, [None])[0] for s in call.opdef.outputs)


def in_place_calls():
    for call in CALLS:
        types = opcheck.inferred_types(call)
        for output, source in call.opdef.inplace.items():
            same = source in call.inputs and types.get(output) == [opcheck.type_of(call.inputs[source][0])]
            if same:
                yield call, output, source


@of_every_call(in_place_calls())
def test_in_place_result_is_the_same(call, output, source):
    plain = opcheck.apply(call.opdef.cpu_kernel, call)
    types = opcheck.inferred_types(call)
    for view in (False, True):  # the very array, and another array on its memory
        fresh = call.with_inputs(np.copy)
        taken = fresh.inputs[source][0]
        out = tuple(
            (taken[...] if view else taken) if s.name == output
            else opcheck.poisoned(types[s.name][0]) if s.name in types and not s.variadic else None
            for s in call.opdef.outputs
        )  # fmt: skip
        assert_same(opcheck.apply(call.opdef.cpu_kernel, fresh, out=out), plain)


@of_every_call([c for c in CALLS if c.places])
def test_strides_do_not_matter(call):
    plain = opcheck.apply(call.opdef.cpu_kernel, call)
    for variant in range(3):

        def lay_out(x, variant=variant):
            layouts = list(opcheck.strided(x))
            return layouts[variant % len(layouts)]

        changed = opcheck.apply(call.opdef.cpu_kernel, call.with_inputs(lay_out))
        assert_same(changed, plain, rtol=1e-13)


def same_shape_calls():
    """Calls of elementwise operators whose inputs have one shape, which is not a scalar's or empty."""
    for call in CALLS:
        shapes = {x.shape for xs in call.inputs.values() for x in xs}
        if "elementwise" in call.opdef.traits and not is_random(call) and len(shapes) == 1:
            (shape,) = shapes
            if shape and 0 not in shape:
                yield call


@of_every_call(same_shape_calls())
def test_elementwise_means_each_element_alone(call):
    plain = opcheck.apply(call.opdef.cpu_kernel, call)
    slot, i = call.places[0]
    for part in (np.s_[:0], np.s_[-1:], (0,) * call.inputs[slot][i].ndim):  # no row, one row, one element
        cut = opcheck.apply(call.opdef.cpu_kernel, call.with_inputs(lambda x, part=part: np.array(x[part])))
        assert_same(cut, {s: [np.asarray(x)[part] for x in xs] for s, xs in plain.items()}, rtol=1e-14)


def assert_same(found, expected, rtol=0.0):
    assert found.keys() == expected.keys()
    for slot, arrays in expected.items():
        for a, b in zip(found[slot], arrays, strict=True):
            assert opcheck.type_of(a) == opcheck.type_of(b)
            if rtol and np.asarray(a).dtype in FLOATS:
                np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=rtol, atol=rtol)
            else:
                np.testing.assert_array_equal(a, b)
