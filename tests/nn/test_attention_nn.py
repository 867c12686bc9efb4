"""scaled_dot_product_attention, MultiHeadAttention and ops.memory_efficient_attention as users call them."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, DTypeError, ProgramError, ShapeError
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.nn.attention import Cache, StaticCache
from minigraph.program.scope import Scope
from minigraph.program.text.dump import dump
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram

pytestmark = pytest.mark.usefixtures("in_float64")

F = mg.nn.functional


def ran(build: Any, feed: dict[str, np.ndarray], startup_seed: int = 2, train: bool = False) -> list[np.ndarray]:
    """Values of what `build(variables)` returns; with `train` also the gradients of its sum for all parameters."""
    main, startup = mg.static.Program(), mg.static.Program()
    startup.random_seed = startup_seed
    with mg.static.program_guard(main, startup):
        variables = {n: mg.static.data(n, [-1, *x.shape[1:]], x.dtype) for n, x in feed.items()}
        outs = build(**variables)
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        if train:
            outs += [g for _, g in mg.static.append_backward(mg.sum(outs[0] * outs[0]))]
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    return exe.run(main, feed, outs, scope=scope)


def dense(q, k, v, bias: Any = 0.0, seen: Any = True) -> np.ndarray:
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1]) + bias
    s = np.where(seen, s, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", e / e.sum(axis=-1, keepdims=True), v)


def qkv(rng, sq=5, sk=7, h=4, hk=4) -> dict[str, np.ndarray]:
    return {n: rng.normal(size=(2, s, heads, 6)) for n, s, heads in (("q", sq, h), ("k", sk, hk), ("v", sk, hk))}


# functions


def test_paddle_signatures():
    names = list(inspect.signature(F.scaled_dot_product_attention).parameters)
    first = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "training", "name"]
    assert names == [*first, "scale", "return_lse"]
    names = list(inspect.signature(mg.nn.MultiHeadAttention.__init__).parameters)
    first = ["embed_dim", "num_heads", "dropout", "kdim", "vdim", "need_weights"]
    assert names[1:] == [*first, "weight_attr", "bias_attr"]
    names = list(inspect.signature(mg.nn.MultiHeadAttention.forward).parameters)
    assert names[1:] == ["query", "key", "value", "attn_mask", "cache"]
    names = list(inspect.signature(mg.ops.memory_efficient_attention).parameters)
    assert names[:6] == ["query", "key", "value", "attn_bias", "p", "scale"]


SPELLINGS = {"attn_mask": "attn_bias", "dropout_p": "p", "is_causal": "causal"}  # Paddle's and xFormers'


@pytest.mark.parametrize("call", [F.scaled_dot_product_attention, mg.ops.memory_efficient_attention])
def test_arguments_have_the_names_of_paddle_and_of_xformers(rng, call):
    feed = {**qkv(rng), "m": rng.normal(size=(2, 4, 5, 7))}

    def build(q, k, v, m, names):
        mask, p, causal = names
        return call(q, k, v, **{mask: m, p: 0.3, causal: True}, scale=0.7, training=False)

    scaled = [feed["q"] * 0.7 * math.sqrt(6), feed["k"], feed["v"]]
    exact = dense(*scaled, feed["m"], seen=np.tri(5, 7, dtype=bool))
    for names in (SPELLINGS.keys(), SPELLINGS.values()):
        (found,) = ran(lambda names=names, **x: build(**x, names=names), feed)
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("call", [F.scaled_dot_product_attention, mg.ops.memory_efficient_attention])
@pytest.mark.parametrize("pair", SPELLINGS.items(), ids="+".join)
def test_both_spellings_of_one_argument_are_refused(call, pair):
    values = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}  # the defaults, even
    main = mg.static.Program()
    with mg.static.program_guard(main):
        q = mg.static.data("q", [2, 5, 4, 8])
        with pytest.raises(ProgramError, match="two names of one argument, and both are given") as caught:
            call(q, q, q, **dict.fromkeys(pair, values[pair[0]]))
        assert call.__name__ in str(caught.value) and "test_attention_nn.py" in str(caught.value)
        with pytest.raises(ProgramError, match=r"attn_(mask|bias) and attn_(mask|bias)"):
            call(q, q, q, None, **{"attn_mask" if call is mg.ops.memory_efficient_attention else "attn_bias": None})
    assert [op.type for op in main.global_block().ops] == []


def test_log_sum_exp_is_returned_on_request(rng):
    feed = qkv(rng, hk=2)
    scores = np.einsum("bqhd,bkhd->bhqk", feed["q"], np.repeat(feed["k"], 2, 2)) / math.sqrt(feed["q"].shape[-1])
    sums, near = np.log(np.exp(scores).sum(-1)), {"rtol": 1e-12, "atol": 1e-12}
    for call in (F.scaled_dot_product_attention, mg.ops.memory_efficient_attention):
        out, found = ran(lambda q, k, v, call=call: call(q, k, v, return_lse=True), feed)
        np.testing.assert_allclose(out, dense(*feed.values()), **near)
        np.testing.assert_allclose(found, sums, **near)
    three = {n: x[:, :, 0] for n, x in feed.items()}
    _, found = ran(lambda q, k, v: mg.ops.memory_efficient_attention(q, k, v, return_lse=True), three)
    np.testing.assert_allclose(found, sums[:, 0], **near)


def test_deterministic_is_kept_by_gradients_texts_and_passes():
    main = mg.static.Program()
    with mg.static.program_guard(main):
        q = mg.static.data("q", [2, 5, 4, 8])
        q.stop_gradient = False
        out = mg.ops.memory_efficient_attention(q, q, q, deterministic=True)
        (grad,) = mg.static.gradients(mg.sum(out * out), [q])
    compiled = CompiledProgram(main, build_strategy=BuildStrategy.all())
    again = parse(dump(main))
    assert first_difference(again, main) is None
    for program in (main, again, compiled.program_for([grad.name])):
        ops = [op for op in program.global_block().ops if op.type.startswith("memory_efficient_attention")]
        assert [op.attrs["deterministic"] for op in ops] == [True, True]
    assert dump(main).count("{deterministic=true}") == 2


def test_function_with_masks_and_grouped_heads(rng):
    feed = qkv(rng, hk=2)
    seen, bias = rng.random((2, 1, 5, 7)) < 0.7, rng.normal(size=(2, 4, 5, 7))
    seen[..., 0] = True
    near = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(ran(F_attention, feed)[0], dense(*feed.values()), **near)
    (found,) = ran(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), {**feed, "m": seen})
    np.testing.assert_allclose(found, dense(*feed.values(), seen=seen), **near)
    (found,) = ran(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), {**feed, "m": bias})
    np.testing.assert_allclose(found, dense(*feed.values(), bias), **near)
    (found,) = ran(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), feed)
    np.testing.assert_allclose(found, dense(*feed.values(), seen=np.tri(5, 7, dtype=bool)), **near)


def F_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def test_dropout_in_training_only(rng):
    feed = qkv(rng)

    def build(q, k, v, training=True):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, training=training)

    assert not np.allclose(ran(build, feed)[0], dense(*feed.values()))
    np.testing.assert_allclose(
        ran(lambda **x: build(**x, training=False), feed)[0], dense(*feed.values()), rtol=1e-12, atol=1e-12
    )
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        out = build(*(mg.static.data(n, x.shape) for n, x in feed.items()))
    test = main.clone(for_test=True)
    found = Executor().run(test, feed, [out.name], scope=Scope())[0]
    np.testing.assert_allclose(found, dense(*feed.values()), rtol=1e-12, atol=1e-12)


def test_operator_level_call_packs_sequences(rng):
    feed = {n: rng.normal(size=(1, 9, 2, 3)) for n in "qkv"}
    lengths = np.array([0, 4, 9])

    def build(q, k, v):
        cu = mg.assign(lengths)
        return mg.ops.memory_efficient_attention(q, k, v, scale=0.5, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)

    (found,) = ran(build, feed)
    for a, b in ((0, 4), (4, 9)):
        part = [feed["q"][:, a:b] * 0.5 * math.sqrt(3), feed["k"][:, a:b], feed["v"][:, a:b]]
        exact = dense(*part, seen=np.tri(b - a, dtype=bool))
        np.testing.assert_allclose(found[:, a:b], exact, rtol=1e-12, atol=1e-12)


# the layer


def test_layer_without_and_with_weights_agree_forward_and_backward(rng):
    feed = {"x": rng.normal(size=(2, 5, 12)), "m": rng.random((2, 1, 1, 5)) < 0.7}
    feed["m"][..., 0] = True

    def build(x, m, need_weights=False):
        return mg.nn.MultiHeadAttention(12, 3, need_weights=need_weights)(x, attn_mask=m)

    fused = ran(build, feed, train=True)
    out, weights, *grads = ran(lambda **v: build(**v, need_weights=True), feed, train=True)
    assert weights.shape == (2, 3, 5, 5)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
    assert not weights[~np.broadcast_to(feed["m"], weights.shape)].any()
    for a, b in zip(fused, [out, *grads], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_int_masks_hide_zeros(rng):
    feed = {"x": rng.normal(size=(2, 5, 12)), "m": (rng.random((2, 1, 5, 5)) < 0.6).astype(np.int64)}
    feed["m"][..., 0] = 1
    a = ran(lambda x, m: mg.nn.MultiHeadAttention(12, 3)(x, attn_mask=m), feed)[0]
    b = ran(lambda x, m: mg.nn.MultiHeadAttention(12, 3)(x, attn_mask=m), {**feed, "m": feed["m"] != 0})[0]
    np.testing.assert_array_equal(a, b)


def test_cross_attention_with_sizes_of_its_own(rng):
    feed = {"x": rng.normal(size=(2, 5, 12)), "k": rng.normal(size=(2, 7, 8)), "v": rng.normal(size=(2, 7, 10))}
    out, *grads = ran(lambda x, k, v: mg.nn.MultiHeadAttention(12, 4, kdim=8, vdim=10)(x, k, v), feed, train=True)
    assert out.shape == (2, 5, 12) and len(grads) == 8 and all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_growing_cache_gives_what_causal_attention_gives(rng, need_weights):
    feed = {"x": rng.normal(size=(2, 4, 12))}

    def build(x):
        layer = mg.nn.MultiHeadAttention(12, 3, need_weights=need_weights)
        cache, steps = layer.gen_cache(x), []
        for i in range(4):
            *results, cache = layer(x[:, i : i + 1], cache=cache)
            assert isinstance(cache, Cache) and len(results) == 1 + need_weights
            steps.append(results[0])
        whole = layer(x, attn_mask=mg.tril(mg.ones([4, 4])) > 0)
        return mg.concat(steps, axis=1), whole[0] if need_weights else whole

    stepwise, whole = ran(build, feed)
    np.testing.assert_allclose(stepwise, whole, rtol=1e-11, atol=1e-12)


def test_a_static_cache_holds_projected_keys_and_values(rng):
    feed = {"x": rng.normal(size=(2, 4, 12)), "y": rng.normal(size=(2, 6, 12))}

    def build(x, y):
        layer = mg.nn.MultiHeadAttention(12, 3)
        out, cache = layer(x, y, y, cache=layer.gen_cache(y, y, type=StaticCache))
        assert isinstance(cache, StaticCache)
        return out, layer(x, y, y)

    cached, plain = ran(build, feed)
    np.testing.assert_allclose(cached, plain, rtol=1e-12, atol=1e-12)


# bad input


def build_with(**changes: Any) -> Any:
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        shapes = {"query": [2, 5, 4, 6], "key": [2, 7, 2, 6], "value": [2, 7, 2, 6]}
        wanted = {**{n: (s,) for n, s in shapes.items()}, **changes}
        given = {n: mg.static.data(n, *v) if isinstance(v, tuple) else v for n, v in wanted.items()}
        try:
            return F.scaled_dot_product_attention(**given)
        finally:
            assert not main.ops or "memory_efficient_attention" in [op.type for op in main.ops]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"query": 3}, ProgramError, "query must be a Variable"),
        ({"key": ([2, 7, 3, 6],), "value": ([2, 7, 3, 6],)}, ShapeError, "no multiple of the 3"),
        ({"attn_mask": ([5, 6],)}, ShapeError, "does not broadcast to scores"),
        ({"attn_mask": ([5, 7], "int64")}, DTypeError, "must be bool or a float"),
        ({"attn_mask": ([5, 7], "float32")}, DTypeError, "Bias is float32"),
        ({"dropout_p": 1.0}, AttrError, "must lie in [0, 1)"),
        ({"dropout_p": -0.5}, AttrError, "must lie in [0, 1)"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(changes, error, words):
    with pytest.raises(error) as caught:
        build_with(**changes)
    assert words in str(caught.value)
    assert "test_attention_nn.py" in str(caught.value)


def test_an_error_names_the_argument_as_its_function_does():
    """The mask is attn_mask for Paddle's function and attn_bias for xFormers'."""
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()):
        q = mg.static.data("q", [2, 5, 4, 6])
        with pytest.raises(ProgramError, match="attn_mask must be a Variable, is a str: 'causal'"):
            F.scaled_dot_product_attention(q, q, q, attn_mask="causal")
        with pytest.raises(ProgramError, match="attn_bias must be a Variable, is a str: 'causal'"):
            mg.ops.memory_efficient_attention(q, q, q, attn_bias="causal")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((10, 3), "no multiple of num_heads 3"), ((0, 3), "embed_dim must"), ((4, 0), "num_heads must")],
)
def test_bad_sizes_of_the_layer_leave_no_parameter_behind(sizes, words):
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup), pytest.raises(AttrError, match=words):
        mg.nn.MultiHeadAttention(*sizes)
    assert not main.vars and not startup.vars
