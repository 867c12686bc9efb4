"""Fusions after mixed precision: the acceptance matrix of fuse_gemm_epilogue with its FP16 rows, and all passes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.compiler.validate import distance, evaluate, made_up_values
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static.amp import cast_model_to_fp16, cast_parameters_to_fp16
from minigraph.types import as_dtype, float16, float32
from tests.passes.test_fuse_gemm_epilogue import (
    ACTIVATIONS,
    BATCH,
    HIDDEN,
    LENGTH,
    MultiFCLayer,
    compiled,
)
from tests.support.mixed_training import Training

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
MATRIX = list(itertools.product(ACTIVATIONS, [False, True], ["O1", "O2"], ["float16", "bfloat16"]))


def build(activation, training, level=None, dtype="float16", wide="float32"):
    """(program, startup program, what is fetched) of Paddle's test, cast where there is a level."""
    mg.set_default_dtype(wide)
    try:
        main, startup = static.Program(), static.Program()
        startup.random_seed = 3
        with static.program_guard(main, startup), mg.base.unique_name.guard():
            x = static.data("x", [None, LENGTH, HIDDEN], wide)
            matmul_y = static.data("matmul_y", [1, HIDDEN, HIDDEN], wide)
            ele_y = static.data("ele_y", [HIDDEN], wide)
            with static.amp.fp16_guard():
                loss = mg.mean(MultiFCLayer(HIDDEN, ACTIVATIONS[activation])(x, matmul_y, ele_y))
            if level:
                cast_model_to_fp16(main, dest_type=dtype, level=level)
            fetches = [loss.name]
            if training:
                pairs = static.append_backward(loss)
                assert len(pairs) == 6
                fetches += [g.name for _, g in pairs]
    finally:
        mg.set_default_dtype("float32")
    return main, startup, fetches


def feeds(wide="float32"):
    """Numbers that float16 holds, between -.5 and .5 as in Paddle's test."""
    rng = np.random.default_rng(1)
    shapes = {"x": (BATCH, LENGTH, HIDDEN), "matmul_y": (1, HIDDEN, HIDDEN), "ele_y": (HIDDEN,)}
    return {n: (rng.uniform(size=s) - 0.5).astype(float16).astype(wide) for n, s in shapes.items()}


def counts(graph):
    return {t: n for t, n in graph.count().items() if t != "cast"}


@pytest.mark.parametrize(("activation", "training", "level", "dtype"), MATRIX)
def test_histogram(activation, training, level, dtype):
    """The counts of float32 hold: no cast stands between a product, its bias and its activation."""
    program, _, fetches = build(activation, training, level, dtype)
    after = {"fused_gemm_epilogue": 3, "matmul": 2, "elementwise_add": 2, activation: 1, "reduce_mean": 1}
    if training:
        after |= {"fused_gemm_epilogue_grad": 3, "matmul_grad": 2, "elementwise_add_grad": 2, "sum": 1,
                  f"{activation}_grad": 2, "fill_constant": 1, "reduce_mean_grad": 1}  # fmt: skip
    before = {"matmul": 5, "elementwise_add": 5, activation: 3, "reduce_mean": 1}
    if training:
        before |= {f"{t}_grad": n for t, n in before.items()} | {"fill_constant": 1, "sum": 1}
    graph = to_graph(program, fetches)
    assert counts(graph) == before
    fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
    verify(graph, "fuse_gemm_epilogue")
    assert counts(graph) == after
    halves = [op for op in graph.ops if op.type.startswith("fused_gemm_epilogue")]
    slot = {"fused_gemm_epilogue": "Out", "fused_gemm_epilogue_grad": "DY"}
    assert all(op.outputs[slot[op.type]][0].type.dtype == as_dtype(dtype) for op in halves)
    kinds = [(op.attrs["activation_grad"], "DX" in op.outputs) for op in halves if "grad" in op.type]
    assert kinds == ([("none", True), (f"{activation}_grad", True), ("none", False)] if training else [])


def run(program, startup, fetches, target=None, wide="float32", weights=None):
    scope, exe = Scope(), Executor()
    if weights is None:
        exe.run(startup, scope=scope)
    for name, value in (weights or {}).items():
        scope.write(name, value)
    return exe.run(target or program, feeds(wide), fetches, scope=scope)


def weights_of(program, startup):
    scope = Scope()
    Executor().run(startup, scope=scope)
    return {p.name: scope.read(p.name).astype(float16) for p in program.all_parameters()}


@pytest.mark.parametrize(("activation", "training", "level", "dtype"), MATRIX)
def test_fused_programs_err_at_most_twice_as_much_as_the_unfused_ones(activation, training, level, dtype):
    exact_program, exact_startup, fetches = build(activation, training, wide="float64")
    weights = weights_of(exact_program, exact_startup)
    exact = run(exact_program, None, fetches, wide="float64", weights={n: w.astype(float) for n, w in weights.items()})
    program, _, names = build(activation, training, level, dtype)
    typed = {p.name: weights[p.name].astype(p.dtype) for p in program.all_parameters()}
    off = run(program, None, names, weights=typed)
    on = run(program, None, names, compiled(program), weights=typed)
    for name, want, a, b in zip(names, exact, off, on, strict=True):
        ulp = EPSILON[dtype] * np.max(np.abs(want))
        a, b = a.astype(float), b.astype(float)
        assert np.max(np.abs(b - want)) <= 2 * np.max(np.abs(a - want)) + ulp, name


