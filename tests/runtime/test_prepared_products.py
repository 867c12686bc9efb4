"""Products of a plan that are prepared once: whatever their arrays hold, and wherever feeds lie, against float64."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.cpu import strips
from minigraph.opdef import get_op

ROWS, INPUTS, HIDDEN, CLASSES = 300, 200, 512, 10


@pytest.fixture(autouse=True)
def machine_code(monkeypatch):
    pytest.importorskip("numba")
    from minigraph.kernels.cpu.compiled import gemm

    monkeypatch.setattr(strips, "_machine_code", lambda: gemm)


def network(activation):
    """(startup, program, loss and gradients, layers): the sum of squares of what two layers give."""
    main, startup = mg.static.Program(), mg.static.Program()
    startup.random_seed = 1  # of some weights a number before relu is so near 0 that float32 has another sign
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [None, INPUTS])
        layers = [mg.nn.Linear(INPUTS, HIDDEN), mg.nn.Linear(HIDDEN, CLASSES)]
        out = layers[1](getattr(mg.nn.functional, activation)(layers[0](x)))
        loss = mg.sum(out * out)
        pairs = mg.static.append_backward(loss)
    program = mg.static.CompiledProgram(main, build_strategy=mg.static.BuildStrategy(fuse_gemm_epilogue=True))
    return startup, program, [loss, *(grad for _, grad in pairs)], layers


def expected(x, w1, b1, w2, b2):
    """Loss and gradients by relu in float64."""
    x, w1, b1, w2, b2 = (a.astype(float) for a in (x, w1, b1, w2, b2))
    h = np.maximum(x @ w1 + b1, 0)
    out = h @ w2 + b2
    d = 2 * out
    dh = (d @ w2.T) * (h > 0)
    return [(out * out).sum(), x.T @ dh, dh.sum(axis=0), h.T @ d, d.sum(axis=0)]


def fed(rng, layout):
    x = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    if layout == "columns":
        return np.asfortranarray(x)
    if layout == "strided":
        return np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3]
    if layout == "read-only":
        x.setflags(write=False)
    return x


def steps_of(exe, scope, op_type):
    """What the latest plan has prepared for the operators of a type."""
    plan = [*exe._plans.values()][-1]
    facts = plan.facts_in[scope]
    return [facts.lasting[i] for i, bound in enumerate(plan.steps) if bound.step.op.type == op_type]


def test_runs_with_other_feeds_and_other_weights():
    startup, program, fetches, layers = network("relu")
    exe, scope, rng = mg.static.Executor(mg.CPUPlace()), mg.static.Scope(), np.random.default_rng(0)
    exe.run(startup, scope=scope)
    names = [v.name for layer in layers for v in (layer.weight, layer.bias)]
    for turn, layout in enumerate(["rows", "rows", "columns", "rows", "strided", "read-only", "rows"]):
        x = fed(rng, layout)
        if turn == 4:  # new arrays; before, others in the same ones
            for name in names:
                scope.write(name, rng.normal(size=scope.read(name).shape).astype(np.float32))
        elif turn:
            scope.arrays[names[0]][...] *= -1.0
        for _ in range(2):
            found = exe.run(program, {"x": x}, fetches, scope=scope)
            for value, wanted in zip(found, expected(x, *map(scope.read, names)), strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())
            if x.flags.writeable:
                x[...] = fed(rng, layout)
    for op_type in ("fused_gemm_epilogue", "fused_gemm_epilogue_grad"):
        prepared = steps_of(exe, scope, op_type)
        assert len(prepared) == 2
        assert None not in prepared


def test_gelu_is_as_without_a_rewrite():
    startup, program, fetches, _ = network("gelu")
    exe, scope, rng = mg.static.Executor(mg.CPUPlace()), mg.static.Scope(), np.random.default_rng(0)
    exe.run(startup, scope=scope)
    for _ in range(4):
        feeds = {"x": fed(rng, "rows")}
        plain = exe.run(program.before, feeds, fetches, scope=scope)
        for value, wanted in zip(exe.run(program, feeds, fetches, scope=scope), plain, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_no_batch_is_kept_after_its_run(activation):
    """Each of many plans kept the one that it was prepared with: 18 MiB for 50 sizes of batches."""
    startup, program, fetches, _ = network(activation)
    exe, scope, rng = mg.static.Executor(mg.CPUPlace()), mg.static.Scope(), np.random.default_rng(0)
    exe.run(startup, scope=scope)
    kept = []
    for _ in range(4):
        x = fed(rng, "rows")
        exe.run(program, {"x": x}, fetches, scope=scope)
        kept.append(weakref.ref(x))
        del x
    assert None not in steps_of(exe, scope, "fused_gemm_epilogue_grad")
    assert [ref() for ref in kept] == [None] * 4


def arrays_of(shape, trans_x=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    y, bias = (rng.normal(size=s).astype(np.float32) for s in ((INPUTS, HIDDEN), HIDDEN))
    return x, y, bias


def test_what_would_read_a_copy_is_not_prepared():
    """A copy holds what its array held when it was made."""
    prepare = get_op("fused_gemm_epilogue").cpu_kernel.for_arrays
    x, y, bias = arrays_of((ROWS, INPUTS))
    how = {"trans_x": False, "trans_y": False, "activation": "relu", "approximate": False, "needs": ("Out",)}
    out = np.empty((ROWS, HIDDEN), np.float32), None
    assert prepare(x, y, bias, out=out, moving=(), **how) is not None
    assert prepare(x, y, np.repeat(bias, 2)[::2], out=out, moving=(), **how) is None
    assert prepare(x, y, bias, out=out, moving=["Y"], **how) is None
    assert prepare(x, y, bias, out=(None, None), moving=(), **how) is None
    batch = x.reshape(ROWS // 10, 10, INPUTS)[:, :9]  # no view of it is a matrix
    some = np.empty((*batch.shape[:2], HIDDEN), np.float32), None
    assert prepare(batch, y, bias, out=some, moving=(), **how) is None
    small = x[:8], y, bias
    assert prepare(*small, out=(out[0][:8], None), moving=(), **how) is None


@pytest.mark.parametrize("columns", [300, 512, 10])
def test_masks_have_zeros_behind_the_columns(columns):
    """Whatever the planned memory held before."""
    x, y, bias = arrays_of((1200, INPUTS))
    out = np.empty((1200, columns), np.float32), np.full((1200, -(-columns // 128) * 16), 255, np.uint8)
    step = get_op("fused_gemm_epilogue").cpu_kernel.for_arrays(
        x, y[:, :columns], bias[:columns], trans_x=False, trans_y=False, activation="relu", approximate=False,
        needs=("Out", "ReserveSpace"), out=out, moving=(),
    )  # fmt: skip
    for _ in range(2):
        out[1].fill(255)
        step()
        z = x.astype(float) @ y[:, :columns].astype(float) + bias[:columns]
        np.testing.assert_allclose(out[0], np.maximum(z, 0), atol=1e-4)
        bits = np.unpackbits(out[1], axis=-1, bitorder="little")
        np.testing.assert_array_equal(bits[:, :columns], out[0] > 0)
        assert not bits[:, columns:].any()


@pytest.mark.parametrize("trans_y", [False, True])
@pytest.mark.parametrize("slots", [("DX", "DY", "DBias"), ("DX", "DBias"), ("DY", "DBias"), ("DX", "DY", "DXSums")])
def test_gradients_of_prepared_steps(slots, trans_y):
    rng = np.random.default_rng(1)
    x, y, _ = arrays_of((ROWS, INPUTS))
    y = np.ascontiguousarray(y.T) if trans_y else y
    d = rng.normal(size=(ROWS, HIDDEN)).astype(np.float32)
    above = rng.random(x.shape) < 0.5
    mask = np.zeros((ROWS, 32), np.uint8)
    bits = np.packbits(above, axis=-1, bitorder="little")
    mask[:, : bits.shape[1]] = bits
    x = np.concatenate([x, x[:, :56]], axis=1)  # 256 columns of a gradient, that machine code takes
    y = np.concatenate([y, y[:, :56] if trans_y else y[:56]], axis=1 if trans_y else 0)
    above = np.unpackbits(mask, axis=-1, count=256, bitorder="little").astype(bool)
    shapes = {"DX": x.shape, "DY": y.shape, "DBias": (HIDDEN,), "DXSums": x.shape[1:]}
    out = [np.full(shapes[s], np.nan, np.float32) if s in slots else None for s in shapes]
    step = get_op("fused_gemm_epilogue_grad").cpu_kernel.for_arrays(
        d, x, y, mask, trans_x=False, trans_y=trans_y, activation_grad="relu_grad", approximate=False, needs=slots,
        out=out, moving=["X"] if "DY" in slots else [],
    )  # fmt: skip
    for factor in (1, 3):
        d *= factor
        moved = [np.asfortranarray(x * factor)] if "DY" in slots else []
        step(*moved)
        w = (y.T if trans_y else y).astype(float)
        DX = (d.astype(float) @ w.T) * above
        DY = x.T.astype(float) * factor @ d.astype(float)
        wanted = {"DX": DX, "DY": DY.T if trans_y else DY, "DBias": d.astype(float).sum(0), "DXSums": DX.sum(0)}
        for slot, found in zip(shapes, out, strict=True):
            if found is not None:
                np.testing.assert_allclose(found, wanted[slot], rtol=1e-4, atol=3e-6 * np.abs(wanted[slot]).max())
