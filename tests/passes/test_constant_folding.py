"""constant_folding of what is large: gradients of sums and means of one number, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph.passes.constant_folding import EVALUATED
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.runtime.executor import Executor

SHAPE = (300, 301)  # more than are evaluated; no power of two


def loss_and_gradient(dtype, axis, reduction):
    program = Program()
    g = Builder(program.global_block())
    x = program.global_block().create_var("x", SHAPE, dtype, is_data=True, stop_gradient=False)
    loss = getattr(g, reduction)(g.square(x), axis=axis)
    loss = loss if loss.ndim == 0 else g.reduce_mean(loss)
    (grad,) = gradients([loss], [x])
    return program, x, grad


@pytest.mark.parametrize(
    ("dtype", "axis", "reduction"),
    [*itertools.product(
        ("float64", "float32", "bfloat16", "float16"), (None, (0,), (1,), (0, 1)), ("reduce_mean", "reduce_sum")
    )],
)  # fmt: skip
def test_a_large_gradient_of_one_number_is_written_down_bit_for_bit(dtype, axis, reduction):
    program, x, grad = loss_and_gradient(dtype, axis, reduction)
    assert x.type.size > EVALUATED
    folded = mg.static.CompiledProgram(program, mg.static.BuildStrategy(constant_folding=True))
    feed = {"x": np.random.default_rng(0).normal(size=SHAPE).astype(x.dtype)}
    results = [Executor().run(p, feed, [grad])[0] for p in (program, folded)]
    assert results[0].tobytes() == results[1].tobytes()
    kinds = [op.type for op in folded.program_for([grad.name]).ops]
    assert "fill_any_like" in kinds and f"{reduction}_grad" not in kinds


def test_a_gradient_that_is_no_constant_is_left_alone():
    program = Program()
    g = Builder(program.global_block())
    x = program.global_block().create_var("x", SHAPE, "float32", is_data=True, stop_gradient=False)
    seed = program.global_block().create_var("seed", (), "float32", is_data=True)
    (grad,) = gradients([g.reduce_mean(x)], [x], [seed])
    folded = mg.static.CompiledProgram(program, mg.static.BuildStrategy(constant_folding=True))
    assert "reduce_mean_grad" in [op.type for op in folded.program_for([grad.name]).ops]
