"""Updates that read gradients of joined weights where they lie: what is copied, and the bits of copies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.views import in_rows
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram, Program, program_guard
from minigraph.types import CUDAPlace, TensorType, as_dtype, float32
from tests.support import gpu_stub
from tests.support.cuda_host import COMPILER

SHAPES = [(40, 48), (40, 8), (40, 96)]
IN_PIECES = ("arena", "paged")  # modes that move gradients


def adamw():
    return mg.optimizer.AdamW(0.1, weight_decay=0.01)


def joined(shapes=SHAPES, axis=1, dtype="float32", made_by=adamw):
    """(program, start-up program, feeds, the loss) of weights of which one array is made; its gradient is cut."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 3
    rng = np.random.default_rng(0)
    with program_guard(main, startup), mg.base.unique_name.guard():
        parts = [mg.static.create_parameter(list(shape), dtype, name=f"w{i}") for i, shape in enumerate(shapes)]
        alone = mg.static.create_parameter([5, 7], dtype, name="alone")
        whole = mg.concat(parts, axis=axis)
        x = mg.static.data("x", list(whole.shape), dtype)
        loss = mg.mean(mg.tanh(whole * x)) + mg.mean(alone * alone)
        made_by().minimize(loss)
    return main, startup, {"x": rng.normal(size=whole.shape).astype(as_dtype(dtype))}, loss


def compiled(main, **flags):
    return CompiledProgram(main, BuildStrategy(fuse_all_optimizer_ops=True, **flags))


def copied(case, fetches=(), **flags):
    """How many calls cut gradients, and why."""
    main, _, feeds, loss = case
    strategy = compiled(main, **flags)
    names = [loss.name, *fetches]
    plan = bind_program(
        strategy.program_for(names), {n: TensorType(x.shape, x.dtype) for n, x in feeds.items()}, names,
        options=strategy.options,
    )  # fmt: skip
    calls = Counter(s.op.type for s, span in zip(plan.schedule.steps, plan.spans, strict=True) for _ in span)
    return calls["concat_grad"], [text for _, text in plan.schedule.remarks]


def after_steps(case, place=None, steps=3, **flags):
    """The Scope's values."""
    main, startup, feeds, loss = case
    exe, scope = Executor(place) if place else Executor(), Scope()
    exe.run(startup, scope=scope)
    program = compiled(main, **flags) if place else main
    for _ in range(steps):
        exe.run(program, feeds, [loss], scope=scope)
    return {name: np.asarray(scope.read(name)) for name in sorted(v.name for v in main.list_vars() if v.persistable)}


def test_nothing_is_copied_where_the_update_reads_rows():
    assert copied(joined()) == (0, [])
    assert copied(joined(axis=0, shapes=[(8, 6), (16, 6)])) == (0, []), "in one piece"
    assert copied(joined([(2, 3, 8), (2, 5, 8)])) == (0, []), "an outer axis: longer rows"


@pytest.mark.parametrize("mode", IN_PIECES)
def test_modes_that_move_gradients_get_them_in_one_piece(mode):
    assert copied(joined(), multi_tensor_mode=mode)[0] == 1


def test_who_else_reads_a_gradient_gets_it_in_one_piece():
    count, why = copied(joined(), ["w0@GRAD"])
    assert count == 1 and any("it is fetched" in text for text in why)
    clipped = joined(made_by=lambda: mg.optimizer.SGD(0.1, grad_clip=mg.nn.ClipGradByGlobalNorm(1.0)))
    assert copied(clipped)[0] == 1


def test_rows_that_begin_anywhere_are_copied():
    count, why = copied(joined([(40, 3), (40, 5)]))
    assert count == 1 and "multiple of 16" in why[0]


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((4, 8), (24, 1), (8, 24)), ((4, 2, 8), (48, 8, 1), (16, 48)), ((4, 2, 8), (96, 24, 1), None),
     ((4, 1), (8, 1), (1, 8)), ((2, 3, 8), (72, 24, 1), (8, 24)), ((1, 4, 8), (7, 24, 1), (8, 24))],
    ids=str,
)  # fmt: skip
def test_what_two_numbers_say_of_rows(shape, strides, expected):
    assert in_rows(Buffer((40, 40), float32).spread(shape, strides)) == expected


def test_rows_in_unequal_steps_are_copied():
    main, startup = Program(), Program()
    with program_guard(main, startup):
        a, b = (mg.static.create_parameter([4, 2, 16], "float32", name=name) for name in "ab")
        c = mg.static.create_parameter([4, 1, 8], "float32", name="c")
        ab = mg.concat([a, b], axis=2)
        whole = mg.concat([ab, mg.concat([c, c, c, c], axis=2)], axis=1)
        loss = mg.mean(whole * whole)
        adamw().minimize(loss)
    count, why = copied((main, startup, {}, loss))
    assert count > 0 and any("do not lie in equal steps" in text for text in why), why


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("mode", ["auto", "table", "struct4k"])
@pytest.mark.parametrize(
    "made_by",
    [adamw, lambda: mg.optimizer.SGD(0.1), lambda: mg.optimizer.Lamb(0.1), lambda: mg.optimizer.Momentum(0.1)],
    ids=["adamw", "sgd", "lamb", "momentum"],
)
def test_the_bits_of_copies(made_by, mode, monkeypatch):
    gpu_stub.installed(monkeypatch)
    case = joined(made_by=made_by)
    found = after_steps(case, CUDAPlace(0), multi_tensor_mode=mode)
    others = after_steps(case, CUDAPlace(0), multi_tensor_mode="arena")
    right = after_steps(case)
    for name in right:
        np.testing.assert_array_equal(found[name], others[name], err_msg=name)
        np.testing.assert_allclose(found[name], right[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("shapes", [SHAPES, [(300, 16), (300, 8)], [(3, 5, 8), (3, 3, 8)]], ids=str)
def test_rows_of_all_lengths_and_types(shapes, dtype, tolerance, monkeypatch):
    """Chunks of blocks begin within rows."""
    gpu_stub.installed(monkeypatch)
    case = joined(shapes, dtype=dtype)
    assert copied(case)[0] == 0
    found, right = after_steps(case, CUDAPlace(0)), after_steps(case)
    for name in right:
        a, b = (x[name].astype(np.float64) for x in (found, right))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
def test_rows_beside_master_weights(monkeypatch):
    gpu_stub.installed(monkeypatch)
    case = joined(dtype="bfloat16", made_by=lambda: mg.optimizer.AdamW(0.1, multi_precision=True))
    assert copied(case)[0] == 0
    found, others = (after_steps(case, CUDAPlace(0), multi_tensor_mode=mode) for mode in ("auto", "arena"))
    assert any(x.dtype == float32 and x.shape == SHAPES[0] for x in found.values()), "there are masters"
    for name, values in found.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)
