"""A training goes on from a checkpoint with the same bits; a checkpoint has the state between two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, optimizer, static
from minigraph.errors import AttrError, MinigraphError, ProgramError
from minigraph.nn import functional as F
from minigraph.onnx.export import Writer, exported
from minigraph.optimizer import lr
from minigraph.runtime import seeds
from minigraph.runtime.cpu.plan import Plan
from tests.support.grades import graded
from tests.support.resumed_training import Training, warm_cosine
from tests.support.scripts import run_script

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda rate: optimizer.SGD(rate),
    "Momentum": lambda rate: optimizer.Momentum(rate, use_nesterov=True),
    "Adam": lambda rate: optimizer.Adam(rate),
    "Adam amsgrad": lambda rate: optimizer.Adam(rate, amsgrad=True),
    "AdamW, clipped": lambda rate: optimizer.AdamW(rate, grad_clip=nn.ClipGradByGlobalNorm(0.5)),
    "Adamax": lambda rate: optimizer.Adamax(rate),
    "Lamb": lambda rate: optimizer.Lamb(rate),
    "Lion": lambda rate: optimizer.Lion(rate),
    "Adagrad": lambda rate: optimizer.Adagrad(rate),
    "Adadelta": lambda rate: optimizer.Adadelta(rate),
    "RMSProp": lambda rate: optimizer.RMSProp(rate, momentum=0.5, centered=True),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "a number": lambda: 0.05,
    "NoamDecay": lambda: lr.NoamDecay(8, 3),
    "PiecewiseDecay": lambda: lr.PiecewiseDecay([2, 4], [0.1, 0.05, 0.01]),
    "StepDecay": lambda: lr.StepDecay(0.1, 2),
    "LambdaDecay": lambda: lr.LambdaDecay(0.1, lambda epoch: 0.9**epoch),
    "PolynomialDecay": lambda: lr.PolynomialDecay(0.1, 4, cycle=True),
    "warmup to a number": lambda: lr.LinearWarmup(0.1, 3, 0.0, 0.1),
}


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new process does not know: the seed that was drawn, and ids of programs."""
    monkeypatch.setattr(seeds._global, "everywhere", None)
    static.Program()


@pytest.mark.parametrize("schedule", ["warmup to a schedule", *SCHEDULES])
def test_schedules_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    check_resumed(tmp_path, monkeypatch, OPTIMIZERS["SGD"], SCHEDULES.get(schedule, warm_cosine))


@pytest.mark.parametrize("passes", [False, True], ids=["", "passes"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, passes: bool) -> None:
    check_resumed(tmp_path, monkeypatch, OPTIMIZERS[name], warm_cosine, passes)


def check_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: Any, schedule: Any, passes: bool = False
) -> None:
    monkeypatch.setattr(seeds._global, "everywhere", None)
    first = Training(optimizer, schedule, passes)
    first.go(0, 4)
    first.save(tmp_path / "m")
    expected = first.go(4, 4)
    another_process(monkeypatch)
    second = Training(optimizer, schedule, passes)
    second.go(0, 1)  # draws another seed, counts a run, steps the schedule
    second.load(tmp_path / "m")
    assert second.go(4, 4) == expected
    second.load(tmp_path / "m")
    assert second.go(4, 4) == expected


@pytest.mark.parametrize("passes", graded(["0", "1"], now=lambda passes: passes == "1"))
def test_a_new_process_goes_on(tmp_path: Path, passes: str) -> None:
    script = Path(__file__).parents[1] / "support" / "resumed_training.py"

    def run(path: str, first: int, count: int) -> str:
        return run_script(tmp_path, script, tmp_path / path, first, count, passes)

    run("m", 0, 3)
    for file in list(tmp_path.iterdir()):
        (tmp_path / file.name.replace("m.", "n.", 1)).write_bytes(file.read_bytes())
    whole = run("m", 3, 4)
    run("n", 3, 2)
    assert run("n", 5, 2) == whole


# which state goes to whom


