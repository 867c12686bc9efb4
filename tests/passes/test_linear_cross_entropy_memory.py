"""fuse_linear_cross_entropy never plans more memory than the program without it, on CPU and GPU; needs no GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from bench import gpu_linear_cross_entropy as bench
from bench.gpu_linear_cross_entropy_step import step_program
from minigraph.incubate.optimizer import GradientMergeOptimizer
from minigraph.kernels import chunks
from minigraph.kernels.cuda.record.buffer import owner
from minigraph.kernels.cuda.record.calls import Gemm, Launch
from minigraph.kernels.cuda.record.workspace import Algorithm, settling
from minigraph.program import unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda import backend
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.executor import Executor
from tests.support.grades import checkered, graded
from tests.support.head_memory import LARGE, MIB, ROWS, SMALL, check, compiled, net, planned
from tests.support.linear_heads import STEP, Options, assert_twice, exact, results, values


@pytest.fixture(params=[None, 0], ids=["largest workspaces", "no workspaces"])
def workspaces(request, monkeypatch):
    """The plan of a GPU whose products take this much room."""
    if request.param is not None:
        own = settling(lambda call: Algorithm(request.param, b""))
        monkeypatch.setattr(backend, "bind_program", partial(bind_program, settling=own))


@pytest.mark.usefixtures("workspaces")
@pytest.mark.parametrize(("optimizer", "every"), checkered(["SGD", "AdamW"], [False, True]))
@pytest.mark.parametrize("dtype", graded(["bfloat16", "float16", "float32"], now=lambda dtype: dtype == "bfloat16"))
def test_no_row_plans_more_than_without_it(dtype, optimizer, every):
    for size in (SMALL, LARGE):
        for rows in ROWS:
            for bias, kind in ((False, "plain"), (True, "layer"), (False, "cast"))[: 3 if rows in (128, 5000) else 1]:
                check(net(rows, size, dtype, optimizer, bias, kind), rows, every)


@pytest.mark.parametrize("every", [False, True], ids=["alone", "all"])
@pytest.mark.parametrize("kind", ["tied", "two"])
@pytest.mark.parametrize("dtype", graded(["bfloat16", "float32"], now=lambda dtype: dtype == "bfloat16"))
def test_gradients_that_are_added_plan_no_more(dtype, kind, every):
    for size in (SMALL, LARGE):
        for rows in ROWS:
            check(net(rows, size, dtype, "AdamW", kind=kind, clip=rows == 1024), rows, every)


AROUND: dict[str, tuple[str, Callable[[Any], Any]]] = {  # type of parameters, and what stands around the optimizer
    "O1": ("float32", lambda o: mg.static.amp.decorate(o, level="O1", dtype="bfloat16")),
    "O2": ("float32", lambda o: mg.static.amp.decorate(o, level="O2", dtype="bfloat16")),
    "merged": ("bfloat16", lambda o: GradientMergeOptimizer(o, 2)),
    "merged O1": (
        "float32", lambda o: GradientMergeOptimizer(mg.static.amp.decorate(o, level="O1", dtype="bfloat16"), 2)),
}  # fmt: skip


@pytest.mark.parametrize("every", [False, True], ids=["alone", "all"])
@pytest.mark.parametrize("around", AROUND)
def test_a_tied_weight_plans_no_more_whatever_is_around_its_optimizer(around, every):
    """Under mixed precision its gradients are added behind a cast; merged ones lie beside those of one batch."""
    dtype, wrap = AROUND[around]
    for size, rows in ((SMALL, 128), (LARGE, 1024), (LARGE, 4096), (SMALL, 8192)):
        check(net(rows, size, dtype, "AdamW", kind="tied", clip=True, around=wrap), rows, every)


def test_no_more_on_a_cpu():
    for kind in ("plain", "cast", "layer", "tied", "two"):
        for dtype in ("bfloat16", "float32"):
            for every in (False, True):
                check(net(2048, (4000, 256), dtype, kind=kind), 2048, every, mg.CPUPlace())


def test_the_rows_of_the_issue():
    """V 128256, H 4096, bfloat16, AdamW: it was 1,292 -> 3,006 MiB for 1,024 rows. Where it saves, it saves."""
    for rows, most in ((128, 1067), (1024, 1293), (4096, 2069), (8192, 3103), (16384, 3167)):
        for every in (False, True):
            made = net(rows, LARGE, "bfloat16", "AdamW")
            off, on = planned(made, every)
            assert on < most * MIB, rows
            assert "fused_linear_cross_entropy" in [op.type for op in compiled(made[0], True).program_for([]).ops]
            if rows >= 8192:
                assert on < 0.8 * off


def test_sums_for_few_chunks_would_be_seen(monkeypatch):
    """A planted defect: chunks by their bytes alone."""
    made = net(5000, LARGE, "bfloat16", "AdamW")
    check(made, 5000)
    off, _ = planned(made)
    monkeypatch.setattr(chunks, "rows_at_once", lambda r, h, v, i, how, bias: (how.step(r, v, i), 0))
    assert planned(made)[1] > off + 500 * MIB


# Liger-Kernel's memory


def liger_peak(rows, classes, width):
    """Bytes by its chunk rule: float32 sums beside a chunk's scores, then beside the 16-bit gradient; and dX."""
    chunk = min(rows, 1 << math.ceil(math.log2(math.ceil(rows / math.ceil(classes / width)))))
    return classes * width * 4 + max(chunk * classes * 2, classes * width * 2) + rows * width * 2


