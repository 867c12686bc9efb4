"""Steps with 16-bit floats on a CPU: float32 inside, rounded once into planned memory, operands in shared scratch."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.kernels.cpu.fused_blocks import in_blocks, recipe
from minigraph.opdef import get_op
from minigraph.program import unique_name
from minigraph.runtime.cpu import memory
from minigraph.runtime.cpu.buffers import in_float32
from minigraph.runtime.cpu.memory import AddressRange, WideInputs
from minigraph.runtime.cpu.plan import Plan
from minigraph.types import TensorType, as_dtype, float32

SHAPE = (6, 10)
LOW = [as_dtype("bfloat16"), as_dtype("float16")]
F = mg.nn.functional


def low(dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(dtype)


def made(name, types, operands):
    """The kernel of an operator for these results and operands, with room for them."""
    opdef, wide = get_op(name), WideInputs()
    wide.make_room([TensorType(x.shape, x.dtype) for x in operands])
    wide.place(AddressRange())
    return in_float32(opdef.cpu_kernel, types, "out" in opdef.injected, wide)


def exact(x, y):
    return (x.astype(float32) + y.astype(float32)).astype(x.dtype)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_result_lies_in_the_given_memory_and_may_lie_over_an_operand(dtype):
    x, y = low(dtype), low(dtype, 1)
    wanted = exact(x, y)
    for a in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        run = made("elementwise_add", [TensorType(SHAPE, dtype)], [a, y])
        over = a.copy()
        for given, to in ((a, np.empty(SHAPE, dtype)), (over, over)):
            assert run(given, y, out=[to], axis=-1) is to
            np.testing.assert_array_equal(to, wanted)


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_wider_result_is_written_by_the_kernel_itself(dtype):
    x, to = low(dtype), np.empty(SHAPE, float32)
    run = made("cast", [TensorType(SHAPE, float32)], [x])
    assert run(x, out=[to], dtype=float32) is to
    np.testing.assert_array_equal(to, x.astype(float32))


def test_lists_are_rounded_each_into_its_own_memory():
    dtype = LOW[0]
    xs = [abs(low(dtype, seed)) for seed in range(3)]
    goals = [np.empty(SHAPE, dtype), None, np.empty(SHAPE, dtype)]
    run = made("foreach_sqrt", [[TensorType(SHAPE, dtype)] * 3], xs)
    with np.errstate(invalid="ignore"):
        found = run(xs, out=[goals])
        for x, result, to in zip(xs, found, goals, strict=True):
            assert to is None or result is to
            np.testing.assert_array_equal(result, np.sqrt(x.astype(float32)).astype(dtype))


def test_operands_that_lay_over_each_other_would_be_seen(monkeypatch):
    x, y = low(LOW[0]), low(LOW[0], 1)
    run = made("elementwise_add", [TensorType(SHAPE, LOW[0])], [x, y])
    monkeypatch.setattr(memory, "rounded", lambda nbytes: 0)
    assert not np.array_equal(run(x, y, out=[np.empty(SHAPE, LOW[0])], axis=-1), exact(x, y))


@pytest.fixture(params=["bfloat16", "O1", "O2"])
def net(request):
    """(program, feeds, loss) of a small model with what heads are made of."""
    main = static.Program()
    with static.program_guard(main, static.Program()), unique_name.guard():
        dtype = "bfloat16" if request.param == "bfloat16" else "float32"
        mg.set_default_dtype(dtype)
        try:
            ids, y = static.data("ids", [64], "int64"), static.data("y", [64], "int64")
            w = static.create_parameter([100, 32], dtype)
            h = mg.nn.LayerNorm(32)(F.embedding(ids, w))
            h = mg.nn.Linear(32, 64)(h)[:, 16:48]
            h = mg.reshape(mg.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0)(mg.reshape(h, [4, 16, 32])), [64, 32])
            z = mg.matmul(mg.where(h > 0, h, h * 0.5), w, transpose_y=True)
            loss, optimizer = F.cross_entropy(z, y, label_smoothing=0.1), mg.optimizer.AdamW(0.1)
            if request.param != "bfloat16":
                optimizer = static.amp.decorate(optimizer, level=request.param, dtype="bfloat16")
            optimizer.minimize(loss)
        finally:
            mg.set_default_dtype("float32")
    return main, {"ids": ids.type, "y": y.type}, loss


@pytest.mark.parametrize("every", [False, True], ids=["no passes", "all"])
def test_all_that_a_step_computes_lies_in_the_arena(net, every):
    """Memory that kernels allocate beside the arena has a peak of its own, and both add up."""
    main, feeds, loss = net
    compiled = static.CompiledProgram(main, build_strategy=static.BuildStrategy.all() if every else None)
    plan = Plan(compiled.program_for([loss.name]), feeds, [loss.name], placed=False)
    apart = [
        (v.name, plan.steps[v.producer].step.op.type) for i, v in enumerate(plan.values)
        if v.producer >= 0 and v.buffer is None and v.root == i and not v.persistable and v.type.size > 16
    ]  # fmt: skip
    assert not apart


def test_views_of_16_bits_are_views():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [4, 6], "bfloat16")
        out = mg.reshape(mg.transpose(x + x, [1, 0])[1:3], [8])
    feeds = {"x": low(LOW[0])[:4, :6]}
    plan = Plan(main, {"x": x.type}, [out.name], placed=False)
    assert sum(bound.out is not None for bound in plan.steps) == 1
    (found,) = static.Executor().run(main, feeds, [out], scope=static.Scope())
    doubled = (feeds["x"].astype(float32) * 2).astype(LOW[0])
    np.testing.assert_array_equal(found, doubled.T[1:3].reshape(8))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_cast_inside_a_fused_operator_rounds_in_blocks_too(dtype):
    """Its value is float32 there, and must not be written as such without being rounded."""
    x = np.random.default_rng(3).standard_normal((1500, 700)).astype(float32)
    body = (f"t0 = cast(X=x0) {{dtype={dtype}}}", "t1 = scale(X=t0) {scale=2.0}", "y0 = elementwise_add(X=t1, Y=x0)")
    known = recipe(body, (TensorType(x.shape, x.dtype),), ())
    assert known is not None and len(known.blocks) > 1
    (found,) = in_blocks([x], body=body)
    np.testing.assert_array_equal(found, x.astype(dtype).astype(float32) * 2 + x)
