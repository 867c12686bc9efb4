"""What a GPU does of data parallel, without one: recorded collectives, their stream, and NCCL's calls."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import DTypeError
from minigraph.kernels.cuda.collective.collective import Collective, Together
from minigraph.kernels.cuda.record.buffer import owner, root_and_offset
from minigraph.kernels.cuda.record.calls import Copy
from minigraph.kernels.groups import Group, RankError, acting
from minigraph.opdef import OPS
from minigraph.program.reductions import reduce_gradients
from minigraph.program.shards import Shard, share_updates
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.layout.order import dependencies
from minigraph.runtime.options import RunOptions
from minigraph.types import TensorType, bfloat16, float64
from tests.gpu.parallel import FLAGS, a_failing_rank_changes_nothing, as_one_rank
from tests.support import cuda_host, gpu_stub
from tests.support.parallel_training import batch, net

TYPES = {"x": TensorType((8, 6), float64), "y": TensorType((8, 1), np.dtype("int64"))}


def reduced(shares=False, clip=True, **flags):
    main, startup, loss = net(clip)
    reduce_gradients(main, loss.name, 1)
    if shares:
        share_updates(main, 1, ())
    strategy = static.BuildStrategy.all(verify="each_pass", **flags)
    return static.CompiledProgram(main, strategy), startup, loss


def test_collectives_keep_their_order_on_a_stream_of_their_own():
    program, _, loss = reduced(fuse_grad_size_in_MB=0.3 / 1024)
    plan = bind_program(program.program_for([loss.name]), TYPES, [loss.name])
    calls, turns = plan.binder.calls, plan.streams()
    collectives = [i for i in plan.order if isinstance(calls[i], Collective)]
    assert collectives == sorted(collectives) and len(collectives) == 2
    assert plan.units.units[collectives[1]].after == {collectives[0]}, "no other order may be chosen"
    stream_of = {turn.position: turn.stream for turn in turns}
    assert {stream_of[i] for i in collectives} == {2}
    assert {stream for i, stream in stream_of.items() if i not in collectives} <= {0, 1}
    assert "all_reduce 384 bytes" in [calls[i].title() for i in collectives]


def test_pieces_are_read_and_written_where_arrays_lie():
    """Sizes that divide equally: NCCL is given arrays as they lie, one after the other in the order of backward."""
    program, _, loss = reduced(shares=True, clip=False)
    plan = bind_program(program.program_for([loss.name]), TYPES, [loss.name])
    calls = [call for call in plan.binder.calls if isinstance(call, Together)]
    assert [call.kind for call in calls] == ["reduce_scatter", "all_gather"]
    assert [x.nbytes for x in calls[0].xs] == [24, 192, 64, 384], "no room for zeros behind them"


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
@pytest.mark.parametrize(
    "flags",
    [
        {}, {"fuse_all_reduce_ops": False}, {"shares": True}, {"shares": True, "clip": False},
        {"shares": True, "clip": False, "enable_inplace": False}, {"shares": True, "check_nan_inf": True},
    ],
)
def test_a_captured_step_with_collectives_trains_as_one_without(flags, monkeypatch):
    stub, found = gpu_stub.installed(monkeypatch), []
    for place in (mg.CPUPlace(), mg.CUDAPlace(0)):
        program, startup, _ = reduced(**flags)
        exe, scope = static.Executor(place), static.Scope()
        exe.run(startup, scope=scope)
        source = program if place != mg.CPUPlace() else net(flags.get("clip", True))[0]
        if flags.get("shares"):  # AgreedPlan does this where there are several ranks
            for v in [v for v in program.before.vars.values() if isinstance(v, Shard)]:
                scope.take(v.name, scope.read(v.whole).reshape(-1))
        for step in range(4):
            exe.run(source, feed=batch(step), scope=scope)
        found.append(program.before.state_dict("param", scope))
    assert stub.captures
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
@pytest.mark.parametrize("title", list(FLAGS))
def test_two_gpus_train_as_one_cpu(title, monkeypatch):
    """The checks of tests/gpu/parallel.py, which run over NCCL where there are GPUs."""
    gpu_stub.installed(monkeypatch, 2)
    as_one_rank(2, FLAGS[title])


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="kernels on a CPU need g++")
@pytest.mark.parametrize("flags", [*FLAGS.values(), {"check_nan_inf": True}], ids=[*FLAGS, "check_nan_inf"])
def test_a_bad_label_on_one_gpu_changes_nothing_on_another(flags, monkeypatch):
    gpu_stub.installed(monkeypatch, 2)
    a_failing_rank_changes_nothing(**flags)


class Second(Group):
    rank, size = 1, 2


def agreeing(plan):
    """The positions of the calls by which ranks know of each other's faults: tell, sum, hear."""
    calls = plan.binder.calls
    told = [i for i, call in enumerate(calls) if getattr(call, "function", "") == "tell"]
    return [(i, i + 1, i + 2) for i in told if calls[i + 2].function == "hear"]