def own_peak(rows, classes, width, **attrs):
    return recorded(rows, None, "bfloat16", size=(classes, width), bias=False, **attrs).arena_bytes


@pytest.mark.parametrize("size", [(131072, 4096), (128256, 8192), (151936, 3584), (32000, 4096), (129280, 2048)])
def test_the_default_takes_no_more_than_liger(size):
    """With float32 sums, but for numbers of the rows and the alignment of buffers."""
    for rows in (1000, 2048, 5000, 8192, 40000):
        assert own_peak(rows, *size) <= liger_peak(rows, *size) + 64 * rows + 4096, rows
    assert own_peak(40000, *size, chunk_rows=20000) > liger_peak(40000, *size)


@pytest.mark.parametrize(("way", "transient"), [("old", 6 * 131072 * 4096), ("fallback", 4 * 2048 * (131072 + 4096)),
                                                ("fast", 0)])  # fmt: skip
def test_the_three_ways_to_add_into_a_float32_gradient(way, transient):
    """The pull request's table: convert and add takes 3 GiB for a moment, converted operands 1, the product nothing."""
    bound = bind_program(step_program(mg, way, bench.STEP), {}, (), settling=settling(lambda call: Algorithm(0, b"")))
    assert transient <= bound.arena_bytes <= transient + 4096


# what is decided, and when


@pytest.mark.parametrize("rows", [1, 100, 4096, 4186, 4187, 5000, 8191, 8192, 8193, 100000])
@pytest.mark.parametrize("chunk_bytes", [1 << 20, 1 << 28, 1 << 30, 1 << 40])
def test_chunks_take_the_least_of_both_ways(rows, chunk_bytes):
    """The scores and gradient of all rows at once are never less than what is taken."""
    width, classes = 4096, 128256
    how = chunks.Chunking(chunk_bytes)
    chunk, nbytes = chunks.rows_at_once(rows, width, classes, 2, how, True)
    assert nbytes <= (rows + width) * classes * 2
    assert chunk == rows or chunk * classes * 2 <= max(chunk_bytes, classes * 2)
    assert chunks.rows_at_once(rows, width, classes, 4, how, True)[0] == how.step(rows, classes, 4)


@pytest.mark.parametrize("rows", [1, 1000, 4096, 5000])
def test_rows_that_are_given_are_taken(rows):
    """Also where all rows at once would need less memory."""
    for itemsize in (2, 4):
        step, nbytes = chunks.rows_at_once(rows, 4096, 128256, itemsize, chunks.Chunking(None, 1000), False)
        assert step == min(rows, 1000)
        assert nbytes >= step * 128256 * itemsize + 4096 * 128256 * itemsize
    calls = calls_of(600, None, "bfloat16", chunk_rows=256)
    assert [c.m for c in calls if isinstance(c, Gemm) and not c.trans_a and c.k == 16] == [256, 256, 88]


