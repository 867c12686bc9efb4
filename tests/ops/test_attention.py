"""memory_efficient_attention: the CPU kernel against dense attention, its memory, its gradients, its errors.

Shapes and tolerances are those of xFormers' tests: PR #281's and those of its last release.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from minigraph.errors import AttrError, DTypeError, MinigraphError, ShapeError
from minigraph.ir.text import parse
from minigraph.kernels import philox
from minigraph.kernels.cpu import attention as kernel
from minigraph.opdef import OPS
from minigraph.ops.attention.attention import memory_efficient_attention as forward
from minigraph.ops.attention.attention_grad import memory_efficient_attention_grad as backward
from minigraph.program.builder import Builder
from minigraph.runtime.schedule import Schedule
from minigraph.types import bfloat16, float16, float32
from tests.support import opcheck
from tests.support.grades import graded

FORWARD_NEAR = {float32: (3e-4, 2e-5), float16: (4e-3, 4e-4), bfloat16: (2e-2, 5e-3)}  # atol, rtol
BACKWARD_NEAR = {float32: (9e-4, 1e-4), float16: (0.2, 2e-2), bfloat16: (0.9, 0.1)}
ODD_SIZES = (1, 2, 3, 15, 31, 32, 34, 68, 72, 90, 132, 136)
HEAD_SIZES = (1, 2, 3, 31, 34, 36, 38, 40, 64, 80, 160, 258, 264, 512)


def arrays(rng, b=2, sq=5, sk=7, h=2, hk=None, d=4, dv=None, times=1.0) -> tuple[np.ndarray, ...]:
    hk, dv = hk or h, dv or d
    shapes = (b, sq, h, d), (b, sk, hk, d), (b, sk, hk, dv)
    return tuple(times * rng.normal(size=s) for s in shapes)


def plain(q, k, v, bias=0.0, seen=True, scale=None) -> np.ndarray:
    """softmax(q k^T + bias) v of [B, S, H, D], written down once more; rows that see nothing are 0."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + bias
    s = np.where(seen, s, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(axis=-1, keepdims=True))
    e = np.where(np.isnan(e), 0, e)
    p = e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300)
    return np.einsum("bhqk,bkhd->bqhd", p, v)


def attrs_of(**attrs: Any) -> dict[str, Any]:
    return forward.bind_attrs(attrs)


def run(*inputs: Any, **attrs: Any) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        return kernel.forward(*inputs, **attrs_of(**attrs))


def gradients(inputs: tuple[Any, ...], out_grad: np.ndarray, function=kernel.backward, **attrs: Any) -> Any:
    out, sums = run(*inputs, **attrs)
    with np.errstate(all="ignore"):
        return function(*inputs[:3], out, sums, out_grad, *inputs[3:], **attrs_of(**attrs))


def near(found: np.ndarray, exact: np.ndarray, atol: float, rtol: float) -> None:
    np.testing.assert_allclose(found.astype(float), exact.astype(float), atol=atol, rtol=rtol)


# xFormers' shapes


@pytest.mark.parametrize("k_len", [5, 6, 32])
@pytest.mark.parametrize(("batch", "kv", "q"), list(itertools.product([1, 4], [3, 15, 32, 33], [2, 3, 5])))
def test_shapes_of_the_first_release(rng, k_len, batch, kv, q):
    """inputs 3 * randn, scale 1; float32 against float64."""
    exact = arrays(rng, batch, q, kv, 1, d=k_len, times=3.0)
    rounded = tuple(x.astype(np.float32) for x in exact)
    exact = tuple(x.astype(float) for x in rounded)
    out, sums = run(*rounded)
    near(out, plain(*exact), 2e-4, 0)
    near(sums, forward(*exact)[1], 2e-4, 0)
    d = np.ones(out.shape, np.float32)
    for found, right in zip(gradients(rounded, d), gradients(exact, d.astype(float), backward.reference), strict=True):
        if right is not None:
            near(found, right, 4e-4, 0)