def test_a_seed_that_is_set_later_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds._global, "everywhere", None)
    mg.seed(5)
    training = Training(OPTIMIZERS["SGD"])
    training.save(tmp_path / "m")
    five = training.go(0, 2)
    mg.seed(6)
    training.load(tmp_path / "m")
    assert training.go(0, 2) == five
    training.load(tmp_path / "m")
    mg.seed(6)
    six = training.go(0, 2)
    assert six != five
    other = Training(OPTIMIZERS["SGD"])
    other.load(tmp_path / "m")
    training.load(tmp_path / "m")
    other.main.random_seed = 6
    assert other.go(0, 2) == six


def in_a_thread(action: Callable[[], Any]) -> Any:
    """What it returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


def test_a_save_keeps_the_seed_of_the_thread_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has set one for itself; neither the seed of the process nor that of who saves is that of the training."""
    monkeypatch.setattr(seeds._global, "everywhere", 1)
    training, trained, saved = Training(OPTIMIZERS["SGD"]), threading.Event(), threading.Event()

    def train() -> list[bytes]:
        mg.seed(5)
        training.go(0, 2)
        trained.set()
        assert saved.wait(60)
        return training.go(2, 3)

    def save(name: str, seed: int | None = None) -> None:
        if seed is not None:
            mg.seed(seed)
        training.save(tmp_path / name)

    expected: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: expected.append(train()))
    thread.start()
    assert trained.wait(60)
    save("of the process")
    in_a_thread(lambda: save("of another thread", 7))
    saved.set()
    thread.join()
    for name in ("of the process", "of another thread"):
        training.load(tmp_path / name)
        assert training.go(2, 3) == expected[0]
    again = Training(OPTIMIZERS["SGD"])
    again.go(0, 2)
    in_a_thread(lambda: (mg.seed(7), again.save(tmp_path / "of the trainer")))
    expected_here = again.go(2, 3)
    again.load(tmp_path / "of the trainer")
    assert again.go(2, 3) == expected_here != expected[0]


def test_a_seed_of_another_thread_leaves_a_loaded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds._global, "everywhere", 1)
    training = Training(OPTIMIZERS["SGD"])
    training.save(tmp_path / "m")
    expected = training.go(0, 3)
    monkeypatch.setattr(seeds._global, "everywhere", 2)
    training.load(tmp_path / "m")
    in_a_thread(lambda: mg.seed(9))
    assert training.go(0, 3) == expected
    training.load(tmp_path / "m")
    ninth = in_a_thread(lambda: (mg.seed(9), training.go(0, 3))[1])
    assert ninth != expected, "who sets a seed after a load wants this one"
    in_a_thread(lambda: training.load(tmp_path / "m"))
    assert training.go(0, 3) == expected


