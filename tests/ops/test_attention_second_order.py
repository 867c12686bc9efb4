"""Gradients of gradients of attention on a CPU: complex steps through an own gradient, dense programs, slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import ShapeError
from minigraph.ir.text import parse
from minigraph.kernels import philox
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram, gradients
from minigraph.types import as_dtype
from tests.ops.test_attention_log_sum_exp import (
    FEATURES,
    SIZES,
    Operands,
    arrays,
    call_with,
    dense,
    weighted,
)
from tests.support import opcheck
from tests.support.opcheck import Call

KEY = np.array([11, 4, 9])
STEP = 1e-30  # of complex steps, which round nothing away


def own_gradients(x: dict[str, np.ndarray], seen: np.ndarray, kept: Any) -> dict[str, np.ndarray]:
    """Gradients of sum(c Out^2) + sum(r LSE^2) for q, k, v [B, S, H, D] and bias, also of complex numbers."""
    q, k, v = (x[n].transpose(0, 2, 1, 3) for n in "qkv")
    groups = q.shape[1] // k.shape[1]
    k, v, scale = np.repeat(k, groups, 1), np.repeat(v, groups, 1), q.shape[-1] ** -0.5
    drawn = x.get("mask", np.True_)
    s = np.where(drawn, (q @ k.swapaxes(2, 3)) * scale + x.get("bias", 0.0), -0.7)
    largest = np.where(seen, s.real, -1e300).max(-1, keepdims=True)
    e = np.where(seen, np.exp(s - largest), 0)
    total = e.sum(-1, keepdims=True)
    p, lse = e / total, (np.log(total) + largest)[..., 0]
    out = (p * kept) @ v
    d = 2 * x["c"] * out
    delta = (d * out).sum(-1, keepdims=True) - (2 * x["r"] * lse)[..., None]
    slopes = np.where(drawn, p * ((d @ v.swapaxes(2, 3)) * kept - delta), 0)

    def summed(y: np.ndarray) -> np.ndarray:
        b, h, rows, size = y.shape
        return y.reshape(b, h // groups, groups, rows, size).sum(2).transpose(0, 2, 1, 3)

    found = {
        "q": ((slopes @ k) * scale).transpose(0, 2, 1, 3), "k": summed(slopes.swapaxes(2, 3) @ q) * scale,
        "v": summed((p * kept).swapaxes(2, 3) @ d),
    }  # fmt: skip
    return {**found, "bias": slopes.sum(axis=(0, 2), keepdims=True)} if "bias" in x else found


CASES: list[dict[str, Any]] = [
    {}, {"causal": True}, {"bias": True, "causal": True}, {"mask": True}, {"dropout": 0.4, "bias": True},
    {"dropout": 0.3, "mask": True, "causal": True}, {"window": (1, 2)},
]  # fmt: skip


def program_of(o: Operands, case: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Out [B, H, Sq, D], LogSumExp, and the attributes of the call."""
    attrs = {name: case[name] for name in ("causal", "window", "dropout") if name in case}
    more: dict[str, Any] = {"Bias": o.bias} if "bias" in case else {}
    if "mask" in case:
        more["Mask"], attrs["masked_score"] = o.mask, -0.7
    if "dropout" in case:
        more["Key"] = o.g.assign_value(values=tuple(KEY.tolist()), shape=(3,), dtype="int64")
    out, sums = o.g.memory_efficient_attention(o.q, o.k, o.v, needs=["LogSumExp"], **more, **attrs)
    return o.g.transpose(out, perm=(0, 2, 1, 3)), sums, attrs


def feed_of(rng: np.random.Generator, case: dict[str, Any]) -> dict[str, np.ndarray]:
    feed, rows = arrays(rng, **SIZES), (SIZES["b"], SIZES["h"], SIZES["sq"])
    feed |= {"c": rng.normal(size=(*rows, SIZES["dv"])), "r": rng.normal(size=rows)}
    if "bias" in case:
        feed["bias"] = rng.normal(size=(1, SIZES["h"], 1, SIZES["sk"]))
    if "mask" in case:
        feed["mask"] = rng.random((SIZES["b"], 1, SIZES["sq"], SIZES["sk"])) < 0.6
    return feed


def second(o: Operands, out: Any, sums: Any, names: list[str]) -> list[Any]:
    """The gradients of a loss of all first gradients, each counted by other weights `w_<name>`."""
    first = gradients([weighted(o, out, "c"), weighted(o, sums, "r")], [getattr(o, n) for n in names])
    losses = [o.g.reduce_sum(o.g.elementwise_mul(x, getattr(o, f"w_{n}"))) for n, x in zip(names, first, strict=True)]
    return gradients(losses, [getattr(o, n) for n in names])


