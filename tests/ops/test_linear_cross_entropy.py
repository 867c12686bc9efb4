"""fused_linear_cross_entropy: Liger's matrix of shapes and options, chunks, gradients, errors, memory."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import AttrError, MinigraphError
from minigraph.kernels.chunks import chunk_rows
from minigraph.kernels.cpu import linear_cross_entropy as kernels
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support.grades import graded
from tests.support.linear_heads import (
    EVERYTHING,
    SPELLINGS,
    STEP,
    F,
    Options,
    assert_twice,
    build,
    exact,
    largest_error,
    results,
    values,
)

SHAPES = [(4, 47, 31, 123), (2, 2, 8, 8), (9, 7, 41, 41)]
SMALL = (4, 7, 12, 33)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("everything", [False, True], ids=["plain", "everything"])
@pytest.mark.parametrize(("bias", "transposed"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options_in_float64(spelling, everything, bias, transposed, reduction):
    extra = {**EVERYTHING, "ignore_index": 5} if everything else {}
    o = Options(bias=bias, transposed=transposed, reduction=reduction, chunk_bytes=7 * 33 * 8, **extra)
    arrays = values(SMALL, o, "float64")
    found, right = results(spelling, arrays, o, times=2), exact(arrays, o)
    assert found.keys() == right.keys()
    for name, a in right.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("written", [False, True], ids=["operator", "written"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_losses_written_out_of_simpler_operators(written, z_loss, dtype):
    """log_softmax * one_hot and a z-loss of a log-sum-exp: nothing is left of them, loss and gradients are the same."""
    o = Options(bias=True, written=written, z_loss=z_loss, smoothing=0.1, softcap=4.0, class_weight=True,
                chunk_bytes=7 * 33 * 8)  # fmt: skip
    arrays = values(SMALL, o, dtype)
    net = build("rewritten", arrays, o)
    types = [op.type for op in net.program.program_for(net.fetches).ops]
    assert types.count("fused_linear_cross_entropy") == 1
    assert not {"matmul", "exp", "log", "log_softmax", "one_hot", "reduce_max", "softmax_with_cross_entropy",
                "fused_linear_cross_entropy_grad"} & set(types)  # fmt: skip
    found, right = results("rewritten", arrays, o, times=2), exact(arrays, o)
    if dtype == "float64":
        for name, a in right.items():
            np.testing.assert_allclose(found[name], a, rtol=1e-10, atol=1e-12, err_msg=name)
    else:
        plain = results("plain", arrays, o)
        assert_twice(found, plain, right, right, 2 * STEP[dtype])


@pytest.mark.parametrize("spelling", ["operator", "apart"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("extra", [{}, EVERYTHING, {"z_loss": 0.01, "smoothing": 0.2}], ids=str)
def test_token_scaling(spelling, dtype, extra):
    """Losses and gradients of rows times the probability of the label, through which no gradient flows."""
    o = Options(bias=True, token_scaling=True, chunk_bytes=None, chunk_rows=5, **extra)
    arrays = values(SMALL, o, dtype)
    right, found = exact(arrays, o), results(spelling, arrays, o)
    if dtype == "float64":
        for name, a in right.items():
            np.testing.assert_allclose(found[name], a, rtol=1e-10, atol=1e-12, err_msg=name)
        plain = exact(arrays, replace(o, token_scaling=False))
        assert largest_error(plain["w"], right["w"]) > 1e-3, "it does something"
    else:
        assert_twice(found, results("plain", arrays, o), right, right, 2 * STEP[dtype])


MIXED = [("x", "bfloat16"), ("x", "float16"), ("w", "bfloat16"), ("bias", "float16")]


@pytest.mark.parametrize(("short", "dtype"), MIXED)
@pytest.mark.parametrize("chunk_rows", [1000, 5])
def test_mixed_operands(short, dtype, chunk_rows):
    """One operand has 16 bits, the others are float32: products of 16 bits, gradients in the types of the operands."""
    o = Options(bias=True, reduction="sum", chunk_bytes=None, chunk_rows=chunk_rows)
    narrow = values((2, 30, 64, 123), o, dtype)
    arrays = {n: a if n == short or a.dtype.kind == "i" else a.astype("f4") for n, a in narrow.items()}
    right, plain = exact(narrow, o), results("plain", narrow, o)
    for spelling in ("operator", "apart"):
        found = results(spelling, arrays, o)
        assert {n: found[n].dtype for n in ("x", "w", "bias")} == {n: arrays[n].dtype for n in ("x", "w", "bias")}
        assert_twice(found, plain, right, right, STEP[dtype])
    net = build("operator", arrays, o)
    ops = net.program.program_for(net.fetches).ops
    if short == "x":  # the sums of the float32 weight are not rounded
        rounded = largest_error(results("apart", arrays, o)["w"], right["w"])
        assert largest_error(results("operator", arrays, o)["w"], right["w"]) < rounded / 4
        assert [op.type for op in ops].count("cast") == 2, "of weight and bias, and none of a gradient"


LOW = [
    (dtype, shape, everything, 1 << 16)
    for dtype in ("float32", "bfloat16", "float16") for shape in SHAPES for everything in (False, True)
] + [(dtype, (8, 128, 1024, 4096), False, 4 << 20) for dtype in ("float32", "bfloat16")]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shape", "everything", "chunk_bytes"), graded(LOW, now=lambda dtype, shape, *_: shape in SHAPES), ids=str
)
def test_errors_are_at_most_twice_the_plain_ones(dtype, shape, everything, chunk_bytes):
    o = Options(bias=True, reduction="sum" if dtype == "bfloat16" else "mean", chunk_bytes=chunk_bytes,
                **({**EVERYTHING, "ignore_index": 3} if everything else {}))  # fmt: skip
    arrays = values(shape, o, dtype)
    right, plain = exact(arrays, o), results("plain", arrays, o)
    for spelling in ("rewritten", "operator"):
        found = results(spelling, arrays, o)
        assert_twice(found, plain, right, right, STEP[dtype] if dtype != "float32" else 2 * STEP[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_results_do_not_depend_on_the_chunks(dtype):
    """DW and DBias are float32 sums, so chunks change them by roundings of float32 only; the rest not at all."""
    o = Options(bias=True, **EVERYTHING)
    arrays = values((64, 16, 200), o, dtype)
    whole, right, plain = results("operator", arrays, o), exact(arrays, o), results("plain", arrays, o)
    for rows in (1, 3, 13, 63, 64, 65):
        parts = results("operator", arrays, Options(bias=True, chunk_bytes=rows * 200 * 8, **EVERYTHING))
        if dtype != "float64":
            assert_twice(parts, plain, right, right, STEP[dtype] if dtype != "float32" else 2 * STEP[dtype])
            continue
        for name, a in whole.items():
            assert largest_error(parts[name], a) <= 1e-13 * np.abs(a).max(), (name, rows)


def test_operand_dtype_accumulates_worse():
    """accumulate_dtype does what it says: bfloat16 sums over many chunks lose bits that float32 sums keep."""
    arrays = values((512, 16, 40), Options(), "bfloat16")
    right = exact(arrays, Options(reduction="sum"))["w"]
    errors = {}
    for total in (None, "bfloat16"):
        o = Options(reduction="sum", accumulate=total, chunk_bytes=8 * 40 * 4)
        errors[total] = largest_error(results("operator", arrays, o)["w"], right)
    assert errors["bfloat16"] > 2 * errors[None]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_all_labels_ignored(spelling, reduction):
    o = Options(bias=True, ignored=1.0, reduction=reduction, class_weight=True, z_loss=0.1)
    for a in results(spelling, values(SMALL, o, "float32"), o).values():
        np.testing.assert_array_equal(a, np.zeros_like(a))


@pytest.mark.parametrize("frozen", [("x",), ("w",), ("w", "bias"), ("x", "bias")], ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_frozen_is_not_computed(spelling, frozen):
    o = Options(bias=True, frozen=frozen)
    arrays = values(SMALL, o, "float64")
    found, right = results(spelling, arrays, o), exact(arrays, o)
    for name, a in right.items():
        np.testing.assert_allclose(found[name], a, rtol=1e-11, atol=1e-13)
    net = build(spelling, arrays, o)
    program = net.program.program_for(net.fetches) if spelling != "apart" else net.program
    written = {slot for op in program.ops if op.type.startswith("fused_linear") for slot in op.outputs}
    slots = {"x": "DX", "w": "DW", "bias": "DBias"}
    assert written == {"Loss"} | {slot for name, slot in slots.items() if name not in frozen}


def test_evaluation_computes_the_loss_only():
    o = Options(bias=True, trains=False)
    arrays = values(SMALL, o, "float64")
    net = build("rewritten", arrays, o)
    (op,) = [op for op in net.program.program_for(net.fetches).ops if op.type.startswith("fused_linear")]
    assert set(op.outputs) == {"Loss"}
    np.testing.assert_allclose(results("rewritten", arrays, o)["loss"], exact(arrays, o)["loss"], rtol=1e-12)


def test_forward_and_backward_are_one_operator_in_training():
    for reduction in ("mean", "sum", "none"):
        o = Options(bias=True, reduction=reduction, smoothing=0.1)
        net = build("rewritten", values(SMALL, o, "float64"), o)
        types = [op.type for op in net.program.program_for(net.fetches).ops]
        assert [t for t in types if t.startswith("fused_linear")] == ["fused_linear_cross_entropy"], reduction
        assert not {"matmul", "matmul_grad", "one_hot", "softmax_with_cross_entropy"} & set(types)


def test_side_outputs(rng):
    x, w, label = rng.normal(size=(20, 6)), rng.normal(size=(6, 9)), rng.integers(0, 9, 20)
    label[:3] = -100
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        v = [mg.static.data(n, a.shape, a.dtype) for n, a in (("x", x), ("w", w), ("label", label))]
        fetches = F.fused_linear_cross_entropy(*v, z_loss=0.3, return_z_loss=True, return_accuracy=True,
                                               return_predicted_tokens=True)  # fmt: skip
        wide = mg.unsqueeze(v[2], axis=-1)
        fetches += F.fused_linear_cross_entropy(*v[:2], wide, return_predicted_tokens=True)[1:]
    feed = {"x": x, "w": w, "label": label}
    loss, square, accuracy, tokens, wide = Executor().run(main, feed, list(fetches), scope=Scope())
    z = x @ w
    lse = np.log(np.exp(z).sum(1))
    kept = label != -100
    rows = lse - z[np.arange(20), np.where(kept, label, 0)] + 0.3 * lse**2
    np.testing.assert_allclose(loss, rows[kept].mean(), rtol=1e-12)
    np.testing.assert_allclose(square, (0.3 * lse**2)[kept].mean(), rtol=1e-12)
    np.testing.assert_allclose(accuracy, (z.argmax(1) == label)[kept].mean(), rtol=1e-12)
    np.testing.assert_array_equal(tokens, z.argmax(1))
    np.testing.assert_array_equal(wide, z.argmax(1)[:, None])


@pytest.mark.parametrize(
    ("rows", "classes", "itemsize", "budget", "expected"),
    [
        (8192, 131072, 2, 1 << 30, 4096), (8192, 131072, 2, 512 << 20, 2048), (5000, 128256, 2, 1 << 30, 2560),
        (100, 131072, 2, 1 << 30, 100), (8192, 131072, 2, 1, 1), (1000, 50, 4, 20 * 200, 20), (0, 50, 4, 100, 1),
        (4097, 131072, 2, 1 << 30, 2176), (1024, 131072, 4, 1 << 30, 1024), (300, 1000, 4, 200 * 4000, 128),
    ],
)  # fmt: skip
def test_rows_of_a_chunk(rows, classes, itemsize, budget, expected):
    assert chunk_rows(rows, classes, itemsize, budget) == expected


def test_chunks_keep_to_the_budget(rng):
    for rows, classes, budget in rng.integers(1, 5000, (300, 3)):
        step = chunk_rows(int(rows), int(classes), 4, int(budget) * 1000)
        assert 1 <= step <= rows
        assert step == 1 or step * classes * 4 <= budget * 1000


def test_scores_of_all_rows_never_exist_on_a_cpu(rng):
    """Peak memory of the kernel is that of a chunk, whatever the number of rows."""
    w, peaks = rng.normal(size=(8, 2000)), []
    for rows in (500, 4000):
        x, label = rng.normal(size=(rows, 8)), rng.integers(0, 2000, rows)
        attrs = {**dict.fromkeys(("trans_w",), False), "ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0,
                 "softcap": None, "accumulate_dtype": None, "grad_dtype": None,
                 "chunk_bytes": 100 * 2000 * 8, "chunk_rows": None, "token_scaling": False}  # fmt: skip
        tracemalloc.start()
        kernels.forward(x, w, label, needs=("DW",), **attrs)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1e6
    assert peaks[0] < 4 * attrs["chunk_bytes"]


# planted defects: the comparison with float64 sees them


def _swap(monkeypatch, name, change):
    original = getattr(kernels, name)
    monkeypatch.setattr(kernels, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def second_chunk_overwrites(patch):
    _swap(patch, "_add_product", lambda f, total, x, d, first: f(total, x, d, first=True))


def softcap_slope_is_forgotten(patch):
    _swap(patch, "_cap", lambda f, z, cap, trains: (f(z, cap, trains), None)[1])


def ignored_rows_count(patch):
    _swap(patch, "_kept", lambda f, labels, classes, ignored: np.ones(labels.shape, bool))


def smoothing_is_halved(patch):
    _swap(patch, "_losses", lambda f, z, n, k, smoothing, square: f(z, n, k, smoothing / 2, square))


def z_loss_is_forgotten(patch):
    _swap(patch, "_losses", lambda f, z, n, k, smoothing, square: f(z, n, k, smoothing, 0.0))


def test_a_forgotten_seed_of_the_square_is_seen(monkeypatch):
    """A z-loss that is written out reaches its gradient through DSquare alone."""
    o = Options(chunk_bytes=5 * 33 * 8, z_loss=0.01)
    arrays = values(SMALL, o, "float64")
    _swap(monkeypatch, "_RowLoss", lambda f, *args: f(*args[:3], [args[3][0], None], *args[4:]))
    found, right = results("rewritten", arrays, o), exact(arrays, o)
    assert largest_error(found["w"], right["w"]) > 1e-6


@pytest.mark.parametrize(
    "plant",
    [second_chunk_overwrites, softcap_slope_is_forgotten, ignored_rows_count, smoothing_is_halved, z_loss_is_forgotten],
    ids=lambda plant: plant.__name__,
)
def test_planted_defects_are_seen(plant, monkeypatch):
    o = Options(chunk_bytes=5 * 33 * 8, smoothing=0.1, z_loss=0.01, softcap=3.0, ignore_index=4)
    arrays = values(SMALL, o, "float64")
    right = exact(arrays, o)
    plant(monkeypatch)
    found = results("operator", arrays, o)
    assert any(largest_error(found[n], right[n]) > 1e-6 for n in right)


# errors

X, W, Y = ("x", (4, 3), "float32"), ("w", (3, 5), "float32"), ("y", (4,), "int64")
X16, W16, B16, V16 = (("x", (4, 3), "float16"), ("w", (3, 5), "float16"), ("x", (4, 3), "bfloat16"),
                      ("w", (3, 5), "bfloat16"))  # fmt: skip
BAD = [
    ((("x", (3,), "float32"), W, Y), {}, "X must have rank 2 or more"),
    ((X, ("w", (3, 5, 1), "float32"), Y), {}, "W must be 2-D"),
    ((X, ("w", (5, 3), "float32"), Y), {}, "inner sizes differ: X axis 1 is 3, W axis 0 is 5"),
    ((X, ("w", (3, 5), "float64"), Y), {}, "X is float32, W is float64"),
    ((B16, W16, Y), {}, "X is bfloat16, W is float16"),
    ((("x", (4, 3), "int64"), W, Y), {}, "X must be a float"),
    ((X, W, ("y", (4,), "float32")), {}, "Label must hold class numbers"),
    ((X, W, ("y", (5,), "int64")), {}, "Label must have the shape [4]"),
    ((X, W, ("y", (4, 5), "int64")), {}, "Label must have the shape [4]"),
    ((X, W, Y), {"label_smoothing": 1.5}, "label_smoothing 1.5 is not in [0, 1]"),
    ((X, W, Y), {"label_smoothing": float("nan")}, "label_smoothing nan is not in [0, 1]"),
    ((X, W, Y), {"softcap": 0.0}, "softcap 0.0 is not in (0, inf)"),
    ((X, W, Y), {"z_loss": -1.0}, "z_loss -1.0 is not in [0, inf)"),
    ((X, W, Y), {"chunk_bytes": 0}, "chunk_bytes 0 is not positive"),
    ((X, W, Y), {"chunk_rows": -1}, "chunk_rows -1 is not positive"),
    ((X, W, Y), {"chunk_rows": 5, "chunk_bytes": 9}, "chunk_bytes 9 and chunk_rows 5 say the same in two ways"),
    ((X, W, Y), {"accumulate_dtype": "bfloat16"}, "accumulate_dtype is bfloat16, X is float32"),
    ((X, W, Y), {"accumulate_dtype": "float64"}, "accumulate_dtype is float64, X is float32"),
    ((X16, W16, Y), {"accumulate_dtype": "float64"}, "accumulate_dtype is float64, X is float16"),
    ((B16, V16, Y), {"accumulate_dtype": "float64"}, "accumulate_dtype is float64, X is bfloat16"),
    ((B16, V16, Y), {"accumulate_dtype": np.dtype("float64")}, "accumulate_dtype is float64, X is bfloat16"),
    ((B16, V16, Y), {"accumulate_dtype": "float16"}, "accumulate_dtype is float16, X is bfloat16"),
    ((X, W, Y), {"reduction": "meen"}, "did you mean 'mean'?"),
    ((X, W, Y, ("b", (4,), "float32")), {}, "Bias has 4 elements, W has 5 classes"),
    ((X, W, Y, ("b", (5, 1), "float32")), {}, "Bias must be 1-D"),
    ((X, W, Y, ("b", (5,), "float64")), {}, "Bias is float64, X is float32"),
]


@pytest.mark.parametrize(("inputs", "options", "fact"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_calls(inputs, options, fact):
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        v = [mg.static.data(*i) for i in inputs]
        before = len(main.ops)
        with pytest.raises(MinigraphError) as problem:
            F.fused_linear_cross_entropy(*v, **options)
    assert fact in str(problem.value)
    assert __file__.rpartition("/")[2] in str(problem.value)
    assert len(main.ops) == before, "what is refused leaves nothing behind"


@pytest.mark.parametrize("name", ["class_weight", "token_weight"])
def test_weights_of_wrong_length(name):
    with mg.static.program_guard(mg.static.Program(), mg.static.Program()):
        v = [mg.static.data(*i) for i in (X, W, Y)]
        weight = mg.static.data("c", [7], "float32")
        with pytest.raises(MinigraphError) as problem:
            F.fused_linear_cross_entropy(*v, **{name: weight})
    assert "7" in str(problem.value)


@pytest.mark.parametrize("label", [-1, 5, 2**40])
@pytest.mark.parametrize("spelling", ["rewritten", "apart"])
def test_labels_out_of_range_are_named(label, spelling):
    o = Options(chunk_bytes=2 * 5 * 8)
    arrays = values((6, 3, 5), o, "float64")
    arrays["label"][4] = label
    with pytest.raises(MinigraphError) as problem:
        results(spelling, arrays, o)
    assert f"label {label} of row 4 is not a class in [0, 5)" in str(problem.value)


def test_budget_of_the_strategy_reaches_the_operator():
    arrays, o = values(SMALL, Options(), "float64"), Options(chunk_bytes=12345)
    net = build("rewritten", arrays, o)
    (op,) = [op for op in net.program.program_for(net.fetches).ops if op.type.startswith("fused_linear")]
    assert op.attrs["chunk_bytes"] == 12345
    for field in ("linear_cross_entropy_chunk_bytes", "linear_cross_entropy_chunk_rows"):
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(MinigraphError, match=f"{field} must be a positive int"):
                mg.static.BuildStrategy(**{field: wrong})


def test_rows_of_the_strategy_reach_the_operator():
    o = Options(bias=True, chunk_bytes=None, chunk_rows=5)
    arrays = values(SMALL, o, "float64")
    net = build("rewritten", arrays, o)
    (op,) = [op for op in net.program.program_for(net.fetches).ops if op.type.startswith("fused_linear")]
    assert (op.attrs["chunk_bytes"], op.attrs["chunk_rows"]) == (None, 5)
    right = exact(arrays, o)
    for spelling in SPELLINGS:
        for name, a in results(spelling, arrays, o).items():
            np.testing.assert_allclose(a, right[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_bytes_and_rows_of_the_strategy_are_refused_together():
    arrays, o = values(SMALL, Options(), "float64"), Options(chunk_bytes=1000, chunk_rows=5)
    net = build("rewritten", arrays, o)
    with pytest.raises(AttrError, match="chunk_bytes and linear_cross_entropy_chunk_rows say the same in two ways"):
        net.program.program_for(net.fetches)