def test_other_programs_keep_their_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load for one program changes no random number of another."""
    monkeypatch.setattr(seeds._global, "everywhere", 1)
    saved, bystander = Training(OPTIMIZERS["SGD"]), Training(OPTIMIZERS["SGD"])
    saved.save(tmp_path / "m")
    monkeypatch.setattr(seeds._global, "everywhere", 2)
    expected = Training(OPTIMIZERS["SGD"]).go(0, 3)
    saved.load(tmp_path / "m")
    assert bystander.go(0, 3) == expected


def test_a_test_program_takes_the_weights_alone(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["Adam"])
    training.go(0, 3)
    training.save(tmp_path / "m")
    test = training.main.clone(for_test=True)
    with static.scope_guard(static.Scope()):
        static.load(test, tmp_path / "m")
        assert static.global_scope().steps[test.origin] == 0
        assert set(test.state_dict()) == {p.name for p in training.main.all_parameters()}


@pytest.mark.parametrize("metric", [True, False])
def test_a_test_program_takes_its_own_states_along(tmp_path: Path, metric: bool) -> None:
    """Those of a metric or a counter are in one file with the optimizer's."""
    main, startup, path = static.Program(), static.Program(), tmp_path / "m"
    with static.program_guard(main, startup), static.scope_guard(static.Scope()):
        x, y = static.data("x", [None, 3]), static.data("y", [None, 1], "int64")
        scores = F.softmax(nn.Linear(3, 2)(F.dropout(x, 0.5)))
        if metric:
            own = static.auc(scores, y)[0]
        else:
            own = static.create_global_var([1], 1.0, "float32", persistable=True, name="counter")
            mg.increment(own, 2.0)
        test = main.clone(for_test=True)
        mg.optimizer.Adam(lr.StepDecay(0.1, 2)).minimize(mg.mean(scores[:, 0]))
        exe, feed = static.Executor(), {"x": np.eye(3, dtype="f4"), "y": np.array([[0], [1], [1]])}
        exe.run(startup)
        for _ in range(3):
            exe.run(main, feed)
        static.save(main, path)
        states = {name: value.tobytes() for name, value in test.state_dict().items()}
        expected = exe.run(test, feed, [own.name])[0]
    with static.scope_guard(static.Scope()):
        static.load(test, path)
        assert static.global_scope().steps[test.origin] == 0, "it is not the training that goes on"
        assert {name: value.tobytes() for name, value in test.state_dict().items()} == states
        assert np.array_equal(exe.run(test, feed, [own.name])[0], expected)
    with static.program_guard(test, startup), static.scope_guard(static.Scope()):
        static.create_global_var([1], 1.0, "float32", persistable=True, name="unknown")
        with pytest.raises(ProgramError, match="lacks unknown"):
            static.load(test, path)


def test_part_of_the_values_takes_nothing_else(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["Adam"])
    training.go(0, 3)
    training.save(tmp_path / "m")
    training.go(3, 2)
    training.load(tmp_path / "m", var_list=training.main.all_parameters())
    assert training.rate.last_epoch == 5
    assert training.scope.steps[training.main.origin] == 5


def test_another_schedule_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    warm, path = Training(OPTIMIZERS["SGD"]), tmp_path / "m"
    warm.go(0, 3)
    warm.save(path)
    for schedule, said in (
        (lambda: lr.StepDecay(0.1, 2), "the program has StepDecay"),
        (lambda: 0.05, "the program has a rate without a schedule"),
        (lambda: lr.LinearWarmup(lr.StepDecay(0.1, 2), 3, 0.0, 0.1), "the program has LinearWarmup of StepDecay"),
    ):
        other = Training(OPTIMIZERS["SGD"], schedule)
        before = other.go(0, 2)[2:]
        with pytest.raises(ProgramError, match=rf"with LinearWarmup of CosineAnnealingDecay for .*, {said}") as caught:
            other.load(path)
        assert "set_program_state(program, load_program_state(path))" in str(caught.value)
        assert other.go(2, 0) == before
        assert other.scope.steps[other.main.origin] == 2
        static.set_program_state(other.main, static.load_program_state(path), other.scope)
    constant = Training(OPTIMIZERS["SGD"], lambda: 0.05)
    constant.save(path)
    with pytest.raises(ProgramError, match="a rate without a schedule for learning_rate_0, the program has LinearW"):
        warm.load(path)


class Counting(lr.LRScheduler):
    """A scheduler of a user, with states of many types."""

    state_names = ("last_epoch", "last_lr", "best", "seen", "note", "wrong")

    def __init__(self, wrong: Any = None) -> None:
        self.best, self.seen, self.note, self.wrong = float("inf"), [], {"a": (1, np.float64(0.1))}, wrong
        super().__init__(0.1)

    def get_lr(self) -> float:
        self.seen = [*self.seen, self.last_epoch]
        self.best = min(self.best, 1.0 / (1 + self.last_epoch)) if self.last_epoch > 2 else self.best
        return self.base_lr / (1 + self.last_epoch)


