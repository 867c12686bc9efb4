"""The gradient through LogSumExp of memory_efficient_attention on a CPU, against dense programs and slopes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.text import parse
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.program import Program
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram, gradients
from minigraph.types import TensorType, as_dtype
from tests.support import opcheck
from tests.support.opcheck import Call

FLAG = "memory_efficient_attention"
SIZES = {"b": 2, "sq": 5, "sk": 6, "h": 4, "hk": 2, "d": 3, "dv": 4}


def arrays(rng, b, sq, sk, h, hk, d, dv) -> dict[str, np.ndarray]:
    return {s: rng.normal(size=n) for s, n in zip("qkv", ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, dv)), strict=True)}


class Operands:
    """The operands of attention as variables of one program, and what a run of it is fed."""

    def __init__(self, feed: dict[str, np.ndarray]) -> None:
        self.program, self.feed = Program(), feed
        block = self.program.global_block()
        self.g = Builder(block)
        for name, x in feed.items():
            setattr(self, name, block.create_var(name, type=opcheck.type_of(x), is_data=True, stop_gradient=False))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def run(self, losses: list[Any], names: str, program: Any = None) -> list[np.ndarray]:
        grads = gradients(losses, [getattr(self, n) for n in names])
        assert None not in grads
        return Executor().run(program or self.program, self.feed, grads, scope=Scope())


def weighted(o: Operands, x: Any, name: str) -> Any:
    """A loss: every element of x counts differently, and not in proportion to itself."""
    return o.g.reduce_sum(o.g.elementwise_mul(o.g.square(x), getattr(o, name)))


def dense(o: Operands, causal: bool, bias: bool) -> tuple[Any, Any]:
    """Out [B, H, Sq, Dv] and the logarithms of the sums, written out."""
    g, groups = o.g, SIZES["h"] // SIZES["hk"]
    q, k, v = (g.transpose(x, perm=(0, 2, 1, 3)) for x in (o.q, o.k, o.v))
    b, hk, sk = SIZES["b"], SIZES["hk"], SIZES["sk"]

    def repeated(x: Any, size: int) -> Any:
        wide = g.expand(g.unsqueeze(x, axes=(2,)), shape=(b, hk, groups, sk, size))
        return g.reshape(wide, shape=(b, hk * groups, sk, size))

    k, v = repeated(k, SIZES["d"]), repeated(v, SIZES["dv"])
    s = g.scale(g.matmul(q, k, trans_y=True), scale=SIZES["d"] ** -0.5)
    if bias:
        s = g.elementwise_add(s, o.bias)
    e = g.exp(s)
    if causal:
        e = g.elementwise_mul(e, g.assign_value(
            values=tuple(np.tri(SIZES["sq"], sk).reshape(-1)), shape=(SIZES["sq"], sk), dtype="float64"))  # fmt: skip
    total = g.reduce_sum(e, axis=(3,), keepdim=True)
    return g.matmul(g.elementwise_div(e, total), v), g.squeeze(g.log(total), axes=(3,))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reads", ["both", "sums"])
def test_gradients_are_those_of_attention_written_out(rng, causal, bias, reads):
    feed = arrays(rng, **SIZES)
    rows = SIZES["b"], SIZES["h"], SIZES["sq"]
    feed |= {"c": rng.normal(size=(*rows, SIZES["dv"])), "r": rng.normal(size=rows)}
    if bias:
        feed["bias"] = rng.normal(size=(1, SIZES["h"], 1, SIZES["sk"]))
    names = ("q", "k", "bias") if bias else ("q", "k")
    results = []
    for written_out in (True, False):
        o = Operands(feed)
        if written_out:
            out, sums = dense(o, causal, bias)
        else:
            more = {"Bias": o.bias} if bias else {}
            out, sums = o.g.memory_efficient_attention(o.q, o.k, o.v, causal=causal, needs=["LogSumExp"], **more)
            out = o.g.transpose(out, perm=(0, 2, 1, 3))
        losses = [weighted(o, sums, "r")] + ([weighted(o, out, "c")] if reads == "both" else [])
        results.append(o.run(losses, names + (("v",) if reads == "both" else ())))
    for name, a, b in zip((*names, "v"), *results, strict=False):
        assert np.abs(a).max() > 1e-3
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12, err_msg=name)


def test_the_gradient_of_values_is_zero_where_only_the_sums_count(rng):
    o = Operands(arrays(rng, **SIZES))
    _, sums = o.g.memory_efficient_attention(o.q, o.k, o.v, needs=["LogSumExp"])
    to_q, to_v = o.run([o.g.reduce_sum(o.g.square(sums))], "qv")
    assert np.abs(to_q).max() > 1e-3 and not to_v.any()


FEATURES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"window": (1, 2)}), ({}, {"causal": True, "bottom_right": True, "scale": -0.7}),
    ({"Mask": "some"}, {}), ({"Mask": "some"}, {"masked_score": -2.0}), ({"Mask": "some"}, {"masked_score": -1e9}),
    ({"Bias": (2, 1, 1, 6)}, {"causal": True}), ({"Bias": (5, 1)}, {}), ({"Bias": "far"}, {}),
    ({"Key": 1, "Mask": "some"}, {"dropout": 0.4}), ({"packed": 1}, {"causal": True}), ({}, {"layout": "bhsd"}),
    ({}, {"deterministic": True}), ({"Mask": "some", "Bias": "hides"}, {"masked_score": -1e9}),
    ({"Mask": "some", "Q": "low"}, {"masked_score": -1e3}),
]  # fmt: skip


def call_with(rng, more: dict[str, Any], attrs: dict[str, Any]) -> Call:
    q, k, v = arrays(rng, **{**SIZES, "b": 1 if "packed" in more else 2}).values()
    if attrs.get("layout") == "bhsd":
        q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v))
    inputs = {"Q": q, "K": k, "V": v}
    if "Mask" in more:
        inputs["Mask"] = rng.random((2, 1, 5, 6)) < 0.6
        inputs["Mask"][0, 0, 2] = False  # this query sees nothing
    if more.get("Bias") == "far":  # LogSumExp is far from 0, and of one query all scores
        inputs["Bias"] = np.where(rng.random((5, 6)) < 0.5, 2000.0, 2003.0)
    elif more.get("Bias") == "hides":  # of query 2 the keys that Mask shows: what Mask hides alone counts
        inputs["Bias"] = rng.normal(size=(5, 6))
        inputs["Bias"][2, 1:5], inputs["Mask"][0, 0, 2, 1:5] = (-math.inf, -2e9, -math.inf, -math.inf), True
    elif "Bias" in more:
        inputs["Bias"] = rng.normal(size=more["Bias"])
    if more.get("Q") == "low":  # of query 2 the scores of all keys that Mask shows are below those that it hides
        inputs["K"][..., 0] = 1 + abs(inputs["K"][..., 0])
        inputs["Q"][:, 2], inputs["Q"][:, 2, :, 0], inputs["Mask"][0, 0, 2, 1:5] = 0, -2e4, True
    if "Key" in more:
        inputs["Key"] = np.array([11, 4, 9])
    if "packed" in more:
        inputs |= {"CuSeqlensQ": np.array([0, 2, 4]), "CuSeqlensK": np.array([0, 3, 5])}
    return Call(forward, 0, {s: [x] for s, x in inputs.items()}, forward.bind_attrs(attrs))


@pytest.mark.parametrize(("more", "attrs"), FEATURES, ids=str)
@pytest.mark.parametrize("slots", [("LogSumExp",), ("Out", "LogSumExp")], ids="+".join)
def test_gradients_are_the_slopes_under_every_modifier(rng, more, attrs, slots):
    call = call_with(rng, more, attrs)
    outputs = opcheck.reference(call)
    weights = {s: [rng.normal(size=outputs[s][0].shape)] for s in slots}
    found = opcheck.program_gradients(call, weights, call.float_places)
    allowed = 1e-6 if more.get("Bias") == "far" else 1e-8  # a step changes the last digits of 2000 alone
    for place, a in zip(call.float_places, found, strict=True):
        opcheck.check_slopes(call, weights, place, a, allowed)


@pytest.mark.parametrize("grad", [math.nan, math.inf])
@pytest.mark.parametrize("masked_score", [-math.inf, -1e9])
def test_an_infinite_sum_passes_nothing_on(rng, grad, masked_score):
    """exp(LogSumExp) of such a query has the slope NaN; its keys' gradients must not."""
    call = call_with(rng, {"Mask": "some"}, {"masked_score": masked_score})
    results = opcheck.reference(call)
    infinite = np.isinf(results["LogSumExp"][0])
    assert infinite.any() and not infinite.all()
    found = []
    for value in (grad, 0.0):
        more = {s: results[s] for s in ("Out", "LogSumExp")} | {"Out_grad": [np.ones_like(results["Out"][0])]}
        more["LogSumExp_grad"] = [np.where(infinite, value, 1.0)]
        opdef = mg.opdef.OPS[f"{FLAG}_grad"]
        one = Call(opdef, 0, {**call.inputs, **more}, opdef.bind_attrs(call.attrs))
        found.append(opcheck.executed(one))
        for slot, (x,) in opcheck.reference(one).items():
            np.testing.assert_allclose(found[-1][slot][0], x, rtol=1e-12, atol=1e-12, err_msg=slot)
    for slot, (x,) in found[1].items():
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(found[0][slot][0], x, err_msg=slot)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shorter_floats(rng, dtype):
    """The operator's own gradient, dense, of the same rounded numbers in float64."""
    call = call_with(rng, {}, {"causal": True}).as_dtype(dtype)
    wide = call.as_dtype("float64")
    unit = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 0.1}[dtype]
    found, exact = [], []
    for c, to in ((call, found), (wide, exact)):
        program, variables, outputs = opcheck.built(c)
        g = Builder(program.global_block())
        losses = [g.reduce_sum(g.square(outputs[s][0])) for s in ("LogSumExp", "Out")]
        assert outputs["LogSumExp"][0].dtype == ("float64" if c is wide else "float32")
        grads = gradients(losses, [variables[s][0] for s in "QKV"])
        to += Executor().run(program, opcheck.feed_of(c), grads, scope=Scope())
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == as_dtype(dtype)
        np.testing.assert_allclose(a.astype(float), b, rtol=0, atol=unit * np.abs(b).max())


