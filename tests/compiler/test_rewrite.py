"""Rewrites before autodiff: the same values and gradients, and the Variables that the user holds stay his."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.compiler.rewrite import rewrite
from minigraph.compiler.validate import distance
from minigraph.errors import MinigraphError, ProgramError
from minigraph.ir.convert import to_graph
from minigraph.ir.diff import first_difference
from minigraph.ir.text import parse
from minigraph.ir.verify import verify
from minigraph.passes.attention.memory_efficient_attention import memory_efficient_attention
from minigraph.passes.common_subexpression_elimination import common_subexpression_elimination
from minigraph.passes.constant_folding import constant_folding
from minigraph.passes.dead_code_elimination import dead_code_elimination
from minigraph.passes.elementwise.fuse_elementwise import fuse_elementwise
from minigraph.passes.engine.rule import Rule
from minigraph.passes.fuse_gemm_epilogue import LinearGelu, fuse_gemm_epilogue
from minigraph.passes.fuse_matmul_transpose import fuse_matmul_transpose
from minigraph.passes.remove_redundant_cast import remove_redundant_cast
from minigraph.passes.remove_redundant_transpose import remove_redundant_transpose
from minigraph.program import Program, unique_name
from minigraph.program.backward import append_backward
from minigraph.types import bfloat16, float32
from tests.support.grades import graded
from tests.support.random_programs import _Net

PASSES = (
    memory_efficient_attention, constant_folding, dead_code_elimination, common_subexpression_elimination,
    remove_redundant_cast, remove_redundant_transpose, fuse_matmul_transpose, fuse_gemm_epilogue,
)  # fmt: skip
FEED = {"x": np.random.default_rng(3).normal(size=(2, 5, 8))}


class Net:
    """Casts, a layer with gelu, attention written out, a second layer; all that the user holds has a name."""

    def __init__(self) -> None:
        self.main, self.startup = static.Program("main"), static.Program("startup")
        self.main.random_seed = self.startup.random_seed = 5
        with static.program_guard(self.main, self.startup), unique_name.guard():
            self.x = static.data("x", [2, 5, 8], "float64")
            wide = mg.cast(mg.cast(self.x, "float64"), "float64")
            self.hidden = static.nn.fc(wide, 8, num_flatten_dims=2, activation="gelu")
            scores = mg.matmul(self.hidden, self.hidden, transpose_y=True) * 8**-0.5
            self.mixed = mg.matmul(nn.functional.softmax(scores), self.hidden)
            self.out = static.nn.fc(self.mixed, 3, num_flatten_dims=2, activation="relu")
            self.loss = mg.mean(mg.tanh(self.out) * 2.0)

    def run(self, *fetches: Any) -> list[np.ndarray]:
        exe, scope = static.Executor(), static.Scope()
        with static.scope_guard(scope):
            exe.run(self.startup)
            return exe.run(self.main, FEED, list(fetches))

    def types(self) -> list[str]:
        return [op.type for op in self.main.ops]


def test_gradients_are_the_same_and_variables_stay():
    plain, net = Net(), Net()
    sites = {op.site for op in net.main.ops}
    version = net.main.version
    reports = rewrite(net.main, PASSES, keep=[net.out, net.hidden.name])
    assert net.main.version > version
    assert [r.name for r in reports] == [p.__name__ for p in PASSES]
    assert {"fused_gemm_epilogue", "memory_efficient_attention"} <= {*net.types()}
    assert not {"cast", "softmax", "gelu", "relu"} & {*net.types()}
    assert {op.site for op in net.main.ops} <= sites and None not in sites
    for v in (net.loss, net.out, net.hidden, *net.main.all_parameters()):
        assert net.main.vars[v.name] is v
    verify(to_graph(net.main))
    assert first_difference(parse(str(net.main)), net.main) is None
    names = [[g.name for _, g in append_backward(n.loss)] for n in (plain, net)]
    assert names[0] == names[1] and len(names[0]) == 4
    assert "memory_efficient_attention_grad" in net.types()
    made = [op for op in net.main.ops if op.role == "backward" and op.type == "memory_efficient_attention"]
    assert not made, "LogSumExp is kept by the forward operator"
    for a, b in zip(plain.run(plain.loss, *names[0]), net.run(net.loss, *names[1]), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-12)


def test_one_rule_alone_and_then_an_optimizer_and_the_same_rules_again():
    net = Net()
    (report,) = rewrite(net.main, [LinearGelu()])
    assert report.name == "LinearGelu" and len(report.applied) == 1
    with static.program_guard(net.main, net.startup):
        mg.optimizer.SGD(0.1).minimize(net.loss)
    compiled = static.CompiledProgram(net.main, static.BuildStrategy.all(verify="each_pass"))
    exe, scope = static.Executor(), static.Scope()
    with static.scope_guard(scope):
        exe.run(net.startup)
        losses = [float(exe.run(compiled, FEED, [net.loss])[0]) for _ in range(3)]
    assert losses[2] < losses[0]


def test_what_was_made_of_the_older_state_is_not_used_again():
    net = Net()
    compiled = static.CompiledProgram(net.main)
    compiled.diff()
    exe, scope = static.Executor(), static.Scope()
    with static.scope_guard(scope):
        exe.run(net.startup)
        before = exe.run(net.main, FEED, [net.hidden])[0]
        rewrite(net.main, PASSES, keep=[net.hidden])
        np.testing.assert_allclose(exe.run(net.main, FEED, [net.hidden])[0], before, atol=1e-12)
    with pytest.raises(ProgramError, match="changed after it was compiled"):
        compiled.diff()


def test_untouched_operators_are_the_same_objects():
    net = Net()
    softmax, mean = (next(op for op in net.main.ops if op.type == t) for t in ("softmax", "reduce_mean"))
    rewrite(net.main, [fuse_gemm_epilogue])
    assert any(op is softmax for op in net.main.ops) and any(op is mean for op in net.main.ops)
    assert softmax.block is net.main.global_block()


def test_values_that_went_are_refused_wherever_they_are_used():
    net = Net()
    inner = next(op for op in net.main.ops if op.type == "gelu").inputs["X"][0]
    rewrite(net.main, [fuse_gemm_epilogue])
    assert inner.name not in net.main.vars
    uses = [
        lambda: mg.tanh(inner), lambda: append_backward(inner), lambda: setattr(inner, "stop_gradient", True),
        lambda: setattr(inner, "name", "other"), lambda: inner + 1,
        lambda: rewrite(net.main, [], keep=[inner]), lambda: static.gradients([net.loss], [inner]),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ProgramError, match="took it out") as refusal:
            use()
        assert inner.name in refusal.value.hint
    with pytest.raises(MinigraphError, match=inner.name):
        net.run(inner)
    net.run(net.loss)


def test_refused_once_gradients_are_there():
    for later in (append_backward, lambda loss: mg.optimizer.SGD(0.1).minimize(loss)):
        net = Net()
        later(net.loss)
        text = str(net.main)
        with pytest.raises(ProgramError, match="gradients or updates already") as refusal:
            rewrite(net.main, PASSES)
        assert "before append_backward" in refusal.value.hint and refusal.value.site is not None
        assert str(net.main) == text


def test_a_pass_without_gradients_is_refused_and_nothing_changes():
    net = Net()
    text, version = str(net.main), net.main.version
    with pytest.raises(ProgramError, match="would not reach"):
        rewrite(net.main, [fuse_gemm_epilogue, fuse_elementwise])
    assert str(net.main) == text and net.main.version == version

    def fails(graph, report):
        graph.remove_op(graph.ops[-1])
        raise ProgramError("no")

    with pytest.raises(ProgramError, match="no"):
        rewrite(net.main, [fuse_gemm_epilogue, fails])
    assert str(net.main) == text and net.main.version == version
    append_backward(net.loss)


@pytest.mark.parametrize("arguments", [("main", []), (None, [])])
def test_arguments(arguments: Any):
    with pytest.raises(ProgramError, match="takes a Program"):
        rewrite(*arguments)
    net = Net()
    for keep in ("loss", net.loss, ["nothing"], [3], [Net().loss]):
        with pytest.raises(ProgramError, match="keep"):
            rewrite(net.main, [], keep=keep)


def stopped(kind: str) -> tuple[Program, Any, list[Any]]:
    """Programs in which passes would see through a stopped gradient."""
    main = static.Program("main")
    with static.program_guard(main, static.Program()), unique_name.guard():
        w = main.global_block().create_parameter("w", [3, 3], "float64")
        x = static.data("x", [3, 3], "float64")
        if kind == "inner":  # only through the residual way does a gradient reach w
            z = mg.matmul(x, w)
            z.stop_gradient = True
            out = nn.functional.relu(z + w[0]) + mg.tanh(w)
        elif kind in ("first", "second"):
            a, b = mg.tanh(w), mg.tanh(w)
            (a if kind == "first" else b).stop_gradient = True
            out = a * b * 3.0
        elif kind == "transposes":
            a = mg.transpose(w, [1, 0])
            a.stop_gradient = True
            out = mg.transpose(a, [1, 0]) * w
        elif kind == "product":
            a = mg.transpose(w, [1, 0])
            a.stop_gradient = True
            out = mg.matmul(x, a) * w
        else:  # a constant whose gradient is asked for, and an equal one
            a, b = mg.full([3, 3], 2.0, "float64"), mg.full([3, 3], 2.0, "float64")
            a.stop_gradient = False
            return main, mg.mean(mg.tanh(a) * b * w), [a, w]
        return main, mg.mean(out), [w]


@pytest.mark.parametrize("kind", ["inner", "first", "second", "transposes", "product", "constant"])
def test_no_pass_looks_through_a_stopped_gradient(kind: str):
    results = []
    for passes in ((), PASSES):
        main, loss, wanted = stopped(kind)
        rewrite(main, passes)
        assert "stop_gradient" not in {op.type for op in main.ops}
        grads = static.gradients([loss], wanted)
        values = {"w": np.linspace(-1, 1, 9).reshape(3, 3), "x": np.linspace(2, -1, 9).reshape(3, 3) ** 2}
        scope = static.Scope()
        scope.write("w", values["w"])
        with static.scope_guard(scope):
            results.append(static.Executor().run(main, {"x": values["x"]}, [loss, *grads]))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-12)


class Forward(_Net):
    """The forward part of a random program and its loss."""

    loss: Any = None

    def finish(self, bare: bool) -> None:
        self.choose = lambda weights: "inference"  # type: ignore[method-assign]
        super().finish(bare)
        self.loss = self.block.var(self.fetches[0] if self.fetches else next(reversed(self.block.vars)))


def forward(seed: int) -> Forward:
    """The same program for the same seed."""
    with unique_name.guard():
        net = Forward(random.Random(seed), seed)
        for i in range(net.r.randint(2, 7)):
            net.r = random.Random(f"{seed}:{i}")
            net.layer(False)
        net.r = random.Random(f"{seed}:end")
        net.finish(False)
    return net


@pytest.mark.parametrize("first", graded((0, 50, 100), now=lambda first: first == 0))
def test_random_programs(first):
    """Values and all gradients after every pass are those without any."""
    applied = compared = refused = 0
    for seed in range(first, first + 50):
        results: list[Any] = []
        for passes in ((), PASSES):
            net = forward(seed)
            held = dict(net.program.vars)
            applied += sum(len(r.applied) for r in rewrite(net.program, passes, net.fetches))
            assert all(net.program.vars[n] is held[n] for n in net.fetches)
            try:
                pairs = append_backward(net.loss)
            except ProgramError as problem:
                results.append(type(problem).__name__ + problem.fact)
                continue
            results.append(run(net, [*net.fetches, *(g.name for _, g in pairs)]))
        if isinstance(results[0], str):
            continue
        if "is overwritten" in results[1]:  # the new operator's gradient may read it
            refused += 1
            continue
        assert not isinstance(results[1], str), f"seed {seed}: {results[1]}"
        assert results[0].keys() == results[1].keys()
        exact = not any(v.dtype in (float32, bfloat16) for v in held.values())  # gradients meet at another cast
        for name, value in results[0].items():
            assert distance(value, results[1][name]) < (1e-10 if exact else 1e-6), f"seed {seed}: {name}"
            compared += 1
    assert applied > 60 and compared > 160 and refused < 5, (applied, compared, refused)


def run(net: Forward, names: list[str]) -> dict[str, np.ndarray]:
    scope = static.Scope()
    for name, value in net.values.items():
        scope.write(name, value)
    feeds = {n: a for n, a in net.feeds.items() if n in net.program.vars}
    with static.scope_guard(scope):
        return dict(zip(names, static.Executor().run(net.program, feeds, names), strict=True))


def test_rules_are_what_rewrite_takes():
    assert issubclass(LinearGelu, Rule)


# Where a stop is taken out


def written_twice(read: bool = True) -> tuple[Program, Any]:
    """A value with a stop that is written over; `read` before, too."""
    main = static.Program("main")
    with static.program_guard(main, static.Program()), unique_name.guard():
        x, w = static.data("x", [3]), static.create_parameter([3], name="w")
        value = mg.tanh(x)
        value.stop_gradient = True
        factor = value + 1.0 if read else w
        mg.assign(w * 3.0, value)
        return main, mg.sum(factor * value)


def test_a_stop_leaves_no_operator_behind():
    for main in (written_twice()[0], Net().main):
        text, operators = str(main), list(main.ops)
        rewrite(main, [])
        assert str(main) == text and list(main.ops) == operators


@pytest.mark.parametrize(("read", "rank"), [(True, (0,)), (False, (-1,))], ids=["its reader", "its writer"])
def test_a_stop_stays_behind_what_has_to_do_with_the_older_value(read, rank):
    """A pass may move the writer of the newer one up: it has a name of its own while passes run."""
    main, out = written_twice(read)

    def up(graph, report):
        (assign,) = graph.ops_of(["assign"])
        graph.move_op(next(iter(assign.input_vars)).producer, (*rank, 0))
        graph.move_op(assign, (*rank, 1))

    static.global_scope().write("w", np.asarray([4, 5, 6], "f4"))
    before = static.Executor().run(main, {"x": np.asarray([1, 2, 3], "f4")}, [out])[0]
    rewrite(main, [up])
    assert [op.type for op in main.ops][read : read + 2] == ["scale", "assign"]
    np.testing.assert_array_equal(static.Executor().run(main, {"x": np.asarray([1, 2, 3], "f4")}, [out])[0], before)
