"""Rules that a user writes beside what all updates share: loss scaling, overflow, merged gradients, ranks, pruning."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.incubate.optimizer import GradientMergeOptimizer
from minigraph.program import unique_name
from minigraph.program.scope import Scope
from tests.support.grades import checkered

RATE, RUNS = 0.1, 6


class Written(mg.optimizer.Optimizer):
    """Momentum, by hand."""

    def append_update(self, g, param, grad, lr):
        m = self.state(param, "velocity")
        mg.assign(m * 0.9 + grad, output=m)
        mg.assign(param - m * lr, output=param)


class Doubled(mg.optimizer.Momentum):
    """A rule that hands another gradient to a rule that is there."""

    def append_update(self, g, param, grad, lr):
        super().append_update(g, param, grad * 2.0, lr)


class Wrapped(mg.optimizer.Momentum):
    """A rule that a decorator shows as the one that is there."""

    @functools.wraps(mg.optimizer.Momentum.append_update)
    def append_update(self, g, param, grad, lr):
        Written.append_update(self, g, param, grad, lr)


def of_one_object(rate, **more):
    """A rule that one optimizer has, not its class."""
    optimizer = mg.optimizer.Optimizer(rate, **more)
    optimizer.append_update = functools.partial(Written.append_update, optimizer)
    return optimizer


RULES = {  # a user's rule, and what does the same
    "written": (Written, mg.optimizer.Momentum), "handed on": (Doubled, lambda rate, **more: mg.optimizer.Momentum(
        rate, rescale_grad=2.0, **more)),
    "wrapped": (Wrapped, mg.optimizer.Momentum), "of one object": (of_one_object, mg.optimizer.Momentum),
}  # fmt: skip
WRAPPED = {
    "alone": lambda o: o,
    "merged": lambda o: GradientMergeOptimizer(o, 2),
    "scaled": lambda o: static.amp.decorate(o, dtype="float16", init_loss_scaling=2.0**8),
    "overflow": lambda o: static.amp.decorate(
        o, dtype="float16", init_loss_scaling=2.0**30, decr_every_n_nan_or_inf=1, decr_ratio=2.0**-22
    ),
    "merged and scaled": lambda o: GradientMergeOptimizer(
        static.amp.decorate(o, dtype="float16", init_loss_scaling=2.0**8), 2
    ),
}


def trained(rule, wrapped, clip=None, compiled=False, ranks=1, fetched=False):
    """All states, by the names that both rules give them."""
    main, startup, scope = static.Program(), static.Program(), Scope()
    main.random_seed = startup.random_seed = 5
    with static.program_guard(main, startup), unique_name.guard():
        x = static.data("x", [None, 3])
        loss = mg.mean(mg.square(nn.Linear(4, 1)(mg.tanh(nn.Linear(3, 4)(x))) - 1.0))
        minimized = wrapped(rule(RATE, grad_clip=clip)).minimize(loss)
    exe = static.Executor()
    exe.run(startup, scope=scope)
    strategy = static.BuildStrategy.all() if compiled else static.BuildStrategy()
    program = static.CompiledProgram(main, strategy) if ranks == 1 else (
        static.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=static.cpu_places(ranks))
    )
    for i in range(RUNS):
        feed = {"x": np.random.default_rng(i).normal(size=(8, 3)).astype("float32")}
        exe.run(program, feed, [loss, minimized] if fetched else [loss], scope=scope)
    exe.close()
    return {n: np.array(a) for n, a in main.state_dict(scope=scope).items()}


WAYS = {}, {"compiled": True}, {"ranks": 2}, {"fetched": True}, {"clip": nn.ClipGradByGlobalNorm(0.5)}


@pytest.mark.parametrize(("rule", "wrapped", "way"), checkered(RULES, WRAPPED, WAYS), ids=str)
def test_it_gives_what_the_rule_that_is_there_gives(rule, wrapped, way):
    own, known = (trained(make, WRAPPED[wrapped], **way) for make in RULES[rule])
    assert own.keys() == known.keys()
    for name, value in known.items():
        assert np.isfinite(value).all()
        if "@GRAD@" not in name:
            np.testing.assert_allclose(own[name], value, rtol=5e-3, atol=5e-4, err_msg=name)


def test_a_gradient_of_16_bits_is_divided_by_the_scale_in_float32():
    """1 / 48000 has few bits left in float16, and 1 / 2**26 none."""

    class Kept(mg.optimizer.Optimizer):
        def append_update(self, g, param, grad, lr):
            mg.assign(grad, output=param)

    for scale in (48000.0, 2.0**26):
        main, startup, scope = static.Program(), static.Program(), Scope()
        with static.program_guard(main, startup), unique_name.guard():
            w = static.create_parameter([4], "float16", name="w")
            rule = Kept(RATE)
            factor = static.data("factor", [1])
            rule._set_auxiliary_var("grad_scale", factor)
            rule.apply_gradients([(w, mg.assign(static.data("grad", [4], "float16")))])
        exe, grad = static.Executor(), np.array([1, 3, 1000, 60000], "float16")
        exe.run(startup, scope=scope)
        feed = {"factor": np.array([1 / scale], "float32"), "grad": grad}
        exe.run(main, feed, scope=scope)
        expected = (grad.astype("float64") * np.float64(feed["factor"])).astype("float16")
        np.testing.assert_array_equal(scope.read("w"), expected)


class Noted(mg.optimizer.Momentum):
    """Builds an operator where others only say numbers."""

    def attrs(self, param):
        mg.assign(param)
        return super().attrs(param)


def updates(make, names="abcd", **taken):
    """The operators behind the gradients of parameters of these names; `taken` are variables that are there already."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        for name in taken:
            main.global_block().create_var(name, [2], "float32", persistable=True)
        terms = [mg.sum(static.create_parameter([2], "float32", name)) for name in names]
        make().minimize(sum(terms[1:], terms[0]))
    return [op for op in main.ops if op.role == "optimize"]


