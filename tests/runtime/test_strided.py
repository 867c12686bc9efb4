"""Q, K and V read where they lie inside another array: what a plan copies, what it refuses to leave, what comes out."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.cuda.movement.movement import place
from minigraph.kernels.cuda.record.buffer import Buffer, in_one_piece, rows_apart
from minigraph.kernels.cuda.record.call import every_call
from minigraph.kernels.cuda.record.views import reshaped, unfit
from minigraph.nn.functional.attention import attend
from minigraph.opdef import OPS
from minigraph.ops.attention.attention import memory_efficient_attention
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda import strided
from minigraph.runtime.cuda.bind import BoundProgram, bind_program
from minigraph.runtime.executor import Executor
from minigraph.runtime.options import RunOptions
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import TensorType, as_dtype, float32
from tests.support.grades import graded
from tests.support.strided_programs import SPELLINGS, packed, strided_program

SEEDS = range(60)
DTYPES = ("float32", "bfloat16", "float64")


def bound(case, **options) -> BoundProgram:
    types = {name: TensorType(x.shape, x.dtype) for name, x in case.feeds.items()}
    return bind_program(case.program, types, case.fetches, options=RunOptions(**options))


def copies(plan: BoundProgram) -> list[str]:
    """Types of the operators before attention's gradient that give elements other places and record a call for it."""
    ops = [step.op.type for step in plan.schedule.steps]
    forward = ops.index("memory_efficient_attention") + 1
    spans = zip(ops[:forward], plan.spans, strict=False)
    return [op for op, span in spans if OPS[op].shows is not None and len(span)]


def remarks(plan: BoundProgram) -> list[str]:
    return [text for _, text in plan.schedule.remarks]


# what is copied


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_packed_projection_is_not_copied(spelling, dtype):
    plan = bound(packed(spelling, dtype))
    assert copies(plan) == []
    assert remarks(plan) == []
    steps = {step.op.type: step for step in plan.schedule.steps}
    for op in ("memory_efficient_attention", "memory_efficient_attention_grad"):
        read = steps[op].inputs[:3]
        assert len({plan.schedule.values[i].root for i in read}) == 1
        assert all(plan.buffers[i].steps is not None for i in read)


def test_kernels_get_the_strides_of_the_projection():
    plan = bound(packed("split", "float32", s=12, h=2, d=16))
    step = next(s for s in plan.schedule.steps if s.op.type == "memory_efficient_attention")
    for number, i in enumerate(step.inputs[:3]):
        assert plan.buffers[i].strides == (12 * 96, 96, 16, 1)
        assert plan.buffers[i].offset == number * 32 * 4
        assert plan.buffers[i].shape == (2, 12, 2, 16)


def test_the_tensor_maps_of_hopper_have_them():
    plan = bound(packed("indices", "bfloat16", s=128, h=2, d=64))
    (launch,) = (c for c in every_call(plan.binder.calls) if getattr(c, "function", "") == "attention_forward")
    maps = launch.args[:3]
    assert [m.strides for m in maps] == [(384, 64, 128 * 384)] * 3
    assert [m.buffer.offset for m in maps] == [0, 256, 512]


# what is refused, one case for each reason


def other_reader(w, x, q, k, v):
    return [mg.tanh(q).name]


def kept_by_the_scope(w, x, q, k, v):
    q.persistable = True
    return []