@pytest.mark.parametrize(("activation", "training"), list(itertools.product(ACTIVATIONS, [False, True])))
def test_the_fp16_rows_of_paddle_pr_39437(activation, training):
    """cast_model_to_fp16 of the guarded layers; the fused program against the unfused one, atol 1e-3 and rtol 1e-2."""
    program, _, fetches = build(activation, training, "O2")
    scope, exe = Scope(), Executor()
    exe.run(build(activation, training)[1], scope=scope)  # values in float32, as Paddle's startup program gives them
    cast_parameters_to_fp16(mg.CPUPlace(), program, scope)
    assert all(scope.read(p.name).dtype == float16 for p in program.all_parameters())
    target = compiled(program)
    plain = exe.run(program, feeds(), fetches, scope=scope)
    fused = exe.run(target, feeds(), fetches, scope=scope)
    for a, b in zip(plain, fused, strict=True):
        np.testing.assert_allclose(b.astype(float32), a.astype(float32), atol=1e-3, rtol=1e-2)
    found = [op.type for op in target.after.ops]
    wanted = [3, 3, 1, 2] if training else [3, 0, 1, 0]
    names = ("fused_gemm_epilogue", "fused_gemm_epilogue_grad", activation, f"{activation}_grad")
    assert [found.count(t) for t in names] == wanted


@pytest.mark.parametrize(("activation", "level", "dtype"), [(a, lv, t) for a, train, lv, t in MATRIX if train])
def test_loss_curves_of_these_layers(activation, level, dtype):
    """Ten steps of SGD: the curve of the fused program is off float64's by at most twice as much as the unfused one's.

    The loss falls by more than ten roundings of bfloat16.
    """
    curves = {}
    for name, facts in {"exact": ("float64", None), "off": ("float32", level), "on": ("float32", level)}.items():
        wide, amp = facts
        mg.set_default_dtype(wide)
        main, startup = static.Program(), static.Program()
        with static.program_guard(main, startup), mg.base.unique_name.guard():
            x = static.data("x", [None, LENGTH, HIDDEN], wide)
            matmul_y, ele_y = static.data("matmul_y", [1, HIDDEN, HIDDEN], wide), static.data("ele_y", [HIDDEN], wide)
            loss = mg.mean(MultiFCLayer(HIDDEN, ACTIVATIONS[activation])(x, matmul_y, ele_y))
            optimizer = mg.optimizer.SGD(1.0)
            if amp:
                optimizer = static.amp.decorate(optimizer, level=amp, dtype=dtype, init_loss_scaling=None)
            optimizer.minimize(loss)
        mg.set_default_dtype("float32")
        scope, exe, target = Scope(), Executor(), compiled(main) if name == "on" else main
        exe.run(startup, scope=scope)
        first = np.random.default_rng(2)
        for p in main.all_parameters():
            value = (first.normal(size=p.shape) * HIDDEN**-0.5).astype(float16)
            scope.write(p.name, value.astype(p.dtype))
            if p.dtype.itemsize == 2:
                scope.write(f"{p.name}_fp32_master_0", value.astype(float32))
        curves[name] = np.array([
            float(exe.run(target, feeds(wide), [loss], scope=scope)[0]) for _ in range(10)
        ])  # fmt: skip
    exact, off, on = curves["exact"], curves["off"], curves["on"]
    scale = np.abs(exact).max()
    assert exact[0] - exact[-1] > 10 * EPSILON["bfloat16"] * scale
    assert np.abs(on - exact).max() <= 2 * np.abs(off - exact).max() + EPSILON[dtype] * scale


@pytest.mark.parametrize(("level", "dtype"), list(itertools.product(["O1", "O2"], ["float16", "bfloat16"])))
@pytest.mark.parametrize("model", ["mlp", "attention"])
def test_all_passes_find_what_they_find_in_float32(model, level, dtype):
    """The casts of weights are one launch, that of the data is left, all others are gone in other operators."""
    amp = {"level": level, "dtype": dtype}
    plain, mixed = Training(model).compile(), Training(model, amp).compile()
    found = []
    for t in (plain, mixed):
        types = [op.type for op in t.target.program_for([t.loss.name]).ops]
        found.append({n: types.count(n) for n in (
            "fused_gemm_epilogue", "fused_gemm_epilogue_grad", "memory_efficient_attention",
            "memory_efficient_attention_grad", "softmax", "gelu", "relu",
        )})  # fmt: skip
        assert types.count("cast") == (t is mixed and model == "mlp")
        assert types.count("foreach_elementwise") == (2 if t is mixed and level == "O1" else 0)
    assert found[0] == found[1]
    assert found[0]["fused_gemm_epilogue"] >= 3 and found[0]["memory_efficient_attention"] == (model == "attention")


@pytest.mark.parametrize(("level", "dtype"), list(itertools.product(["O1", "O2"], ["float16", "bfloat16"])))
@pytest.mark.parametrize("model", ["mlp", "attention"])
def test_all_passes_change_no_value_but_by_rounding(model, level, dtype):
    """With every float lifted to float64 the compiled step gives the states of the step before passes."""
    t = Training(model, {"level": level, "dtype": dtype, "use_dynamic_loss_scaling": False, "init_loss_scaling": 4.0})
    t.compile()
    values = made_up_values(t.main)
    before, after = evaluate(t.main, values), evaluate(t.target.program_for([t.loss.name]), values)
    for v in t.main.list_vars():
        if v.persistable or v is t.loss:
            assert distance(before[v.name], after[v.name], floor=1e-3) < 1e-9, v.name
