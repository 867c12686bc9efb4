"""One process with several places: W ranks with batch B / W are one rank with batch B."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import FeedError, MinigraphError, PlaceError, ProgramError
from minigraph.kernels.groups import ALONE, RankError, acting, present
from minigraph.runtime.parallel import replicas as replicas_module
from minigraph.runtime.parallel.threads import Meeting
from tests.support.in_threads import in_threads
from tests.support.parallel_training import batch, net, trained

SCALE = static.BuildStrategy.GradientScaleStrategy


def parallel(main, loss, ranks, **flags):
    strategy = static.BuildStrategy(**flags)
    return static.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=static.cpu_places(ranks))


def started(startup):
    exe, scope = static.Executor(mg.CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    return exe, scope


@pytest.mark.parametrize("flags", [{}, {"every": True, "verify": "each_pass"}])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_one_rank(ranks, flags):
    """With clipping by the global norm, weight decay, a scheduler, and all rewrites or none."""
    losses, values = trained(1, **flags)
    found_losses, found = trained(ranks, **flags)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-12)
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def test_parameters_are_equal_on_all_ranks_after_every_step():
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 3)
    for step in range(3):
        (values,) = exe.run(program, feed=batch(step, 6), fetch_list=["linear_0.w_0"], scope=scope, return_merged=False)
        assert len(values) == 3
        for value in values[1:]:
            np.testing.assert_array_equal(value, values[0])
        np.testing.assert_array_equal(values[0], scope.read("linear_0.w_0"))


def test_what_changes_between_runs_reaches_all_ranks():
    """A learning rate that is set, a state that is loaded: rank 0's Scope is the user's."""
    main, startup, loss = net(rate=0.1)
    exe, scope = started(startup)
    program = parallel(main, loss, 2)

    def weights():
        got = exe.run(program, feed=batch(0), fetch_list=["linear_0.w_0"], scope=scope, return_merged=False)[0]
        np.testing.assert_array_equal(got[0], got[1])
        return got[0]

    begin = scope.read("linear_0.w_0")
    assert not np.array_equal(weights(), begin)
    main.set_state_dict({name: np.zeros_like(v) for name, v in main.state_dict("param", scope).items()}, scope)
    assert abs(weights()).max() < 0.2
    scope.fill("learning_rate_0", 0.0)
    before = scope.read("linear_0.w_0")
    np.testing.assert_array_equal(weights(), before)


def test_fetched_values_are_joined_as_paddle_does():
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 2)
    feed = batch(0)
    merged = exe.run(program, feed=feed, fetch_list=[loss, "relu_0.tmp_0"], scope=scope)
    assert [v.shape for v in merged] == [(2,), (8, 8)]
    apart = exe.run(program, feed=feed, fetch_list=[loss, "relu_0.tmp_0"], scope=scope, return_merged=False)
    assert [v.shape for v in apart[1]] == [(4, 8), (4, 8)]
    halves = [{name: x[:4] for name, x in feed.items()}, {name: x[4:] for name, x in feed.items()}]
    assert exe.run(program, feed=halves, fetch_list=[loss], scope=scope)[0].shape == (2,)


@pytest.mark.parametrize(("scale", "factor"), [(SCALE.CoeffNumDevice, 0.5), (SCALE.One, 1.0)])
def test_the_gradient_of_the_loss_begins_as_the_strategy_says(scale, factor):
    main, startup, loss = net(clip=False)
    exe, scope = started(startup)
    grad = "linear_0.w_0@GRAD"
    program = parallel(main, loss, 2, gradient_scale_strategy=scale)
    found = exe.run(program, feed=batch(0), fetch_list=[grad], scope=scope, return_merged=False)[0][1]
    alone = [exe.run(main.clone(), feed={n: x[half] for n, x in batch(0).items()}, fetch_list=[grad],
                     scope=started(startup)[1])[0] for half in (slice(4), slice(4, 8))]  # fmt: skip
    np.testing.assert_allclose(found, factor * (alone[0] + alone[1]), rtol=1e-12)


def test_the_gradient_of_the_loss_may_be_fed():
    main, startup, loss = net(clip=False)
    exe, scope = started(startup)
    program = parallel(main, loss, 2, gradient_scale_strategy=SCALE.Customized)
    grad, feed = "linear_0.w_0@GRAD", batch(0)

    def run(seed):
        given = {**feed, f"{loss.name}@GRAD": np.float64(seed)}
        return exe.run(program, feed=given, fetch_list=[grad], scope=started(startup)[1], return_merged=False)[0][0]

    np.testing.assert_allclose(run(3.0), 3 * run(1.0), rtol=1e-12)
    with pytest.raises(MinigraphError, match=r"GRAD.* has no value"):
        exe.run(program, feed=feed, fetch_list=[grad], scope=scope)


def test_each_rank_draws_numbers_of_its_own():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 50])
        out = mg.nn.functional.dropout(x, 0.5)
        w = static.create_parameter([50], "float32")
        loss = mg.mean(out * w)
        mg.optimizer.SGD(0.0).minimize(loss)
    exe, scope = started(startup)
    program = parallel(main, loss, 2)
    ones = np.ones((2, 50), np.float32)
    (a, b) = exe.run(program, feed={"x": ones}, fetch_list=[out], scope=scope)[0]
    assert not np.array_equal(a, b)


def test_what_cannot_be_shared_is_refused():
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 4)
    with pytest.raises(FeedError, match=r"feed 'x' has 6 rows, which 4 places cannot share equally"):
        exe.run(program, feed=batch(0, 6), fetch_list=[loss], scope=scope)
    with pytest.raises(FeedError, match="list of 2 dicts, and 4 places"):
        exe.run(program, feed=[batch(0)] * 2, fetch_list=[loss], scope=scope)
    with pytest.raises(ProgramError, match=r"feeds of rank 0 and rank 3 differ: x: f64\[8,6\]"):
        exe.run(program, feed=[batch(0)] * 3 + [batch(0, 4)], fetch_list=[loss], scope=scope)
    with pytest.raises(ProgramError, match="updates parameters, and loss_name is None"):
        exe.run(static.CompiledProgram(main).with_data_parallel(places=static.cpu_places(2)), feed=batch(0))
    with pytest.raises(ProgramError, match="is not the loss of which program"):
        exe.run(static.CompiledProgram(main).with_data_parallel("relu_0.tmp_0", places=static.cpu_places(2)),
                feed=batch(0))  # fmt: skip
    with pytest.raises(ProgramError, match="CPUs and GPUs"):
        static.CompiledProgram(main).with_data_parallel(loss.name, places=[mg.CPUPlace(), mg.CUDAPlace(0)])
    for third in ([static.cpu_places(2)], [None, static.cpu_places(2)]):
        with pytest.raises(mg.errors.ProgramError, match=r"hint: places=\.\.\. names the places"):
            static.CompiledProgram(main).with_data_parallel(loss.name, None, *third)
    static.CompiledProgram(main).with_data_parallel(loss.name, None, static.ExecutionStrategy())
    with pytest.raises(PlaceError, match="GPU 1 twice"):
        static.CompiledProgram(main).with_data_parallel(loss.name, places=[mg.CUDAPlace(1), mg.CUDAPlace(1)])
    exe.run(program, feed=batch(0), fetch_list=[loss], scope=scope)


def test_a_rank_that_fails_is_named_and_the_next_run_works():
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 2)
    feed = batch(0)
    exe.run(program, feed=feed, fetch_list=[loss], scope=scope)
    before = scope.read("linear_0.w_0")
    bad = {**feed, "y": np.where(np.arange(8)[:, None] == 7, 99, feed["y"])}
    with pytest.raises(MinigraphError, match=r"(?s)99.*it was rank 1 of 2"):
        exe.run(program, feed=bad, fetch_list=[loss], scope=scope)
    np.testing.assert_array_equal(scope.read("linear_0.w_0"), before)
    for value in exe.run(program, feed=feed, fetch_list=["linear_0.w_0"], scope=scope, return_merged=False)[0]:
        np.testing.assert_array_equal(value, scope.read("linear_0.w_0"))


def test_a_test_program_runs_at_several_places():
    main, startup, loss = net()
    exe, scope = started(startup)
    program = static.CompiledProgram(main.clone(for_test=True)).with_data_parallel(places=static.cpu_places(2))
    (value,) = exe.run(program, feed=batch(0), fetch_list=[loss], scope=scope)
    (whole,) = exe.run(main.clone(for_test=True), feed=batch(0), fetch_list=[loss], scope=scope)
    np.testing.assert_allclose(value.mean(), whole, rtol=1e-12)


def test_programs_of_one_scope_see_each_others_steps():
    """Two compiled programs, of 2 and of 3 ranks, one that tests, and the program alone: in place and in turns."""
    main, startup, loss = net()
    exe, scope = started(startup)
    name = "linear_0.w_0"
    two, three, test = (
        static.CompiledProgram(program).with_data_parallel(loss.name if program is main else None,
                                                           places=static.cpu_places(ranks))
        for program, ranks in ((main, 2), (main, 3), (main.clone(for_test=True), 3))
    )  # fmt: skip
    for step, program in enumerate((two, three, test, two, test, main, two, three, main, test, three)):
        many = program is not main
        found = exe.run(program, feed=batch(step, 6), fetch_list=[name], scope=scope, return_merged=not many)
        for value in found[0] if many else found:
            np.testing.assert_array_equal(value, scope.read(name), err_msg=f"step {step}")


# A group of threads


class Version:
    """Another one for each rank."""

    def __str__(self):
        return f"1.0.rank{present().rank}"


def on_ranks(size, body, timeout=60.0):
    """What `body(group)` returns or raises on each rank."""
    meeting = Meeting(size, timeout)

    def rank(group):
        try:
            return body(group)
        except MinigraphError as problem:
            meeting.fail(group.rank, problem)
            return problem

    return in_threads(rank, meeting.ranks())


@pytest.mark.parametrize("rows", [3, 5003])
def test_collectives_of_threads(rng, rows):
    xs = [rng.normal(size=(3 * rows, 2)) for _ in range(3)]
    total = xs[0] + xs[1] + xs[2]

    def body(group):
        x = xs[group.rank].copy()
        np.testing.assert_array_equal(group.all_reduce(x), total)
        np.testing.assert_array_equal(group.all_reduce(x.T), total.T)
        assert group.all_reduce(x, out=x) is x
        np.testing.assert_array_equal(x, total)
        np.testing.assert_array_equal(group.broadcast(xs[group.rank], 1), xs[1])
        np.testing.assert_array_equal(group.reduce(xs[group.rank], 2), total if group.rank == 2 else 0 * total)
        np.testing.assert_array_equal(group.all_gather(xs[group.rank]), np.concatenate(xs))
        np.testing.assert_array_equal(group.reduce_scatter(xs[group.rank]), np.split(total, 3)[group.rank])
        return group.texts(f"I am {group.rank}")

    assert on_ranks(3, body) == [["I am 0", "I am 1", "I am 2"]] * 3
    assert present() is ALONE


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    """Time runs from when the two others are there, however late one of them was."""
    wait, others = Meeting.wait, threading.Barrier(2)
    monkeypatch.setattr(Meeting, "wait", lambda *given: (others.wait(60), wait(*given)))
    found = on_ranks(3, lambda group: group.rank == 1 or group.all_reduce(np.ones(2)), timeout=1.0)
    assert found[1] is True and isinstance(found[0], RankError) and isinstance(found[2], RankError)
    assert found[0].ranks == found[2].ranks == (1,) and "rank 1 did not come to all_reduce" in str(found[0])


def other_net(group):
    main, startup, loss = net(clip=group.rank == 0)
    return main, startup, loss, {}


def other_strategy(group):
    return *net(), {"fuse_all_reduce_ops": group.rank == 1}


def other_reduce(group):
    kinds = static.BuildStrategy.ReduceStrategy
    return *net(), {"reduce_strategy": kinds.Reduce if group.rank else kinds.AllReduce}


def other_version(group):
    return *net(), {}


DIFFERENT = {
    other_net: "program of rank 0 and rank 1 differ: .* operators",
    other_strategy: "BuildStrategy of rank 0 and rank 1 differ: the defaults and fuse_all_reduce_ops=True",
    other_reduce: "BuildStrategy of rank 0 and rank 1 differ: .* reduce_strategy=ReduceStrategy.Reduce",
    other_version: "minigraph of rank 0 and rank 1 differ: 1.0.rank0 and 1.0.rank1",
}


@pytest.mark.parametrize("made", DIFFERENT, ids=lambda made: made.__name__)
def test_ranks_that_were_built_differently_are_refused_before_the_first_step(made, monkeypatch):
    """As processes would do it: each rank builds, and has a Scope of its own."""
    if made is other_version:
        monkeypatch.setattr("minigraph.runtime.parallel.agreement.VERSION", Version())
    lock, before = threading.Lock(), {}

    def body(group):
        with acting(group):
            with lock:
                main, startup, loss, flags = made(group)
            exe, scope = started(startup)
            before[group.rank] = scope.read("linear_0.w_0"), scope
            program = static.CompiledProgram(main).with_data_parallel(loss.name, static.BuildStrategy(**flags))
            return exe.run(program, feed=batch(0, 4), fetch_list=[loss], scope=scope)

    found = on_ranks(2, body)
    assert all(isinstance(each, MinigraphError) for each in found)
    assert any(re.search(DIFFERENT[made], str(each)) for each in found), found
    for value, scope in before.values():
        np.testing.assert_array_equal(scope.read("linear_0.w_0"), value)


def test_ranks_that_were_built_alike_train():
    lock, found = threading.Lock(), {}

    def body(group):
        with acting(group):
            with lock:
                main, startup, loss = net()
            exe, scope = started(startup)
            exe.run(static.CompiledProgram(main).with_data_parallel(loss.name), feed=batch(0, 4), scope=scope)
            found[group.rank] = scope.read("linear_0.w_0")

    assert on_ranks(2, body) == [None, None]
    np.testing.assert_array_equal(found[0], found[1])


def test_ranks_that_call_different_things_are_named():
    found = on_ranks(2, lambda group: group.all_reduce(np.ones(2 + group.rank)))
    assert all(isinstance(each, RankError) for each in found)
    assert any("rank 0 calls all_reduce float64[2], rank 1 calls all_reduce float64[3]" in str(e) for e in found)




@pytest.mark.parametrize("when", ["before rank 0 begins", "while it waits for the others"])
def test_no_rank_is_left_behind_by_an_interrupt(when, monkeypatch):
    """It would hold its Scope, and the next step would wait for it."""
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 3)
    exe.run(program, feed=batch(0, 6), fetch_list=[loss], scope=scope)
    replicas = exe._replicas_of(program)
    meeting, take, wait, ranks = replicas.meeting, replicas.workers.take, replicas_module._wait, []

    def taken(rank):
        if ranks and when == "before rank 0 begins":
            raise KeyboardInterrupt
        ranks.append(rank)
        take(rank)

    waits = []

    def waited(others, problem):
        waits.append(others)
        if len(waits) == 1 and when == "while it waits for the others":
            raise KeyboardInterrupt
        return wait(others, problem)

    with monkeypatch.context() as patched:
        patched.setattr(replicas.workers, "take", taken)
        patched.setattr(replicas_module, "_wait", waited)
        with pytest.raises(KeyboardInterrupt):
            exe.run(program, feed=batch(1, 6), fetch_list=[loss], scope=scope)
    left = [rank for rank in ranks if not rank.cancel() and rank._running.locked()]
    meeting.barrier.abort()  # so that none waits for longer than this test
    assert ranks and left == []
    exe.run(program, feed=batch(1, 6), fetch_list=[loss], scope=scope)


def test_an_interrupt_at_a_barrier_leaves_its_lock_free(monkeypatch):
    """It may come wherever Python runs our code: here, once a thread has come, and while it lets the others go."""
    meeting = Meeting(2)
    gates = meeting.barrier._gates

    class Interrupting(list):
        def append(self, gate):
            gates.append(gate)
            raise KeyboardInterrupt

    monkeypatch.setattr(meeting.barrier, "_gates", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        meeting.wait(0, "here")
    monkeypatch.undo()
    meeting.fail(0, KeyboardInterrupt())
    meeting.wait(1, "here")  # where rank 0 has come
    with pytest.raises(RankError, match="rank 0 failed"):
        meeting.wait(1, "there")


def test_who_holds_a_scope_may_run_at_several_places_in_it():
    """As with one Executor, tests/program/test_threads.py: the lock of the Scope comes first."""
    main, startup, loss = net()
    exe, scope = started(startup)
    program = parallel(main, loss, 2)
    exe.run(program, feed=batch(0, 4), scope=scope)
    lock, came = exe._replicas[program].lock, threading.Event()
    with scope.lock:
        other = threading.Thread(target=lambda: (came.set(), exe.run(program, feed=batch(1, 4), scope=scope)))
        other.start()
        came.wait(60)
        other.join(0.3)
        free = lock.acquire(blocking=False)
        if free:
            exe.run(program, feed=batch(2, 4), scope=scope)
            lock.release()
    other.join()
    assert free