@pytest.mark.parametrize("checks", [False, True])
def test_ranks_agree_behind_all_that_may_report_and_before_all_that_updates(checks):
    main, _, loss = net()
    reduce_gradients(main, loss.name, 2)
    with acting(Second()):
        plan = bind_program(main, TYPES, [], options=RunOptions(check_nan_inf=checks))
    ((tell, sum_, hear),) = agreeing(plan)
    before = dependencies(plan.units.units)
    touching = {i for i, call in enumerate(plan.binder.calls) if call.looks_at(plan.binder.fault)} - {tell, hear}
    guards = {i for i in touching if hear in before[i]}
    assert guards and touching - guards <= before[tell] and tell in before[sum_] and sum_ in before[hear]
    own, (units, blocks) = {id(b) for b in plan.outside.values()}, plan.units
    writers = {i for i, unit in enumerate(units) if any(id(blocks[n]) in own for n in unit.writes)}
    assert checks or writers <= guards, "scans count as writers of what a step updates"


def test_ranks_that_have_nothing_to_agree_on_do_not():
    main, _, loss = net()
    with acting(Second()):
        assert not agreeing(bind_program(main, TYPES, [])), "this rank runs it alone"
    reduce_gradients(main, loss.name, 1)
    assert not agreeing(bind_program(main, TYPES, [])), "there is no other"


def test_pieces_lie_in_the_arrays_of_the_scope():
    """The second rank of two: its update writes into parameters, which NCCL gathers in place; odd sizes are copied."""

    main, _, loss = net(clip=False)
    reduce_gradients(main, loss.name, 2)
    share_updates(main, 2, ())
    with acting(Second()):
        program = static.CompiledProgram(main, static.BuildStrategy.all(verify="each_pass")).program_for([])
        plan = bind_program(program, TYPES, [])
    (gather,) = [call for call in plan.binder.calls if isinstance(call, Together) and call.kind == "all_gather"]
    places = {}
    for out, x in zip(gather.outs, gather.xs, strict=True):
        name = next((n for n, b in plan.outside.items() if b is owner(x)), "")
        places[name] = root_and_offset(x)[1]
        assert not name or out is plan.outside[name]
    assert places == {"": 0, "linear_0.w_0": 192, "linear_0.b_0": 32, "linear_2.w_0": 96}, "b of 3 cannot be cut so"
    copies = [call for call in plan.binder.calls if isinstance(call, Copy)]
    assert max(copy.source.nbytes for copy in copies) <= 24, "only of the array that cannot"


# NCCL, as CuPy has it


class NcclError(RuntimeError):
    """CuPy's, with NCCL's number."""

    def __init__(self, status):
        super().__init__(f"NCCL_ERROR_{status}: unhandled")
        self.status = status


class Ends:
    """CuPy's NcclCommunicator as far as it is used."""

    groups = []  # noqa: RUF012  (what all ends have done)

    def __init__(self, size, number, rank):
        self.made, self.calls, self.status, self.aborted = (size, number, rank), [], 0, False

    def check_async_error(self):
        """CuPy gives nothing back: it raises what went wrong."""
        if self.status:
            raise NcclError(self.status)

    def abort(self):
        self.aborted = True

    def __getattr__(self, name):
        return lambda *given: self.calls.append((name, given))


