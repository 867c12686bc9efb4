"""GPU checks of attention: xFormers' shapes in all types, masks, packed sequences, dropout, programs, memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import minigraph as mg
from minigraph.compiler.validate import distance
from minigraph.program import unique_name
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import FLOATS, TensorType, as_dtype
from tests import fuzz
from tests.gpu import attention_small, attention_xformers
from tests.gpu import strided as gpu_strided
from tests.gpu.attention_small import Inputs, both, calls, qkv
from tests.gpu.check import (
    DTYPES,
    Check,
    GpuExecutor,
    assert_like_cpu,
    assert_near,
    call_of,
    check_call,
    each,
    normal,
    on_gpu,
)
from tests.support import opcheck
from tests.support.attention_programs import attention_program

ODD = (1, 2, 3, 15, 31, 32, 34, 68, 72, 90, 132, 136)
HEADS = (1, 2, 3, 31, 34, 36, 38, 40, 64, 80, 128, 160, 258, 264, 512)
PROGRAMS, CHUNK, RANDOM = 120, 20, 40


def checks() -> Iterator[Check]:
    for dtype in DTYPES:
        yield Check(f"attention/odd sizes/{dtype}", partial(_odd_sizes, dtype))
        yield Check(f"attention/head sizes/{dtype}", partial(_head_sizes, dtype))
        yield Check(f"attention/features/{dtype}", partial(_features, dtype))
        yield Check(f"attention/random/{dtype}", partial(_random, dtype))
        yield Check(f"attention/large/{dtype}", partial(_large, dtype))
        yield Check(f"attention/repeats/{dtype}", partial(_repeats, dtype))
        yield Check(f"attention/low scores/{dtype}", partial(_low_scores, dtype))
        yield Check(f"attention/log sum exp/{dtype}", partial(_log_sum_exp, dtype))
        for size in (1, 24, 32, 64, 128, 400):
            yield Check(f"attention/blocks/{size}/{dtype}", partial(_blocks, dtype, size))
        yield Check(f"attention/blocks/features/{dtype}", partial(_blocks_with_features, dtype))
        if "16" in dtype:
            yield Check(f"attention/wide heads/{dtype}", partial(_wide_heads, dtype))
            yield Check(f"attention/few keys/{dtype}", partial(_few_keys, dtype))
    yield from attention_small.checks()
    yield from attention_xformers.checks()
    yield from gpu_strided.checks()
    yield Check("attention/strides", _wide_strides)
    yield Check("attention/faults", _faults)
    yield Check("attention/memory", _memory)
    yield Check("attention/layer", _layer, product=True)
    for dtype in DTYPES:
        yield Check(f"attention/log sum exp in a loss/{dtype}", partial(_log_sum_exp_in_a_loss, dtype), product=True)
    for dtype in ("float64", "float32"):
        yield Check(f"attention/second order/{dtype}", partial(_second_order, dtype), product=True)
    for first in range(0, PROGRAMS, CHUNK):
        yield Check(f"attention/programs/{first:03}", partial(_programs, first), product=True)


def _odd_sizes(dtype: str) -> None:
    each((f"{n} {m}", partial(both, qkv(1, n, m, 3, d=32), dtype)) for n, m in zip(ODD, reversed(ODD), strict=True))


def _head_sizes(dtype: str) -> None:
    pairs = [(d, d) for d in HEADS] + [(32, 36), (64, 32), (264, 36), (16, 512), (512, 16)]
    each((f"{d} {dv}", partial(both, qkv(2, 33, 70, 2, d=d, dv=dv), dtype, causal=d % 2 == 0)) for d, dv in pairs)


def features() -> Iterator[tuple[str, Inputs, dict[str, Any]]]:
    rng = np.random.default_rng(4)
    base = qkv(2, 70, 130, 4, 2, 16)
    for attrs in ({}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (20, 5)}, {"scale": -0.5},
                  {"window": (0, 0)}):  # fmt: skip
        yield str(attrs), base, attrs
    moved = {slot: np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for slot, x in base.items()}
    yield "bhsd", moved, {"layout": "bhsd", "causal": True}
    yield "rank 3", {slot: x[:, :, 0] for slot, x in base.items()}, {}
    for shape in ((2, 4, 70, 130), (1, 4, 70, 130), (70, 130), (2, 1, 1, 130), (2, 4, 70, 1), (1, 1, 1, 1), (130,)):
        yield f"bias {shape}", {**base, "Bias": normal(*shape)}, {}
    mask = rng.random((2, 1, 70, 130)) < 0.5
    mask[:, :, 7:9] = False
    yield "bias hides", {**base, "Bias": attention_small.hiding(70, 130)}, {"causal": True}
    for fill in (-np.inf, -2.0, -1e9, float(np.finfo(np.float32).min)):
        yield f"mask {fill}", {**base, "Mask": mask}, {"masked_score": fill}
    yield "mask of low scores", {**attention_small.low(), "Mask": mask}, {"masked_score": -1e3, "scale": 1.0}
    yield "dropout", {**base, "Mask": mask, "Key": np.array([9, 2**33, 5])}, {"dropout": 0.3, "causal": True}
    packed = {**qkv(1, 150, 170, 4, 2, 16), "CuSeqlensQ": np.array([0, 3, 3, 90, 149]),
              "CuSeqlensK": np.array([0, 70, 75, 75, 170])}  # fmt: skip
    for attrs in ({}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (9, 3)}):
        yield f"packed {attrs}", packed, attrs
    for sizes in ((0, 5), (5, 0), (1, 1)):
        yield f"sizes {sizes}", qkv(2, *sizes), {}


def _features(dtype: str) -> None:
    each((title, partial(both, inputs, dtype, **attrs)) for title, inputs, attrs in features())


def _blocks(dtype: str, size: int) -> None:
    """Tables of blocks, heads of all kernels, queries that see nothing."""
    rng, cases = np.random.default_rng(size), []
    for heads in ((), (4,)):
        table = rng.random((*heads, -(-200 // size), -(-330 // size))) < 0.3
        table[..., -1, :] = False
        for d in (8, 32, 64, 128, 192):
            inputs = {**qkv(2, 200, 330, 4, 2, d), "Blocks": table}
            attrs = {"block_size": size, "causal": d == 64, "bottom_right": True}
            cases.append((f"{heads} {d}", partial(both, inputs, dtype, True, **attrs)))
    each(cases)


def _blocks_with_features(dtype: str) -> None:
    """Every modifier beside a table."""
    rng, cases = np.random.default_rng(6), []
    for title, inputs, attrs in features():
        scores = tuple(inputs[s].shape[2 if attrs.get("layout") == "bhsd" else 1] for s in "QK")
        if "CuSeqlensQ" in inputs or 0 in scores:
            continue
        table = rng.random((-(-scores[0] // 32), -(-scores[1] // 32))) < 0.5
        cases.append((title, partial(both, {**inputs, "Blocks": table}, dtype, **{**attrs, "block_size": 32})))
    each(cases)


def _random(dtype: str) -> None:
    cases = []
    for seed in range(RANDOM):
        rng = np.random.default_rng(seed)
        hk, groups, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 17)) * 8
        sq, sk = (int(n) for n in rng.integers(1, 400, 2))
        attrs = {"causal": bool(rng.random() < 0.5), "bottom_right": bool(rng.random() < 0.5)}
        inputs = qkv(int(rng.integers(1, 4)), sq, sk, hk * groups, hk, d)
        if rng.random() < 0.5:
            inputs["Bias"] = rng.normal(size=(hk * groups if rng.random() < 0.5 else 1, sq, sk))
        cases.append((f"seed {seed}", partial(both, inputs, dtype, **attrs)))
    each(cases)


def _large(dtype: str) -> None:
    both(qkv(2, 1023, 1025, 3, d=64), dtype, causal=True)
    both(qkv(1, 2048, 2048, 1, d=32), dtype)
    if "16" in dtype:  # more tiles of queries than blocks: some are cut, some whole
        check_call(next(calls(qkv(1, 129, 1290, 100, 25, d=72), dtype)), dtype)


def _low_scores(dtype: str) -> None:
    """Scores near -128: exp(-LogSumExp) is infinite in float32, and the last tile of keys is not full."""
    inputs = qkv(2, 70, 77, 2, d=64)
    inputs["Q"], inputs["K"] = inputs["Q"] + 4, inputs["K"] - 4
    for attrs in ({}, {"causal": True}, {"window": (9, 3)}):
        call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype)
        out, sums = (opcheck.reference(call.as_dtype("float64"))[slot][0] for slot in ("Out", "LogSumExp"))
        more = {"Out": out, "LogSumExp": sums, "Out_grad": normal(*out.shape, seed=9)}
        grad = call_of("memory_efficient_attention_grad", {**inputs, **more}, **attrs).as_dtype(dtype)
        with on_gpu():
            found = opcheck.executed(grad)
        for slot, exact in opcheck.reference(grad.as_dtype("float64")).items():
            error = np.linalg.norm(found[slot][0].astype(float) - exact[0]) / np.linalg.norm(exact[0])
            assert error <= (0.1 if "16" in dtype else 1e-3), f"{attrs} {slot} errs by {error:.3g} of its norm"


def _log_sum_exp(dtype: str) -> None:
    """Its gradient, under every modifier and in the widths of every kernel; alone, and where no key is seen."""
    cases = [(title, partial(both, inputs, dtype, True, **attrs)) for title, inputs, attrs in features()]
    for d in (8, 24, 32, 64, 80, 128, 192, 256):
        for attrs in ({}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (70, 30)}):
            cases.append((f"{d} {attrs}", partial(both, qkv(2, 200, 170, 4, 2, d), dtype, True, **attrs)))
    for d in (32, 64, 128, 256):
        cases.append((f"alone {d}", partial(_log_sum_exp_alone, qkv(2, 130, 70, 2, d=d), dtype)))
    each(cases)


def _log_sum_exp_alone(inputs: Inputs, dtype: str) -> None:
    """Nothing else has a gradient, and that of a LogSumExp of -inf is NaN."""
    attrs = {"causal": True, "bottom_right": True}
    *_, grad = calls(inputs, dtype, True, **attrs)
    grad.inputs["Out_grad"][0][...] = 0
    sums_grad = grad.inputs["LogSumExp_grad"][0]
    sums_grad[np.isinf(grad.inputs["LogSumExp"][0])] = np.nan
    assert np.isnan(sums_grad).any()
    check_call(grad, dtype)


def _log_sum_exp_in_a_loss(dtype: str) -> None:
    """A loss that adds the squares of LogSumExp: its gradients err at most twice as much as those written out."""
    program = mg.static.Program()
    block = program.global_block()
    types = {slot: TensorType(x.shape, as_dtype(dtype)) for slot, x in qkv(2, 96, 80, 4, 2, 64).items()}
    v = {s: block.create_var(s, type=t, is_data=True, stop_gradient=False) for s, t in types.items()}
    g = Builder(block)
    out, sums = g.memory_efficient_attention(*v.values(), causal=True, needs=["LogSumExp"])
    losses = [g.reduce_sum(g.square(g.cast(x, dtype="float32"))) for x in (out, sums)]
    grads = mg.static.gradients(losses, list(v.values()))
    feed = {s: normal(*t.shape, seed=i).astype(t.dtype) for i, (s, t) in enumerate(types.items())}
    wide = mg.static.Program()
    h = Builder(wide.global_block())
    w = {
        s: wide.global_block().create_var(s, type=t.with_dtype("float64"), is_data=True, stop_gradient=False)
        for s, t in types.items()
    }
    pair = h.memory_efficient_attention(*w.values(), causal=True, needs=["LogSumExp"])
    exact_grads = mg.static.gradients([h.reduce_sum(h.square(x)) for x in pair], list(w.values()))
    exact = Executor().run(wide, {s: x.astype(float) for s, x in feed.items()}, exact_grads, scope=Scope())
    plain = GpuExecutor().run(*_written_out(types, feed), scope=Scope())
    exe, scope = GpuExecutor(), Scope()
    for _ in range(3):  # the second run is captured, the third launches the graph
        for slot, found, own, right in zip(v, exe.run(program, feed, grads, scope=scope), plain, exact, strict=True):
            assert_like_cpu(found, own, right, dtype, f"{slot}@GRAD")


def _written_out(types: dict[str, TensorType], feed: Inputs) -> tuple[Any, Inputs, list[Any]]:
    """The same loss with attention in plain operators: (program, feed, gradients)."""
    program = mg.static.Program()
    with mg.static.program_guard(program):
        v = {s: mg.static.data(s, list(t.shape), t.dtype.name) for s, t in types.items()}
        for x in v.values():
            x.stop_gradient = False
        hidden = np.triu(np.full((types["Q"].shape[1], types["K"].shape[1]), -1e4), 1).astype(types["Q"].dtype)
        mask = mg.static.data("hidden", list(hidden.shape), hidden.dtype.name)
        q, *others = (mg.transpose(x, [0, 2, 1, 3]) for x in v.values())
        b, heads, groups = q.shape[0], others[0].shape[1], q.shape[1] // others[0].shape[1]
        k, value = (
            mg.reshape(mg.expand(mg.unsqueeze(x, 2), [b, heads, groups, *x.shape[2:]]), [b, -1, *x.shape[2:]])
            for x in others
        )
        scores = mg.matmul(q, k, transpose_y=True) * types["Q"].shape[-1] ** -0.5 + mask
        most = mg.max(scores, axis=-1, keepdim=True)
        most.stop_gradient = True
        sums = mg.log(mg.sum(mg.exp(scores - most), axis=-1, keepdim=True)) + most
        out = mg.matmul(mg.nn.functional.softmax(scores), value)
        losses = [mg.sum(mg.square(mg.cast(x, "float32"))) for x in (out, sums)]
        grads = mg.static.gradients(losses, list(v.values()))
    return program, {**feed, "hidden": hidden}, grads


def _second_order(dtype: str) -> None:
    """Gradients of a penalty on gradients, under modifiers, against the CPU in float64."""
    mask, cumulative = np.random.default_rng(5).random((2, 1, 40, 50)) < 0.6, np.array([0, 15, 40])
    base = {s: 0.5 * x for s, x in qkv(2, 40, 50, 4, 2, 16).items()}
    packed = {**qkv(1, 40, 40, 4, 2, 16), "CuSeqlensQ": cumulative, "CuSeqlensK": cumulative}
    bias, key = {**base, "Bias": normal(1, 4, 1, 50)}, {**base, "Key": np.array([9, 2**33, 5])}
    each((f"{sorted(inputs)} {attrs}", partial(_penalty, inputs, dtype, attrs)) for inputs, attrs in (
        (base, {"causal": True}), (bias, {"window": (20, 5)}), (key, {"dropout": 0.3}), (packed, {"causal": True}),
        ({**base, "Mask": mask}, {"masked_score": -2.0}),
    ))  # fmt: skip


def _penalty(inputs: Inputs, dtype: str, attrs: dict[str, Any]) -> None:
    results = []
    for wide in (True, False):
        block = mg.static.Program().global_block()
        feed = {s: x.astype(float if wide else dtype) if x.dtype == float else x for s, x in inputs.items()}
        v = {s: block.create_var(s, x.shape, x.dtype, is_data=True) for s, x in feed.items()}
        wanted = [v[s] for s in ("Q", "K", "V", "Bias") if s in v]
        for x in wanted:
            x.stop_gradient = False
        g = Builder(block)
        pair = g.memory_efficient_attention(**v, needs=["LogSumExp"], **attrs)
        first = mg.static.gradients([g.reduce_sum(g.square(x)) for x in pair], wanted)
        grads = mg.static.gradients([g.reduce_sum(g.square(x)) for x in first], wanted)
        results.append((Executor() if wide else GpuExecutor()).run(block.program, feed, grads, scope=Scope()))
    for exact, found, x in zip(*results, wanted, strict=True):
        assert_near(found, exact, 1e-9 if dtype == "float64" else 1e-4, f"the second gradient of {x.name}")


def _wide_heads(dtype: str) -> None:
    """Head dimensions that have kernels of their own, over several tiles of queries and keys."""
    windows = ({}, {"causal": True}, {"causal": True, "bottom_right": True}, {"window": (70, 30)})
    each(
        (f"{d} {attrs}", partial(both, qkv(2, sq, sk, 4, 2, d), dtype, **attrs))
        for d in (136, 192, 256) for attrs in windows for sq, sk in ((300, 260), (70, 400))
    )  # fmt: skip


def _few_keys(dtype: str) -> None:
    """Rows that see one key or a few: dS is a small difference there. Seed 458 errs 2.7 times as much as the plain
    computation where dS comes from probabilities of 8 bits."""
    attrs = {"causal": True, "bottom_right": True}
    for seed in (458, *range(12)):
        shapes = {slot: x.shape for slot, x in qkv(2, 100, 77, 4, 2, 8).items()}
        inputs = {slot: normal(*shape, seed=9 * seed + i) for i, (slot, shape) in enumerate(shapes.items())}
        call = call_of("memory_efficient_attention", inputs, **attrs).as_dtype(dtype).as_dtype("float64")
        out, sums = (opcheck.reference(call)[slot][0] for slot in ("Out", "LogSumExp"))
        more = {"Out": out, "LogSumExp": sums, "Out_grad": normal(*out.shape, seed=9 * seed + 5)}
        grad = call_of("memory_efficient_attention_grad", {**inputs, **more}, **attrs).as_dtype(dtype)
        with on_gpu():
            found = opcheck.executed(grad)["Q_grad"][0]
        exact = opcheck.reference(grad.as_dtype("float64"))["Q_grad"][0]
        plain = _plain_query_grad(*(grad.inputs[slot][0] for slot in ("Q", "K", "V", "Out_grad")))
        error, allowed = np.abs(found.astype(float) - exact).max(), 2 * np.abs(plain.astype(float) - exact).max()
        assert error <= allowed, f"seed {seed}: dQ errs by {error:.3g}, {error / allowed:.3g} of what is allowed"


def _plain_query_grad(*arrays: np.ndarray) -> np.ndarray:
    """dQ of causal attention (bottom right), [B, S, H, D], every step of it rounded to the arrays' type."""
    dtype, group = arrays[0].dtype, arrays[0].shape[2] // arrays[1].shape[2]

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(np.float32)

    q, k, v, d = (x.astype(np.float32).transpose(0, 2, 1, 3) for x in arrays)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    rows, columns = q.shape[2], k.shape[2]
    seen = np.arange(columns)[None] <= np.arange(rows)[:, None] + columns - rows
    scores = np.where(seen, rounded(rounded(q @ k.swapaxes(2, 3)) * q.shape[3] ** -0.5), -np.inf)
    e = np.exp(scores - np.maximum(scores.max(axis=3, keepdims=True), -1e9))
    p = e / np.maximum(e.sum(axis=3, keepdims=True), 1e-30)
    dp = rounded(d @ v.swapaxes(2, 3))
    ds = rounded(rounded(p * (dp - (p * dp).sum(axis=3, keepdims=True))) * q.shape[3] ** -0.5)
    return (ds @ k).astype(dtype).transpose(0, 2, 1, 3)


