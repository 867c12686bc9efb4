"""What was taken in silence or refused in foreign words, each with the error that says it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph import optimizer as opt
from minigraph.errors import AttrError, FeedError, FetchError, KernelError, PlaceError, ProgramError
from minigraph.opdef import OPS, op
from minigraph.program.builder import Builder
from minigraph.runtime.cpu.plan import Plan
from minigraph.types import TensorType, float32

X = {"x": np.ones((2, 4), "float32")}


class Net:
    """mean(x @ w + b), not trained yet."""

    def __init__(self) -> None:
        self.main, self.startup = static.Program("net"), static.Program()
        self.main.random_seed = self.startup.random_seed = 3
        with mg.base.unique_name.guard(), static.program_guard(self.main, self.startup):
            x = static.data("x", [None, 4])
            self.layer = nn.Linear(4, 3)
            self.dropped = nn.functional.dropout(x, 0.5)
            self.loss = mg.mean(self.layer(x))

    def minimize(self, optimizer: opt.Optimizer, **how: Any) -> None:
        with static.program_guard(self.main, self.startup):
            optimizer.minimize(self.loss, **how)


def twice_variables(net: Net) -> list[object]:
    return [net.layer.weight, net.layer.weight]


def twice_by_name(net: Net) -> list[object]:
    (weight, _) = net.main.all_parameters()
    return [weight, weight.name]


@pytest.mark.parametrize("parameters", [twice_variables, twice_by_name])
def test_a_parameter_that_minimize_is_given_twice(parameters):
    net = Net()
    before = str(net.main)
    with pytest.raises(AttrError, match=r"parameter linear_0.w_0 is listed twice\n  called at .*test_clear_errors"):
        net.minimize(opt.SGD(0.1), parameters=parameters(net))
    assert str(net.main) == before


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), "fast", None])
def test_a_schedule_that_gives_no_rate(value):
    class Schedule(opt.lr.LRScheduler):
        def get_lr(self):
            return value if self.last_epoch else 0.1

    schedule = Schedule(0.1)
    with pytest.raises(AttrError, match=r"Schedule.get_lr\(\) must be a number >= 0, is "):
        schedule.step()
    assert schedule() == 0.1
    with pytest.raises(AttrError, match=r"LambdaDecay.get_lr\(\) must be a number >= 0, is -0.1"):
        opt.lr.LambdaDecay(0.1, lambda epoch: -1)


def test_two_optimizers_in_turn_on_the_same_parameters():
    net = Net()
    net.minimize(opt.SGD(0.1))
    before = str(net.main)
    with pytest.raises(ProgramError, match=r"overwritten by sgd(.|\n)*hint: the program updates its parameters alr"):
        net.minimize(opt.Adam(0.1))
    assert str(net.main) == before


def test_a_rate_that_is_set_in_a_scope_of_its_own():
    net, exe, scope, optimizer = Net(), static.Executor(), static.Scope(), opt.SGD(0.1)
    net.minimize(optimizer)
    exe.run(net.startup, scope=scope)
    exe.run(net.startup)
    for rate in (0.0, 0.25):
        optimizer.set_lr(rate, scope)
        here, there = scope.read("linear_0.b_0"), static.global_scope().read("learning_rate_0")
        exe.run(net.main, X, scope=scope)
        np.testing.assert_allclose(scope.read("linear_0.b_0"), here - rate / 3, atol=1e-7)
        assert there == np.float32(0.1)


def test_a_seed_that_is_set_after_compiling_is_refused():
    net, exe = Net(), static.Executor()
    exe.run(net.startup)
    compiled = static.CompiledProgram(net.main)
    exe.run(compiled, X, [net.dropped])
    net.main.random_seed = 3  # what it is
    exe.run(compiled, X, [net.dropped])
    net.main.random_seed = 4
    with pytest.raises(ProgramError, match="program net was changed after it was compiled"):
        exe.run(compiled, X, [net.dropped])


def test_a_value_that_shall_last_after_a_run_changes_the_program():
    net, exe, scope = Net(), static.Executor(), static.Scope()
    exe.run(net.startup, scope=scope)
    compiled = static.CompiledProgram(net.main)
    exe.run(compiled, X, [net.loss], scope=scope)
    exe.run(net.main, X, [net.loss], scope=scope)
    net.dropped.persistable = False  # what it is
    exe.run(compiled, X, [net.loss], scope=scope)
    net.loss.persistable = True
    with pytest.raises(ProgramError, match="program net was changed after it was compiled"):
        exe.run(compiled, X, [net.loss], scope=scope)
    (loss,) = exe.run(net.main, X, [net.loss], scope=scope)
    assert scope.read(net.loss.name) == loss


ASKED: dict[str, Any] = {
    "run": lambda c, net: static.Executor().run(c, X, [net.loss]),
    "memory_report": lambda c, net: c.memory_report(X, [net.loss]),
    "diff": lambda c, net: c.diff(),
    "explain": lambda c, net: c.explain(),
    "after": lambda c, net: str(c.after),
}


@pytest.mark.parametrize("ask", ASKED)
def test_nothing_is_said_of_a_program_that_was_changed_after_it_was_compiled(ask):
    net = Net()
    static.Executor().run(net.startup)
    compiled = static.CompiledProgram(net.main, static.BuildStrategy.all())
    ASKED[ask](compiled, net)
    with static.program_guard(net.main, net.startup):
        mg.tanh(net.loss)
    with pytest.raises(ProgramError, match=r"program net was changed after it was compiled(.|\n)*hint: make a new"):
        ASKED[ask](compiled, net)
    assert "tanh" in str(compiled.before)
    ASKED[ask](static.CompiledProgram(net.main, static.BuildStrategy.all()), net)


def test_what_a_memory_report_is_asked_for():
    compiled = static.CompiledProgram(Net().main)
    with pytest.raises(FetchError, match=r"'mean_0.tmp' is not in program(.|\n)*did you mean 'mean_0.tmp_0'"):
        compiled.memory_report(X, ["mean_0.tmp"])
    with pytest.raises(FetchError, match="fetch_list holds 3"):
        compiled.memory_report(X, [3])
    with pytest.raises(ProgramError, match=r"a place is CPUPlace\(\) or CUDAPlace\(n\), not 'cpu'"):
        compiled.memory_report(X, place="cpu")  # type: ignore[arg-type]


SHAPES: dict[str, tuple[Any, str]] = {
    "a negative size": ([-1, 4], r"feed x: \[-1, 4\] is not a shape, which is a list of sizes >= 0"),
    "a number": (4, "feed x: 4 is not a shape"),
    "a fraction": ([2.5, 4], r"feed x: \[2.5, 4\] is not a shape"),
    "a truth value": ([True, 4], "feed x: .*True, 4.* is not a shape"),
    "text": ("24", "feed x: '24' is not a shape"),
    "nothing": (None, "feed x: None is not a shape"),
    "a set": ({2, 4}, "feed x: {2, 4} is not a shape"),
    "more than an address reaches": ([2**61, 4], r"feed x: .* has more than 2\^63 elements"),
    "nested lists": ([[1.0] * 4] * 1000, r"feed x: \[\[1.0, .{60,70}\.\.\. is not a shape"),
    "many sizes": ([1] * 1000, r"feed x must be f32\[-1,4\], has shape \[1, .{60,80}\.\.\.\n"),
    "another rank": ([4], r"feed x must be f32\[-1,4\], has shape \[4\]"),
}  # fmt: skip


@pytest.mark.parametrize("place", [mg.CUDAPlace(0), mg.CPUPlace()], ids=str)
@pytest.mark.parametrize("case", SHAPES)
def test_what_is_no_shape_of_a_memory_report(case, place):
    value, said = SHAPES[case]
    with pytest.raises(FeedError, match=said):
        static.CompiledProgram(Net().main).memory_report({"x": value}, place=place)


def test_temporaries_for_which_no_machine_has_room():
    net = Net()
    with pytest.raises(KernelError, match=r"out of memory: no room for the temporaries of program net(.|\n)*hint"):
        Plan(net.main, {"x": TensorType((2**48, 4), float32)}, [net.loss.name])
    report = static.CompiledProgram(net.main).memory_report({"x": [2**48, 4]}, [net.loss], mg.CPUPlace())
    assert report.planned > 2**48  # to be told so is what a report is for


@pytest.mark.parametrize("place", [mg.CUDAPlace(0), mg.CPUPlace()], ids=str)
def test_a_memory_report_takes_the_feeds_that_a_run_takes(place):
    net = Net()
    compiled, x = static.CompiledProgram(net.main), net.main.vars["x"]
    named = compiled.memory_report({"x": [2, 4]}, [net.loss], place)
    assert compiled.memory_report({x: [np.int64(2), 4]}, [net.loss], place) == named
    assert compiled.memory_report({x: X["x"]}, [net.loss], place) == named
    with pytest.raises(FeedError, match=r"feed 'linear_0.w_0' is not a data variable of program net(.|\n)*: x$"):
        compiled.memory_report({"linear_0.w_0": [4, 3], "x": [2, 4]}, place=place)
    with pytest.raises(FeedError, match=r"feed is a dict \{name: array or shape\}, not a list"):
        compiled.memory_report([2, 4], place=place)  # type: ignore[arg-type]
    with pytest.raises(FeedError, match=r"feed x: \(-1, 4\) is not a shape"):
        compiled.memory_report({x: x}, place=place)


def test_flags_that_exclude_each_other_say_what_to_do():
    strategy = static.BuildStrategy.all(foreach_optimizer_ops=True)
    with pytest.raises(AttrError, match=r"hint: set one of them to False; BuildStrategy.all\(\) sets fuse_all_optimiz"):
        static.CompiledProgram(Net().main, strategy).explain()


def test_an_operator_without_a_kernel_for_the_gpu_is_named_with_its_line():
    @op(traits={"elementwise"})
    def half_as_large(X):
        """X / 2"""
        return X / 2

    try:
        net = Net()
        with static.program_guard(net.main):
            halved = Builder(net.main.global_block()).half_as_large(net.dropped)
        said = r"half_as_large\(X=.*: f32\[.*,4\]\): half_as_large has no kernel for CUDAPlace"
        with pytest.raises(PlaceError, match=said) as refused:
            static.CompiledProgram(net.main).memory_report(X, [halved])
        assert "test_clear_errors.py" in str(refused.value) and "hint: run it on CPUPlace()" in str(refused.value)
    finally:
        del OPS["half_as_large"]