def test_states_of_a_scheduler_of_the_user(tmp_path: Path) -> None:
    training = Training(OPTIMIZERS["SGD"], Counting)
    training.save(tmp_path / "m")
    training.go(0, 2)
    training.load(tmp_path / "m")
    assert (training.rate.best, training.rate.seen, training.rate.note) == (float("inf"), [0], {"a": [1, 0.1]})
    training.rate.wrong = object()
    with pytest.raises(ProgramError, match="the state of Counting of learning_rate_0 holds <object"):
        training.save(tmp_path / "m")
    training.load(tmp_path / "m")


def test_a_state_that_a_scheduler_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(OPTIMIZERS["SGD"], lambda: lr.StepDecay(0.1, 2))
    training.save(tmp_path / "m")
    before, state = training.go(0, 2)[2:], training.rate.state_dict()
    for problem in (AttrError("no"), KeyError("last_epoch")):

        def refuse(self: Any, state: Any, problem: Exception = problem) -> None:
            if state["last_epoch"] == 0:
                raise problem

        with monkeypatch.context() as patch:
            patch.setattr(lr.StepDecay, "set_state_dict", refuse)
            with pytest.raises(MinigraphError):
                training.load(tmp_path / "m")
        assert training.go(2, 0) == before
        assert training.rate.state_dict() == state


@pytest.mark.parametrize("given", [float, np.float32, lambda loss: np.array([loss], "f4")])
@pytest.mark.parametrize("first", [np.inf, -np.inf, np.nan])
def test_a_plateau_goes_on_from_a_loss_that_overflowed(
    tmp_path: Path, first: float, given: Callable[[float], Any]
) -> None:
    training = Training(OPTIMIZERS["SGD"], lambda: lr.ReduceOnPlateau(0.1, patience=1))
    training.rate.step(given(first))
    training.save(tmp_path / "m")
    state = training.rate.state_dict()
    training.rate.step(0.5)
    training.load(tmp_path / "m")
    assert repr(training.rate.state_dict()) == repr(state)
    with pytest.raises(AttrError, match="best must be a number or None, is True"):
        training.rate.set_state_dict(state | {"best": True})


@pytest.mark.parametrize("wrong", [{"last_epoch": "3"}, {"last_epoch": -2}, {"last_lr": float("nan")}, {"last_lr": []}])
def test_states_of_a_wrong_type(wrong: dict[str, Any]) -> None:
    for scheduler in (lr.StepDecay(0.1, 3), warm_cosine()):
        before = scheduler.state_dict()
        with pytest.raises(AttrError, match=r"last_epoch must be|last_lr must be"):
            scheduler.set_state_dict(before | wrong)
        if "LinearWarmup_LR" in before:
            with pytest.raises(AttrError):
                scheduler.set_state_dict({"last_epoch": 9, "last_lr": 0.1, "LinearWarmup_LR": wrong})
        assert scheduler.state_dict() == before


# while another thread trains