def _repeats(dtype: str) -> None:
    """Forward and backward twice: the same bits. opcheck.executed runs twice and compares; here whole programs do."""
    b, s, h, d = 2, 700, 4, 64
    block = mg.static.Program().global_block()
    v = {n: block.create_var(n, (b, s, h, d), dtype, is_data=True) for n in ("q", "k", "v", "d")}
    g = Builder(block)
    out, sums = g.memory_efficient_attention(v["q"], v["k"], v["v"], causal=True, needs=["LogSumExp"])
    slots = ["Q_grad", "K_grad", "V_grad"]
    grads = g.memory_efficient_attention_grad(
        v["q"], v["k"], v["v"], out, sums, v["d"], causal=True, needs=slots
    )  # fmt: skip
    feed = {n: normal(b, s, h, d, seed=i).astype(as_dtype(dtype)) for i, n in enumerate(v)}
    runs = [GpuExecutor().run(block.program, feed, [out, sums, *grads[:3]], scope=Scope()) for _ in range(3)]
    for again in runs[1:]:
        for a, c in zip(runs[0], again, strict=True):
            assert a.tobytes() == c.tobytes(), "results changed from run to run"


def _wide_strides() -> None:
    """xFormers' shapes whose strides overflow 16 bits."""
    shapes = [(1, 128, 128, 300, 128), (13, 1, 67, 200, 8), (1, 65537, 4, 1, 8), (1, 4, 65537, 1, 8)]
    each((str(s), partial(_wide, *s)) for s in shapes)