@pytest.mark.parametrize(("kv", "q"), list(itertools.product([128, 512], [128, 512])))
def test_ones_give_the_mean(rng, kv, q):
    v = rng.normal(size=(2, kv, 1, 16)).astype(np.float32)
    ones = np.ones((2, q, 1, 16), np.float32), np.ones((2, kv, 1, 16), np.float32)
    near(run(*ones, v)[0], np.broadcast_to(v.mean(axis=1, keepdims=True), (2, q, 1, 16)), 1e-5, 0)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_odd_sizes_and_types_through_a_program(rng, dtype, size):
    other = ODD_SIZES[-1 - ODD_SIZES.index(size)]
    inputs = [x.astype(dtype) for x in arrays(rng, 1, size, other, 3, d=32)]
    found = opcheck.executed(gpu_free_call(inputs))["Out"][0]
    exact = plain(*(x.astype(float) for x in inputs))
    near(found, exact, *FORWARD_NEAR[dtype])
    step = float(np.finfo(np.float32).eps) if dtype == float32 else 2.0 ** (-8 if dtype == bfloat16 else -11)
    assert np.abs(found.astype(float) - exact).max() <= 2 * low_precision_error(inputs, exact) + 2 * step


def gpu_free_call(inputs: list[np.ndarray], **attrs: Any) -> opcheck.Call:
    slots = {slot.name: [x] for slot, x in zip(forward.inputs, inputs, strict=False) if x is not None}
    return opcheck.Call(forward, 0, slots, attrs_of(**attrs))


def low_precision_error(inputs: list[np.ndarray], exact: np.ndarray) -> float:
    """The largest error of the plain computation with every step rounded to the type of the inputs."""
    dtype = inputs[0].dtype
    q, k, v = (x.astype(np.float32).transpose(0, 2, 1, 3) for x in inputs)

    def rounded(x):
        return x.astype(dtype).astype(np.float32)

    s = rounded(rounded(q @ k.swapaxes(-1, -2)) / np.float32(math.sqrt(q.shape[-1])))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = rounded(e / e.sum(axis=-1, keepdims=True))
    return float(np.abs(rounded(p @ v).transpose(0, 2, 1, 3) - exact).max())


@pytest.mark.parametrize("d", HEAD_SIZES)
def test_head_sizes_forward_and_backward(rng, d):
    exact = arrays(rng, 2, 33, 40, 2, d=d, dv=HEAD_SIZES[-1 - HEAD_SIZES.index(d)])
    out = run(*exact)[0]
    near(out, plain(*exact), 1e-11, 1e-11)
    out_grad = rng.normal(size=out.shape)
    rounded = tuple(x.astype(np.float32) for x in exact)
    right = gradients(exact, out_grad, backward.reference)
    for found, wide, r in zip(
        gradients(rounded, out_grad.astype(np.float32))[:3], gradients(exact, out_grad)[:3], right[:3], strict=True
    ):
        near(wide, r, 1e-10, 1e-10)
        near(found, r, *BACKWARD_NEAR[float32])


@pytest.mark.parametrize("seed", graded(range(60), now=lambda seed: seed % 3 == 1))
def test_random_shapes_with_a_random_mask(seed):
    """Every kind of mask at random against its dense form, in float64, several blocks of queries and keys."""
    rng = np.random.default_rng(seed)
    b, hk, groups = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 4)
    sq, sk, d, dv = (int(rng.integers(1, n)) for n in (40, 60, 20, 20))
    inputs = arrays(rng, b, sq, sk, hk * groups, hk, d, dv)
    attrs: dict[str, Any] = {"causal": bool(rng.random() < 0.5), "bottom_right": bool(rng.random() < 0.5)}
    if rng.random() < 0.4:
        attrs["window"] = tuple(int(x) for x in rng.integers(0, 12, 2))
    if rng.random() < 0.3:
        attrs["scale"] = float(rng.normal())
    full = b, hk * groups, sq, sk

    def some(shape):
        kept = [n if rng.random() < 0.6 else 1 for n in shape]
        return tuple(kept[rng.integers(0, 4) :])

    bias = rng.normal(size=some(full)) if rng.random() < 0.6 else None
    mask = rng.random(some(full)) < 0.7 if rng.random() < 0.5 else None
    if mask is not None and rng.random() < 0.5:
        attrs["masked_score"] = -2.0
    key = None
    if rng.random() < 0.4:
        key, attrs["dropout"] = rng.integers(0, 99, 3), 0.3
    more = bias, mask, None, None, key
    saved = kernel.SCORES, kernel.QUERIES
    try:
        kernel.SCORES, kernel.QUERIES = 64, 8
        found = run(*inputs, *more, **attrs)
        out_grad = rng.normal(size=found[0].shape)
        grads = gradients((*inputs, *more), out_grad, **attrs)
    finally:
        kernel.SCORES, kernel.QUERIES = saved
    for f, e in zip(found, forward.reference(*inputs, *more, **attrs_of(**attrs)), strict=True):
        near(f, e, 1e-11, 1e-11)
    for f, e in zip(grads, gradients((*inputs, *more), out_grad, backward.reference, **attrs), strict=True):
        assert (f is None) == (e is None)
        if f is not None:
            assert f.shape == e.shape
            near(f, e, 1e-10, 1e-10)
    if key is None and mask is None:
        i, j = np.arange(sq)[:, None], np.arange(sk)
        ahead = j - i - (sk - sq if attrs["bottom_right"] else 0)
        left, right = attrs.get("window", (999, 999))
        seen = (ahead <= (min(right, 0) if attrs["causal"] else right)) & (ahead >= -left)
        near(found[0], plain(*inputs, 0.0 if bias is None else bias, seen, attrs.get("scale")), 1e-11, 1e-11)