class Paused:
    """A run that stops between the updates of two parameters until `meanwhile` has ended, or cannot go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
        self.main, self.scope, self.result = static.Program(), static.Scope(), []
        with static.program_guard(self.main, static.Program()):
            a, b = (static.create_parameter([2], name=name) for name in ("a", "b"))
            optimizer.SGD(1.0).minimize(mg.sum(a) + mg.sum(b))
        for v in self.main.list_vars():
            if v.persistable:
                self.scope.write(v.name, np.ones(v.shape, v.dtype))
        real, updates = Plan._call, [0]

        def call(plan: Plan, step: Any, kernel: Any) -> Any:
            found = real(plan, step, kernel)
            if step.op.type == "sgd":
                updates[0] += 1
                if updates[0] == 1:
                    other = threading.Thread(
                        target=copy_context().run, args=(lambda: self.result.append(meanwhile()),)
                    )
                    self.other = other
                    other.start()
                    other.join(0.3)
            return found

        monkeypatch.setattr(Plan, "_call", call)

    def run(self) -> Any:
        static.Executor().run(self.main, scope=self.scope)
        self.other.join()
        return self.result[0]


def test_a_state_dict_is_that_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(monkeypatch, lambda: paused.main.state_dict(scope=paused.scope))
    state = paused.run()
    assert state["a"].tolist() == state["b"].tolist() == [0, 0]


def test_a_save_is_that_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(monkeypatch, lambda: static.save(paused.main, tmp_path / "m"))
    with static.scope_guard(paused.scope):
        paused.run()
    state = static.load_program_state(tmp_path / "m")
    assert state["a"].tolist() == state["b"].tolist() == [0, 0]


def between_two_reads(monkeypatch: pytest.MonkeyPatch, reader: type, step: Callable[[], Any]) -> threading.Thread:
    """Behind the first value that `reader` reads another thread makes a step, or cannot."""
    other, read = threading.Thread(target=step), reader.read  # type: ignore[attr-defined]

    def followed(self: Any, what: Any) -> Any:
        value = read(self, what)
        if other.ident is None:
            other.start()
            other.join(0.3)
        return value

    monkeypatch.setattr(reader, "read", followed)
    return other


def two_weights(monkeypatch: pytest.MonkeyPatch, reader: type) -> tuple[Any, ...]:
    """A program whose two weights are one until a step that comes behind the first read; its loss; who makes it."""
    main, scope = static.Program(), static.Scope()
    with static.program_guard(main, static.Program()):
        loss = mg.sum(static.create_parameter([2], name="a")) + mg.sum(static.create_parameter([2], name="b"))
        optimizer.SGD(1.0).minimize(loss)
    for v in main.list_vars():
        if v.persistable:
            scope.write(v.name, np.ones(v.shape, v.dtype))
    other = between_two_reads(monkeypatch, reader, lambda: static.Executor().run(main, scope=scope))
    return main, scope, loss.name, other


@pytest.mark.parametrize("filename", [None, "all"])
def test_files_of_variables_are_those_of_one_step(tmp_path: Path, monkeypatch: Any, filename: str | None) -> None:
    main, scope, _, other = two_weights(monkeypatch, static.Scope)
    with static.scope_guard(scope):
        static.io.save_vars(None, tmp_path, main, filename=filename)
    other.join()
    files = [mg.load(tmp_path / name) for name in ([filename] if filename else "ab")]
    state = {name: value for file in files for name, value in file.items()}
    assert state["a"].tolist() == state["b"].tolist() == [1, 1]


def test_weights_of_a_file_of_onnx_are_those_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    main, scope, loss, other = two_weights(monkeypatch, Writer)
    weights = exported(main, [loss], scope).initializers
    other.join()
    assert weights["a"].tolist() == weights["b"].tolist() == [1, 1]


@pytest.mark.parametrize("how", ["set_state_dict", "load"])
def test_values_are_set_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def load() -> None:
        state = {name: np.full(2, 7, "f4") for name in "ab"}
        paused.main.set_state_dict(state, paused.scope) if how == "set_state_dict" else static.load(
            paused.main, tmp_path / "m"
        )

    paused = Paused(monkeypatch, load)
    with static.scope_guard(paused.scope):
        static.save(paused.main, tmp_path / "m")
        before = paused.main.state_dict()
        paused.run()
        after = paused.main.state_dict()
    assert after["a"].tolist() == after["b"].tolist() == ([7, 7] if how == "set_state_dict" else [1, 1])
    assert how == "set_state_dict" or all((after[name] == value).all() for name, value in before.items())


def test_a_value_is_read_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(monkeypatch, lambda: np.array(paused.scope.find_var("b").get_tensor()).tolist())
    assert paused.run() == [0, 0]


def test_files_are_written_while_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save holds the lock of the scope while it copies, not while it waits for the disk."""
    training = Training(OPTIMIZERS["SGD"])
    ran: list[Any] = []

    def write_new(*_: Any) -> None:
        thread = threading.Thread(target=lambda: ran.append(training.go(0, 1)))
        thread.start()
        thread.join(60)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minigraph.runtime.checkpoint.storage.write_new", write_new)
    with pytest.raises(ProgramError, match="No space left"):
        training.save(tmp_path / "m")
    assert len(ran) == 1
