"""Calls that become one launch: joins.py and kernels/cuda/fused/joined_head.py."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.kernels.cuda.fused import joined_head
from minigraph.kernels.cuda.matmul import narrow_product
from minigraph.kernels.cuda.record.binder import Binder, Device
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.joins import joins
from minigraph.runtime.cuda.layout.order import Unit
from minigraph.runtime.executor import Executor
from minigraph.types import CUDAPlace, TensorType, as_dtype, float32
from tests.kernels.test_cuda_compile import require_clean
from tests.support import gpu_stub
from tests.support.grades import checkered
from tests.support.joined_heads import apart, random_head

SIZES = [((9,), 20), ((2, 3), 33), ((1,), 7), ((17,), 300), ((3,), 1), ((5,), 1200)]


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    gpu_stub.installed(monkeypatch)
    monkeypatch.setattr(gpu_stub.StubRuntime, "device", Device(multiprocessors=4))


def found(chain):
    """(fetched values on the stub, launches that are several calls)"""
    program = CompiledProgram(chain.program, BuildStrategy.all()).program_for(chain.fetches)
    exe = Executor(CUDAPlace(0))
    values = [exe.run(program, chain.feeds, chain.fetches, scope=Scope()) for _ in range(2)][-1]
    return values, [c for plan in exe._plans.values() for c in plan.bound.binder.joined.values()]


def bound(chain, device=None):
    program = CompiledProgram(chain.program, BuildStrategy.all()).program_for(chain.fetches)
    types = {n: TensorType(a.shape, a.dtype) for n, a in chain.feeds.items()}
    return bind_program(program, types, chain.fetches, device=device, settling=gpu_stub.StubRuntime().settling(False))


@pytest.mark.parametrize(("seed", "dtype"), checkered(range(12), ["float64", "float32", "bfloat16"]))
def test_same_bits(seed, dtype):
    """As many launches of their own give the same bits; with float64, those of the definitions but for rounding."""
    chain = random_head(seed, dtype, *SIZES[seed % len(SIZES)])
    values, _ = found(chain)
    with apart():
        others, none = found(chain)
    assert not none
    for name, a, b in zip(chain.fetches, values, others, strict=True):
        assert a.tobytes() == b.tobytes(), name
    if dtype == "float64":
        right = Executor().run(chain.program, chain.feeds, chain.fetches, scope=Scope())
        for a, b in zip(values, right, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_many_random_heads_are_joined():
    assert sum(len(bound(random_head(seed, "float32", (6,), 24)).binder.joined) for seed in range(24)) > 8


def step(rows=9, classes=10, read_before=False):
    """A plan of a classifier's step whose scores may be read between the layer and the loss."""
    main = mg.static.Program("step")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        x, y = mg.static.data("x", [rows, 12], "float32"), mg.static.data("y", [rows, 1], "int64")
        h = mg.nn.functional.relu(mg.nn.Linear(12, 20)(x))
        z = mg.nn.Linear(20, classes)(h)
        seen = mg.cumsum(z, axis=0) if read_before else z
        loss = mg.nn.functional.cross_entropy(z, y)
        mg.optimizer.SGD(0.1).minimize(loss)
    types = {"x": TensorType((rows, 12), float32), "y": TensorType((rows, 1), as_dtype("int64"))}
    fetches = [loss.name, seen.name] if read_before else [loss.name]
    program = CompiledProgram(main, BuildStrategy.all()).program_for(fetches)
    return bind_program(program, types, fetches, settling=gpu_stub.StubRuntime().settling(False))


def test_a_step_of_a_classifier():
    plan = step()
    (launch,) = plan.binder.joined.values()
    assert launch.function == "head"
    ran = [getattr(call, "function", "") for i, call in plan.binder.running() if i in plan.order]
    assert ran.count("head") == 1
    assert not {"forward", "fused_rows", "input_grad"} & {*ran}
    assert len({*plan.order} & plan.binder.gone) == 0


@pytest.mark.parametrize(
    "facts",
    [{"classes": 16}, {"rows": 2000}, {"read_before": True}],
    ids=["the library comes first", "too many rows", "the scores are read before the loss"],
)
def test_refused(facts):
    assert not step(**facts).binder.joined


# the launches themselves


def launches(x=None, w=None, dx=None, trans_w=False, rows=9, other_rows=9):
    """A forward, a softmax on rows, and an input gradient, with buffers of the caller's choice."""
    binder = Binder(Device())
    binder.begin(0)
    x, w, dx = x or Buffer((9, 20), float32), w or Buffer((20, 10), float32), dx or Buffer((9, 20), float32)
    z, y = Buffer((rows, 10), float32), Buffer((other_rows, 10), float32)
    narrow_product.bind_forward(binder, x, w, None, z, (rows, 20, 10), False)
    (forward,) = binder.calls
    body = ["for (i64 first = ROWS_FROM; first < ROWS_TO; first += ROWS_STEP) p_y0[first] = p_x0[first];"]
    form = joined_head.RowKernel(
        {}, ["const float* __restrict__ p_x0", "float* p_y0"], body, (other_rows, 10), frozenset({0}), frozenset({1}), 8
    )
    binder.launch_source("", "fused_rows", 1, 128, z, y, form=form)
    narrow_product.bind_input_gradient(binder, y, w, None, dx, (9, 20, 10), trans_w)
    return forward, binder.calls[1], binder.calls[2]


def test_launches_that_fit():
    made = joined_head.head(*launches())
    assert made.function == "head"
    assert "__restrict__ p_x0" not in made.source, "what is written in the same launch must not be read ahead"


def test_launches_that_do_not_fit():
    shared = Buffer((9, 20), float32)
    assert joined_head.head(*launches(x=shared, dx=shared)) is None, "blocks read rows of x that others overwrite"
    assert joined_head.head(*launches(trans_w=True)) is None
    assert joined_head.head(*launches(rows=5)) is None
    assert joined_head.head(*launches(other_rows=5)) is None
    forward, rows, _ = launches()
    assert joined_head.head(forward, rows, launches()[2]) is None, "another gradient, another weight"
    assert joined_head.head(launches()[0], *launches()[1:]) is None, "other scores"


def test_calls_between_keep_their_places():
    calls = launches()
    between = [calls[0], calls[0], calls[1], calls[1], calls[2]]  # numbers 1 and 3 stand for what lies between
    triple = [(0, 2, 4)]
    free = [Unit({0}, {1}), Unit({8}, {9}), Unit({1}, {2}), Unit({8}, {7}), Unit({2}, {3})]
    assert joins(between, triple, list(free)).taken == {0: 2, 4: 2}
    for place, unit in ((1, Unit({1}, {9})), (1, Unit({8}, {0})), (3, Unit({3}, {9})), (3, Unit({8}, {2}))):
        held = [*free[:place], unit, *free[place + 1 :]]
        assert not joins(between, triple, held).taken, (place, unit)


@pytest.mark.parametrize(("dtype", "arch"), checkered(["float64", "float32", "bfloat16"], ["sm_80", "sm_90a"]))
def test_heads_compile_without_spills(dtype, arch):
    """Short and long sums, one and four rows of a block, few and many columns."""
    for rows, inner, classes in ((9, 20, 3), (600, 1300, 13)):
        plan = bound(random_head(4, dtype, (rows,), inner, classes), Device(arch))
        (call,) = plan.binder.joined.values()
        require_clean(call, "head", arch)