# packed sequences, dropout, what must not leak


@pytest.mark.parametrize("attrs", [{}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (2, 1)}])
def test_packed_sequences_are_sequences_of_their_own(rng, attrs):
    lengths_q, lengths_k = (3, 0, 17, 1, 40), (5, 2, 9, 0, 60)
    cumulative = [np.cumsum((0, *n)) for n in (lengths_q, lengths_k)]
    rows = cumulative[0][-1] + 4, cumulative[1][-1] + 3
    q, k, v = arrays(rng, 1, rows[0], rows[1], 4, 2, 8, 5)
    for x, end in ((q, cumulative[0][-1]), (k, cumulative[1][-1]), (v, cumulative[1][-1])):
        x[:, end:] = np.nan  # padding that belongs to nobody
    out, _ = run(q, k, v, None, None, *cumulative, **attrs)
    d = rng.normal(size=out.shape)
    grads = gradients((q, k, v, None, None, *cumulative), d, **attrs)
    for a, b, c, e in zip(cumulative[0], cumulative[0][1:], cumulative[1], cumulative[1][1:], strict=False):
        alone = q[:, a:b], k[:, c:e], v[:, c:e]
        near(out[:, a:b], run(*alone, **attrs)[0], 1e-12, 1e-12)
        for whole, part, at in zip(grads, gradients(alone, d[:, a:b], **attrs), [(a, b), (c, e), (c, e)], strict=False):
            near(whole[:, at[0] : at[1]], part, 1e-12, 1e-12)
    assert not out[:, cumulative[0][-1] :].any()
    assert not grads[0][:, cumulative[0][-1] :].any()
    assert not grads[1][:, cumulative[1][-1] :].any()


def test_dropout_draws_what_the_operator_dropout_draws(rng):
    q, k, _ = arrays(rng, 2, 9, 11, 3, d=4)
    key, p = np.array([5, 8, 2]), 0.4
    kept = philox.keep_mask((5, 8, 2), (2, 3, 9, 11), p)
    identity = np.broadcast_to(np.eye(11)[None, :, None], (2, 11, 3, 11))
    found, _ = run(q, k, identity, None, None, None, None, key, dropout=p)
    dense = plain(q, k, identity).transpose(0, 2, 1, 3) * kept / (1 - p)
    near(found.transpose(0, 2, 1, 3), dense, 1e-13, 1e-13)
    share = 1 - philox.keep_mask((5, 8, 2), (400, 400), p).mean()
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p)) / 400


def test_hidden_keys_do_not_leak(rng):
    q, k, v = arrays(rng, 1, 6, 8, 1, d=3)
    clean = run(q, k, v, None, np.arange(8) < 5)[0]
    for bad in (np.nan, np.inf):
        spoiled_k, spoiled_v = k.copy(), v.copy()
        spoiled_k[:, 5:], spoiled_v[:, 5:] = bad, bad
        inputs = q, spoiled_k, spoiled_v, None, np.arange(8) < 5
        np.testing.assert_array_equal(run(*inputs)[0], clean)
        d = rng.normal(size=clean.shape)
        right = gradients((q, k, v, None, np.arange(8) < 5), d)
        for function in (kernel.backward, backward.reference):
            for f, e in zip(gradients(inputs, d, function)[:3], right[:3], strict=True):
                near(f, e, 1e-12, 1e-12)
    causal = v.copy()
    causal[:, 3:] = np.nan
    out = run(q, k, causal, causal=True)[0]
    assert np.isfinite(out[:, :3]).all() and np.isnan(out[:, 3:]).all()