REFUSED = {
    "is fetched": ({"extra": lambda w, x, q, k, v: [q.name]}, 1),
    "tanh reads it, too": ({"extra": other_reader}, 1),
    "the Scope keeps it": ({"extra": kept_by_the_scope}, 1),
    "rows are 60 bytes apart, which is no multiple of 16": ({"h": 1, "d": 5}, 3),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_stay_is_copied_with_a_reason(reason):
    facts, count = REFUSED[reason]
    plan = bound(packed("split", **facts))
    found = remarks(plan)
    assert len(copies(plan)) == len(found) == count, found
    assert all(reason in text for text in found), found


def attention_of(make, *shape: int) -> BoundProgram:
    """The plan of an attention of `make(x)`, for x of float32."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", shape, "float32", is_data=True)
        q = make(x * 2.0)
        out = mg.nn.functional.scaled_dot_product_attention(q, q, q)
    return bind_program(program, {"x": TensorType(shape, float32)}, [out.name])


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda x: x[:, :, :, ::2], (2, 6, 2, 16), "elements of its rows lie 2 apart"),
        (lambda x: mg.transpose(x, [0, 1, 3, 2]), (2, 6, 8, 2), "elements of its rows lie 2 apart"),
        (lambda x: x[:, ::-1], (2, 6, 2, 16), "its rows run backwards"),
        (lambda x: x[:, :, :, 2:], (2, 6, 2, 18), "its rows are 72 bytes apart"),
        (lambda x: x[:, :, :, 2:18], (2, 6, 2, 20), "it begins 8 bytes behind"),
        (lambda x: mg.reshape(mg.transpose(x, [0, 2, 1, 3]), [2, 6, 2, 16]), (2, 6, 2, 16), "strides cannot say"),
        (lambda x: x[:, :2], (2, 6, 2, 16), "it would keep"),
    ],
)  # fmt: skip
def test_strides_that_no_kernel_takes_are_refused(make, shape, reason):
    plan = attention_of(make, *shape)
    assert len(copies(plan)) == 1
    assert any(reason in text for text in remarks(plan)), remarks(plan)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: x[:, 2:], (2, 6, 2, 16)), (lambda x: x[:, :, :, 4:], (2, 6, 2, 20)),
        (lambda x: x[1:], (2, 6, 2, 16)), (lambda x: x[:, ::2], (2, 6, 2, 16)),
        (lambda x: mg.transpose(x, [1, 0, 2, 3]), (6, 2, 2, 16)),
        (lambda x: mg.reshape(x[:, 2:, 0], [2, -1, 1, 16]), (2, 6, 1, 16)),
    ],
)  # fmt: skip
def test_strides_that_kernels_take(make, shape):
    plan = attention_of(make, *shape)
    assert copies(plan) == []
    assert remarks(plan) == []


def test_a_small_part_of_what_the_scope_keeps_anyhow_is_not_copied():
    program = Program()
    with mg.static.program_guard(program, Program()):
        kept = program.global_block().create_parameter("kept", (2, 600, 2, 16), "float32")
        q = kept[:, :6]
        out = mg.nn.functional.scaled_dot_product_attention(q, q, q)
    assert copies(bind_program(program, {}, [out.name])) == []


def test_what_is_not_for_attention_is_copied_as_ever():
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", (4, 32), "float32", is_data=True)
        a, b = mg.split(x, 2, axis=1)
        out = mg.tanh(a) + mg.transpose(mg.transpose(b, [1, 0]), [1, 0])
    plan = bind_program(program, {"x": TensorType((4, 32), float32)}, [out.name])
    spans = [(s.op.type, len(span)) for s, span in zip(plan.schedule.steps, plan.spans, strict=True)]
    assert [n for op, n in spans if OPS[op].shows is not None] == [1, 1, 1], "both parts of a split are one launch"
    assert remarks(plan) == []


def test_explain_says_what_is_copied(stub):
    case = packed("split", extra=lambda w, x, q, k, v: [q.name])
    compiled = CompiledProgram(case.program, BuildStrategy())
    Executor(mg.CUDAPlace(0)).run(compiled, case.feeds, case.fetches, scope=scope_of(case))
    (line,) = (line for line in compiled.explain().splitlines() if "copies" in line)
    assert "reshape" in line
    assert "it is fetched" in line
    assert "strided_programs.py" in line


# gradients


def calls_of(plan: BoundProgram, op_type: str) -> list[str]:
    """What operators of this type record: names of kernels, or kinds of calls."""
    return [
        getattr(plan.binder.calls[i], "function", type(plan.binder.calls[i]).__name__)
        for step, span in zip(plan.schedule.steps, plan.spans, strict=True) if step.op.type == op_type for i in span
    ]  # fmt: skip


@pytest.mark.parametrize("spelling", ["split", "interleaved", "parts turned", "unbound"])
def test_gradients_are_written_where_they_are_joined(spelling):
    plan = bound(packed(spelling, "bfloat16", s=70, d=64))
    joiner = next(s for s in plan.schedule.steps if s.op.type == "concat")
    assert calls_of(plan, "concat") == calls_of(plan, "reshape_grad") == []
    assert calls_of(plan, "memory_efficient_attention_grad") == [
        "attention_prepare", "attention_backward", "attention_finish",
    ]  # fmt: skip
    whole = plan.buffers[joiner.outputs[0]]
    assert all(place(plan.buffers[i])[0] is whole for i in joiner.inputs[0])


def after_passes(case, **flags):
    case.program = CompiledProgram(case.program, BuildStrategy(**flags)).program_for(case.fetches)
    return case


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_copies_gradients_once_those_of_slices_are_joined(spelling):
    plan = bound(after_passes(packed(spelling, "bfloat16", s=70, d=64), fuse_grad_accumulation=True))
    kinds = [step.op.type for step in plan.schedule.steps]
    assert "slice_grad" not in kinds
    assert {"concat", "stack"} & {*kinds}
    moved = [op for op in {*kinds} if OPS[op].shows is not None or OPS[op].joins is not None]
    assert [calls_of(plan, op) for op in moved] == [[]] * len(moved)


def of_heads_first(fit: bool, seen: bool = False) -> BoundProgram:
    """The gradient of attention whose inputs, three arrays, are turned; the gradient of the first one is fetched."""
    program, shape = Program(), (2, 70, 2, 64) if fit else (2, 2, 64, 70)
    with mg.static.program_guard(program, Program()):
        given = [program.global_block().create_parameter(n, shape, "bfloat16") for n in "qkv"]
        turned = [mg.transpose(x * 1.0, [0, -2, 1, -1] if fit else [0, 1, 3, 2]) for x in given]
        found = gradients([mg.sum(attend("turned", *turned, layout="bhsd"))], given)
    fetches = [v.name for v in found if v is not None]
    return bind_program(program, {}, [*fetches, turned[0].grad_name] if seen else fetches)


def test_gradients_are_written_as_a_transpose_would_put_them():
    assert calls_of(of_heads_first(True), "transpose") == []


def test_gradients_are_turned_by_copies_where_that_place_is_unfit_or_others_see_them():
    assert len(calls_of(of_heads_first(False), "transpose")) == 6  # Q, K and V, too
    assert len(calls_of(of_heads_first(True, seen=True), "transpose")) == 1


def test_kernels_get_the_strides_of_the_joined_gradient():
    plan = bound(packed("split", "bfloat16", s=70, d=64))
    backward, finish = (
        next(c for c in every_call(plan.binder.calls) if getattr(c, "function", "") == name)
        for name in ("attention_backward", "attention_finish")
    )
    assert backward.args[-6:] == (70 * 384, 64, 384) * 2
    assert finish.args[-3:] == (70 * 384, 64, 384)
    assert [backward.args[i].offset for i in (7, 8)] == [256, 512]


def test_kernels_that_cannot_spread_gradients_copy_them():
    plan = bound(packed("split", "float32"))
    assert calls_of(plan, "concat") == []
    assert calls_of(plan, "memory_efficient_attention_grad")[-3:] == ["copy"] * 3


def gradient_is_fetched(w, x, q, k, v):
    return [q.grad_name]


def gradient_is_read(w, x, q, k, v):
    w.others.append(mg.tanh(q))
    return []


@pytest.mark.parametrize(("extra", "copied"), [(None, 0), (gradient_is_fetched, 1), (gradient_is_read, 1)])
def test_gradients_that_others_read_are_joined_by_copies(extra, copied):
    plan = bound(packed("split", "bfloat16", s=70, d=64, extra=extra))
    assert len(calls_of(plan, "concat")) == copied


def test_gradients_that_the_scope_keeps_are_joined_by_copies():
    case = packed("split", "bfloat16", s=70, d=64)
    joiner = next(op for op in case.program.ops if op.type == "concat")
    case.program.vars[joiner.output_arg_names[0]].persistable = True
    assert calls_of(bound(case), "concat") != []


def test_what_shows_its_input_is_no_place_for_it(stub):
    """Gradients are joined and turned, and attention reads that where the joined ones lie."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        given = [program.global_block().create_parameter(n, (2, 6, 2, 4), "float64") for n in "qkv"]
        out = attend("first", *(x * 1.0 for x in given))
        dq, dk, _ = gradients([mg.sum(out * out)], given)
        turned = mg.transpose(mg.concat([dq, dk], axis=1), [0, 2, 1, 3])
        again = attend("second", turned, turned, turned, layout="bhsd")
    plan = bind_program(program, {}, [again.name])
    assert plan.buffers[plan.schedule.steps[-1].inputs[0]].steps is not None
    rng, results = np.random.default_rng(0), []
    values = {n: rng.normal(size=(2, 6, 2, 4)) for n in "qkv"}
    for device in (mg.CPUPlace(), mg.CUDAPlace(0)):
        scope = Scope()
        for name, value in values.items():
            scope.write(name, value.copy())
        results.append(Executor(device).run(program, {}, [again], scope=scope)[0])
    np.testing.assert_allclose(*results, rtol=1e-11)


def test_gradients_whose_place_is_unfit_are_joined_by_copies():
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_parameter("x", (2, 70, 1, 3 * 64 + 2), "bfloat16")
        *parts, _ = mg.split(x * 1.0, [64, 64, 64, 2], axis=3)
        loss = mg.sum(mg.nn.functional.scaled_dot_product_attention(*parts))
        (d,) = gradients([loss], [x])
    plan = bind_program(program, {}, [d.name])
    assert ["bytes apart, which is no multiple of 16" in text for text in remarks(plan)] == [True] * 3
    assert calls_of(plan, "concat") == ["parts"], "one launch copies all"


# what comes out


def scope_of(case) -> Scope:
    scope = Scope()
    for name, value in case.values.items():
        scope.write(name, value.copy())
    return scope


def on_stub(case, runs: int = 1, **flags) -> list[np.ndarray]:
    executor, scope = Executor(mg.CUDAPlace(0)), scope_of(case)
    compiled = CompiledProgram(case.program, BuildStrategy(**flags))
    for _ in range(runs):
        found = executor.run(compiled, case.feeds, case.fetches, scope=scope)
    return found


def all_copied(monkeypatch) -> None:
    monkeypatch.setattr(strided, "by_strides", lambda *_, **__: iter(()))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("spelling", ["split", "interleaved", "turned"])
def test_results_have_the_bits_of_copies(stub, monkeypatch, spelling, dtype):
    case = packed(spelling, dtype, causal=True)
    kernel = "mma" if dtype == "bfloat16" else "auto"
    where_they_lie = on_stub(case, attention_kernel=kernel)
    all_copied(monkeypatch)
    assert copies(bound(case)) != []
    for a, b in zip(where_they_lie, on_stub(case, attention_kernel=kernel), strict=True):
        np.testing.assert_array_equal(a, b)


def test_captured_runs_have_the_same_bits(stub):
    case = packed("indices", "float32")
    for a, b in zip(on_stub(case), on_stub(case, runs=4), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("first", graded(SEEDS[::20], now=lambda first: first == 0))
def test_random_programs(stub, first):
    """Against the CPU, whose slices are NumPy's; with fetched, shared and updated values, gradients of all."""
    stayed = words = 0
    for seed in range(first, first + 20):
        case = strided_program(seed)
        plan = bound(case)
        stayed += sum(v.layout is not None for v in plan.schedule.values)
        words += len(remarks(plan))
        exact = Executor().run(case.program, case.feeds, case.fetches, scope=scope_of(case))
        for flags in ({}, {"fuse_grad_accumulation": True}):
            for name, a, b in zip(case.fetches, on_stub(case, **flags), exact, strict=True):
                said = f"{name} of {seed}: {case.description}"
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11, err_msg=said)
    assert stayed > 200
    assert words > 3


def test_a_base_that_is_updated_afterwards_is_read_before(stub):
    """The parameter is overwritten in the program in which attention, and its gradient, read parts of it."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        block = program.global_block()
        kept = block.create_parameter("kept", (1, 6, 3, 2, 4), "float64")
        q, k, v = (kept[:, :, i] for i in range(3))
        out = mg.nn.functional.scaled_dot_product_attention(q, k, v)
        loss = mg.sum(out * out)
        mg.optimizer.SGD(0.1).minimize(loss)
    values = np.random.default_rng(0).normal(size=(1, 6, 3, 2, 4))
    results = []
    for device in (mg.CPUPlace(), mg.CUDAPlace(0)):
        scope, executor = Scope(), Executor(device)
        scope.write("kept", values.copy())
        block = program.global_block()
        for name in (v.name for v in block.vars.values() if v.persistable and v.name != "kept"):
            scope.write(name, np.full(block.var(name).shape, 0.1, block.var(name).dtype))
        runs = [executor.run(program, {}, [out, loss], scope=scope) for _ in range(3)]
        results.append([*(x for run in runs for x in run), np.asarray(scope.read("kept"))])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_base_that_is_updated_between_is_not_overwritten(stub):
    """Slices show the parameter as it was before; what follows updates it in place, and reads it."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        block = program.global_block()
        kept = block.create_parameter("kept", (1, 6, 3, 2, 4), "float64")
        q, k, v = (kept[:, :, i] for i in range(3))
        Builder(block).increment(kept, step=1.0, out={"Out": kept})
        out = mg.nn.functional.scaled_dot_product_attention(q, k, v)
        total = mg.sum(kept * 2.0)
    assert copies(bind_program(program, {}, [out.name, total.name])) == []
    values, scope, executor = np.random.default_rng(0).normal(size=(1, 6, 3, 2, 4)), Scope(), Executor(mg.CUDAPlace(0))
    scope.write("kept", values.copy())
    for _ in range(3):
        found, doubled = executor.run(program, {}, [out, total], scope=scope)
        exact = memory_efficient_attention.reference(*(values[:, :, i] for i in range(3)))[0]
        values += 1.0
        np.testing.assert_allclose(found, exact, rtol=1e-10)
        np.testing.assert_allclose(doubled, 2 * values.sum(), rtol=1e-10)
    np.testing.assert_allclose(scope.read("kept"), values, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_queries_whose_bias_is_far_from_0_read_strides_again(stub, monkeypatch, dtype):
    bias = np.random.default_rng(0).normal(size=(1, 1, 12, 12)) + 5e3
    case = packed("interleaved", dtype, bias=bias)
    where_they_lie = on_stub(case)
    all_copied(monkeypatch)
    for a, b in zip(where_they_lie, on_stub(case), strict=True):
        np.testing.assert_array_equal(a, b)


def test_queries_that_are_the_bias_too_are_copied(stub):
    """Attention reads Q by strides, but not its Bias."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", (2, 3, 5, 8), "float64", is_data=True)
        q = (x * 2.0)[:, :, :, :4]
        k = mg.transpose(q[:, :, :4], [0, 1, 3, 2])
        out = attend("both", q, k, k, q, layout="bhsd")
    plan = bind_program(program, {"x": TensorType((2, 3, 5, 8), as_dtype("float64"))}, [out.name])
    assert any("memory_efficient_attention reads it, too" in text for text in remarks(plan))
    feed = {"x": np.random.default_rng(0).normal(size=(2, 3, 5, 8))}
    found, exact = (Executor(place).run(program, feed, [out])[0] for place in (mg.CUDAPlace(0), mg.CPUPlace()))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


SHAPES_OF_12 = {
    "reshape": lambda w: mg.reshape(w, [12]),
    "flatten": mg.flatten,
    "unsqueeze": lambda w: mg.unsqueeze(w, 0),
    "squeeze": lambda w: mg.squeeze(mg.unsqueeze(w, 0), 0),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("shape", SHAPES_OF_12)
def test_another_shape_that_is_fetched_is_that_of_before_the_update(stub, shape, times):
    """The Scope's array holds the updated parameter when results are fetched."""
    program, given = Program(), np.random.default_rng(0).normal(size=(3, 4))
    with mg.static.program_guard(program, Program()):
        w = program.global_block().create_parameter("w", (3, 4), "float64")
        shown = [SHAPES_OF_12[shape](w)]
        for _ in range(times):
            mg.assign(w * 2.0 + 1.0, output=w)
            shown.append(SHAPES_OF_12[shape](w))
    scope, executor, values = Scope(), Executor(mg.CUDAPlace(0)), given
    scope.write("w", given.copy())
    for _ in range(4):  # the later runs are a captured graph
        found = executor.run(program, {}, shown, scope=scope)
        for i, x in enumerate(found):
            np.testing.assert_allclose(x.reshape(3, 4), values, err_msg=f"after {i} updates")
            values = values * 2.0 + 1.0 if i < times else values
    np.testing.assert_allclose(np.asarray(scope.read("w")), values)


@pytest.mark.parametrize("updated", [False, True])
def test_what_the_scope_keeps_is_no_view(stub, updated):
    """A change of shape is written into the Scope's own array."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", (2, 6), "float64", is_data=True) * 2.0
        kept = mg.reshape(x, [3, 4])
        kept.persistable = True
        if updated:
            Builder(program.global_block()).increment(kept, step=1.0, out={"Out": kept})
        total = mg.sum(x)
    feed, scope = {"x": np.random.default_rng(0).normal(size=(2, 6))}, Scope()
    (found,) = Executor(mg.CUDAPlace(0)).run(program, feed, [total], scope=scope)
    np.testing.assert_allclose(found, 2 * feed["x"].sum())
    np.testing.assert_allclose(np.asarray(scope.read(kept.name)), 2 * feed["x"].reshape(3, 4) + updated)


def test_operators_that_differ_in_strides_only_are_bound_apart(stub):
    """Two attentions whose Q begins at the same place, with the same sizes."""
    program = Program()
    with mg.static.program_guard(program, Program()):
        x = program.global_block().create_var("x", (4, 4, 2, 4), "float64", is_data=True)
        y = x * 2.0
        parts = y[:, :3], mg.transpose(y, [1, 0, 2, 3])[:, :3]
        outs = [mg.nn.functional.scaled_dot_product_attention(q, q, q) for q in parts]
    feed, fetches = {"x": np.random.default_rng(0).normal(size=(4, 4, 2, 4))}, [v.name for v in outs]
    plan = bind_program(program, {"x": TensorType((4, 4, 2, 4), as_dtype("float64"))}, fetches)
    read = [s.inputs[0] for s in plan.schedule.steps if s.op.type == "memory_efficient_attention"]
    assert [plan.buffers[i].strides for i in read] == [(32, 8, 4, 1), (8, 32, 4, 1)]
    for a, b in zip(*(Executor(p).run(program, feed, outs) for p in (mg.CPUPlace(), mg.CUDAPlace(0))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# Buffers with strides


def test_reshaped_agrees_with_numpy():
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(rng.integers(1, 4, rng.integers(1, 5)))
        perm, array = rng.permutation(len(shape)), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        shown = array.transpose(perm)[tuple(slice(None, None, rng.integers(1, 3)) for _ in shape)]
        buffer = Buffer(shape, float32).spread(shown.shape, [n // 4 for n in shown.strides])
        size, new = shown.size, []
        while size > 1 and rng.random() < 0.8:
            extent = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            new.append(extent)
            size //= extent
        new.append(size)
        found = reshaped(buffer, new)
        expected = shown.reshape(new)
        if found is None:
            assert not np.shares_memory(expected, array) or shown.size == 0
        else:
            assert np.shares_memory(expected, array)
            places = sum(
                np.arange(n).reshape([-1 if i == j else 1 for j in range(len(new))]) * found.strides[i]
                for i, n in enumerate(new)
            )
            np.testing.assert_array_equal(array.reshape(-1)[places], expected)


def test_c_order_is_an_ordinary_view():
    x = Buffer((4, 6), float32)
    assert x.spread((2, 6), (6, 1), 12).steps is None
    assert x.spread((1, 6), (99, 1)).strides == (6, 1)
    assert x.spread((2, 3), (6, 1)).strides == (6, 1)
    assert in_one_piece((0, 3), (5, 7))
    assert rows_apart((2, 3, 4)) == (12, 4, 1)
    with pytest.raises(AssertionError, match="one piece"):
        x.spread((2, 3), (6, 1)).view((6,))


def test_unfit_says_why():
    x = Buffer((8, 64), as_dtype("bfloat16"))
    assert unfit(x.spread((4, 8), (64, 1), 8)) is None
    assert "begins 8 bytes behind" in unfit(x.spread((4, 8), (64, 1), 4))
    assert "72 bytes apart" in unfit(x.spread((4, 8), (36, 1)))
