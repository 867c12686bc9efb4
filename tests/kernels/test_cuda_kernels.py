"""Kernels that move, pick, draw and update, run on a CPU: the shapes and values that samples do not reach."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigraph.kernels import philox
from minigraph.kernels.cuda.elementwise import random
from minigraph.kernels.cuda.movement import add_rows, creation, index, movement
from minigraph.kernels.cuda.optimizer import optimizer, update
from minigraph.kernels.cuda.record.binder import Device
from minigraph.opdef import OPS
from minigraph.types import (
    TensorType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
)
from tests.support.cuda_host import COMPILER, run_bind
from tests.support.grades import checkered

MOVES = "concat", "concat_grad", "slice", "transpose"
concat, concat_grad, cut_out, transpose = (OPS[name].gpu_bind for name in MOVES)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


def moved(bind, x, out_shape, attrs, slot="X", out="Out", **ins):
    found, fault = run_bind(bind, {slot: x, **ins}, {out: TensorType(out_shape, x.dtype)}, attrs)
    assert not fault.any()
    return found[out]


def numbers(rng, shape, dtype):
    return rng.integers(0, 100, shape).astype(dtype)


TRANSPOSES = [
    ((70, 45), (1, 0)), ((64, 128), (1, 0)), ((3, 40, 66), (0, 2, 1)), ((40, 3, 35), (2, 1, 0)),
    ((2, 34, 3, 36), (3, 0, 2, 1)), ((4, 33, 40, 2), (0, 2, 1, 3)), ((5, 4, 3), (2, 0, 1)), ((90, 7), (1, 0)),
    ((136, 264), (1, 0)), ((2, 144, 40), (0, 2, 1)), ((2, 36, 5, 132), (3, 0, 2, 1)), ((127, 130), (1, 0)),
    ((2, 257, 129), (0, 2, 1)), ((3, 33, 256), (0, 2, 1)), ((256, 33), (1, 0)), ((64, 32, 3, 40), (1, 2, 3, 0)),
    ((7, 90), (1, 0)), ((1, 1), (1, 0)), ((2, 3, 2, 3, 2, 2, 3, 2, 2, 2), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [float64, float32, int16, int8], ids=str)
@pytest.mark.parametrize(("shape", "perm"), TRANSPOSES)
def test_transpose(shape, perm, dtype, rng):
    x = numbers(rng, shape, dtype)
    np.testing.assert_array_equal(
        moved(transpose, x, tuple(shape[p] for p in perm), {"perm": perm}), x.transpose(perm)
    )


@pytest.mark.parametrize("dtype", [float64, float32, int16, int8], ids=str)
@pytest.mark.parametrize(("to", "start"), [(0, 0), (1, 0), (0, 3), (5, 2), (16, 16)])
def test_parts_of_matrices_change_places_wherever_they_begin(to, start, dtype, rng):
    """x[rows, columns] of a wider matrix into y[columns, rows] of a wider one; what lies beside it stays."""
    n, m, x_pitch, y_pitch = 133, 70, 81, 150
    x, y = numbers(rng, 20 + n * x_pitch, dtype), numbers(rng, 20 + m * y_pitch, dtype)
    expected = y.copy()
    rows, columns = np.arange(n), np.arange(m)[:, None]
    expected[to + columns * y_pitch + rows] = x[start + rows * x_pitch + columns]

    def bind(binder, ins, outs, attrs):
        binder.copy(outs["Out"], ins["Y"])
        axes = [movement.Axis(m, 1, y_pitch), movement.Axis(n, x_pitch, 1)]
        movement.bind_copy(binder, outs["Out"], ins["X"], axes, to=to, start=start)

    found, _ = run_bind(bind, {"X": x, "Y": y}, {"Out": TensorType(y.shape, y.dtype)}, {})
    np.testing.assert_array_equal(found["Out"], expected)


def test_transpose_of_runs_of_16_bytes(rng):
    x = numbers(rng, (40, 50, 4), float32)
    out = moved(transpose, x, (50, 40, 4), {"perm": (1, 0, 2)})
    np.testing.assert_array_equal(out, x.transpose(1, 0, 2))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(-10, 10), st.sampled_from([-3, -1, 1, 1, 2])), max_size=3),
)
def test_slice_and_its_gradient(shape, cuts):
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1
    starts, ends, steps = zip(*cuts, strict=True) if cuts else ((), (), ())
    attrs = {"axes": tuple(range(len(cuts))), "starts": starts, "ends": ends, "steps": steps, "decrease_axes": ()}
    section = tuple(slice(*cut) for cut in cuts)
    expected = x[section]
    np.testing.assert_array_equal(moved(cut_out, x, expected.shape, attrs), expected)
    whole = np.zeros(shape, np.float32)
    whole[section] = expected
    grad = moved(movement.slice_grad, np.ascontiguousarray(expected), shape, attrs, "Out_grad", "X_grad")
    np.testing.assert_array_equal(grad, whole)


@pytest.mark.parametrize("sizes", [(16, 16), (3, 5, 1), (8, 0, 4), (2,), (300, 7, 1100)])
@pytest.mark.parametrize(("outer", "inner"), [((), ()), ((3,), ()), ((2, 3), (4,)), ((), (5,))])
def test_concat_and_its_gradient(sizes, outer, inner, rng):
    xs = [numbers(rng, (*outer, size, *inner), float32) for size in sizes]
    axis, joined = len(outer), np.concatenate(xs, len(outer))
    out, _ = run_bind(concat, {"X": xs}, {"Out": TensorType(joined.shape, joined.dtype)}, {"axis": axis})
    np.testing.assert_array_equal(out["Out"], joined)
    types = [TensorType(x.shape, x.dtype) for x in xs]
    ins = {"X": xs, "Out_grad": joined}
    parts, _ = run_bind(concat_grad, ins, {"X_grad": types}, {"axis": axis - joined.ndim}, unread=("X",))
    for part, x in zip(parts["X_grad"], xs, strict=True):
        np.testing.assert_array_equal(part, x)


def test_copies_with_64_bit_offsets(monkeypatch, rng):
    monkeypatch.setattr(movement, "is_wide", lambda *_: True)
    x = numbers(rng, (4, 5, 6), float64)
    np.testing.assert_array_equal(moved(transpose, x, (6, 4, 5), {"perm": (2, 0, 1)}), x.transpose(2, 0, 1))


def id_arrays(rng):
    yield "few", rng.integers(0, 300, 70), 300
    yield "one id fills the batch", np.full(9000, 7), 300
    yield "two ids", np.where(np.arange(9000) < 4500, 3, 4), 5
    yield "skewed", np.minimum(rng.geometric(0.02, 5000), 299), 300
    yield "all different", rng.permutation(1000), 1000
    yield "all padding", np.full(100, 2), 3
    yield "three passes", rng.integers(0, 70000, 3000), 70000
    yield "stretches of every length", rng.permutation(np.repeat(np.arange(60), rng.integers(1, 260, 60))), 280
    yield "ends of tiles", np.repeat(np.arange(8), [63, 1, 64, 65, 127, 128, 129, 191]), 300


@pytest.mark.parametrize(("width", "dtype"), checkered([1, 8, 33], [float32, bfloat16]), ids=str)
def test_rows_are_added_whatever_the_ids(width, dtype, rng):
    for name, ids, size in id_arrays(rng):
        grad = rng.integers(-2, 3, (len(ids), width)).astype(dtype)  # sums are exact
        attrs = {"padding_idx": 2}
        ins = {"Ids": ids, "W": np.empty((size, width), dtype), "Out_grad": grad}
        found, fault = run_bind(
            index.embedding_grad, ins, {"W_grad": TensorType((size, width), dtype)}, attrs, unread=("W",)
        )
        expected = np.zeros((size, width), np.float32)
        np.add.at(expected, ids[ids != 2], grad[ids != 2].astype(np.float32))
        assert not fault.any()
        np.testing.assert_array_equal(found["W_grad"].astype(np.float32), expected.astype(dtype), err_msg=name)


def ids_for_bins(rng):
    sizes = [7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 513, 1025, 0, 1]
    crowded = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    yield "few", rng.integers(0, 300, 70), 300
    yield "one item", np.array([4]), 9
    yield "all different", rng.permutation(1000), 1000
    yield "one id, groups of units", np.full(4400, 5), 1100
    yield "more than a bin holds", crowded, len(crowded)
    yield "sorted", np.sort(crowded), len(crowded)
    yield "all padding", np.full(100, 2), 53


@pytest.mark.parametrize(("dtype", "width"), [(float64, 66), (float32, 128), (bfloat16, 264), (bfloat16, 520)], ids=str)
def test_rows_of_few_items_are_added_from_bins(width, dtype, rng):
    alone = Device(multiprocessors=1)  # one block sorts: here a block ends before the next one begins
    for name, ids, size in ids_for_bins(rng):
        grad = rng.integers(-2, 3, (len(ids), width)).astype(dtype)  # sums are exact
        ins = {"Ids": ids.astype(np.int32), "W": np.empty((size, width), dtype), "Out_grad": grad}
        types = {"W_grad": TensorType((size, width), dtype)}
        for padding in (None, 2):
            found, fault = run_bind(
                index.embedding_grad, ins, types, {"padding_idx": padding}, unread=("W",), device=alone
            )
            expected = np.zeros((size, width), np.float32)
            kept = slice(None) if padding is None else ids != padding
            np.add.at(expected, ids[kept], grad[kept].astype(np.float32))
            assert not fault.any()
            np.testing.assert_array_equal(found["W_grad"].astype(np.float32), expected.astype(dtype), err_msg=name)


def test_bins_add_in_the_order_of_places_and_count_from_the_back(rng):
    ids, grad = rng.permutation(np.repeat(np.arange(-30, 30), 5)[:150]), rng.normal(size=(150, 128)).astype(np.float32)
    ins = {"X": np.empty((90, 128), np.float32), "Index": ids, "Out_grad": grad}
    found, _ = run_bind(index.gather_grad, ins, {"X_grad": TensorType((90, 128), float32)}, {"axis": 0}, unread=("X",))
    expected = np.zeros((90, 128), np.float32)
    for i, at in enumerate(ids):  # one after the other: the same roundings
        expected[at] += grad[i]
    np.testing.assert_array_equal(found["X_grad"], expected)


def test_an_id_out_of_range_adds_nothing_to_bins():
    ids = np.repeat([0, 9, -1, 3], [1, 1, 12, 20])  # 3 is crowded
    ins = {"Ids": ids, "W": np.empty((16, 64)), "Out_grad": np.ones((34, 64))}
    types = {"W_grad": TensorType((16, 64), float64)}
    found, fault = run_bind(index.embedding_grad, ins, types, {"padding_idx": 9}, unread=("W",))
    assert fault.tolist()[:3] == [1, 3, -1]
    np.testing.assert_array_equal(found["W_grad"][:, 0], [1, 0, 0, 20] + [0] * 12)


def test_rows_are_added_in_the_order_of_their_places(rng):
    ids, grad = rng.integers(0, 3, 150), rng.normal(size=(150, 5)).astype(np.float32)
    ins = {"Ids": ids, "W": np.empty((3, 5), np.float32), "Out_grad": grad}
    found, _ = run_bind(
        index.embedding_grad, ins, {"W_grad": TensorType((3, 5), float32)}, {"padding_idx": None}, unread=("W",)
    )
    np.testing.assert_array_equal(found["W_grad"], [np.cumsum(grad[ids == v], axis=0)[-1] for v in range(3)])


def test_rows_are_added_along_an_inner_axis_and_with_64_bit_numbers(monkeypatch, rng):
    monkeypatch.setattr(add_rows, "NARROW", 0)
    ids = rng.integers(-6, 6, 200).astype(np.int8)
    grad = rng.integers(-2, 3, (3, 200, 2)).astype(np.float64)
    ins = {"X": np.empty((3, 6, 2)), "Index": ids, "Out_grad": grad}
    found, fault = run_bind(index.gather_grad, ins, {"X_grad": TensorType((3, 6, 2), float64)}, {"axis": -2},
                            unread=("X",))  # fmt: skip
    expected = np.zeros((3, 6, 2))
    for i, at in enumerate(ids):
        expected[:, at] += grad[:, i]
    assert not fault.any()
    np.testing.assert_array_equal(found["X_grad"], expected)


@pytest.mark.parametrize(
    ("bind", "slot", "low"), [(index.embedding, "Ids", 0), (index.gather, "Index", -4)], ids=["embedding", "gather"]
)
def test_an_index_out_of_range_is_reported_and_its_row_is_zero(bind, slot, low, rng):
    table = rng.normal(size=(4, 5))
    for wrong in (low - 1, 4, 2**40):
        ids = np.array([1, wrong, 3])
        ins = {"X" if slot == "Index" else "W": table, slot: ids}
        found, fault = run_bind(bind, ins, {"Out": TensorType((3, 5), float64)}, {"axis": 0, "padding_idx": None})
        assert fault.tolist() == [1, 3, wrong, 1]  # taken, step, value, row
        np.testing.assert_array_equal(found["Out"], [table[1], np.zeros(5), table[3]])


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_class_out_of_range_is_reported(wrong):
    x = np.array([0, wrong, 2], np.int32)
    found, fault = run_bind(index.one_hot, {"X": x}, {"Out": TensorType((3, 3), bool_)}, {"depth": 3})
    assert fault.tolist() == [1, 3, wrong, 1]
    np.testing.assert_array_equal(found["Out"], [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_an_id_out_of_range_adds_nothing():
    ins = {"Ids": np.array([0, 9, -1]), "W": np.empty((2, 3)), "Out_grad": np.ones((3, 3))}
    attrs = {"padding_idx": None}
    found, fault = run_bind(index.embedding_grad, ins, {"W_grad": TensorType((2, 3), float64)}, attrs, unread=("W",))
    assert fault.tolist() in ([1, 3, 9, 1], [1, 3, -1, 2])  # of two faults whichever thread comes first
    np.testing.assert_array_equal(found["W_grad"], [[1, 1, 1], [0, 0, 0]])


KEYS = [{"seed": 0, "number": 0, "step": 0}, {"seed": 2**63 + 12345, "number": 77, "step": 2**32 + 5}]
SIZES = [(5000,), (4096,), (3,), (1030,)]


def drawn(bind, shape, dtype, attrs, key):
    found, _ = run_bind(bind, {}, {"Out": TensorType(shape, dtype)}, {"seed": 0, **attrs}, **key)
    return found["Out"]


@pytest.mark.parametrize("key", KEYS, ids=["zero", "large"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
def test_uniform_numbers_are_the_bits_of_the_cpu(dtype, shape, key):
    computed = dtype if dtype in (float64, float32) else float32
    rng = (key["seed"], key["number"], key["step"])
    for low, high in ((-1.0, 1.0), (0.1, 0.7), (3.0, 3.0), (1.0, 1.0 + 2.0**-22)):
        expected = philox.uniform(rng, shape, low, high, computed).astype(dtype)
        found = drawn(random.uniform_random, shape, dtype, {"min": low, "max": high}, key)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("key", KEYS, ids=["zero", "large"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_normal_numbers_are_those_of_the_cpu(shape, key):
    rng = (key["seed"], key["number"], key["step"])
    attrs = {"mean": 0.5, "std": 2.0}
    for bind, cpu in (
        (random.gaussian_random, philox.normal), (random.truncated_gaussian_random, philox.truncated_normal)
    ):  # fmt: skip
        np.testing.assert_allclose(
            drawn(bind, shape, float64, attrs, key), cpu(rng, shape, 0.5, 2.0, float64), rtol=1e-12, atol=1e-12
        )


def test_an_operators_own_seed_replaces_the_programs():
    own = drawn(random.uniform_random, (9,), float32, {"min": 0.0, "max": 1.0, "seed": 5}, {"seed": 3})
    np.testing.assert_array_equal(own, philox.uniform((5, 0, 0), (9,), 0.0, 1.0, float32))


@pytest.mark.parametrize("wanted", [("Out", "Mask"), ("Out",), ("Mask",)], ids="-".join)
@pytest.mark.parametrize(("dtype", "size"), [(float32, 3001), (float16, 2056), (float16, 2058), (float64, 1030)])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_draws_the_mask_of_the_cpu(p, dtype, size, wanted, rng):
    x = rng.normal(size=size).astype(dtype)
    x[:2] = np.inf, np.nan
    attrs = {"p": p, "mode": "upscale_in_train", "is_test": False, "seed": 0}
    types = {"Out": TensorType((size,), dtype), "Mask": TensorType((size,), np.dtype("uint8"))}
    outs = {slot: t if slot in wanted else None for slot, t in types.items()}
    found, _ = run_bind(random.dropout, {"X": x}, outs, attrs, seed=11, number=2, step=9)
    mask = philox.keep_mask((11, 2, 9), (size,), p)
    if "Mask" in wanted:
        np.testing.assert_array_equal(found["Mask"], mask)
    if "Out" in wanted:
        wide = float64 if dtype == float64 else float32
        scaled = (x.astype(wide) * wide.type(1 / (1 - p) if p < 1 else 1.0)).astype(dtype)
        np.testing.assert_array_equal(found["Out"], np.where(mask == 1, scaled, dtype.type(0)))


@pytest.mark.parametrize("dtype", [float64, float32, bfloat16], ids=str)
@pytest.mark.parametrize("size", [4096, 4099])
def test_updates_reach_every_element_once_on_a_small_device(size, dtype, rng):
    """One multiprocessor: threads go round several times. In place, as in a Scope."""
    state = float32 if dtype == bfloat16 else dtype
    param, grad = (rng.normal(size=size).astype(dtype) for _ in range(2))
    m, v = rng.normal(size=size).astype(state), (rng.normal(size=size) ** 2).astype(state)
    ins = {"Param": param, "Grad": grad, "LearningRate": np.array([0.01], np.float32), "Moment1": m, "Moment2": v,
           "Beta1Pow": np.array([0.9**3]), "Beta2Pow": np.array([0.999**3])}  # fmt: skip
    in_place = {f"{s}Out": s for s in ("Param", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow")}
    attrs = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "coeff": 0.1, "with_decay": True, "lr_ratio": 0.5,
             "amsgrad": False}
    device = Device("sm_80", 1)
    found, _ = run_bind(update.adamw, ins, dict.fromkeys(in_place), attrs, in_place, device=device)
    p, g, lr = param.astype(float), grad.astype(float), float(np.float32(0.01)) * 0.5
    m, v = 0.9 * m + 0.1 * g, 0.999 * v.astype(float) + 0.001 * g**2
    p = p * (1 - lr * 0.1) - lr * m / (1 - 0.9**3) / (np.sqrt(v / (1 - 0.999**3)) + 1e-8)
    close = {float64: 1e-12, float32: 2e-6, bfloat16: 2e-6}[dtype]
    np.testing.assert_allclose(found["Moment1Out"], m, rtol=close, atol=close)
    np.testing.assert_allclose(found["Moment2Out"], v, rtol=close, atol=close)
    rounding = 2.0**-8 if dtype == bfloat16 else close
    np.testing.assert_allclose(found["ParamOut"].astype(float), p, rtol=rounding, atol=close)
    np.testing.assert_allclose([found["Beta1PowOut"][0], found["Beta2PowOut"][0]], [0.9**4, 0.999**4], rtol=1e-15)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_sgd_on_a_small_device(nesterov, rng):
    param, grad, velocity = rng.normal(size=(3, 5000))
    device, lr = Device("sm_80", 1), np.array([0.1])
    ins = {"Param": param, "Grad": grad, "Velocity": velocity, "LearningRate": lr}
    in_place = {"ParamOut": "Param", "VelocityOut": "Velocity"}
    attrs = {"mu": 0.8, "use_nesterov": nesterov}
    found, _ = run_bind(update.momentum, ins, dict.fromkeys(in_place), attrs, in_place, device=device)
    v = 0.8 * velocity + grad
    np.testing.assert_allclose(found["VelocityOut"], v, rtol=1e-14)
    np.testing.assert_allclose(
        found["ParamOut"], param - 0.1 * (grad + 0.8 * v if nesterov else v), rtol=1e-13, atol=1e-14
    )
    del ins["Velocity"]
    found, _ = run_bind(update.sgd, ins, {"ParamOut": None}, {}, {"ParamOut": "Param"}, device=device)
    np.testing.assert_allclose(found["ParamOut"], param - 0.1 * grad, rtol=1e-14)


@pytest.mark.parametrize("dtype", [float64, float32, float16], ids=str)
@pytest.mark.parametrize("size", [1, 255, 40000])
def test_squared_l2_norm(size, dtype, rng):
    x = (100 * rng.normal(size=size)).astype(dtype)
    out = float64 if dtype == float64 else float32
    found, _ = run_bind(optimizer.squared_l2_norm, {"X": x}, {"Out": TensorType((), out)}, {})
    np.testing.assert_allclose(found["Out"], np.sum(x.astype(float) ** 2), rtol=1e-13 if out == float64 else 2e-7)


@pytest.mark.parametrize("count", [1, 64, 200])
@pytest.mark.parametrize("dtype", [float64, bfloat16, int32, bool_], ids=str)
def test_lists_of_numbers_travel_as_arguments(dtype, count, rng):
    values = numbers(rng, count, dtype)
    attrs = {"values": tuple(values.tolist())}
    found, _ = run_bind(creation.assign_value, {}, {"Out": TensorType((count,), dtype)}, attrs)
    np.testing.assert_array_equal(found["Out"], values)


@pytest.mark.parametrize("dtype", [float32, float16, int32, bool_], ids=str)
@pytest.mark.parametrize("terms", [2, 16, 40])
def test_sums_of_many_arrays(terms, dtype, rng):
    xs = [numbers(rng, (5, 7), dtype) for _ in range(terms)]
    found, _ = run_bind(creation.sum, {"X": xs}, {"Out": TensorType((5, 7), dtype)}, {})
    wide = [x.astype(np.float32) for x in xs] if dtype == float16 else xs
    total = wide[0]
    for x in wide[1:]:
        total = np.add(total, x)
    np.testing.assert_array_equal(found["Out"], total.astype(dtype))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, math.inf, math.nan, -1.0])
@pytest.mark.parametrize("dtype", [float64, float16, bfloat16, float32], ids=str)
def test_fills_are_the_bits_of_the_cpu(dtype, value):
    found, _ = run_bind(creation.fill_constant, {}, {"Out": TensorType((33,), dtype)}, {"value": value})
    assert found["Out"].tobytes() == np.full(33, value, dtype).tobytes()
