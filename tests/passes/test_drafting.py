"""Recipes of passes/engine/drafting.py: what is emitted again is what the rule would have emitted."""

from __future__ import annotations

import random
from typing import Any

import pytest

import minigraph as mg
from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.rule import Rule, apply_rule
from minigraph.passes.fuse_gemm_epilogue import LinearEpilogue, fuse_gemm_epilogue
from minigraph.program import Program, unique_name
from tests.support.net import Net

F = mg.nn.functional
ACTIVATIONS = [F.relu, F.relu, F.relu, F.gelu, F.gelu, mg.tanh, lambda x: x]


def linear(r: random.Random, h: Any, width: int) -> mg.nn.Linear:
    """A layer for `h`; sometimes its weight or its bias is not trained."""
    def attr() -> mg.ParamAttr:
        return mg.ParamAttr(trainable=r.random() < 0.8)

    return mg.nn.Linear(h.shape[-1], width, weight_attr=attr(), bias_attr=attr())


def layers(seed: int) -> tuple[Program, list[str]]:
    """A stack of linear layers, most of them alike: some share weights, are read twice, stopped, or fetched."""
    r, main, fetches = random.Random(seed), Program(), list[str]()
    with mg.static.program_guard(main, Program()), unique_name.guard():
        h = x = mg.static.data("x", [r.choice([None, 1, 3]), *r.choice([[], [2]]), 4])
        x.stop_gradient = r.random() < 0.5
        shared = mg.nn.Linear(4, 4)
        for _ in range(r.randint(4, 14)):
            is_shared = h.shape[-1] == 4 and r.random() < 0.2
            y = (shared if is_shared else linear(r, h, r.choice([4, 4, 4, 4, 6])))(h)
            y.stop_gradient = r.random() < 0.05
            z = r.choice(ACTIVATIONS)(y)
            fetches += [v.name for v in (y, z) if r.random() < 0.05]
            for other in (y, h, z):
                z = z + other if r.random() < 0.1 and other.shape == z.shape else z
            h = z if z.shape[-1] != 4 or r.random() < 0.9 else x
        loss = mg.mean(mg.nn.Linear(h.shape[-1], 4)(h))
        if r.random() < 0.9:
            mg.optimizer.Momentum(0.1).minimize(loss)
    return main, [*fetches, loss.name]


def facts(program: Program, fetches: list[str]) -> list[Any]:
    """All that a compilation tells, but for times."""
    compiled = CompiledProgram(program, build_strategy=BuildStrategy.all())
    after = compiled.program_for(tuple(fetches))
    ops = [(str(op), op.role, op.number, op.scope_name, op.grad_slot, str(op.site), dict(op.attrs)) for op in after.ops]
    reports = [(r.applied, r.refused, r.miss) for r in compiled.reports.values()]
    return [ops, list(after.vars), reports, str(compiled.history), str(after)]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The names of rules whose `rewrite` was called, in order."""
    calls, rewrite = list[str](), LinearEpilogue.rewrite

    def noted(self: LinearEpilogue, *args: Any, **bound: Any) -> Any:
        calls.append(self.name)
        return rewrite(self, *args, **bound)

    monkeypatch.setattr(LinearEpilogue, "rewrite", noted)
    return calls


@pytest.mark.parametrize("seed", range(60))
def test_programs_are_those_of_a_rule_that_is_always_asked(seed, asked, monkeypatch):
    program, fetches = layers(seed)
    found, few = facts(program, fetches), len(asked)
    monkeypatch.setattr(LinearEpilogue, "by_types", False)
    assert found == facts(program, fetches)
    assert len(asked) >= 2 * few  # a second compilation, in which no rule is spared


def test_a_rule_is_asked_once_for_alike_layers(asked):
    main = Program()
    with mg.static.program_guard(main, Program()):
        h = mg.static.data("x", [None, 4])
        for _ in range(8):
            h = F.relu(mg.nn.Linear(4, 4)(h))
        loss = mg.mean(h)
        mg.optimizer.SGD(0.1).minimize(loss)
    CompiledProgram(main, build_strategy=BuildStrategy.all()).program_for((loss.name,))
    assert asked == ["LinearRelu"] * 2  # the first layer's input needs no gradient


def test_what_is_emitted_again_reads_nothing_that_goes(asked):
    main = Program()
    with mg.static.program_guard(main, Program()):
        h = mg.static.data("x", [1, 4])
        weights = [mg.static.create_parameter([4, 4], "float32") for _ in range(9)]
        for w, v in zip(weights[:4], weights[4:8], strict=True):
            h = F.relu(mg.matmul(h, w) + mg.matmul(h, v))
        product = mg.matmul(h, weights[8])
        out = F.relu(product + product)
    compiled = CompiledProgram(main, build_strategy=BuildStrategy(fuse_gemm_epilogue=True))
    after = compiled.program_for((out.name,))
    assert [op.type for op in after.ops].count("fused_gemm_epilogue") == 4
    assert asked.count("LinearRelu") < 4  # the last one is like those before, as far as types tell
    assert "would be an operand of what computes it" in str(compiled.reports["fuse_gemm_epilogue"].refused)


class Again(Rule):
    """elementwise_add(matmul(X, Y), Bias) -> the same operators, new ones"""

    def pattern(self, p, X, Y, Bias):
        return p.elementwise_add(p.matmul(X, Y), Bias)

    def rewrite(self, g, X, Y, Bias):
        return g.elementwise_add(g.matmul(X, Y), Bias)


@pytest.mark.parametrize("seed", range(10))
def test_several_operators_with_values_between_them_are_emitted_again(seed):
    program, fetches = layers(seed)
    texts = []
    for by_types in (False, True):
        rule, graph, report = Again(), to_graph(program, fetches), PassReport("again")
        rule.by_types = by_types
        assert apply_rule(graph, rule, report) > 1
        verify(graph)
        after = to_program(graph, program)
        number = {op: i for i, op in enumerate(after.ops)}
        links = [(number.get(op.forward), op.grad_slot, op.site, op.number, op.role) for op in after.ops]
        texts.append([str(after), links, report.applied, report.refused])
    assert texts[0] == texts[1]


def test_operators_that_are_emitted_again_have_attributes_of_their_own():
    net = Net()
    h = net.data("x", 3, 4)
    for i in range(4):
        h = net.g.relu(net.g.elementwise_add(net.g.matmul(h, net.param(f"w{i}", 4, 4)), net.param(f"b{i}", 4)))
    graph = to_graph(net.program, [h.name])
    assert fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue")) == 4
    assert len({id(op.attrs) for op in graph.ops}) == 4
