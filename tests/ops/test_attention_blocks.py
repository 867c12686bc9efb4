"""Attention over a table of blocks on a CPU: the public argument, chunks that are skipped, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, DTypeError, ProgramError, ShapeError
from minigraph.ir.text import parse
from minigraph.kernels.cpu import attention as cpu
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.ops.attention.attention_grad import memory_efficient_attention_grad as backward
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support import opcheck
from tests.support.grades import graded
from tests.support.opcheck import Call


def calls(rng, b, sq, sk, h, hk, size, heads: tuple[int, ...], **attrs: Any) -> tuple[Call, Call]:
    """Forward and backward; the last queries see nothing."""
    inputs = {"Q": rng.normal(size=(b, sq, h, 4)), "K": rng.normal(size=(b, sk, hk, 4))}
    inputs |= {"V": rng.normal(size=(b, sk, hk, 3)), "Key": np.array([11, 4, 9])}
    inputs["Blocks"] = rng.random((*heads, -(-sq // size), -(-sk // size))) < 0.3
    inputs["Blocks"][..., -1, :] = False
    if "masked_score" in attrs:
        inputs["Mask"] = rng.random((1, h, sq, sk)) < 0.6
        inputs["Mask"][:, :, 1:4] = False
    slots = {s: [x] for s, x in inputs.items()}
    call = Call(forward, 0, slots, forward.bind_attrs({"block_size": size, **attrs}))
    results = opcheck.reference(call)
    more = {"Out": results["Out"], "LogSumExp": results["LogSumExp"]}
    more["Out_grad"] = [rng.normal(size=results["Out"][0].shape)]
    return call, Call(backward, 0, {**slots, **more}, backward.bind_attrs(call.attrs))


MODIFIERS: list[dict[str, Any]] = [{}, {"causal": True, "dropout": 0.3}, {"window": (70, 30)}, {"masked_score": -1e9}]


@pytest.mark.parametrize("heads", [(), (1,), (4,)], ids=str)
@pytest.mark.parametrize(
    ("size", "attrs"),
    graded(
        itertools.product([1, 5, 16, 32, 100, 300, 2000], MODIFIERS),
        now=lambda size, attrs: size == 32 or (not attrs and size in (5, 100, 2000)),
    ),
    ids=str,
)
def test_chunks_give_what_the_dense_reference_gives(rng, heads, size, attrs):
    for call in calls(rng, 2, 270, 310, 4, 2, size, heads, **attrs):
        found, exact = opcheck.executed(call), opcheck.reference(call)
        for slot, (x,) in exact.items():
            np.testing.assert_allclose(found[slot][0], x, rtol=1e-10, atol=1e-11, err_msg=slot)


@pytest.mark.parametrize("heads", [(), (2,)], ids=str)
@pytest.mark.parametrize("size", [64, 256])
def test_blocks_that_nobody_sees_are_not_computed(rng, monkeypatch, size, heads):
    """Elements of scores that are computed: those of the blocks that are seen, in both directions."""
    call, grad = calls(rng, 2, 512, 4096, 2, 2, size, heads)
    computed = []
    plain = cpu.AttentionCall.scores

    def counted(self: Any, block: Any, keys: Any) -> Any:
        s = plain(self, block, keys)
        computed.append(s.size)
        return s

    monkeypatch.setattr(cpu.AttentionCall, "scores", counted)
    for one in (call, grad):
        computed.clear()
        opcheck.apply(one.opdef.cpu_kernel, one)
        seen = int(call.inputs["Blocks"][0].sum()) * size * size * 2 * (1 if heads else 2)
        assert sum(computed) == seen


def test_queries_that_see_nothing(rng):
    call, _ = calls(rng, 1, 70, 90, 2, 1, 32, ())
    out, sums = (opcheck.executed(call)[slot][0] for slot in ("Out", "LogSumExp"))
    assert not out[:, 64:].any() and (sums[..., 64:] == -np.inf).all()


def local(queries: int, keys: int, size: int, reach: int) -> np.ndarray:
    i, j = (np.arange(-(-n // size)) for n in (queries, keys))
    return abs(i[:, None] - j) <= reach


def test_the_public_argument_and_its_mask(rng):
    """Values and gradients are those of the mask that the table stands for; the text form keeps both."""
    feed, results = {n: rng.normal(size=(2, 40, 2, 4)) for n in "qkv"}, []
    blocks = local(40, 40, 8, 1)
    for table in (True, False):
        main = mg.static.Program()
        with mg.static.program_guard(main):
            q, k, v = (mg.static.data(n, x.shape, "float64") for n, x in feed.items())
            for x in (q, k, v):
                x.stop_gradient = False
            if table:
                more = {"block_mask": mg.assign(blocks), "block_size": 8}
            else:
                more = {"attn_bias": mg.assign(np.kron(blocks, np.ones((8, 8), bool)).astype(bool))}
            out = mg.ops.memory_efficient_attention(q, k, v, causal=True, **more)
            grads = mg.static.gradients(mg.sum(out * out), [q, k, v])
            again = mg.static.gradients(sum(mg.sum(g * g) for g in grads), [q, k, v])
        text = parse(str(main))
        assert str(text) == str(main) and ("block_size=8" in str(main)) == table
        names = [x.name for x in (out, *grads, *again)]
        for program in (main, text):
            results.append(Executor().run(program, feed, names, scope=Scope()))
    for found in results[:3]:
        for a, b in zip(found, results[3], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


REFUSED = [
    ({"block_size": None}, "Blocks are given without block_size", AttrError),
    ({"block_mask": None}, "block_size is given without Blocks", AttrError),
    ({"block_size": 0}, "block_size must be positive, is 0", AttrError),
    ({"block_mask": ([5, 5], "float32")}, "Blocks must be bool, is float32", DTypeError),
    ({"block_mask": ([5, 4], "bool")}, r"Blocks must be \[5, 5\] or \[2, 5, 5\] for scores", ShapeError),
    ({"block_mask": ([3, 5, 5], "bool")}, r"Blocks must be \[5, 5\] or \[2, 5, 5\] for scores", ShapeError),
    ({"block_mask": ([5], "bool")}, r"Blocks must be \[5, 5\] or", ShapeError),
    ({"block_mask": ([1, 2, 5, 5], "bool")}, r"Blocks must be \[5, 5\] or", ShapeError),
    ({"cu_seqlens_q": ([3], "int32"), "cu_seqlens_k": ([3], "int32")}, "cannot be given together", ShapeError),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said", "error"), REFUSED, ids=str)
def test_what_is_refused(change, said, error):
    given = {"block_mask": ([5, 5], "bool"), "block_size": 8, **change}
    with mg.static.program_guard(mg.static.Program()):
        q = mg.static.data("q", [1, 40, 2, 4])
        given = {n: mg.static.data(n, *x) if isinstance(x, tuple) else x for n, x in given.items()}
        with pytest.raises(error, match=said) as caught:
            mg.ops.memory_efficient_attention(q, q, q, **given)
    assert "test_attention_blocks.py" in str(caught.value)


def test_a_table_that_is_no_variable_is_refused():
    with mg.static.program_guard(mg.static.Program()):
        q = mg.static.data("q", [1, 40, 2, 4])
        with pytest.raises(ProgramError, match="block_mask must be a Variable"):
            mg.ops.memory_efficient_attention(q, q, q, block_mask=np.ones((5, 5), bool), block_size=8)
