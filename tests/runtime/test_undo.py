"""A run that fails leaves the values of a Scope as they were, or says that it could not; arrays have one owner."""

from __future__ import annotations

import inspect
import itertools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import KernelError, OutOfMemoryError, ProgramError
from minigraph.opdef import OPS
from minigraph.runtime.cpu.plan import Plan
from minigraph.runtime.cuda.faults import Faults
from tests.support import gpu_stub


class Trained:
    """A net whose program goes on after its updates with what may refuse a value."""

    def __init__(self, optimizer: Any, after: Any = None, strategy: static.BuildStrategy | None = None) -> None:
        self.main, startup = static.Program("main"), static.Program("startup")
        with static.program_guard(self.main, startup):
            self.x, self.label = static.data("x", [4, 3]), static.data("label", [4, 1], "int64")
            h = mg.nn.Dropout(0.5)(static.nn.fc(self.x, 5))
            self.loss = mg.mean(h * h)
            optimizer.minimize(self.loss)
            if after is not None:
                after(self)
        self.exe, self.scope = static.Executor(), static.Scope()
        self.program = static.CompiledProgram(self.main, strategy) if strategy else self.main
        self.main.random_seed = startup.random_seed = 7
        self.exe.run(startup, scope=self.scope)

    def run(self, label: int = 0) -> np.ndarray:
        feed = {"x": np.arange(12, dtype="float32").reshape(4, 3) / 12}
        if any("label" in op.input_arg_names for op in self.main.ops):
            feed["label"] = np.full((4, 1), label)
        return self.exe.run(self.program, feed, [self.loss], scope=self.scope)[0]

    def state(self) -> dict[str, bytes]:
        return {v.name: self.scope.read(v.name).tobytes() for v in self.main.list_vars() if v.persistable}


def cross_entropy(net: Trained) -> None:
    mg.nn.functional.cross_entropy(net.x, net.label)


def table(net: Trained) -> None:
    mg.nn.Embedding(3, 2)(net.label)


def printed(net: Trained) -> None:
    static.Print(net.loss)


