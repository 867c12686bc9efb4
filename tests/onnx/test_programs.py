"""Whole programs as other runtimes compute them: an MLP, a GPT, branches and loops, random ones; compiled and not."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.compiler.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support.onnx_runtime import checked, computed, served
from tests.support.random_programs import random_program


def compared(program, fetches, feeds, path, scope=None, exact=None, dtype="float32"):
    """Export the program as it is and with all passes; both files give what the Executor gives for each feed."""
    types = []
    for which in (program, CompiledProgram(program.clone(for_test=True), BuildStrategy.all())):
        which.to_onnx(path, fetches, scope=scope)
        types.append([node.op_type for node in checked(path).graph.node])
        for feed in feeds:
            ours = Executor().run(program.clone(for_test=True), feed, fetches, scope=scope, use_prune=True)
            for a, b in zip(ours, served(path, feed), strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                unit = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-12}[dtype]
                largest = np.abs(a.astype(float)).max(initial=1)
                np.testing.assert_allclose(b.astype(float), a.astype(float), rtol=unit, atol=unit * largest)
    return types


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_trained_mlp_of_any_batch(tmp_path, dtype):
    mg.set_default_dtype(dtype)
    x, label = static.data("x", [None, 6], dtype), static.data("label", [None, 1], "int64")
    h = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1D(16), nn.Dropout(0.3), nn.Linear(16, 16), nn.Tanh())(x)
    scores = nn.Linear(16, 4)(h)
    loss = mg.mean(nn.functional.cross_entropy(scores, label))
    mg.optimizer.Adam(0.01).minimize(loss)
    exe, rng = Executor(), np.random.default_rng(1)
    exe.run(static.default_startup_program())
    main = static.default_main_program()
    draw = lambda n: rng.normal(size=(n, 6)).astype(x.dtype)  # noqa: E731
    exe.run(main, {"x": draw(8), "label": rng.integers(0, 4, (8, 1))}, [loss])
    feeds = [{"x": draw(n)} for n in (1, 5)]
    before, after = compared(main, [scores], feeds, tmp_path / "mlp.onnx", dtype=dtype)
    assert len(after) < len(before)
    message = checked(tmp_path / "mlp.onnx")
    assert [v.name for v in message.graph.input] == ["x"]  # the label is not needed
    assert message.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "x.0"
    assert {"fused_gemm_epilogue"} <= {f.name.partition(".")[0] for f in message.functions}


@pytest.mark.parametrize("before", [True, False])
def test_a_gpt_with_all_passes(tmp_path, before):
    """Attention written out and fused, tied embeddings, the batch free."""
    words = static.data("words", [None, 8], "int64")
    table, places = nn.Embedding(60, 16), nn.Embedding(8, 16)
    mask = mg.triu(mg.full([8, 8], -np.inf), 1)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", normalize_before=before), 2)
    h = nn.LayerNorm(16)(layers(table(words) + places(mg.arange(8)), mask))
    scores = mg.matmul(h, table.weight, transpose_y=True)
    own = nn.functional.scaled_dot_product_attention(*[mg.reshape(h, [0, 8, 2, 8])] * 3, is_causal=True)
    Executor().run(static.default_startup_program())
    feeds = [{"words": np.random.default_rng(n).integers(0, 60, (n, 8))} for n in (1, 3)]
    main = static.default_main_program()
    _, after = compared(main, [scores, own], feeds, tmp_path / "gpt.onnx")
    assert sum(name.startswith("memory_efficient_attention") for name in after) == 3


def test_branches_and_loops(tmp_path):
    x = static.data("x", [None, 4])
    layer = nn.Linear(4, 4)
    start = mg.full([1], 0, "int64")
    count, h = static.nn.while_loop(
        lambda i, v: mg.logical_and(i < 5, mg.sum(v) > -2), lambda i, v: [i + 1, layer(v) * 0.5 - 0.25], [start, x]
    )
    inner = lambda: static.nn.cond(mg.mean(h) > 0.5, lambda: h * 3, lambda: layer(h))  # noqa: E731
    out = static.nn.cond(count < 5, inner, lambda: x - h)
    Executor().run(static.default_startup_program())
    feeds = [{"x": np.full((2, 4), value, np.float32)} for value in (-9, 0.1, 4)]
    compared(static.default_main_program(), [out, count, x], feeds, tmp_path / "control.onnx")


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_random_programs_with_all_passes(seed, tmp_path):
    """What is computed forward, in float64; onnx's evaluator has erf, in float32."""
    case = random_program(seed)
    test, scope = case.program.clone(for_test=True), Scope()
    for name, array in case.values.items():
        scope.write(name, array.copy())
    made = [v for op in test.ops if op.role == "forward" for v in op.output_vars]
    fetches = [n for n in case.fetches if n in {v.name for v in made} and test.vars[n].persistable is False]
    fetches = fetches or [made[-1].name]
    exact = Executor().run(test, case.feeds, fetches, scope=scope)
    for name, array in case.values.items():
        scope.write(name, array.copy())
    for program in (test, CompiledProgram(test, BuildStrategy.all())):
        program.to_onnx(tmp_path / "random.onnx", fetches, scope=scope)
        message = checked(tmp_path / "random.onnx")
        names = [v.name for v in message.graph.input]
        feed = {name: case.feeds[name] for name in names}
        has_erf = "Erf" in str(message)
        rounds = has_erf or any(v.type.is_float and v.dtype != np.float64 for v in test.list_vars())
        results, who = computed(tmp_path / "random.onnx", feed)
        assert has_erf or who == "onnxruntime"
        for a, b in zip(exact, results, strict=True):
            largest = np.abs(a[np.isfinite(a)]).max(initial=1) if a.dtype.kind == "f" else 1
            np.testing.assert_allclose(b, a, rtol=0, atol=largest * (1e-5 if rounds else 1e-10))
