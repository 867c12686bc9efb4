"""How kernels on rows get their inputs: rows that are fetched ahead, rows whose packs threads do not share evenly."""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.kernels.cuda.record.binder import Binder, Device, Launch
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.opdef import OPS
from minigraph.types import bfloat16, float16, float32, float64, tensor_type
from tests.support.cuda_host import COMPILER, run_bind

FUSED = OPS["fused_elementwise"]
ONE = Device(multiprocessors=1)  # whose blocks take many rows each
FORWARD = ["t0 = elementwise_add(X=x0, Y=x1)", "y0, y1, y2 = layer_norm(X=t0, Scale=x2, Bias=x3) {begin_norm_axis=2}"]
BACKWARD = [
    "y0 = layer_norm_again(X=x0, Mean=x1, Variance=x2, Scale=x3, Bias=x4) {begin_norm_axis=2}",
    "t0, y1, y2 = layer_norm_grad(X=x0, Mean=x1, Variance=x2, Y_grad=x5, Scale=x3, Bias=x4) {begin_norm_axis=2}",
    "y3 = sum(X=[x6, t0])", "y4 = column_sums(X=y3)",
]  # fmt: skip
SCALED = ["t0 = elementwise_mul(X=x0, Y=x1)", "y0 = softmax(X=t0) {axis=2}", "y1 = column_sums(X=y0)"]


def inputs_of(body, shape, dtype, rng, broadcast=False):
    """Inputs of one of the bodies above; the statistics are those of x0."""
    n, rows = shape[-1], int(np.prod(shape[:-1]))
    x, other, third = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    exact = np.float64 if dtype == np.float64 else np.float32  # of scales and statistics
    scale, bias = rng.normal(size=n).astype(exact), rng.normal(size=n).astype(exact)
    if body is FORWARD:
        return [x, other[:1] if broadcast else other, scale, bias]
    if body is SCALED:
        return [x, rng.normal(size=(*shape[:-1], 1)).astype(dtype)]
    wide = x.astype(np.float64).reshape(rows, n)
    return [x, wide.mean(axis=1).astype(exact), wide.var(axis=1).astype(exact), scale, bias, other, third]


def outputs(body, inputs, device=ONE):
    """(what the kernels give, what the definitions give for the same numbers in float64)"""
    attrs = FUSED.bind_attrs({"body": body})
    types = FUSED.infer_types({"X": [tensor_type(x.shape, x.dtype) for x in inputs]}, attrs)
    made, _ = run_bind(FUSED.gpu_bind, {"X": inputs}, types, attrs, device=device)
    right = FUSED.reference([x.astype(np.float64) for x in inputs], None, **attrs, rng=(0, 0, 0))
    return [x.astype(np.float64) for x in made["Out"]], right


def launch_of(body, shape, dtype, device=ONE):
    """The launch of the kernel on rows."""
    attrs = FUSED.bind_attrs({"body": body})
    inputs = inputs_of(body, shape, dtype, np.random.default_rng(0))
    types = FUSED.infer_types({"X": [tensor_type(x.shape, x.dtype) for x in inputs]}, attrs)
    binder = Binder(device)
    binder.begin(0)
    buffers = {"X": [Buffer(x.shape, x.dtype) for x in inputs]}
    FUSED.gpu_bind(binder, buffers, {"Out": [Buffer(t.shape, t.dtype) for t in types["Out"]]}, attrs)
    (call,) = (c for c in binder.calls if isinstance(c, Launch) and c.function == "fused_rows")
    return call


UNITS = {float64: 2.0**-50, float32: 2.0**-21, float16: 2.0**-10, bfloat16: 2.0**-7}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("n", [1, 7, 40, 66, 264, 768])
@pytest.mark.parametrize("body", [FORWARD, BACKWARD, SCALED], ids=["forward", "backward", "scaled"])
def test_many_rows_of_a_block(body, n, dtype, rng):
    """Rows that do not end with a round, and lengths that threads share evenly, unevenly, not in packs."""
    for rows in (1, 67):
        found, right = outputs(body, inputs_of(body, (rows, 3, n), dtype, rng))
        for a, b in zip(found, right, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=UNITS[dtype] * 8 * np.abs(b).max(initial=1))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_an_operand_that_rows_share(dtype, rng):
    found, right = outputs(FORWARD, inputs_of(FORWARD, (50, 3, 264), dtype, rng, broadcast=True))
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=UNITS[dtype] * 8 * np.abs(b).max(initial=1))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [float64, bfloat16], ids=str)
def test_a_row_has_the_same_bits_fetched_ahead_or_not(dtype, rng):
    inputs = inputs_of(FORWARD, (50, 3, 264), dtype, rng)
    (found, _), (others, _) = outputs(FORWARD, inputs), outputs(FORWARD, inputs, Device())
    for a, b in zip(found, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_load_of_a_row_hangs_on_a_condition():
    """Else the compiler takes packs apart, number by number: 24 % more instructions for a norm's gradient."""
    text = launch_of(BACKWARD, (64, 3, 768), bfloat16, Device()).source
    assert "= {};\n    ALL_PACKS" not in text
    assert text.count("ALL_PACKS q_x") == 4, "three rows and the scale; the bias comes from the cache"


def test_rows_are_fetched_ahead_where_blocks_take_many():
    """And taken before the next ones overwrite them, when they are there."""
    call = launch_of(BACKWARD, (64, 8, 768), bfloat16, ONE)
    lines = [line.strip() for line in call.source.splitlines()]
    loop = lines[lines.index("wait_for_copies();") :]
    taken = [i for i, line in enumerate(loop) if line.startswith("ALL_PACKS q_x") and " = s_x" in line]
    assert len(taken) == 3 and max(taken) < loop.index("fetch(row + ROWS_STEP);")
    assert call.shared == 3 * 768 * 2 * 4, "three inputs of a block's four rows"
    call = launch_of(FORWARD, (64, 8, 768), bfloat16, ONE)
    assert call.shared == 2 * 768 * 2 * 2 and call.grid == (6, 1, 1), "two inputs of its two rows; blocks that stay"
    assert call.form is None, "a block of a joined launch has rows of its own"


@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [
        ((2, 3, 768), bfloat16, ONE),
        ((64, 8, 7), bfloat16, ONE),
        ((64, 8, 768), bfloat16, Device(multiprocessors=1, shared=32 << 10)),
    ],
    ids=["a row for each thread", "packs of two bytes", "too little shared memory"],
)
def test_rows_are_not_fetched_ahead(shape, dtype, device):
    call = launch_of(BACKWARD, shape, dtype, device)
    assert call.shared == 0 and "fetch(" not in call.source
