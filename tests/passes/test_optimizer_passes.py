"""Updates as lists: equal results at all levels, what joins, what is refused and why, and defects that are seen."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
import minigraph.optimizer as opt
from minigraph.errors import AttrError
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.nn import clip
from minigraph.optimizer import lr
from minigraph.passes.engine.log import PassReport
from minigraph.passes.updates import optimizer_groups
from minigraph.passes.updates.foreach_optimizer_ops import foreach_optimizer_ops
from minigraph.passes.updates.fuse_all_optimizer_ops import fuse_adamw, fuse_all_optimizer_ops
from minigraph.program import Program, program_guard, unique_name
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from tests.optimizer import test_optimizer as nets
from tests.optimizer.test_optimizer import CASES, X, Y, build
from tests.support.grades import graded

LEVELS = ("fuse_all_optimizer_ops", "foreach_optimizer_ops")
STEPS = 7


def run(net, level=None, fetches=(), scheduler=None, steps=STEPS):
    """(fetched values of all steps, persistables after them)"""
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    strategy = BuildStrategy(verify="each_pass", **({level: True} if level else {}))
    program = CompiledProgram(net.main, strategy)
    fetched = []
    for _ in range(steps):
        feed = {"x": X.astype(net.dtype), "y": Y.astype(net.dtype)}
        fetched += exe.run(program, feed, [net.loss, *fetches], scope=scope)
        if scheduler is not None:
            scheduler.step()
    return fetched, {n: scope.read(n) for n in scope.list_names()}, program


def made(name, dtype):
    with unique_name.guard():
        return build(CASES[name][0](), dtype, **CASES[name][1])


@pytest.mark.parametrize("dtype", graded(["float64", "float32"], now=lambda dtype: dtype == "float32"))
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_levels_are_bit_equal(name, level, dtype):
    def scheduler_of(net):
        return net.main.lr_schedulers[0][1] if net.main.lr_schedulers else None

    before, after = made(name, dtype), made(name, dtype)
    expected, arrays, _ = run(before, scheduler=scheduler_of(before))
    found, changed, program = run(after, level, scheduler=scheduler_of(after))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert changed.keys() == arrays.keys()
    for n, a in arrays.items():
        np.testing.assert_array_equal(changed[n], a, err_msg=n)
    types = [op.type for op in program.after.ops if op.role == "optimize"]
    assert any(t.startswith("fused_" if level == LEVELS[0] else "foreach_") for t in types)
    single = sum(t in ("sgd", "momentum", "adam", "adamw", "lamb", "lion") for t in types)
    assert single <= (0 if "," not in name else 1)  # one parameter of three has something of its own


def graph_of(net, fetches=()):
    return to_graph(net.main, [net.loss.name, *fetches])


def passed(net, apply=fuse_all_optimizer_ops, fetches=()):
    graph, report = graph_of(net, fetches), PassReport("test")
    apply(graph, report)
    verify(graph, "test")
    return graph, report


def counted(graph):
    return {t: n for t, n in graph.count().items() if t in optimizer_groups.OPS and (
        t.startswith(("fused_", "foreach_")) or t in ("sgd", "adamw", "adam", "momentum", "squared_l2_norm", "scale"))}


def reasons(report):
    return [r.reason for r in report.refused]


def test_clipping_and_decay_join_the_update():
    net = build(opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(1.0), weight_decay=0.1))
    graph, report = passed(net)
    assert [op.type for op in graph.ops if op.role == "optimize"] == [
        "foreach_squared_l2_norm", "fill_constant", "sqrt", "elementwise_max", "elementwise_div", "fused_sgd",
    ]  # fmt: skip
    fused = graph.ops[-1]
    assert fused.attrs["regularization_coeff"] == 0.1
    assert [v.name for v in fused.inputs["Grad"]] == ["b@GRAD", "s@GRAD", "w@GRAD"]
    assert fused.inputs["GradScale"][0].producer.type == "elementwise_div"
    assert report.refused == []


def test_groups_are_those_of_equal_hyperparameters():
    net = build(opt.AdamW(0.1, apply_decay_param_fun=lambda name: name == "w"))
    graph, report = passed(net)
    assert counted(graph) == {"fused_adamw": 1, "adamw": 1}
    assert reasons(report) == [
        "alone: it differs from adamw b in attributes with_decay=True instead of False"
    ]
    net = build(opt.SGD(0.1), w={"learning_rate": 0.5})
    assert "differs from sgd b in learning rate" in reasons(passed(net)[1])[0]
    net = build(opt.SGD(0.1, weight_decay=0.1), w={"regularizer": nets.L1Decay(0.1)})
    graph, report = passed(net)
    assert counted(graph)["fused_sgd"] == 1 and "in weight decay" in reasons(report)[0]
    net = build(opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.1)), w={"need_clip": False})
    assert "in clipping factor" in reasons(passed(net)[1])[0]
    net = build(opt.SGD(0.1, parameters=["w"]))
    assert reasons(passed(net)[1]) == ["alone: there is no other update"]


def test_two_optimizers_make_two_groups():
    net = build()
    with program_guard(net.main, net.startup):
        pairs = opt.SGD(0.1).backward(net.loss)
        by_name = {p.name: (p, g) for p, g in pairs}
        opt.SGD(0.1).apply_gradients([by_name["w"], by_name["b"]])
        opt.SGD(0.1).apply_gradients([by_name["s"]])
    graph, report = passed(net)
    assert counted(graph) == {"fused_sgd": 1, "sgd": 1}
    assert "learning rate" in reasons(report)[0]


@pytest.mark.parametrize("apply", [fuse_all_optimizer_ops, foreach_optimizer_ops])
def test_a_clipped_gradient_that_somebody_sees_stays(apply):
    net = build(opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(1.0)))
    clipped = next(op for op in net.main.ops if op.type == "sgd" and op.input("Param") == ["w"]).input("Grad")[0]
    graph, report = passed(net, apply, [clipped])
    assert f"{clipped} stays: {clipped} is fetched, it must be written" in reasons(report)
    assert any(op.type == "elementwise_mul" and op.role == "optimize" for op in graph.ops)
    g = Builder(net.main.global_block())
    g.tanh(net.main.vars[clipped])
    assert any(f"{clipped} is also read by tanh" in r for r in reasons(passed(net, apply)[1]))
    expected, arrays, _ = run(net, None, [clipped])
    flag = apply.__name__
    found, changed, _ = run(net, flag, [clipped])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.array_equal(changed[n], a) for n, a in arrays.items())


def test_a_norm_that_somebody_sees_stays():
    net = build(opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(1.0)))
    square = next(op for op in net.main.ops if op.type == "squared_l2_norm").output("Out")[0]
    graph, report = passed(net, fetches=[square])
    assert counted(graph)["squared_l2_norm"] == 3
    assert f"{square} is fetched, it must be written" in reasons(report)


def between(change):
    """A net with an operator of `change(g, block)` between its first and its second update."""
    net = build(opt.SGD(0.1))
    block = net.main.global_block()
    position = next(i for i, op in enumerate(net.main.ops) if op.type == "sgd") + 1
    tail = net.main.ops[position:]
    del net.main.ops[position:]
    change(Builder(block), block)
    net.main.ops.extend(tail)
    return net


@pytest.mark.parametrize("apply", [fuse_all_optimizer_ops, foreach_optimizer_ops])
def test_a_parameter_that_is_used_between_updates_is_left_alone(apply):
    seen = []
    net = between(lambda g, block: seen.append(g.tanh(block.var("b"))))
    graph, report = passed(net, apply)
    assert [r for r in reasons(report) if "b is read by tanh" in r and "before the last update" in r]
    assert counted(graph)["sgd"] == 1
    check_same(net, apply.__name__, [seen[0].name])
    net = between(lambda g, block: g.increment(block.var("b"), step=0.5, out={"Out": block.var("b")}))
    assert any("is read by increment" in r or "overwritten by increment" in r for r in reasons(passed(net, apply)[1]))
    check_same(net, apply.__name__)
    net = between(lambda g, block: g.increment(block.var("s"), step=0.5, out={"Out": block.var("s")}))
    check_same(net, apply.__name__)
    net = between(lambda g, block: g.increment(block.var("b@GRAD"), step=0.5, out={"Out": block.var("b@GRAD")}))
    assert any("b@GRAD is overwritten by increment" in r for r in reasons(passed(net, apply)[1]))
    check_same(net, apply.__name__)


def check_same(net, level, fetches=()):
    expected, arrays, _ = run(net, None, fetches)
    found, changed, _ = run(net, level, fetches)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    for n, a in arrays.items():
        np.testing.assert_array_equal(changed[n], a, err_msg=n)


def test_a_parameter_that_is_updated_twice():
    net = build()
    with program_guard(net.main, net.startup):
        optimizer = opt.SGD(0.1)
        pairs = optimizer.backward(net.loss)
        optimizer.apply_gradients(pairs)
        first = next(op for op in net.main.ops if op.type == "sgd")
        g = Builder(net.main.global_block())
        with net.main.emitting("optimize"):
            g.sgd(first.inputs["Param"][0], first.inputs["Grad"][0], first.inputs["LearningRate"][0],
                  out={"ParamOut": first.inputs["Param"][0]})  # fmt: skip
    _, report = passed(net)
    assert any("is updated twice" in r or "before the last update" in r for r in reasons(report))
    check_same(net, "fuse_all_optimizer_ops")
    check_same(net, "foreach_optimizer_ops")


def test_mixed_types_are_two_groups():
    net = nets.build(opt.Adam(0.05), "float32")
    block = net.main.global_block()
    with program_guard(net.main, net.startup):
        g, g0 = Builder(block), Builder(net.startup.global_block())
        for name in ("h", "k"):
            own, p = (b.create_parameter(name, (3,), "float16") for b in (net.startup.global_block(), block))
            g0.fill_constant(shape=(3,), value=0.5, dtype="float16", out={"Out": own})
        loss = g.reduce_sum(g.elementwise_mul(block.var("h"), block.var("k")))
        opt.Adam(0.05).minimize(loss)
        del p
    graph, report = passed(net)
    assert counted(graph) == {"fused_adam": 2}
    assert not report.refused


def test_fuse_adamw_leaves_other_types():
    net = build()
    with program_guard(net.main, net.startup):
        pairs = {p.name: (p, g) for p, g in opt.SGD(0.1).backward(net.loss)}
        opt.AdamW(0.1).apply_gradients([pairs["w"], pairs["b"]])
        opt.Adam(0.1).apply_gradients([pairs["s"]])
    assert counted(passed(net, fuse_adamw)[0]) == {"fused_adamw": 1, "adam": 1}


def test_levels_exclude_each_other():
    net = build(opt.SGD(0.1))
    both = BuildStrategy(fuse_all_optimizer_ops=True, foreach_optimizer_ops=True)
    with pytest.raises(AttrError, match="cannot be on together: both rewrite the same parameter updates"):
        CompiledProgram(net.main, both).explain()


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_and_states_stay_where_they_are(level):
    net = build(opt.AdamW(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.1)))
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    arrays = dict(scope.arrays)
    program = CompiledProgram(net.main, BuildStrategy(**{level: True}))
    for _ in range(3):
        exe.run(program, {"x": X, "y": Y}, [net.loss], scope=scope)
    assert all(scope.arrays[n] is a for n, a in arrays.items())


@pytest.mark.parametrize("level", LEVELS)
def test_rates_and_schedules_take_effect_in_the_next_step(level):
    scheduler = lr.ExponentialDecay(0.5, 0.5)
    net = build(opt.SGD(scheduler))
    exe, scope = Executor(), Scope()
    exe.run(net.startup, scope=scope)
    program = CompiledProgram(net.main, BuildStrategy(**{level: True}))
    before = scope.read("w")
    for step in range(3):
        grad, = exe.run(program, {"x": X, "y": Y}, ["w@GRAD"], scope=scope)
        np.testing.assert_allclose(scope.read("w"), before - 0.5 * 0.5**step * grad, rtol=1e-12)
        before = scope.read("w")
        scheduler.step()


def test_explain_counts_what_joined():
    net = build(opt.AdamW(0.1, grad_clip=clip.ClipGradByGlobalNorm(1.0)))
    program = CompiledProgram(net.main, BuildStrategy(fuse_all_optimizer_ops=True))
    said = program.explain()
    assert "from adamw b, adamw s, adamw w, elementwise_mul" in said
    assert "foreach_squared_l2_norm" in said


# planted defects: each changes what groups are, and must change a result


def attributes_are_not_compared(patch):
    original = optimizer_groups._key
    patch.setattr(optimizer_groups, "_key", lambda op, source: original(op, source)[:2] + original(op, source)[3:])


def decay_is_not_compared(patch):
    original = optimizer_groups._key
    patch.setattr(optimizer_groups, "_key", lambda op, source: original(op, source)[:-1])


def rates_are_not_compared(patch):
    original = optimizer_groups._key
    patch.setattr(optimizer_groups, "_key", lambda op, source: (*original(op, source)[:3], *original(op, source)[4:]))


def readers_are_not_looked_at(patch):
    patch.setattr(optimizer_groups, "_problem", lambda *arguments: None)


def the_factor_is_dropped(patch):
    patch.setattr(optimizer_groups.UpdateGroup, "scale", None)


def the_decay_is_dropped(patch):
    patch.setattr(optimizer_groups.UpdateGroup, "decay", 0.0)


@pytest.mark.parametrize("plant", [
    attributes_are_not_compared, decay_is_not_compared, rates_are_not_compared, readers_are_not_looked_at,
    the_factor_is_dropped, the_decay_is_dropped,
], ids=lambda plant: plant.__name__)  # fmt: skip
@pytest.mark.parametrize("level", LEVELS)
def test_planted_defect_is_seen(plant, level, monkeypatch):
    plant(monkeypatch)
    cases = ["adamw, some decay", "sgd, own regularizer", "sgd, rate factor", "sgd, clip before decay"]
    for name in cases:
        try:
            check_same(made(name, "float64"), level)
        except Exception:  # a difference, or a graph that is refused
            return
    try:
        check_same(between(lambda g, block: g.increment(block.var("b"), step=0.5, out={"Out": block.var("b")})), level)
    except Exception:
        return
    pytest.fail("no program showed it")


@pytest.mark.parametrize("flag", ["fuse_all_optimizer_ops", "foreach_optimizer_ops"])
def test_parameters_with_one_gradient_have_a_norm_each(flag):
    main, startup, found = Program(), Program(), []
    block = main.global_block()
    g = Builder(block)
    x = block.create_var("x", [4, 3], "float64", is_data=True)
    v, w = (block.create_parameter(name, [3], "float64") for name in "vw")
    loss = g.reduce_mean(g.elementwise_mul(x, g.sum([v, w])))
    opt.SGD(0.1, grad_clip=clip.ClipGradByGlobalNorm(0.1)).minimize(loss, startup)
    strategy = BuildStrategy(common_subexpression_elimination=True, **{flag: True})
    for program in (main, CompiledProgram(main, build_strategy=strategy)):
        scope = Scope()
        for p in [p for p in main.vars.values() if p.persistable]:  # both parameters and the rate
            scope.write(p.name, np.ones(p.shape))
        Executor().run(program, {"x": np.arange(12.0).reshape(4, 3)}, scope=scope)
        found.append([scope.read(name) for name in ("v", "w")])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)
    assert (found[0][0] != 1).all()


@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
def test_updates_that_need_norms_are_grouped_where_their_directions_take_no_more_memory(place):
    main = Program()
    with program_guard(main, Program()):
        tables = [mg.static.create_parameter([n, 100], "float32") for n in (20000, 15000, 4000, 3000, 2000, 10)]
        loss = sum(mg.mean(mg.square(t)) for t in tables)
        opt.Lamb(0.1).minimize(loss)
    plain, fused = CompiledProgram(main), CompiledProgram(main, BuildStrategy(fuse_all_optimizer_ops=True))
    assert fused.memory_report({}, [loss], place).planned <= plain.memory_report({}, [loss], place).planned + 4096
    ops = fused.program_for([loss.name]).global_block().ops
    updates = [op.inputs["Param"] for op in ops if op.type in ("lamb", "fused_lamb")]
    assert sorted([len(parameters) for parameters in updates]) == [1, 2, 3]