def _wide(b: int, sq: int, sk: int, h: int, d: int) -> None:
    inputs = qkv(b, sq, sk, h, d=d)
    call = call_of("memory_efficient_attention", inputs).as_dtype("float32")
    with on_gpu():
        found = opcheck.executed(call)["Out"][0]
    picked = slice(h - 1, h)
    part = {slot: [x[0][:, :, picked]] for slot, x in call.inputs.items()}
    exact = opcheck.reference(opcheck.Call(call.opdef, 0, part, call.attrs).as_dtype("float64"))["Out"][0]
    assert_near(found[:, :, picked], exact, 3e-6, "the last head")


def _faults() -> None:
    inputs = {**qkv(1, 10, 10), "CuSeqlensQ": np.array([0, 9, 5, 10]), "CuSeqlensK": np.array([0, 2, 3, 10])}
    said = ""
    try:
        with on_gpu():
            opcheck.executed(call_of("memory_efficient_attention", inputs))
    except mg.MinigraphError as problem:
        said = str(problem)
    wanted = "value 5 at row 2 is no cumulative length of 10 and 10 positions"
    assert wanted in said, said or "cumulative lengths that decrease were accepted"


def _memory() -> None:
    """Scratch beside the results: linear in S, and small where the blocks fill the device."""
    used = {}
    for s in (8192, 65536):
        t = TensorType((1, s, 16, 64), as_dtype("float32"))
        block = mg.static.Program().global_block()
        v = [block.create_var(n, t.shape, t.dtype, persistable=True) for n in "qkvd"]
        g = Builder(block)
        out, sums = g.memory_efficient_attention(*v[:3], needs=["LogSumExp"])
        slots = ["Q_grad", "K_grad", "V_grad"]
        grads = g.memory_efficient_attention_grad(*v[:3], out, sums, v[3], needs=slots)[:3]
        bound = bind_program(block.program, {}, [out.name, *(x.name for x in grads)])
        used[s] = bound.arena_bytes
        assert bound.arena_bytes <= 4 * t.nbytes + 3 * 4 * 16 * s + 2**20, bound.arena_bytes
    assert used[65536] <= 8.1 * used[8192]