def with_weights(rng: np.random.Generator, feed: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    return {**feed, **{f"w_{n}": rng.normal(size=feed[n].shape) for n in names}}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_are_complex_steps(rng, case):
    names = ["q", "k", "v", *(["bias"] if "bias" in case else [])]
    feed = with_weights(rng, feed_of(rng, case), names)
    o = Operands(feed)
    out, sums, _ = program_of(o, case)
    found = Executor().run(o.program, feed, second(o, out, sums, names), scope=Scope())
    shape = (SIZES["b"], SIZES["h"], SIZES["sq"], SIZES["sk"])
    i, j = np.arange(shape[2])[:, None], np.arange(shape[3])[None]
    seen = np.ones(shape[2:], bool) if "causal" not in case else j <= i
    if "window" in case:
        seen = (j >= i - case["window"][0]) & (j <= i + case["window"][1])
    p = case.get("dropout", 0.0)
    kept = philox.keep_mask(tuple(KEY.tolist()), shape, p) / (1 - p) if p else 1.0
    for n, x in zip(names, found, strict=True):
        assert np.abs(x).max() > 1e-2
        for _ in range(3):
            direction = rng.normal(size=x.shape)
            moved = own_gradients({**feed, n: feed[n] + 1j * STEP * direction}, seen, kept)
            exact = sum((feed[f"w_{m}"] * y).sum().imag for m, y in moved.items()) / STEP
            assert abs((x * direction).sum() - exact) <= 1e-10 * max(1, abs(exact)), n


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("flags", ["none", "all"])
def test_gradients_of_gradients_are_those_of_the_dense_program(rng, bias, flags):
    names, results = ["q", "k", "v", *(["bias"] if bias else [])], []
    feed = with_weights(rng, feed_of(rng, {"bias": True} if bias else {}), names)
    for written_out in (True, False):
        o = Operands(feed)
        pair = dense(o, True, bias) if written_out else program_of(o, {"causal": True, **({"bias": 1} if bias else {})})
        grads = second(o, *pair[:2], names)
        strategy = BuildStrategy.all() if flags == "all" else BuildStrategy()
        compiled = CompiledProgram(o.program, build_strategy=strategy)
        results.append(Executor().run(compiled, feed, [v.name for v in grads], scope=Scope()))
    for name, a, b in zip(names, *results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-10 * np.abs(a).max(), err_msg=name)


@pytest.mark.parametrize(("more", "attrs"), FEATURES, ids=str)
def test_slopes_of_every_gradient_under_every_modifier(rng, more, attrs):
    """Of the gradient operator by itself: Out and LogSumExp are inputs of their own."""
    call = call_with(rng, more, attrs)
    results = opcheck.reference(call)
    given = {s: results[s] for s in ("Out", "LogSumExp")} | {"Out_grad": [rng.normal(size=results["Out"][0].shape)]}
    given["LogSumExp_grad"] = [rng.normal(size=results["LogSumExp"][0].shape)]
    opdef = mg.opdef.OPS["memory_efficient_attention_grad"]
    one = Call(opdef, 0, {**call.inputs, **given}, opdef.bind_attrs(call.attrs))
    weights = {s: [rng.normal(size=x[0].shape)] for s, x in opcheck.reference(one).items()}
    far = more.get("Bias") == "far"  # numeric slopes of such a LogSumExp are those of what is not computed from it
    places = [p for p in one.float_places if np.isfinite(one.inputs[p[0]][0]).all()]
    found = opcheck.program_gradients(one, weights, places)
    allowed = 1e-6 if far else 2e-8
    for place, x in zip(places, found, strict=True):
        opcheck.check_slopes(one, weights, place, x, allowed)


@pytest.mark.parametrize("grad", [np.nan, np.inf])
@pytest.mark.parametrize("masked_score", [-np.inf, -1e9])
def test_an_infinite_sum_passes_nothing_on(rng, grad, masked_score):
    call = call_with(rng, {"Mask": "some"}, {"masked_score": masked_score})
    results, found = opcheck.reference(call), []
    infinite = np.isinf(results["LogSumExp"][0])
    opdef = mg.opdef.OPS["memory_efficient_attention_grad"]
    for value in (grad, 0.0):
        more = {s: results[s] for s in ("Out", "LogSumExp")} | {"Out_grad": [np.ones_like(results["Out"][0])]}
        more["LogSumExp_grad"] = [np.where(infinite, value, 1.0)]
        one = Call(opdef, 0, {**call.inputs, **more}, opdef.bind_attrs(call.attrs))
        weights = {s: [np.ones(x[0].shape)] for s, x in opcheck.reference(one).items()}
        found.append(opcheck.program_gradients(one, weights, one.float_places))
    for a, b in zip(*found, strict=True):
        assert infinite.any() and np.isfinite(b).all()
        np.testing.assert_array_equal(a, b)


def test_third_derivatives(rng):
    """The dense operators have gradients themselves."""
    feed = arrays(rng, **SIZES)
    results = []
    for written_out in (True, False):
        o = Operands(feed)
        out = dense(o, True, False)[0] if written_out else program_of(o, {"causal": True})[0]
        loss = o.g.reduce_sum(o.g.square(out))
        for _ in range(3):
            grads = gradients([loss], [o.q, o.k])
            loss = o.g.sum([o.g.reduce_sum(o.g.square(x)) for x in grads])
        results.append(Executor().run(o.program, feed, [loss, *grads], scope=Scope()))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9 * np.abs(a).max())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shorter_floats(rng, dtype):
    """Computed in float32 from the rounded numbers: as near as the first gradients that they are made of."""
    feed, results = feed_of(rng, {}), []
    feed = {n: x.astype(as_dtype(dtype)) for n, x in feed.items() if n in "qkv"}
    for wide in (False, True):
        o = Operands({n: x.astype(float) if wide else x for n, x in feed.items()})
        out, _, _ = program_of(o, {"causal": True})
        first = gradients([o.g.reduce_sum(o.g.square(out))], [o.q, o.k])
        grads = gradients([o.g.reduce_sum(o.g.square(x)) for x in first], [o.q, o.k, o.v])
        results.append(Executor().run(o.program, o.feed, grads, scope=Scope()))
    unit = {"float32": 1e-5, "float16": 3e-2, "bfloat16": 0.2}[dtype]
    for a, b in zip(*results, strict=True):
        assert a.dtype == as_dtype(dtype)
        assert np.abs(a.astype(float) - b).max() <= unit * np.abs(b).max()