@pytest.fixture
def nccl(monkeypatch):
    """The module device/nccl.py over a CuPy that only notes what it is asked."""
    names = ("INT8", "UINT8", "INT32", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "SUM")
    fake = SimpleNamespace(
        **{f"NCCL_{name}": number for number, name in enumerate(names[:7])}, NCCL_SUM=0, NcclError=NcclError,
        NcclCommunicator=Ends, get_unique_id=lambda: (7,) * 128,
        groupStart=lambda: Ends.groups.append("start"), groupEnd=lambda: Ends.groups.append("end"),
    )  # fmt: skip
    events = []

    def event(**_):
        events.append(SimpleNamespace(ptr=0, done=False))
        return events[-1]

    cupy, inner = ModuleType("cupy"), ModuleType("cupy.cuda")
    inner.nccl, inner.Event = fake, event
    inner.runtime = SimpleNamespace(
        getDeviceProperties=lambda i: {"uuid": bytes([i])}, eventRecord=lambda *_: None
    )
    cupy.cuda = inner
    for name, module in {"cupy": cupy, "cupy.cuda": inner, "cupy.cuda.nccl": fake}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "minigraph.kernels.cuda.device.nccl", raising=False)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)  # the tests look themselves
    module = importlib.import_module("minigraph.kernels.cuda.device.nccl")
    yield module, events
    sys.modules.pop("minigraph.kernels.cuda.device.nccl", None)


@pytest.mark.parametrize("number", [(7, -7) * 64, bytes(range(128, 256))], ids=["tuple", "bytes"])
def test_nccl_gets_its_number_as_this_cupy_has_it(nccl, monkeypatch, number):
    module, _ = nccl
    monkeypatch.setattr(module.nccl, "get_unique_id", lambda: number)
    ranks = module.communicator(0)
    assert module.communicator(0) is ranks and ranks.ends.made == (1, number, 0)


def test_nccl_gets_counts_and_types(nccl):
    module, _ = nccl
    ranks = module.communicator(0)
    for kind, root in (("all_reduce", 0), ("broadcast", 2), ("reduce", 1), ("all_gather", 0), ("reduce_scatter", 0)):
        given = ranks.arguments(kind, 100, 200, (4, 8), np.dtype("float32"), root)
        ranks.run(kind, given, 9)
    assert ranks.ends.calls == [
        ("allReduce", (200, 100, 8, 5, 0, 9)), ("broadcast", (200, 100, 8, 5, 2, 9)),
        ("reduce", (200, 100, 8, 5, 0, 1, 9)), ("allGather", (200, 100, 8, 5, 9)),
        ("reduceScatter", (200, 100, 4, 5, 0, 9)),
    ]  # fmt: skip
    assert ranks.arguments("all_reduce", 1, 2, (3, 3), bfloat16, 0)[3] == 9
    assert ranks.arguments("all_gather", 1, 2, (3, 3), np.dtype("int16"), 0) == (2, 1, 6, 1)  # as bytes


def test_lists_are_one_group_of_nccl(nccl):
    """Also where one of them fails: a group that is left open would hold all that follow."""
    module, _ = nccl
    ranks = module.communicator(0)
    Ends.groups.clear()
    ranks.together([lambda n=n: Ends.groups.append(n) for n in range(2)])
    assert Ends.groups == ["start", 0, 1, "end"]
    with pytest.raises(ZeroDivisionError):
        ranks.together([lambda: 1 // 0])
    assert Ends.groups[-2:] == ["start", "end"]


@pytest.mark.parametrize("dtype", ["int16", "bool"])
def test_types_that_ranks_cannot_add_up_are_refused(dtype):
    for name, attrs in (("c_allreduce_sum", {}), ("c_reduce_sum", {"root": 0}), ("c_reducescatter", {"nranks": 1})):
        with pytest.raises(DTypeError, match=f"cannot add up {dtype}"):
            OPS[name].infer_types({"X": [TensorType((2, 3), np.dtype(dtype))]}, attrs)
    assert OPS["c_broadcast"].infer_types({"X": [TensorType((2, 3), np.dtype(dtype))]}, {"root": 0})


@pytest.mark.parametrize(("status", "timeout", "said"), [(6, 60.0, "NCCL error 6"), (0, -1.0, "waits for another one")])
def test_a_communicator_that_fails_or_hangs_is_given_up(nccl, status, timeout, said):
    module, events = nccl
    ranks = module.communicator(0)
    assert not ranks.look(), "nothing was handed over"
    ranks.handed_over(9)
    assert ranks.look()
    events[-1].done = True
    assert not ranks.look() and not ranks.ends.aborted
    ranks.timeout, ranks.ends.status = timeout, status
    assert not ranks.look() and not ranks.ends.aborted, "nothing runs"
    ranks.handed_over(9)
    assert not ranks.look() and ranks.ends.aborted
    with pytest.raises(RankError, match=said):
        ranks.check()