def _layer() -> None:
    """MultiHeadAttention trained on both places, with dropout; the remark names the kernel."""
    losses = {}
    for dtype, place in (("float64", "cpu"), ("float64", "gpu"), ("float32", "gpu")):
        mg.set_default_dtype(dtype)
        try:
            main, startup = mg.static.Program(), mg.static.Program()
            main.random_seed = startup.random_seed = 4
            with mg.static.program_guard(main, startup), unique_name.guard():
                x = mg.static.data("x", [None, None, 32], dtype)
                y = mg.nn.MultiHeadAttention(32, 4, dropout=0.2)(x)
                loss = mg.mean((y - x) * (y - x))
                mg.optimizer.Adam(1e-2).minimize(loss)
        finally:
            mg.set_default_dtype("float32")
        exe, scope = (GpuExecutor() if place == "gpu" else Executor()), Scope()
        exe.run(startup, scope=scope)
        feeds = [{"x": normal(3, 17, 32, seed=i).astype(dtype)} for i in range(10)]
        losses[dtype, place] = np.array([float(exe.run(main, f, [loss], scope=scope)[0]) for f in feeds])
    assert_near(losses["float64", "gpu"], losses["float64", "cpu"], 1e-9, "losses in float64")
    assert_near(losses["float32", "gpu"], losses["float64", "cpu"], 1e-4, "losses in float32")
    compiled = CompiledProgram(main, build_strategy=BuildStrategy())
    GpuExecutor().run(compiled, feeds[0], [loss], scope=scope)
    assert "computed by mma" in compiled.explain(), compiled.explain()


def _programs(first: int) -> None:
    each((f"seed {seed}", partial(_program, seed)) for seed in range(first, first + CHUNK))


def _program(seed: int) -> None:
    """Attention written out, the pass off and on, on the GPU against the CPU in float64."""
    case = attention_program(seed)
    after, _ = fuzz.passed(case, ["memory_efficient_attention"])
    cpu = fuzz.run(case, case.program)
    with on_gpu(fuzz):
        off, on = fuzz.run(case, case.program), fuzz.run(case, after)
    peak = max((float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0)) for a in cpu.values()), default=0.0)
    for who, found in (("unfused", off), ("fused", on)):
        for name, array in cpu.items():
            if array.dtype in FLOATS:
                difference = distance(array, found[name], floor=max(1e-3 * peak, 1e-30))
                assert difference <= 1e-10, f"{who} {name} differs by {difference:.3g}"

