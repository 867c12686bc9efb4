"""A bucket of gradients is one piece of memory on both devices: who computes them writes there, nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.kernels.cuda.collective.collective import Collective
from minigraph.kernels.cuda.record.buffer import owner, root_and_offset
from minigraph.kernels.cuda.record.calls import Copy
from minigraph.kernels.one_piece import begin, in_one_piece
from minigraph.program.reductions import reduce_gradients
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.cuda.sizes import Siblings
from minigraph.types import TensorType, float32, float64
from tests.runtime.test_memory import check_memory
from tests.support.parallel_training import net, trained

TYPES = {"x": TensorType((8, 6), float64), "y": TensorType((8, 1), np.dtype("int64"))}
BUCKET = "c_allreduce_coalesced"


def program_of(ranks=1, clip=True, **flags):
    main, _, loss = net(clip)
    reduce_gradients(main, loss.name, ranks)
    strategy = static.BuildStrategy.all(verify="each_pass", **flags)
    return static.CompiledProgram(main, strategy).program_for([loss.name])


def bound(**flags):
    program = program_of(**flags)
    return bind_program(program, TYPES, [])


def bucket_of(plan):
    """(the calls of a plan's bucket, its step)"""
    ((number, step),) = [(i, s) for i, s in enumerate(plan.schedule.steps) if s.op.type == BUCKET]
    return [plan.binder.calls[i] for i in plan.spans[number]], step


def test_on_a_gpu_gradients_are_computed_in_the_bucket():
    plan = bound()
    calls, step = bucket_of(plan)
    (call,) = calls
    assert isinstance(call, Collective) and call.x is call.out
    given, made = ([plan.buffers[i] for i in some[0]] for some in (step.inputs, step.outputs))
    assert given == made and {id(owner(b)) for b in made} == {id(owner(call.x))}
    assert [root_and_offset(b)[1] for b in made] == [0, 256, 512, 768]
    writers = {id(b) for call in plan.binder.calls if call is not calls[0] for b in call.buffers()}
    assert {id(b) for b in given} <= writers, "who computes them has no other memory for them"
    assert not any(isinstance(call, Copy) for call in plan.binder.calls)


def test_the_arena_of_a_gpu_does_not_grow():
    assert bound().arena_bytes <= bound(fuse_all_reduce_ops=False).arena_bytes


def deep(megabytes, one_update):
    """Six layers, of which several share a bucket of gradients."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), mg.utils.unique_name.guard():
        hidden, y = static.data("x", [None, 32]), static.data("y", [None, 1], "int64")
        for _ in range(5):
            hidden = mg.nn.functional.relu(mg.nn.Linear(32, 32)(hidden))
        loss = mg.nn.functional.cross_entropy(mg.nn.Linear(32, 8)(hidden), y)
        mg.optimizer.AdamW(0.1).minimize(loss)
    reduce_gradients(main, loss.name, 2)
    strategy = static.BuildStrategy.all(fuse_grad_size_in_MB=megabytes, fuse_all_optimizer_ops=one_update)
    return static.CompiledProgram(main, strategy).program_for([loss.name]), loss.name


@pytest.mark.parametrize("one_update", [False, True])
@pytest.mark.parametrize("megabytes", [0.005, 0.01, 32])
def test_no_race_and_no_early_reuse_around_buckets(megabytes, one_update):
    """For the first size, and for smaller ones that lie where it lies."""
    program, loss = deep(megabytes, one_update)
    siblings, plans = Siblings(), []
    for rows in (256, 192, 64):
        types = {"x": TensorType((rows, 32), float32), "y": TensorType((rows, 1), np.dtype("int64"))}
        plans.append(bind_program(program, types, [loss], siblings=siblings))
        siblings.keep(plans[-1].schedule, plans[-1].layout)
        check_memory(plans[-1])
    assert len({id(plan.layout) for plan in plans}) < len(plans), "one lies where another one lies"


def test_gradients_of_one_bucket_do_not_wait_for_each_other():
    """They lie in one buffer, and may be computed in any order, as if each had its own."""
    plan = bound()
    (at,) = [i for i, call in enumerate(plan.binder.calls) if isinstance(call, Collective)]
    units = plan.units.units
    members = units[at].writes
    assert len(members) == 4
    makers = [unit.writes & members for unit in units[:at] if unit.writes & members]
    assert sum(map(len, makers)) == 4, "each is written by one call"
    assert not any(unit.reads & members for unit in units[:at])


def test_a_gradient_in_another_type_travels_in_a_bucket_of_its_own():
    calls, _ = bucket_of(bound(all_reduce_dtype="float32"))
    narrow, collective, wide = calls
    assert collective.x.dtype == np.float32 and len({id(owner(b)) for c in (narrow, wide) for b in c.buffers()}) == 2


def read_later():
    """A program in which what a bucket reduces is read as it was, too: it cannot be written over."""
    main = static.Program()
    with static.program_guard(main):
        x = static.data("x", [4, 3], "float64")
        a, b = mg.exp(x), mg.sqrt(x)
        block = main.global_block()
        sums = [block.create_var(name=n, shape=[4, 3], dtype="float64") for n in ("p", "q")]
        block.append_op(BUCKET, {"X": [a, b]}, {"Out": sums})
        block.append_op("elementwise_add", {"X": sums[0], "Y": a}, {"Out": block.create_var(
            name="r", shape=[4, 3], dtype="float64")})  # fmt: skip
    return main


def test_what_is_read_later_is_copied():
    main, types = read_later(), {"x": TensorType((4, 3), float64)}
    calls, _ = bucket_of(bind_program(main, types, ["q", "r"]))
    assert [type(call) for call in calls] == [Copy, Collective], "b dies here, a does not"
    x = np.arange(1.0, 13).reshape(4, 3)
    q, r = static.Executor(mg.CPUPlace()).run(main, feed={"x": x}, fetch_list=["q", "r"])
    np.testing.assert_array_equal(q, np.sqrt(x))
    np.testing.assert_array_equal(r, 2 * np.exp(x))


def test_on_a_cpu_gradients_are_computed_in_the_bucket():
    plan = Plan(program_of(), TYPES, [])
    (at,) = [i for i, b in enumerate(plan.steps) if b.step.op.type == BUCKET]
    made = list(plan.steps[at].out[0])
    whole = in_one_piece(made)
    assert whole is not None and begin(whole) == begin(made[0])
    buffers = {plan.values[i].buffer for i in plan.steps[at].step.read}
    assert {begin(plan.buffers[b]) for b in buffers} == {begin(a) for a in made}


def test_arrays_that_do_not_lie_in_a_row_are_seen():
    memory = np.zeros(4096, np.uint8)
    a, b, c = (memory[at : at + 64].view(np.float64) for at in (0, 256, 1024))
    assert in_one_piece([a, b]).size == 40
    for other in (c, np.zeros(8), b.view(np.float32), memory[256:320].view(np.float64)[::2]):
        assert in_one_piece([a, other]) is None
    assert in_one_piece([b, a]) is None


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_what_ranks_compute_in_the_bucket_has_the_bits_of_copies(dtype, monkeypatch):
    flags = {"fuse_all_reduce_ops": True, "all_reduce_dtype": dtype, "steps": 3}
    there = trained(3, rows=6, **flags)
    monkeypatch.setattr("minigraph.kernels.cpu.collectives.in_one_piece", lambda arrays: None)
    copied = trained(3, rows=6, **flags)
    assert there[0] == copied[0]
    for name, value in copied[1].items():
        np.testing.assert_array_equal(there[1][name], value, err_msg=name)