def test_sizes_are_looked_at_when_the_plan_is_made():
    """The same program for all numbers of rows."""
    made = net(None, LARGE, "bfloat16", "AdamW")
    for rows in ROWS:
        check(made, rows, sizes={"x": [rows, 4096], "y": [rows]})


def why(made, every=True):
    program = compiled(made[0], True, every)
    fused = [op.type for op in program.program_for([]).ops].count("fused_linear_cross_entropy")
    return fused, program.explain()


def test_a_gradient_that_is_added_is_left_to_the_product():
    """Tied weights, few rows: one gradient more would take more than the scores. explain() says so, with the size."""
    fused, said = why(net(1024, LARGE, "bfloat16", kind="tied"))
    assert fused == 0
    assert "refused by LinearCrossEntropy: the program would need 7" in said
    assert why(net(16384, LARGE, "bfloat16", kind="tied"))[0] == 1
    assert why(net(1024, LARGE, "bfloat16", kind="tied"), every=False)[0] == 1  # nothing is added by a product


def test_two_heads_of_one_weight():
    """To the gradient of one of them the other's product adds: a second one would be a gradient more."""
    fused, said = why(net(1024, LARGE, "bfloat16", kind="two"))
    assert fused == 1
    assert "refused by LinearCrossEntropy: the program would need" in said
    assert why(net(32768, LARGE, "bfloat16", kind="two"))[0] == 2


def test_an_unknown_number_of_rows_is_refused_where_it_matters():
    fused, said = why(net(None, LARGE, "bfloat16", kind="tied"))
    assert fused == 0
    assert "is added to that of embedding" in said
    assert "and the number of rows is not known" in said
    assert why(net(None, LARGE, "bfloat16"))[0] == 1


# float32 weights of 16-bit products


