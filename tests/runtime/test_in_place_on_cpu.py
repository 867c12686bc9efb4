"""Outputs of fused operators written where dying inputs lay, on a CPU: less memory, the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cpu import fused_blocks
from minigraph.opdef import get_op
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.executor import Executor
from minigraph.types import TensorType, tensor_type
from tests.support.grades import graded
from tests.support.random_chains import random_chain

SMALL, LARGE = (6, 20), (900, 512)  # computed as a whole, and in blocks
ROWS = "softmax_with_cross_entropy"
BODIES = [  # body, and the inputs over which y0, y1 may be written
    (["t0 = elementwise_add(X=x0, Y=x1)", "y0 = tanh(X=t0)"], [[0, 1]]),
    (["y0 = elementwise_add(X=x0, Y=x1)"], [[0]]),  # its kernel may write over its first operand alone
    (["y0 = elementwise_add(X=x0, Y=x1)", "y1 = elementwise_mul(X=y0, Y=x0)"], [[], [1]]),
    (["y0 = tanh(X=x1)", "y1 = elementwise_mul(X=x0, Y=x0)"], [[1], [1]]),
    (["y0 = exp(X=x1)", "t0 = elementwise_mul(X=x1, Y=x0)", "y1 = sigmoid(X=t0)"], [[], [0, 1]]),
    (["t0 = elementwise_add(X=x0, Y=x2)", f"y0, y1 = {ROWS}(Logits=t0, Label=x3)"], [[0], []]),
    (["y0 = gelu(X=x0)"], [[]]),  # its kernel reads x0 more than once
    (["y0 = softmax(X=x0)", "y1 = column_sums(X=x0)"], [[], []]),
]  # fmt: skip


def made(body, shape):
    """(program, feeds, fetches) of a body whose inputs are computed and die there; results are fetched later."""
    program, rng = Program(), np.random.default_rng(1)
    g, block = Builder(program.global_block()), program.global_block()
    shapes = {"x0": shape, "x1": shape, "x2": shape[1:], "x3": (shape[0], 1)}
    feeds = {n: rng.integers(0, 5, s) if n == "x3" else rng.normal(size=s) for n, s in shapes.items()}
    feeds = {n: a.astype("int64" if n == "x3" else "float32") for n, a in feeds.items()}
    xs = [g.scale(block.create_var(n, a.shape, a.dtype.name, is_data=True), scale=1) for n, a in feeds.items()]
    outs = g.emit("fused_elementwise", xs, body=body)
    return program, feeds, [g.cumsum(v, axis=0).name for v in (outs if isinstance(outs, list) else [outs])]


def exact(body, feeds):
    """By the members' references in float64."""
    values = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in feeds.values()]
    return [np.cumsum(y, axis=0) for y in get_op("fused_elementwise").reference(values, body=body)]


def lies_over(program, feeds, fetches):
    """For each output of the fused step the numbers of the inputs in whose buffer it lies."""
    plan = Plan(program, {n: TensorType(a.shape, a.dtype) for n, a in feeds.items()}, fetches, placed=False)
    step = next(s for s in plan.schedule.steps if s.op.type == "fused_elementwise")
    buffers = [plan.values[i].buffer for i in step.inputs[0]]
    return [[k for k, b in enumerate(buffers) if b == plan.values[i].buffer] for i in step.written]


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["whole", "in blocks"])
@pytest.mark.parametrize(("body", "over"), BODIES)
def test_an_output_lies_over_an_input_that_its_body_is_done_with(body, over, shape):
    program, feeds, fetches = made(body, shape)
    found, taken = lies_over(program, feeds, fetches), set[int]()
    for own, allowed in zip(found, over, strict=True):
        assert len(own) <= 1
        assert own == [k for k in allowed if k not in taken][:1]
        taken.update(own)
    results = Executor().run(program, feeds, fetches, scope=Scope())
    for a, b in zip(results, exact(body, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_an_input_that_is_still_read_would_be_seen(monkeypatch):
    """A planted defect: a kernel may write over whatever it reads."""
    monkeypatch.setattr(fused_blocks, "_reads_first", lambda *_: True)
    monkeypatch.setattr(fused_blocks, "_may_overwrite", fused_blocks._may_overwrite.__wrapped__)  # what is not kept
    body = ["y0 = gelu(X=x0)"]
    program, feeds, fetches = made(body, LARGE)
    assert lies_over(program, feeds, fetches) == [[0]]
    (found,) = Executor().run(program, feeds, fetches, scope=Scope())
    assert not np.allclose(found, exact(body, feeds)[0], rtol=1e-4, atol=1e-3)


def test_what_is_kept_or_reported_keeps_its_memory():
    program, feeds, fetches = made(BODIES[0][0], LARGE)
    step = next(op for op in program.ops if op.type == "fused_elementwise")
    x0, x1 = (v.name for v in step.inputs["X"][:2])
    assert lies_over(program, feeds, [*fetches, x0]) == [[1]]
    assert lies_over(program, feeds, [*fetches, x0, x1]) == [[]]
    body = ["t0 = cast(X=x0) {dtype=int64}", "t1 = elementwise_pow(X=t0, Y=x1)", "y0 = cast(X=t1) {dtype=float32}"]
    types = [tensor_type(LARGE, "float32"), tensor_type(LARGE, "int64")]
    assert "reports" in get_op("elementwise_pow").traits
    assert fused_blocks.may_overwrite(types, body=tuple(body)) == [[]]


@pytest.mark.parametrize("seed", graded(range(40), now=lambda seed: seed < 10))
def test_random_chains_compute_the_same_bits_in_place_and_apart(seed):
    chain = random_chain(seed, "float32", (700, 640) if seed % 2 else SMALL)
    sizes, results, planned = {n: a.shape for n, a in chain.feeds.items()}, [], []
    for inplace in (True, False):
        compiled = CompiledProgram(chain.program, BuildStrategy(fuse_elementwise=True, enable_inplace=inplace))
        planned.append(compiled.memory_report(sizes, chain.fetches, mg.CPUPlace()).planned)
        results.append(Executor().run(compiled, chain.feeds, chain.fetches, scope=Scope()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert planned[0] <= planned[1]
