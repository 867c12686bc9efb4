"""Gradients of biases that a kernel on rows sums along: the same values in float64, and where the layer sums itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from minigraph.passes.elementwise import bias_sums
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.support.residual_blocks import residual_blocks

FLAGS = {"fuse_gemm_epilogue": True, "fuse_grad_accumulation": True, "fuse_elementwise": True}


@pytest.fixture(scope="module", params=[True, False], ids=["norm before", "norm behind"])
def blocks(request):
    chain = residual_blocks(before=request.param)
    return chain, Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())


def compiled(chain, **flags):
    return CompiledProgram(chain.program, BuildStrategy(**flags))


def same(chain, right, program) -> bool:
    found = Executor().run(program, chain.feeds, chain.fetches, scope=Scope())
    return all(np.abs(a - b).max() <= 1e-11 * max(1, np.abs(a).max()) for a, b in zip(right, found, strict=True))


def sums(chain, program) -> tuple[int, int]:
    """(biases whose gradients kernels on rows sum, those that their layers sum)"""
    ops = program.program_for(chain.fetches).ops
    bodies = [line for op in ops if op.type == "fused_elementwise" for line in op.attrs["body"]]
    alone = Counter(op.type for op in ops)["column_sums"]
    assert not alone, "no kernel took it, and its layer does not compute it"
    layers = [op for op in ops if op.type == "fused_gemm_epilogue_grad"]
    behind_gelu = sum(bool(op.outputs.get("DXSums")) for op in layers)
    assert behind_gelu == 2, "one in each block"
    return sum("column_sums" in line for line in bodies), sum(bool(op.outputs.get("DBias")) for op in layers)


def test_those_of_layers_that_are_added_to_a_residual(blocks):
    """Of six layers in a block that of the attention's results and the last."""
    chain, right = blocks
    program = compiled(chain, **FLAGS)
    assert sums(chain, program) == (4, 6)
    assert same(chain, right, program)
    assert same(chain, right, compiled(chain, verify="each_pass", **FLAGS))


def test_wider_rows_are_left_to_the_layer(blocks, monkeypatch):
    monkeypatch.setattr(bias_sums, "MOST", 63)
    assert sums(blocks[0], compiled(blocks[0], **FLAGS)) == (0, 10)


def test_what_no_kernel_takes_the_layer_computes_again(blocks, monkeypatch):
    """All sums stand apart at first: of those that no group takes nothing is left."""
    chain, right = blocks
    monkeypatch.setattr(bias_sums, "_sums_rows", lambda d, row: True)
    monkeypatch.setattr(bias_sums, "LEAST", 1)
    program = compiled(chain, **FLAGS)
    taken, left = sums(chain, program)
    assert taken + left == 10 and taken >= 4 and left > 0
    assert same(chain, right, program)


def test_a_sum_of_something_else_is_seen(blocks, monkeypatch):
    """Planted: the sum of what the norm's gradient gives, without the residual's."""
    chain, right = blocks
    real = bias_sums.GraphBuilder.emit

    def wrong(self, op_type, *args, **kwargs):
        if op_type == "column_sums":
            args = [next(v for v in args[0].producer.input_vars if v.type == args[0].type)]
        return real(self, op_type, *args, **kwargs)

    monkeypatch.setattr(bias_sums.GraphBuilder, "emit", wrong)
    assert not same(chain, right, compiled(chain, **FLAGS))