def penalty(heads: Any = 4) -> tuple[Any, Any]:
    """A penalty on a gradient, by the public names: (program, its gradient)."""
    main = mg.static.Program()
    with mg.static.program_guard(main):
        q, k = mg.static.data("q", [2, 5, heads, 8]), mg.static.data("k", [2, 5, 2, 8])
        q.stop_gradient = False
        out = mg.ops.memory_efficient_attention(q, k, k, causal=True, p=0.3)
        (first,) = gradients(mg.sum(out * out), [q])
        (found,) = gradients(mg.sum(first * first), [q])
    return main, found


def test_the_text_form_keeps_it(rng):
    main, found = penalty()
    feed = {"q": rng.normal(size=(2, 5, 4, 8)).astype("f4"), "k": rng.normal(size=(2, 5, 2, 8)).astype("f4")}
    again = parse(str(main))
    assert str(again) == str(main) and "attention_sight" in str(main)
    first, second = (Executor().run(p, feed, [found.name], scope=Scope())[0] for p in (main, again))
    np.testing.assert_array_equal(first, second)


def test_a_gpu_says_that_scores_are_in_memory():
    main, found = penalty()
    types = {name: main.global_block().var(name).type for name in "qk"}
    notes = bind_program(main, types, [found.name]).binder.notes
    assert any("gradient of a gradient" in text and "[B, H, Sq, Sk]" in text for _, text in notes)


def test_unknown_heads_are_refused():
    with pytest.raises(ShapeError, match="a second derivative needs to know the heads"):
        penalty(-1)


def test_what_needs_no_gradient_is_not_computed():
    """Of a loss of the gradient of q alone, with respect to Out_grad alone: no product of the other gradients."""
    o = Operands({n: np.ones((1, 3, 1, 2)) for n in "qkvc"})
    o.q.stop_gradient = o.k.stop_gradient = o.v.stop_gradient = True
    out, _ = o.g.memory_efficient_attention(o.q, o.k, o.v)
    (first,) = gradients([out], [o.q], [o.c])
    before = len(o.program.ops)
    gradients([o.g.reduce_sum(first)], [o.c])
    new = [op.type for op in o.program.ops[before:]]
    assert new.count("matmul") <= 4 and "memory_efficient_attention_grad" not in new