def test_long_sequences_have_several_blocks(rng):
    """Blocks of queries and keys each take their own part of the gradient."""
    q, k, v = arrays(rng, 1, 600, 1500, 2, 1, 4, 4).values()
    call = Call(forward, 0, {"Q": [q], "K": [k], "V": [v]}, forward.bind_attrs({"causal": True, "bottom_right": True}))
    results = opcheck.reference(call)
    more = {s: results[s] for s in ("Out", "LogSumExp")} | {"Out_grad": [rng.normal(size=q.shape)]}
    more["LogSumExp_grad"] = [rng.normal(size=results["LogSumExp"][0].shape)]
    opdef = mg.opdef.OPS[f"{FLAG}_grad"]
    one = Call(opdef, 0, {**call.inputs, **more}, opdef.bind_attrs(call.attrs))
    found, exact = opcheck.executed(one), opcheck.reference(one)
    for slot, (x,) in exact.items():
        np.testing.assert_allclose(found[slot][0], x, rtol=1e-10, atol=1e-12, err_msg=slot)


def test_sums_that_nobody_reads_cost_nothing(rng):
    """The program is the one that it was: no operand more, and no array of zeros."""
    o = Operands(arrays(rng, **SIZES))
    out, sums = o.g.memory_efficient_attention(o.q, o.k, o.v, needs=["LogSumExp"])
    gradients(o.g.reduce_sum(out), [o.q])
    (grad,) = (op for op in o.program.ops if op.type == f"{FLAG}_grad")
    assert "LogSumExp_grad" not in grad.inputs
    assert sums.grad_name not in o.program.vars