def test_rows_without_keys_are_zero_and_have_no_gradient(rng):
    inputs = *arrays(rng, 1, 6, 3, 2), None, None
    out, sums = run(*inputs, causal=True, bottom_right=True)
    assert not out[:, :3].any() and np.all(sums[..., :3] == -np.inf) and np.isfinite(sums[..., 3:]).all()
    grads = gradients(inputs, np.ones(out.shape), causal=True, bottom_right=True)
    assert not grads[0][:, :3].any() and all(np.isfinite(g).all() for g in grads[:3])


@pytest.mark.parametrize("fill", [-1e9, -1e4, float(np.finfo(np.float32).min), -50.0])
def test_queries_whose_keys_are_all_masked_by_a_number(rng, fill):
    """They see all keys alike, forward and backward, in float32 too, where fill + log(n) would be fill."""
    exact, mask = arrays(rng, 1, 5, 7, 2, d=3), np.ones((5, 7), np.bool_)
    mask[1:3] = False
    rounded = tuple(x.astype(np.float32) for x in exact)
    attrs = {"masked_score": fill, "causal": True, "bottom_right": True}
    out, _ = run(*rounded, None, mask, **attrs)
    near(out[0, 2], exact[2][0, :5].mean(axis=0), 1e-6, 0)  # query 2 sees keys 0 to 4
    d = rng.normal(size=out.shape)
    found = gradients((*rounded, None, mask), d.astype(np.float32), **attrs)
    dense = gradients((*rounded, None, mask), d.astype(np.float32), backward.reference, **attrs)
    v = exact[2].copy()
    slope = np.zeros_like(v)
    for at in np.ndindex(v.shape):
        for sign in (1, -1):
            v[at] += sign * 1e-6
            slope[at] += sign * (forward.reference(*exact[:2], v, None, mask, **attrs_of(**attrs))[0] * d).sum() / 2e-6
            v[at] -= sign * 1e-6
    near(found[2], slope, 2e-5 if fill < -1e3 else 2e-4, 0)
    near(dense[2], slope, 2e-5 if fill < -1e3 else 2e-4, 0)


def test_runs_are_bit_equal(rng):
    inputs = arrays(rng, 2, 300, 1500, 4, 2, 32)
    assert run(*inputs)[0].tobytes() == run(*inputs)[0].tobytes()


# memory


