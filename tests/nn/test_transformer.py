"""Transformer blocks: what the passes make of them, and what is refused. Values against Paddle: tests/paddle."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, ProgramError, ShapeError
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.support.transformer_model import (
    HEADS,
    LAYERS,
    LENGTH,
    TEXTS,
    WIDTH,
    WORDS,
    batches,
    language_model,
    losses,
)

pytestmark = pytest.mark.usefixtures("in_float64")


@pytest.mark.parametrize("normalize_before", [True, False])
def test_the_passes_take_the_blocks(normalize_before):
    main, startup, loss = language_model(normalize_before)
    compiled = CompiledProgram(main, BuildStrategy.all(linear_cross_entropy_chunk_rows=8))
    ops = compiled.program_for([loss.name]).ops
    count = Counter(op.type for op in ops)
    assert count["memory_efficient_attention"] == LAYERS
    assert all(op.attrs["causal"] and "Bias" not in op.inputs for op in ops if op.type == "memory_efficient_attention")
    assert count["tril_triu"] == 0
    assert count["fused_gemm_epilogue"] == 6 * LAYERS  # four projections, linear1 with gelu, linear2
    assert sum(op.type == "fused_gemm_epilogue" and op.attrs["activation"] == "gelu" for op in ops) == LAYERS
    assert count["fused_linear_cross_entropy"] == 1
    assert count["layer_norm"] == count["gelu"] == 0
    assert count["dropout"] == LAYERS  # behind the activation; the others stand between a product and a norm
    assert count["elementwise_add"] == (not normalize_before)  # of words and places, where no norm is beside it
    assert sum("optimizer" in op.opdef.traits for op in ops) == 1
    fused, plain = (losses(program, startup, loss, batches(4)) for program in (compiled, main))
    np.testing.assert_allclose(fused, plain, rtol=1e-10)


def test_the_model_learns():
    main, startup, loss = language_model(True, dropout=0.0)
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    words = np.arange(TEXTS * (LENGTH + 1)).reshape(TEXTS, -1) % WORDS
    curve = [float(exe.run(main, {"words": words}, [loss], scope=scope)[0]) for _ in range(30)]
    assert curve[-1] < 0.2 * curve[0]


def test_tests_drop_nothing():
    main, startup, loss = language_model(True, dropout=0.5)
    test = main.clone(for_test=True)
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    words = np.arange(TEXTS * (LENGTH + 1)).reshape(TEXTS, -1) % WORDS
    first, second = (float(exe.run(test, {"words": words}, [loss.name], scope=scope)[0]) for _ in range(2))
    assert first == second


def test_activations_are_names_or_functions():
    x = mg.static.data("x", [2, 3, WIDTH])
    gelu = mg.nn.TransformerEncoderLayer(WIDTH, HEADS, 8, activation=lambda x: mg.nn.functional.gelu(x, True))
    mg.nn.TransformerEncoder(gelu, 2)(x)
    gelus = [op for op in mg.static.default_main_program().ops if op.type == "gelu"]
    assert [op.attrs["approximate"] for op in gelus] == [True, True]
    with pytest.raises(AttrError, match="'gelo' is no activation") as caught:
        mg.nn.TransformerEncoderLayer(WIDTH, HEADS, 8, activation="gelo")
    assert "gelu" in str(caught.value)


def test_names_of_attributes_get_the_number_of_their_part():
    """A name for all parts would be one parameter of two sizes."""
    attr = mg.ParamAttr(name="own", learning_rate=0.5)
    layer = mg.nn.TransformerDecoderLayer(8, 2, 8, weight_attr=[attr, None, None], bias_attr=attr)
    assert layer.self_attn.q_proj.weight.name == "own"
    assert [p.bias.name for p in (layer.self_attn.q_proj, layer.cross_attn.q_proj, layer.linear1)] == [
        "own_0", "own_1", "own_2",
    ]  # fmt: skip
    assert layer.linear2.bias.optimize_attr["learning_rate"] == 0.5


@pytest.mark.parametrize(
    ("call", "error", "fact"),
    [
        (lambda nn: nn.TransformerEncoderLayer(8, 3, 8), AttrError, "no multiple of num_heads 3"),
        (lambda nn: nn.TransformerEncoderLayer(8, 2, 0), AttrError, "dim_feedforward must be positive"),
        (lambda nn: nn.TransformerEncoderLayer(8, 2, 8, weight_attr=[None]), AttrError, "weight_attr is a list of 1"),
        (lambda nn: nn.Transformer(8, 2, bias_attr=[None] * 4), AttrError, "bias_attr is a list of 4"),
        (lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 0), AttrError, "num_layers"),
        (lambda nn: nn.TransformerEncoder("layer", 2), AttrError, "made of a Layer"),
        (lambda nn: nn.TransformerDecoder(nn.Linear(8, 8), 2), AttrError, "Linear does not say with which arguments"),
        (lambda nn: nn.TransformerEncoderLayer(8, 2, 8)(np.zeros((2, 3, 8))), ProgramError, "must be a Variable"),
        (lambda nn: nn.TransformerEncoderLayer(8, 2, 8)(mg.static.data("y", [2, 3, 7])), ShapeError, "7"),
        (lambda nn: _encoder(nn)(mg.static.data("y", [2, 3, 8]), cache=[]), AttrError, "cache must be a list of 2"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(call, error, fact):
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        with pytest.raises(error, match=fact) as caught:
            call(mg.nn)
        assert len(str(caught.value)) < 500
    assert [op.type for op in main.ops] == []


def _encoder(nn):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2)