def mixed(rows=32, size=(640, 32), bias=False, fetch_rounded=False, **options):
    """A program with a float32 weight that a bfloat16 layer reads, compiled; its operators and explanation."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x, y = mg.static.data("x", [rows, size[1]], "bfloat16"), mg.static.data("y", [rows], "int64")
        w, b = mg.static.create_parameter(size[::-1], "float32"), mg.static.create_parameter(size[:1], "float32")
        low = mg.cast(w, "bfloat16")
        if fetch_rounded:
            z = mg.cast(mg.matmul(x, low), "float32")
            loss = mg.nn.functional.cross_entropy(z, y)
        else:
            loss = mg.nn.functional.fused_linear_cross_entropy(x, w, y, b if bias else None, **options)
        found = gradients([loss], [w, b] if bias else [w])
        inner = [op.inputs["X"][0] for op in main.ops if any(v is found[0] for v in op.output_vars)]
    fetches = [loss, *found, *(inner if fetch_rounded else [])]
    program = compiled(main, True)
    return program.program_for([v.name for v in fetches]).ops, program


def gradient_type(ops):
    (op,) = [op for op in ops if op.type == "fused_linear_cross_entropy"]
    return op.outputs["DW"][0].dtype


@pytest.mark.parametrize("bias", [False, True])
def test_a_float32_weight_gets_its_float32_sums(bias):
    ops, _ = mixed(bias=bias)
    assert gradient_type(ops) == mg.types.float32
    assert not [op for op in ops if op.type == "cast" and op.inputs["X"][0].name.endswith("GRAD")]
    assert gradient_type(mixed(None, (128256, 4096))[0]) == mg.types.float32


def test_a_gradient_that_is_read_in_16_bits_stays_rounded():
    ops, program = mixed(fetch_rounded=True)
    assert gradient_type(ops) == mg.types.as_dtype("bfloat16")
    assert "is fetched, it must be written" in program.explain()


def test_sums_of_16_bits_stay():
    ops, program = mixed(accumulate_dtype="bfloat16")
    assert gradient_type(ops) == mg.types.as_dtype("bfloat16")
    assert "chunks are added up in bfloat16" in program.explain()


def test_float32_sums_that_take_more_memory_are_refused():
    for rows in (2048, None):
        ops, program = mixed(rows, (131072, 1024))
        assert gradient_type(ops) == mg.types.as_dtype("bfloat16"), rows
        assert "scores and float32 sums take 1024.0 MiB, rounded ones 768.0 MiB" in program.explain()


@pytest.mark.parametrize(("rows", "size"), [(128, (32000, 256)), (64, (4096, 768)), (512, (4096, 512))])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_float32_sums_are_weighed_beside_the_workspace_of_a_product(rows, size, level):
    """A cast, which the library gives no workspace, is no peak: float32 sums beside a product were one."""
    made = net(rows, size, "float32", "AdamW", around=lambda o: mg.incubate.optimizer.GradientMergeOptimizer(
        mg.static.amp.decorate(o, level=level, dtype="bfloat16"), k_steps=2))  # fmt: skip
    check(made, rows, place=mg.CUDAPlace(0))


# DX in X's memory


def over(dtype, rows=8, width=4, classes=6, low=False, chunk_rows=None):
    """A head on values that nobody needs behind it; the weight itself or a copy in 16 bits."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        x, y = mg.static.data("x", [rows, width], dtype), mg.static.data("y", [rows], "int64")
        x.stop_gradient = False
        w = mg.static.create_parameter([width, classes], "float32" if low else dtype)
        h = mg.scale(x, scale=2.0)
        loss = mg.nn.functional.cross_entropy(mg.matmul(h, mg.cast(w, dtype) if low else w), y, reduction="sum")
        found = gradients([loss], [x, w])
    strategy = mg.static.BuildStrategy(fuse_linear_cross_entropy=True, linear_cross_entropy_chunk_rows=chunk_rows)
    return mg.static.CompiledProgram(main, build_strategy=strategy), [loss, *found], w


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_gradients_where_dx_lies_over_x(chunk_rows):
    """A chunk's DW is computed first: it reads the rows of X over which DX is written."""
    compiled_program, fetches, w = over("float64", chunk_rows=chunk_rows)
    rng = np.random.default_rng(3)
    x, weight, y = rng.normal(size=(8, 4)), rng.normal(size=(4, 6)), rng.integers(0, 6, 8)
    scope = Scope()
    scope.var(w.name).get_tensor().set(weight)
    loss, dx, dw = Executor(mg.CPUPlace()).run(compiled_program, {"x": x, "y": y}, fetches, scope=scope)
    z = 2 * x @ weight
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(p[np.arange(8), y]).sum(), rtol=1e-12)
    p[np.arange(8), y] -= 1
    np.testing.assert_allclose(dw, 2 * x.T @ p, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(dx, 2 * p @ weight.T, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("rows", "low", "wanted"), [
    (512, False, ["DW", "DX"]), (512, True, ["DW", "DX"]), (16, True, ["DX", "DW"])])  # fmt: skip
def test_dx_is_written_over_x_unless_it_frees_a_larger_copy_of_w(rows, low, wanted):
    program, fetches, _ = over("bfloat16", rows, 32, 128, low)
    own = program.program_for([v.name for v in fetches])
    feeds = {name: own.vars[name].type for name in ("x", "y")}
    bound = bind_program(own, feeds, [v.name for v in fetches], settling=settling(lambda call: Algorithm(0, b"")))
    products = [call for call in bound.binder.calls if isinstance(call, Gemm)]
    read = products[0].a  # X by the scores
    order = ["DW" if call.trans_a else "DX" for call in products[1:]]
    assert order == wanted
    lies = [call.c for call in products[1:] if not call.trans_a]
    assert all((owner(b) is owner(read)) == (wanted[0] == "DW") for b in lies)


def test_a_head_on_what_nobody_needs_plans_no_more():
    """X is as large as the scores: it lay beside its gradient."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()), unique_name.guard():
        ids, y = mg.static.data("ids", [4096], "int64"), mg.static.data("y", [4096], "int64")
        h = mg.nn.functional.embedding(ids, mg.static.create_parameter([1000, 768], "float32"))
        h = mg.nn.functional.gelu(mg.nn.Linear(768, 768)(h))
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(768, 1000, bias_attr=False)(h), y)
        mg.optimizer.Adagrad(0.1).minimize(loss)
    for place in (mg.CPUPlace(), mg.CUDAPlace(0)):
        for every in (False, True):
            check((main, loss, {"ids": ids, "y": y}), 4096, every, place)


# launches and values


def recorded(rows, chunk_bytes, grad_dtype, size=(640, 16), bias=True, **attrs):
    """What is bound for the operator with DX, DW and DBias."""
    main = mg.static.Program()
    block = main.global_block()
    with mg.static.program_guard(main, mg.static.Program()):
        shapes = {"x": (rows, size[1]), "w": size[::-1], "b": size[:1], "y": (rows,)}
        v = {n: block.create_var(n, s, "int64" if n == "y" else "bfloat16", persistable=True)
             for n, s in shapes.items()}  # fmt: skip
        g = Builder(block)
        loss, _, _, dx, dw, db, _ = g.fused_linear_cross_entropy(
            v["x"], v["w"], v["y"], v["b"] if bias else None, needs=["DX", "DW", "DBias"][: 2 + bias],
            chunk_bytes=chunk_bytes, grad_dtype=grad_dtype,
            **attrs,
        )
    fetched = [o.name for o in (loss, dx, dw, db) if o is not None]
    return bind_program(main, {}, fetched, settling=settling(lambda call: Algorithm(0, b"")))


def calls_of(*args, **attrs):
    return [c for c in recorded(*args, **attrs).binder.calls if isinstance(c, (Gemm, Launch))]


def test_rounding_is_one_launch_and_none_where_one_chunk_has_all_rows():
    one = 640 * 2
    whole, wide = (len(calls_of(64, 1 << 30, t)) for t in ("bfloat16", None))
    assert whole == wide
    chunked, sums = (len(calls_of(1024, 256 * one, t)) for t in ("bfloat16", None))
    assert chunked == sums + 1
    for rows, total in ((64, "bfloat16"), (1024, "float32")):
        sums = [c.c.dtype for c in calls_of(rows, 256 * one, "bfloat16") if isinstance(c, Gemm) and c.trans_a]
        assert set(sums) == {mg.types.as_dtype(total)}


LOW = [(dtype, rows) for dtype in ("bfloat16", "float16") for rows in (1000, 17)]


@pytest.mark.parametrize(("dtype", "rows"), LOW)
@pytest.mark.parametrize("transposed", [False, True])
def test_values_of_16_bit_gradients(dtype, rows, transposed):
    """One chunk, and several whose float32 sums are rounded once: the plain gradients' errors twice at most."""
    o = Options(bias=True, transposed=transposed, reduction="sum", chunk_bytes=rows * 123 * 4)
    arrays = values((4, 47, 16, 123), o, dtype)
    right, plain = exact(arrays, o), results("plain", arrays, o)
    for spelling in ("rewritten", "operator", "apart"):
        found = results(spelling, arrays, o)
        assert {found[n].dtype for n in ("x", "w", "bias")} == {arrays["w"].dtype}
        assert_twice(found, plain, right, right, STEP[dtype])


def test_training_with_clipping_and_a_fetched_gradient():
    """Several read W's gradient: the norm, the update and a fetch; float64 to 1e-10 of the program as written."""
    made = net(12, (40, 8), "float64", "AdamW", kind="layer", bias=True, clip=True)
    main, loss, _ = made
    w = next(v.name for v in main.all_parameters() if v.shape == (8, 40))
    rng = np.random.default_rng(0)
    feed = {"x": rng.normal(size=(12, 8)), "y": rng.integers(0, 40, 12)}
    start = {v.name: rng.normal(size=v.shape) for v in main.all_parameters()}
    found = []
    for program in (main, compiled(main, True), compiled(main, True, every=True)):
        scope = Scope()
        for v in main.vars.values():
            if v.persistable:
                kind = np.dtype(v.dtype)
                scope.write(v.name, start[v.name].astype(kind) if v.name in start else np.full(v.shape, 0.1, kind))
        found.append([Executor().run(program, feed, [loss, f"{w}@GRAD"], scope=scope) for _ in range(3)][-1])
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
