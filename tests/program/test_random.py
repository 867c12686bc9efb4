"""Random operators: Philox by its published vectors, distributions, seeds and steps, dropout."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minigraph.errors import AttrError, DTypeError, ShapeError
from minigraph.kernels import philox
from minigraph.program import Program
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor

# counter, key and block of Philox4x32-10 in Random123's kat_vectors
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]  # fmt: skip
MANY = 400_000
RNG = (11, 3, 5)  # seed, operator's number, step


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, block):
    found = philox.philox4x32(tuple(np.array([c], np.uint64) for c in counter), key)
    assert found.tolist() == [block]


def test_layout_of_key_and_counter():
    seed, number, step = (7 << 32) + 9, 4, 6
    block = philox.philox4x32(tuple(np.array([c], np.uint64) for c in (2, 0, step, number)), (9, 7))
    assert philox.words((seed, number, step), 8, 12).tolist() == block[0].tolist()


def test_far_blocks_use_the_second_counter_word():
    start = 4 << 32
    block = philox.philox4x32(tuple(np.array([c], np.uint64) for c in (0, 1, 5, 3)), (11, 0))
    assert philox.words(RNG, start, start + 4).tolist() == block[0].tolist()


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 2), (5, 21), (6, 6), (3, 8)])
def test_words_do_not_depend_on_the_cut(start, stop):
    assert philox.words(RNG, start, stop).tolist() == philox.words(RNG, 0, 24)[start:stop].tolist()


DRAWS = {
    "uniform": lambda shape, dtype="float64": philox.uniform(RNG, shape, -2.0, 3.0, np.dtype(dtype)),
    "normal": lambda shape, dtype="float64": philox.normal(RNG, shape, 1.0, 2.0, np.dtype(dtype)),
    "truncated_normal": lambda shape, dtype="float64": philox.truncated_normal(RNG, shape, 1.0, 2.0, np.dtype(dtype)),
    "keep_mask": lambda shape, dtype=None: philox.keep_mask(RNG, shape, 0.3),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_an_element_depends_on_its_place_only(draw, monkeypatch):
    whole = draw((50_001,))
    np.testing.assert_array_equal(draw((101,)), whole[:101])
    np.testing.assert_array_equal(draw((3, 16_667)).reshape(-1), whole)
    monkeypatch.setattr(philox, "BLOCKS_AT_ONCE", 7)
    np.testing.assert_array_equal(draw((501,)), whole[:501])
    assert draw(()).shape == ()
    assert draw((0, 3)).shape == (0, 3)


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
def test_float32_draws_the_rounded_float64_numbers(name):
    wide, narrow = DRAWS[name]((10_000,)), DRAWS[name]((10_000,), "float32")
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow, wide.astype(np.float32))


def test_uniform_distribution():
    u = (DRAWS["uniform"]((MANY,)) + 2) / 5
    assert u.min() >= 0
    assert u.max() < 1
    assert_moments(u, 1 / 2, 1 / 12, 1 / 80)
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    chi_square = ((counts - MANY / 64) ** 2 / (MANY / 64)).sum()
    assert abs(chi_square - 63) < 4 * math.sqrt(2 * 63)


def assert_moments(x, mean, variance, fourth):
    """Mean, variance and fourth central moment within four standard errors."""
    centred = x - mean
    assert abs(centred.mean()) < 4 * math.sqrt(variance / x.size)
    assert abs((centred**2).mean() - variance) < 4 * math.sqrt((fourth - variance**2) / x.size)
    assert abs((centred**4).mean() - fourth) < 4 * np.std(centred**4) / math.sqrt(x.size)
    assert abs((centred**3).mean()) < 4 * np.std(centred**3) / math.sqrt(x.size)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 4 / math.sqrt(x.size)


def test_uniform_leaves_out_the_upper_end():
    u = philox.uniform(RNG, (MANY,), 1.0, float(np.nextafter(np.float32(1), np.float32(2))), np.dtype("float32"))
    assert set(u.tolist()) == {1.0}
    assert philox.uniform(RNG, (3,), 2.0, 2.0, np.dtype("float32")).tolist() == [2.0] * 3


def test_normal_distribution():
    z = (DRAWS["normal"]((MANY,)) - 1) / 2
    assert_moments(z, 0, 1, 3)
    assert_moments(z[::2] * z[1::2], 0, 1, 9)  # the two of a pair are independent
    below = [(z < c).mean() for c in (-3, -1, 0, 1, 3)]
    np.testing.assert_allclose(below, [0.00135, 0.158655, 0.5, 0.841345, 0.99865], atol=4 * 0.5 / math.sqrt(MANY))


def test_normal_is_box_and_muller():
    w = philox.words(RNG, 0, 4)
    radius = [math.sqrt(-2 * math.log((int(a) + 1) / 2**32)) for a in w[::2]]
    angle = [2 * math.pi * int(b) / 2**32 for b in w[1::2]]
    expected = [f for r, t in zip(radius, angle, strict=True) for f in (r * math.cos(t), r * math.sin(t))]
    np.testing.assert_allclose(philox.normal(RNG, (4,), 0, 1, np.dtype("float64")), expected, rtol=1e-14)


def test_truncated_normal_distribution():
    z = (DRAWS["truncated_normal"]((MANY,)) - 1) / 2
    assert np.abs(z).max() < 2
    assert np.abs(z).max() > 1.99
    density, inside = math.exp(-2) / math.sqrt(2 * math.pi), math.erf(math.sqrt(2))
    variance = 1 - 4 * density / inside
    assert_moments(z, 0, variance, 3 * variance - 16 * density / inside)
    for c in (-1.5, -0.5, 1.0):
        share = (math.erf(c / math.sqrt(2)) + inside) / (2 * inside)
        assert abs((z < c).mean() - share) < 4 * 0.5 / math.sqrt(MANY)


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 0.999, 1.0])
def test_keep_rate(p):
    mask = philox.keep_mask(RNG, (MANY,), p)
    assert mask.dtype == np.uint8
    assert set(np.unique(mask)) <= {0, 1}
    assert abs((1 - mask.mean()) - p) <= 4 * math.sqrt(p * (1 - p) / MANY)


# In programs


def drawn(build, seed=3, runs=1, scope=None):
    """What `runs` runs of a program with one random operator fetch."""
    program = Program()
    program.random_seed = seed
    target = build(Builder(program.global_block()))
    exe, scope = Executor(), scope or Scope()
    return [exe.run(program, fetch_list=[target], scope=scope)[0] for _ in range(runs)]


def uniform(g, **attrs):
    return g.uniform_random(shape=[50], **attrs)


def test_seeds_and_steps():
    first, second = drawn(uniform, runs=2)
    again, _ = drawn(uniform, runs=2)
    np.testing.assert_array_equal(first, again)
    assert (first != second).mean() > 0.9, "another step draws other numbers"
    assert (first != drawn(uniform, seed=4)[0]).mean() > 0.9, "another seed draws other numbers"


def test_an_operators_own_seed_replaces_the_programs():
    a, b = (drawn(lambda g: uniform(g, seed=9), seed=s)[0] for s in (3, 4))
    np.testing.assert_array_equal(a, b)
    assert (a != drawn(uniform)[0]).mean() > 0.9


def test_two_operators_draw_different_numbers():
    x, y = drawn(lambda g: g.stack([uniform(g), uniform(g)]))[0]
    assert (x != y).mean() > 0.9


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op_type", ["uniform_random", "gaussian_random", "truncated_gaussian_random"])
def test_types_of_initialisers(op_type, dtype):
    values = drawn(lambda g: getattr(g, op_type)(shape=[200], dtype=dtype))[0]
    wide = drawn(lambda g: getattr(g, op_type)(shape=[200], dtype="float64"))[0]
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(values, wide.astype("float32" if dtype != "float64" else dtype).astype(dtype))


@pytest.mark.parametrize(
    ("op_type", "attrs", "error", "phrase"),
    [
        ("uniform_random", {"shape": [-1, 2]}, ShapeError, "every size of a random array must be known"),
        ("uniform_random", {"shape": [2], "min": 1.0, "max": 0.0}, AttrError, "min 1.0 is greater than max 0.0"),
        ("uniform_random", {"shape": [2], "max": math.inf}, AttrError, "max must be finite, is inf"),
        ("uniform_random", {"shape": [2], "dtype": "int64"}, DTypeError, "random numbers are floats, not int64"),
        ("gaussian_random", {"shape": [2], "std": -1.0}, AttrError, "std must not be negative, is -1.0"),
        ("gaussian_random", {"shape": [2], "mean": math.nan}, AttrError, "mean must be finite, is nan"),
        ("truncated_gaussian_random", {"shape": [2], "seed": -1}, AttrError, "a seed is not negative"),
        ("truncated_gaussian_random", {"shape": [2], "std": math.nan}, AttrError, "std must be finite, is nan"),
    ],
)
def test_bad_initialisers(op_type, attrs, error, phrase):
    with pytest.raises(error, match=phrase):
        Builder(Program().global_block()).emit(op_type, **attrs)


# Dropout


def dropout_program(x, **attrs):
    """A program with Out, Mask and the gradient of sum(Out * Weight) for one dropout."""
    program = Program()
    program.random_seed = 3
    block = program.global_block()
    g = Builder(block)
    data = block.create_var("x", x.shape, x.dtype, is_data=True)
    weight = block.create_var("weight", x.shape, x.dtype, is_data=True)
    out, mask = g.dropout(data, **attrs)
    (grad,) = gradients([g.elementwise_mul(out, weight)], [data])
    return program, [out, mask, grad]


@pytest.mark.parametrize("mode", ["upscale_in_train", "downscale_in_infer"])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
def test_dropout_forward_and_backward_use_one_mask(rng, p, mode):
    x, weight = rng.normal(size=(200, 50)), rng.normal(size=(200, 50))
    program, targets = dropout_program(x, p=p, mode=mode)
    exe, scope = Executor(), Scope()
    masks = []
    for _ in range(2):
        out, mask, grad = exe.run(program, {"x": x, "weight": weight}, targets, scope=scope)
        scale = 1 / (1 - p) if mode == "upscale_in_train" and p < 1 else 1.0
        np.testing.assert_allclose(out, x * mask * scale, rtol=1e-15)
        np.testing.assert_allclose(grad, weight * mask * scale, rtol=1e-15)
        assert abs(mask.mean() - (1 - p)) <= 4 * math.sqrt(p * (1 - p) / x.size)
        masks.append(mask)
    assert (masks[0] != masks[1]).any() == (0 < p < 1), "each step draws its own mask"


@pytest.mark.parametrize(("mode", "factor"), [("upscale_in_train", 1.0), ("downscale_in_infer", 0.75)])
def test_dropout_for_test(rng, mode, factor):
    x = rng.normal(size=(20, 5))
    program, (out, mask, _) = dropout_program(x, p=0.25, mode=mode)
    test = program.clone(for_test=True)
    feed = {"x": x, "weight": x}
    values, kept = Executor().run(test, feed, [out.name, mask.name])
    np.testing.assert_array_equal(values, x * factor)
    assert (kept == 1).all()
    built, targets = dropout_program(x, p=0.25, mode=mode, is_test=True)
    _, _, grad = Executor().run(built, feed, targets)
    np.testing.assert_array_equal(grad, x * factor)


def test_the_mask_does_not_depend_on_the_type():
    wide, narrow = (
        Executor().run(program, {"x": np.ones(500, dtype), "weight": np.ones(500, dtype)}, targets[1:2])[0]
        for dtype in ("float64", "float16")
        for program, targets in [dropout_program(np.ones(500, dtype), p=0.4)]
    )
    np.testing.assert_array_equal(wide, narrow)


def test_a_dropped_element_is_zero_whatever_it_was():
    x = np.full(200, np.inf)
    x[::2] = np.nan
    program, (out, mask, _) = dropout_program(x, p=0.5)
    values, kept = Executor().run(program, {"x": x, "weight": x}, [out, mask])
    assert (values[kept == 0] == 0).all()
    assert not np.isfinite(values[kept == 1]).any()


@pytest.mark.parametrize(
    ("attrs", "phrase"),
    [
        ({"p": -0.1}, r"p must lie in \[0, 1\], is -0.1"),
        ({"p": 1.5}, r"p must lie in \[0, 1\], is 1.5"),
        ({"p": math.nan}, r"p must lie in \[0, 1\], is nan"),
        ({"mode": "upscale"}, "mode 'upscale' is none of upscale_in_train, downscale_in_infer"),
        ({"seed": -1}, "a seed is not negative"),
    ],
)
def test_bad_dropout(attrs, phrase):
    block = Program().global_block()
    with pytest.raises(AttrError, match=phrase):
        Builder(block).dropout(block.create_var("x", [2, 3], "float32"), **attrs)
    with pytest.raises(DTypeError, match="X must be a float, is int64"):
        Builder(block).dropout(block.create_var("i", [2, 3], "int64"))
