"""States in pinned memory of the host, on the stub: every lane as far ahead of the others as its waits allow.

The checks are those of tests/gpu/paged.py. What is planted here, a missing wait or a wrong order, must show.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial

import numpy as np
import pytest

import minigraph.optimizer as opt
from minigraph import cuda
from minigraph.errors import AttrError, OutOfMemoryError
from minigraph.kernels import host_memory
from minigraph.kernels.cuda.optimizer import paged
from minigraph.kernels.cuda.record.call import every_call, facts
from minigraph.kernels.cuda.record.calls import Copy, Launch, Pipeline
from minigraph.kernels.cuda.record.tensors import ARENA_CHUNK
from minigraph.runtime.cuda.plan import CudaPlan
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import CPUPlace, CUDAPlace
from tests.gpu import paged as checks
from tests.support import gpu_stub
from tests.support.grades import graded, shortened
from tests.support.update_nets import (
    OPTIMIZERS,
    blocks_of_bytes,
    difference,
    net,
    on_cpu,
    started,
    steps_feed,
)

pytestmark = pytest.mark.skipif(gpu_stub.cuda_host.COMPILER is None, reason="no C++ compiler on this machine")

LANES = (paged.COME, paged.UPDATE, paged.GO)
FUSED = "fuse_all_optimizer_ops"


@pytest.fixture
def stub(monkeypatch):
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(cuda, name, getattr(cuda, name))  # put back afterwards
    return gpu_stub.install()


def plan_of(made, runtime=None, **flags):
    compiled = CompiledProgram(made[0], BuildStrategy(**({"multi_tensor_mode": "paged", FUSED: True} | flags)))
    types = {n: made[0].vars[n].type for n in steps_feed(made)}
    runtime = runtime or gpu_stub.StubRuntime()
    return CudaPlan(compiled.program_for(()), types, (), False, 0, runtime, False, compiled.options)


def pipelines_of(plan):
    return [call for call in plan.bound.binder.calls if isinstance(call, Pipeline)]


UPDATES = list(itertools.product(OPTIMIZERS, checks.LEVELS, LANES))


@pytest.mark.parametrize(
    ("name", "level", "ahead"),
    graded(UPDATES, now=lambda name, *way: name == "AdamW" or UPDATES.index((name, *way)) % 4 == 0),
)
def test_every_update_has_the_bits_of_the_cpu(stub, name, level, ahead):
    stub.lane_ahead = ahead
    checks.same_bits(name, level)


CHECKS = [
    checks.each_its_own_step, checks.masters, checks.float64_agrees, checks.clipped, checks.found_inf,
    checks.scopes_take_turns, checks.places_and_modes_change, checks.saved_and_loaded,
    checks.faults_change_nothing, checks.nan_is_found, checks.no_room_on_the_host,
]  # fmt: skip
FEWER = {
    "masters": ["Momentum", "AdamW", "Lamb"], "float64_agrees": ["AdamW", "Lamb"], "faults_change_nothing": ["Adam"],
}  # fmt: skip


@pytest.mark.parametrize("run", shortened({run.__name__: run for run in CHECKS}, FEWER))
def test_checks_of_the_gpu(stub, run):
    run()


def without_waits(lane):
    """Parts of this lane wait for nobody."""
    return lambda parts: [p._replace(waits=[]) if p.lane == lane else p for p in parts]


def late_place(parts):
    """A block comes once the one before it, instead of the one that had its place, is updated."""
    waits = {w + 1 for p in parts if p.lane == paged.COME for w in p.waits}
    return [p._replace(waits=[w - 1 for w in p.waits]) if p.lane == paged.COME and waits else p for p in parts]


def swapped(lane):
    """Two parts of a lane have changed places."""

    def change(parts):
        first, second = [i for i, p in enumerate(parts) if p.lane == lane][:2]
        made = list(parts)
        made[first] = parts[first]._replace(calls=parts[second].calls)
        made[second] = parts[second]._replace(calls=parts[first].calls)
        return made

    return change


def one_copy_less(lane):
    def change(parts):
        at = next(i for i, p in enumerate(parts) if p.lane == lane)
        return [p._replace(calls=p.calls[1:]) if i == at else p for i, p in enumerate(parts)]

    return change


DEFECTS = {
    "nobody waits for a place to be free": without_waits(paged.COME),
    "a block comes before its place's is back": late_place,
    "updates do not wait for their block": without_waits(paged.UPDATE),
    "blocks go back before they are updated": without_waits(paged.GO),
    **{f"blocks change places on lane {lane}": swapped(lane) for lane in LANES},
    "a piece does not come": one_copy_less(paged.COME),
    "a piece does not go back": one_copy_less(paged.GO),
}


@pytest.mark.parametrize("defect", [None, *DEFECTS])
def test_a_defect_shows(defect):
    """With one lane ahead or another; without a defect none does."""
    made, seen = net(OPTIMIZERS["AdamW"](), checks.SHAPES), []
    expected = on_cpu(made)
    with blocks_of_bytes(checks.BYTES):
        for ahead in LANES:
            runtime = gpu_stub.StubRuntime()
            runtime.lane_ahead = ahead
            plan, scope = plan_of(made, runtime), started(made)
            for call in pipelines_of(plan) if defect else ():
                call.parts = DEFECTS[defect](call.parts)
            for _ in range(2):
                plan.run(steps_feed(made), scope)
            seen.append(difference(scope, expected) != ("", 0.0))
    assert any(seen) == (defect is not None), seen


def test_kernels_touch_the_card_only_and_copies_the_rest():
    made = net(OPTIMIZERS["AdamW"](multi_precision=True), checks.SHAPES, "bfloat16")
    with blocks_of_bytes(checks.BYTES):
        plan = plan_of(made)
    states = {id(b): b for b in plan.bound.binder.paged}
    assert len(states) == 3 * 7  # the one of no elements is not
    touched = {"come": 0, "go": 0}
    for call in every_call(plan.bound.binder.calls):
        given = [b for b in call.buffers() if id(gpu_owner(b)) in states]
        if isinstance(call, Launch):
            assert not given, call.function
        elif isinstance(call, Copy) and given:
            touched["come" if given == [call.source] else "go"] += call.source.nbytes
    assert touched == dict.fromkeys(touched, sum(b.nbytes for b in states.values())), "each byte once in each direction"


def gpu_owner(buffer):
    while buffer.owner is not None:
        buffer = buffer.owner
    return buffer


@pytest.mark.parametrize("sizes", [[1], [5000], [0, 3, 0], [1024, 1024, 1], [3, 9000, 2048, 7, 1023]])
@pytest.mark.parametrize("most", [1024, 4096])
def test_blocks_hold_each_element_once_and_side_by_side(sizes, most):
    blocks = paged.blocks_of(sizes, most)
    pieces = [piece for block in blocks for piece in block]
    for tensor, size in enumerate(sizes):
        own = [(p.start, p.stop) for p in pieces if p.tensor == tensor]
        assert [n for start, stop in own for n in range(start, stop)] == list(range(size))
    for block in blocks:
        assert all(p.at % ARENA_CHUNK == 0 and p.start % ARENA_CHUNK == 0 for p in block)
        assert all(p.at + p.stop - p.start <= q.at for p, q in itertools.pairwise(block))
        assert 0 < paged.end_of(block[-1]) <= most
        assert [p.tensor for p in block] == list(range(block[0].tensor, block[-1].tensor + 1)) or 0 in sizes


def test_the_card_holds_the_ring_and_a_report_says_where_states_lie():
    shapes = [(3 << 20,), (1 << 20, 3), (100,)]
    made = net(opt.AdamW(0.1), shapes)
    reports = {}
    for mode in ("auto", "paged"):
        compiled = CompiledProgram(made[0], BuildStrategy(multi_tensor_mode=mode, **{FUSED: True}))
        reports[mode] = compiled.memory_report(place=CUDAPlace(0))
    states = 2 * 4 * 6 << 20
    assert (reports["auto"].on_host, reports["paged"].on_host) == (0, states)
    assert reports["paged"].persistable == reports["auto"].persistable
    ring = [r.nbytes for r in reports["paged"].residents if r.scratch and r.nbytes > 4096]
    assert ring == [paged.BLOCK] * paged.PLACES
    assert "paged on the host 48.00" in str(reports["paged"]) and "paged" not in str(reports["auto"])
    assert "on the GPU 24.00, paged" in str(reports["paged"])
    here = CompiledProgram(made[0], BuildStrategy(multi_tensor_mode="paged")).memory_report(place=CPUPlace())
    assert here.on_host == 0


def test_small_states_stay_on_the_card(stub):
    made = net(opt.Adam(0.1), [(paged.SMALL // 4,), (paged.SMALL // 4 - 1,)])
    assert checks.on_host(checks.trained(made, checks.compiled(made), 1)) == {"p0_moment1_0", "p0_moment2_0"}


def test_what_is_not_updated_in_place_stays_on_the_card_and_is_told(stub):
    made = net(OPTIMIZERS["AdamW"](), checks.SHAPES)
    with blocks_of_bytes(checks.BYTES):
        program = checks.compiled(made, enable_inplace=False)
        scope = checks.trained(made, program, 2)
    assert difference(scope, on_cpu(made)) == ("", 0.0) and not checks.on_host(scope)
    assert "states that this run does not update in place are on the card, not paged" in program.explain()


def test_elementary_operations_do_not_page():
    both = BuildStrategy(multi_tensor_mode="paged", foreach_optimizer_ops=True)
    with pytest.raises(AttrError, match="foreach_optimizer_ops and multi_tensor_mode='paged' cannot be on together"):
        CompiledProgram(net(opt.Adam(0.1))[0], both).program_for(())


def test_a_host_without_room_is_one_error_and_nothing_is_lost(stub):
    made = net(OPTIMIZERS["AdamW"](), checks.SHAPES)
    with blocks_of_bytes(checks.BYTES):
        program, scope, exe = checks.compiled(made), started(made), Executor(CUDAPlace(0))
        stub.pinned_limit = 30_000  # some of them fit
        with pytest.raises(OutOfMemoryError, match="no pinned memory of the host for p6_moment1_0 of 0 MiB"):
            exe.run(program, steps_feed(made), [], scope=scope)
        assert difference(scope, started(made)) == ("", 0.0)
        stub.pinned_limit = 1 << 30
        assert difference(checks.trained(made, program, 2, scope, exe), on_cpu(made)) == ("", 0.0)


def test_two_threads_train_in_two_scopes(stub):
    made = net(OPTIMIZERS["Adam"](), checks.SHAPES)
    with blocks_of_bytes(checks.BYTES):
        program, exe = checks.compiled(made), Executor(CUDAPlace(0))
        scopes = [started(made) for _ in range(2)]
        workers = [threading.Thread(target=partial(checks.trained, made, program, 4, s, exe)) for s in scopes]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    expected = on_cpu(made, steps=4)
    assert all(difference(scope, expected) == ("", 0.0) for scope in scopes)


def test_calls_are_bound_anew_for_memory_that_has_the_address_of_what_was_freed(stub):
    """A graph that copies from freed pinned memory crashes, whoever has that address now."""
    made = net(OPTIMIZERS["AdamW"](), checks.SHAPES)
    with blocks_of_bytes(checks.BYTES):
        plan, scope = plan_of(made, stub), started(made)
        numbers = []
        for _ in range(3):
            plan.run(steps_feed(made), scope)
            numbers.append(plan.arrays.number)
            for name in checks.on_host(scope) if len(numbers) == 2 else ():
                scope.arrays[name] = gpu_stub.Paged(scope.arrays[name].host)
    assert numbers == [0, 0, 1]
    assert difference(scope, on_cpu(made, steps=3)) == ("", 0.0)


def test_a_cpu_does_nothing_special():
    made = net(OPTIMIZERS["AdamW"](), checks.SHAPES)
    scope, exe = started(made), Executor(CPUPlace())
    for _ in range(2):
        exe.run(checks.compiled(made), steps_feed(made), [], scope=scope)
    assert difference(scope, on_cpu(made)) == ("", 0.0)
    assert all(type(array) is np.ndarray for array in scope.arrays.values())


def test_a_pipeline_answers_as_any_call():
    made = net(OPTIMIZERS["Momentum"](), [(10_000,)])
    with blocks_of_bytes(checks.BYTES):
        (call,) = pipelines_of(plan_of(made))
    roots = {id(gpu_owner(b)): gpu_owner(b) for b in call.buffers()}
    twins = {key: type(b)(b.shape, b.dtype) for key, b in roots.items()}
    twin = call.moved(dict(twins))
    assert {id(gpu_owner(b)) for b in twin.buffers()} <= {id(b) for b in twins.values()}
    assert [p.waits for p in twin.parts] == [p.waits for p in call.parts]
    for n, b in enumerate((*roots.values(), *twins.values()), 1):
        b.ptr = n << 30
    assert facts(call) == facts(twin)
    assert call.title() == "pipeline of update in 6 parts" and len(call.kernels()) == 1


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   7 kB\n"}, 7 << 10),
        ({"proc/meminfo": "MemAvailable: 7 kB\n", "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "6000\n",
          "sys/fs/cgroup/a/memory.current": "5000\n", "sys/fs/cgroup/a/memory.stat": "anon 9\ninactive_file 200\n"},
         1200),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"},
         None),
        ({"proc/self/cgroup": "4:memory:/d\n", "sys/fs/cgroup/memory/d/memory.limit_in_bytes": "900\n",
          "sys/fs/cgroup/memory/d/memory.usage_in_bytes": "1000\n"}, 0),
    ],
)  # fmt: skip
def test_memory_that_the_host_has_left(texts, left, tmp_path):
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert host_memory.available(tmp_path) == left