def peak(function, *args: Any, **kwargs: Any) -> int:
    tracemalloc.start()
    try:
        function(*args, **kwargs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_s_not_with_its_square(rng):
    peaks = {}
    for s in (2048, 8192):
        inputs = tuple(x.astype(np.float32) for x in arrays(rng, 1, s, s, 1, d=16))
        d = np.ones_like(inputs[0])
        peaks[s] = peak(run, *inputs), peak(gradients, inputs, d)
        least = 4 * s * 16
        assert peaks[s][0] <= least + 8 * 4 * kernel.SCORES
        assert peaks[s][1] <= 5 * least + 10 * 4 * kernel.SCORES
        assert peaks[s][1] < 4 * s * s / (1 if s == 2048 else 8)  # less than one matrix of scores
    assert peaks[8192][0] < 1.7 * peaks[2048][0]
    assert peaks[8192][1] < 1.7 * peaks[2048][1]


def test_dropout_and_bias_of_one_row_keep_to_it(rng):
    s = 4096
    inputs = tuple(x.astype(np.float32) for x in arrays(rng, 1, s, s, 1, d=8))
    more = rng.normal(size=s).astype(np.float32), None, None, None, np.array([1, 2, 3])
    assert peak(gradients, (*inputs, *more), np.ones_like(inputs[0]), dropout=0.1) < 4 * s * s / 2


def test_sums_are_computed_only_where_they_are_read(rng):
    call = gpu_free_call(list(arrays(rng)))
    program, _, outputs = opcheck.built(call)
    types = {name: opcheck.type_of(x) for name, x in opcheck.feed_of(call).items()}
    out, sums = outputs["Out"][0], outputs["LogSumExp"][0]
    assert Schedule(program, types, [out.name]).steps[0].needs == {"Out"}
    assert Schedule(program, types, [out.name, sums.name]).steps[0].needs == {"Out", "LogSumExp"}


# bad input

GOOD = {"Q": "f32[2,5,4,8]", "K": "f32[2,7,2,8]", "V": "f32[2,7,2,6]"}


@pytest.mark.parametrize(
    ("changed", "attrs", "error", "words"),
    [
        ({"K": "f32[2,7,3,8]", "V": "f32[2,7,3,6]"}, {}, ShapeError, "no multiple of the 3"),
        ({"K": "f32[2,7,2,9]"}, {}, ShapeError, "axis 3 of Q and K: 8 and 9"),
        ({"V": "f32[2,6,2,6]"}, {}, ShapeError, "axis 1 of K and V: 7 and 6"),
        ({"V": "f32[3,7,2,6]"}, {}, ShapeError, "axis 0 of Q and V"),
        ({"K": "f32[2,7,8]"}, {}, ShapeError, "K has rank 3"),
        ({"Q": "f32[5,8]"}, {}, ShapeError, "rank 3 or 4"),
        ({"K": "f16[2,7,2,8]"}, {}, DTypeError, "K is float16, Q is float32"),
        ({"Q": "i64[2,5,4,8]"}, {}, DTypeError, "must be a float"),
        ({"Bias": "f32[2,4,5,6]"}, {}, ShapeError, "key axis -1 has 6"),
        ({"Bias": "f32[1,2,4,5,7]"}, {}, ShapeError, "rank 5"),
        ({"Bias": "f64[7]"}, {}, DTypeError, "Bias is float64"),
        ({"Bias": "bool[7]"}, {}, DTypeError, "a bool array is a Mask"),
        ({"Mask": "f32[7]"}, {}, DTypeError, "a float array is a Bias"),
        ({"Mask": "bool[4,4,7]"}, {}, ShapeError, "query axis -2 has 4"),
        ({}, {"dropout": 1.0}, AttrError, "must lie in"),
        ({}, {"dropout": -0.1}, AttrError, "must lie in"),
        ({}, {"dropout": float("nan")}, AttrError, "must lie in"),
        ({}, {"dropout": 0.1}, ShapeError, "needs Key"),
        ({}, {"scale": float("nan")}, AttrError, "scale must be finite"),
        ({}, {"window": (-1, 2)}, AttrError, "window must be"),
        ({}, {"window": (1,)}, AttrError, "window must be"),
        ({}, {"masked_score": float("nan")}, AttrError, "masked_score"),
        ({}, {"layout": "sbhd"}, AttrError, "layout 'sbhd'"),
        ({"CuSeqlensQ": "i64[3]"}, {}, ShapeError, "together"),
        ({"CuSeqlensQ": "i64[3]", "CuSeqlensK": "i64[4]"}, {}, ShapeError, "3 and 4"),
        ({"CuSeqlensQ": "i64[3]", "CuSeqlensK": "i64[3]"}, {}, ShapeError, "one batch"),
        ({"CuSeqlensQ": "f32[3]", "CuSeqlensK": "f32[3]"}, {}, DTypeError, "int32 or int64"),
        ({"Key": "i32[3]"}, {}, ShapeError, "Key must be i64"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_bad_input_is_one_clear_error(changed, attrs, error, words):
    slots = {**GOOD, **changed}
    lines = [f"  data {slot} : {t}" for slot, t in slots.items()]
    program = parse("\n".join(["program p", *lines]))
    variables = {slot: program.vars[slot] for slot in slots}
    with pytest.raises(error) as caught:
        Builder(program.global_block()).memory_efficient_attention(**variables, **attrs)
    assert words in str(caught.value)
    assert "memory_efficient_attention(" in str(caught.value)
    assert "test_attention.py" in str(caught.value)
    assert not program.ops


@pytest.mark.parametrize(
    ("lengths", "words"),
    [((0, 3, 2, 4), "must not decrease, [2] is less"), ((1, 3, 4, 4), "starts at 1"), ((0, 2, 3, 9), "ends at 9")],
)
def test_cumulative_lengths_are_checked_when_fed(rng, lengths, words):
    inputs = [*arrays(rng, 1, 6, 6), None, None, np.array(lengths), np.array([0, 1, 2, 6])]
    with pytest.raises(MinigraphError, match="CuSeqlensQ") as caught:
        opcheck.executed(gpu_free_call(inputs))
    assert words in str(caught.value)


def test_the_operators_are_those_of_the_table():
    assert OPS["memory_efficient_attention"] is forward and OPS["memory_efficient_attention_grad"] is backward