def test_the_text_form_keeps_it(rng):
    o = Operands(arrays(rng, **SIZES))
    _, sums = o.g.memory_efficient_attention(o.q, o.k, o.v, needs=["LogSumExp"])
    (grad,) = gradients(o.g.reduce_sum(o.g.square(sums)), [o.q])
    text = str(o.program)
    assert f"LogSumExp_grad={sums.grad_name}" in text
    again = parse(text)
    assert str(again) == text
    first, second = (Executor().run(p, o.feed, [grad.name], scope=Scope())[0] for p in (o.program, again))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("flags", [[FLAG], None], ids=["alone", "all"])
def test_scores_whose_sums_a_program_takes_itself_are_not_hidden(rng, first, flags):
    """The pass must not take the scores away from a hand-written logsumexp of them, nor its gradient."""
    feed = {n: rng.normal(size=(2, 3, 5, 4)) for n in "qkvc"}
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        q, k, v, c = (mg.static.data(n, [2, 3, 5, 4], "float64") for n in "qkvc")
        for x in (q, k, v):
            x.stop_gradient = False
        scores = mg.matmul(q, k, transpose_y=True) * 0.5
        sums = mg.log(mg.sum(mg.exp(scores), axis=-1)) if first else None
        out = mg.matmul(mg.nn.functional.softmax(scores), v)
        sums = sums if sums is not None else mg.log(mg.sum(mg.exp(scores), axis=-1))
        loss = mg.sum(out * c) + mg.mean(sums * sums)
        names = [loss.name, sums.name, *(g.name for g in mg.static.gradients(loss, [q, k, v]))]
    strategy = BuildStrategy.all() if flags is None else BuildStrategy(**dict.fromkeys(flags, True))
    compiled = CompiledProgram(main, build_strategy=strategy)
    plain, fused = (Executor().run(p, feed, names, scope=Scope()) for p in (main, compiled))
    for name, a, b in zip(names, plain, fused, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("flag", ["all", "none"])
def test_all_passes_keep_the_gradient_of_the_operator(rng, flag):
    """Transposes around it are removed, sums are joined: LogSumExp_grad stays."""
    o = Operands(arrays(rng, **SIZES))
    q = o.g.transpose(o.g.transpose(o.q, perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3))
    out, sums = o.g.memory_efficient_attention(q, o.k, o.v, causal=True, needs=["LogSumExp"])
    losses = [o.g.reduce_sum(o.g.square(x)) for x in (out, sums)]
    plain = o.run(losses, "qkv")
    grads = [v.name for v in gradients(losses, [o.q, o.k, o.v])]
    strategy = BuildStrategy.all() if flag == "all" else BuildStrategy()
    found = Executor().run(CompiledProgram(o.program, build_strategy=strategy), o.feed, grads, scope=Scope())
    for a, b in zip(plain, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


def test_the_page_of_the_manual_runs():
    page = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        with mg.static.scope_guard(Scope()):
            exec(compile(block, "docs/attention.md", "exec"), {})


def test_types_of_the_gradient_are_checked():
    types = {"Q": TensorType((2, 5, 4, 8), as_dtype("float16"))}
    types |= {s: types["Q"] for s in ("K", "V", "Out", "Out_grad")}
    types["LogSumExp"] = TensorType((2, 4, 5), as_dtype("float32"))
    opdef = mg.opdef.OPS[f"{FLAG}_grad"]
    attrs = opdef.bind_attrs({})
    opdef.infer_types({s: [t] for s, t in types.items()}, attrs)
    for wrong in (types["LogSumExp"].with_dtype(as_dtype("float16")), types["LogSumExp"].with_shape((2, 5, 4))):
        with pytest.raises(mg.MinigraphError, match="LogSumExp_grad must be"):
            opdef.infer_types({**{s: [t] for s, t in types.items()}, "LogSumExp_grad": [wrong]}, attrs)