LATER = [cross_entropy, table]
OPTIMIZERS = [lambda: mg.optimizer.SGD(0.1), lambda: mg.optimizer.Adam(0.1), lambda: mg.optimizer.Momentum(0.1)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("after", LATER)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_refused_value_after_the_updates_changes_nothing(optimizer: Any, after: Any, fused: bool):
    strategy = static.BuildStrategy(fuse_all_optimizer_ops=True) if fused else None
    failing, whole = (Trained(optimizer(), after, strategy) for _ in range(2))
    for _ in range(4):
        before, counters = failing.state(), dict(failing.scope.steps)
        with pytest.raises(KernelError, match="3"):
            failing.run(label=3)
        assert failing.state() == before and failing.scope.steps == counters and not failing.scope.torn
        assert failing.run() == whole.run()  # with the same dropout
        assert list(failing.state().values()) == list(whole.state().values()) and failing.state() != before


def test_a_print_that_fails_after_the_updates_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    net = Trained(mg.optimizer.Adam(0.1), printed)

    class Closed:
        def write(self, text: str) -> None:
            raise BrokenPipeError("nobody listens")

    for _ in range(3):
        before = net.state()
        with monkeypatch.context() as m:
            m.setattr(sys, "stdout", Closed())
            with pytest.raises(KernelError, match="nobody listens"):
                net.run()
        assert net.state() == before
        net.run()


def test_values_that_were_not_there_are_gone_again():
    main = static.Program("main")
    with static.program_guard(main):
        made = main.global_block().create_var("made", [2], "float32", persistable=True)
        label = static.data("label", [1], "int64")
        mg.assign(mg.full([2], 3.0), made)
        mg.nn.functional.cross_entropy(mg.full([1, 3], 1.0), label)
    exe, scope = static.Executor(), static.Scope()
    with pytest.raises(KernelError):
        exe.run(main, {"label": [5]}, scope=scope)
    assert not scope.has("made") and not scope.torn
    exe.run(main, {"label": [1]}, scope=scope)
    assert (scope.read("made") == 3).all()


def test_ordinary_programs_keep_no_copies():
    net = Trained(mg.optimizer.Adam(0.1))
    net.run()
    plan = next(iter(reversed(net.exe._plans.values())))
    assert not plan.undo.kept and plan.undo.names


class Interrupted:
    """Lets an operator's kernel raise in its n-th call from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, op_type: str, call: int, problem: BaseException) -> None:
        real, self.calls = OPS[op_type].cpu_kernel, 0

        def kernel(*args: Any, **attrs: Any) -> Any:
            self.calls += 1
            if self.calls == call:
                raise problem
            return real(*args, **attrs)

        kernel.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
        monkeypatch.setitem(OPS[op_type].__dict__, "cpu_kernel", kernel)


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), MemoryError("no room")])
def test_an_interrupt_between_updates_marks_the_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: BaseException
):
    net = Trained(mg.optimizer.SGD(0.1))
    Interrupted(monkeypatch, "sgd", 4, problem)
    net.run()
    weight = net.main.all_parameters()[0].name
    with pytest.raises((KeyboardInterrupt, KernelError)):
        net.run()
    phrase = r"(?s)half a step ahead.*program main ended between its updates.*hint: load a checkpoint, run the startup"
    for reader in (
        net.run, net.state, lambda: net.scope.read(weight), lambda: net.main.state_dict(scope=net.scope),
        lambda: np.array(net.scope.find_var(weight).get_tensor()),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match=phrase):
            reader()
    with static.scope_guard(net.scope), pytest.raises(ProgramError, match=phrase):
        static.save(net.main, str(tmp_path / "net"))
    assert not (tmp_path / "net.pdparams").exists()


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), MemoryError("no room")])
def test_a_failure_between_two_results_of_an_update_marks_the_values(monkeypatch: Any, problem: Any):
    """Where nothing is written over, an operator gives the Scope its new arrays one by one."""
    net = Trained(mg.optimizer.Adam(0.1), strategy=static.BuildStrategy(enable_inplace=False))
    before, take, given = net.main.state_dict(scope=net.scope), static.Scope.take, []
    net.run()
    for most in range(11):  # arrays that are given: five for each of two parameters

        def failing(scope: static.Scope, name: str, array: Any, most: int = most) -> None:
            if len(given) == most:
                raise problem
            given.append(name)
            take(scope, name, array)

        net.main.set_state_dict(before, net.scope)
        given.clear()
        with monkeypatch.context() as patched:
            patched.setattr(static.Scope, "take", failing)
            if most == 10:
                net.run()
                break
            with pytest.raises((KeyboardInterrupt, KernelError), match=r"^$|adam.*no room"):
                net.run()
        assert bool(net.scope.torn) == bool(given)


def update_behind_a_cut(net: Trained) -> None:
    """Another optimizer behind a call that waits for a number: the run is cut between the two updates."""
    largest, _ = mg.topk(net.x, mg.max(net.label) + 1)
    net.loss = mg.mean(static.nn.fc(net.x, 3)) * mg.mean(largest)
    mg.optimizer.SGD(0.1).minimize(net.loss)


def without_room(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """There is no memory for the fetched value of this name."""
    fetch, judge = Plan._fetch, Faults.judge

    def on_cpu(plan: Plan, env: list[Any], index: int) -> np.ndarray:
        if plan.values[index].name == name:
            raise MemoryError("no room")
        return fetch(plan, env, index)

    def on_gpu(faults: Faults, *record: Any) -> None:
        judge(faults, *record)
        if name in faults.schedule.fetches:
            raise OutOfMemoryError("no room")

    monkeypatch.setattr(Plan, "_fetch", on_cpu)
    monkeypatch.setattr(Faults, "judge", on_gpu)


@pytest.mark.parametrize("after", [None, table, update_behind_a_cut])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_run_that_cannot_hand_over_its_results_is_done(monkeypatch: pytest.MonkeyPatch, after: Any, on_gpu: bool):
    """All updates are there, and the run counts: the next one draws other random numbers."""
    if on_gpu:
        gpu_stub.installed(monkeypatch)
    failing, whole = nets = [Trained(mg.optimizer.Adam(0.1), after) for _ in range(2)]
    for net in nets:
        net.exe = static.Executor(mg.CUDAPlace(0) if on_gpu else mg.CPUPlace())
        net.run()
    with monkeypatch.context() as patched:
        without_room(patched, failing.loss.name)
        with pytest.raises(KernelError, match=r"out of memory|no room"):
            failing.run()
    whole.run()
    for _ in range(2):
        assert list(failing.state().values()) == list(whole.state().values()) and not failing.scope.torn
        assert failing.scope.steps[failing.main.origin] == whole.scope.steps[whole.main.origin]
        assert failing.run() == whole.run()


def test_what_is_written_anew_is_whole_again(monkeypatch: pytest.MonkeyPatch):
    net = Trained(mg.optimizer.SGD(0.1))
    whole = net.main.state_dict(scope=net.scope)
    Interrupted(monkeypatch, "sgd", 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        net.run()
    assert net.scope.torn
    net.main.set_state_dict(whole, net.scope)
    assert not net.scope.torn
    net.run()
    net.scope.tear(list(whole), "for the test")
    assert sorted(net.scope.accept_torn()) == sorted(whole)
    net.run()


def test_an_interrupt_before_the_updates_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    net = Trained(mg.optimizer.SGD(0.1))
    before = net.state()
    Interrupted(monkeypatch, "dropout", 1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        net.run()
    assert net.state() == before and not net.scope.torn
    net.run()


# arrays of a Scope


@pytest.mark.parametrize("way", ["write", "views", "arrays", "setdefault"])
def test_two_names_of_one_array_do_not_change_each_other(way: str):
    main = static.Program("main")
    with static.program_guard(main):
        v = main.global_block().create_var("a", [3], "float32", persistable=True)
        rate = static.data("rate", [1])
        grad = static.data("g", [3])
        main.global_block().append_op("sgd", {"Param": v, "Grad": grad, "LearningRate": rate}, {"ParamOut": v})
    scope, given = static.Scope(), np.zeros(5, "float32")
    pair = {"views": (given[:3], given[1:4])}.get(way, (given[:3].copy(),) * 2)
    for name, array in zip(("a", "b"), pair, strict=True):
        if way in ("write", "views"):
            scope.write(name, array)
        elif way == "arrays":
            scope.arrays[name] = array
        else:
            scope.arrays.setdefault(name, array)
    exe = static.Executor()
    for step in range(1, 4):
        exe.run(main, {"rate": np.ones(1, "f4"), "g": np.ones(3, "f4")}, scope=scope)
        assert (scope.read("a") == -step).all() and (scope.read("b") == 0).all()
        if way != "arrays":
            assert way == "setdefault" or not given.any()
    scope.arrays["b"] = scope.arrays["a"]
    exe.run(main, {"rate": np.ones(1, "f4"), "g": np.ones(3, "f4")}, scope=scope)
    assert (scope.read("a") == -4).all() and (scope.read("b") == -3).all()


def test_what_is_given_to_a_scope_stays_the_givers():
    scope, given = static.Scope(), np.zeros(3)
    scope.write("w", given)
    scope.find_var("w").get_tensor().set(given)
    given += 1
    assert (scope.read("w") == 0).all()
    main = static.Program()
    main.global_block().create_var("w", [3], "float64", persistable=True)
    main.set_state_dict({"w": given}, scope)
    given += 1
    assert (scope.read("w") == 1).all()


SEEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "itself": lambda own: own,
    "view": lambda own: own[::-1],
    "buffer": lambda own: np.asarray(memoryview(own)),
    "part of a buffer": lambda own: np.frombuffer(own.data, own.dtype)[::-1],
    "dlpack": np.from_dlpack,
}


@pytest.mark.parametrize("seen", SEEN)
def test_a_state_that_is_fed_is_what_it_was_before_the_run(seen: str):
    main, scope, exe = static.Program(), static.Scope(), static.Executor()
    with static.program_guard(main, static.Program()):
        w, x = mg.create_parameter([4], "float32", name="w"), static.data("x", [4])
        mg.optimizer.SGD(1.0).minimize(mg.sum(w))
    for v in main.list_vars():
        if v.persistable:
            scope.write(v.name, np.ones(v.shape, v.dtype))
    for value in (1.0, 0.0, -1.0):
        fed = SEEN[seen](scope.arrays["w"])
        assert exe.run(main, {"x": fed}, [x], scope=scope)[0].tolist() == [value] * 4


def layouts(values: np.ndarray, folder: Path) -> dict[str, np.ndarray]:
    """The same values in arrays that cannot be written where they lie, or not in one piece, or not by anybody else."""
    fixed = values.copy()
    fixed.setflags(write=False)
    shifted = np.frombuffer(bytearray(1) + values.tobytes(), np.uint8)[1:].view(values.dtype).reshape(values.shape)
    mapped = np.memmap(folder / "mapped", values.dtype, "w+", shape=values.shape)
    mapped[...] = values
    return {
        "fixed": fixed, "shifted": shifted, "mapped": mapped, "transposed": values.T.copy().T,
        "backwards": values[::-1].copy()[::-1], "other bytes": values.astype(values.dtype.newbyteorder(">")),
        "one number": np.broadcast_to(values.dtype.type(0.5), values.shape),
    }  # fmt: skip


LAYOUTS = ["fixed", "shifted", "mapped", "transposed", "backwards", "other bytes", "one number"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_that_were_put_into_a_scope_by_hand_are_trained(layout: str, tmp_path: Path):
    values = np.linspace(0.1, 0.9, 15, dtype="float32").reshape(3, 5)
    found = []
    for by_hand in (True, False):
        net = Trained(mg.optimizer.Momentum(0.1))
        weight = next(v.name for v in net.main.all_parameters() if v.shape == (3, 5))
        array = layouts(values, tmp_path)[layout]
        given = array.copy()
        if by_hand:
            net.scope.arrays[weight] = array
        else:
            net.scope.write(weight, array)
        found.append([net.run().tobytes(), net.run().tobytes(), *net.state().values()])
        np.testing.assert_array_equal(array, given)
    assert found[0] == found[1]


def test_arranging_arrays_lets_marks_stand():
    net = Trained(mg.optimizer.SGD(0.1))
    net.scope.arrays["other"] = np.ones((2, 3), "float32").T
    net.scope.tear(["other"], "somebody stopped it")
    net.run()
    with pytest.raises(ProgramError, match="somebody stopped it"):
        net.scope.read("other")


def put_back(how: str, net: Trained, path: str, state: dict[str, np.ndarray]) -> None:
    with static.scope_guard(net.scope):
        if how == "load":
            static.load(net.main, path)
        else:
            net.main.set_state_dict(state)


@pytest.mark.parametrize("how", ["load", "set_state_dict"])
def test_an_interrupt_while_a_state_is_put_back_leaves_no_mixture(how: str, tmp_path: Path, monkeypatch: Any):
    """At each line of whatever changes the Scope: all old, all new, or marked."""
    net = Trained(mg.optimizer.Adam(0.1))
    net.run()
    with static.scope_guard(net.scope):
        static.save(net.main, str(tmp_path / "net"))
    kept, new, runs = net.main.state_dict(scope=net.scope), net.state(), net.scope.steps[net.main.origin]
    net.run()
    old = net.state()
    now = net.main.state_dict(scope=net.scope)
    ends, seen = set(), set[tuple[Any, str]]()
    for stop in itertools.count():
        for name, array in now.items():
            net.scope.write(name, array)
        net.scope.steps[net.main.origin] = runs + 1
        left = stop
        seen.clear()

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if "minigraph/program/scope.py" not in frame.f_code.co_filename and frame.f_code.co_name != "load":
                return trace if frame.f_code.co_name in ("load", "set_state_dict", "resume_training") else None
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            left_with = line.strip().startswith("with ") and (frame, line) in seen  # no signal can come there
            seen.add((frame, line))
            left -= event == "line" and not left_with
            if left < 0:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            put_back(how, net, str(tmp_path / "net"), kept)
            done = True
        except KeyboardInterrupt:
            done = False
        finally:
            sys.settrace(before)
        try:
            found = "new" if net.state() == new else "old" if net.state() == old else "mixed"
        except ProgramError as problem:
            found = "marked" if "was interrupted" in str(problem) else str(problem)
        if how == "load" and found != "marked":
            assert net.scope.steps[net.main.origin] == (runs if found == "new" else runs + 1)
        ends.add(found)
        if done:
            break
    assert ends == {"old", "marked", "new"}
    assert net.run().size == 1


def test_a_scheduler_that_refuses_its_state_leaves_no_mark(tmp_path: Path, monkeypatch: Any):
    rate = mg.optimizer.lr.StepDecay(0.1, 2)
    net = Trained(mg.optimizer.SGD(rate))
    path = str(tmp_path / "net")
    with static.scope_guard(net.scope):
        static.save(net.main, path)
    net.run()
    before = net.state()

    def refused(state: Any) -> None:
        if rate.last_epoch >= 0 and not refusals:
            refusals.append(state)
            raise ValueError("no")

    refusals: list[Any] = []
    monkeypatch.setattr(rate, "set_state_dict", refused)
    with pytest.raises(ProgramError, match="cannot go on"):
        put_back("load", net, path, {})
    assert net.state() == before and not net.scope.torn