def test_what_a_rule_builds_stands_before_its_own_update():
    assert [op.type for op in updates(lambda: Noted(RATE))] == ["assign", "momentum"] * 4
    found = updates(lambda: mg.optimizer.Momentum(RATE, parameters=[
        {"params": ["a", "b"]}, {"params": ["c"], "rescale_grad": 0.5}, {"params": ["d"], "learning_rate": 0.5}]))
    assert [op.type for op in found] == ["momentum", "momentum", "scale", "momentum", "scale", "momentum"]
    assert [op.inputs["Param"][0].name for op in found if op.type == "momentum"] == [*"abcd"]
    assert len({op.inputs["LearningRate"][0].name for op in found if op.type == "momentum"}) == 2


def test_a_name_that_is_taken_is_left_out_among_many():
    found = updates(lambda: mg.optimizer.Momentum(RATE), c_velocity_0=None)
    assert [op.inputs["Velocity"][0].name for op in found] == [
        "a_velocity_0", "b_velocity_0", "c_velocity_1", "d_velocity_0"]  # fmt: skip


def updates_of(optimizer, many=6):
    """The updates of as many parameters of one type."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), unique_name.guard():
        weights = [static.create_parameter([2], "float32", name=f"w{i}") for i in range(many)]
        optimizer.minimize(mg.mean(sum(weights[1:], weights[0])))
    return {op.input("Param")[0]: op for op in main.ops if "Param" in op.inputs}


class LookingOf(mg.optimizer.AdamW):
    def of(self, param, name):
        return 0.5 if name == "beta1" and param.name == "w3" else super().of(param, name)


class LookingAttrs(mg.optimizer.AdamW):
    def attrs(self, param):
        return super().attrs(param) | ({"beta1": 0.5} if param.name == "w3" else {})


@pytest.mark.parametrize("rule", [LookingOf, LookingAttrs])
def test_a_rule_that_looks_at_each_parameter_is_asked_for_each(rule):
    betas = {name: op.attr("beta1") for name, op in updates_of(rule(0.1)).items()}
    assert betas == {f"w{i}": 0.5 if i == 3 else 0.9 for i in range(6)}


def test_a_function_that_is_set_late_is_asked_for_each_parameter():
    optimizer = mg.optimizer.AdamW(0.1)
    optimizer.lr_ratio = lambda p: 0.5 if p.name == "w3" else 1.0
    ratios = {name: op.attr("lr_ratio") for name, op in updates_of(optimizer).items()}
    assert ratios == {f"w{i}": 0.5 if i == 3 else 1.0 for i in range(6)}


def test_parameters_of_one_type_have_what_their_group_sets():
    names = [f"w{i}" for i in range(6)]
    groups = [{"params": names[::2], "beta1": 0.5}, {"params": names[1::2], "weight_decay": 0.25}]
    found = updates_of(mg.optimizer.AdamW(0.1, weight_decay=0.125, parameters=groups))
    assert [found[n].attr("beta1") for n in names] == [0.5, 0.9] * 3
    assert [found[n].attr("coeff") for n in names] == [0.125, 0.25] * 3
