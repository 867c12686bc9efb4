"""The engine of passes/engine/rule.py: programs that a careless rewrite would break.

Each one runs with the pass off and on; the refusal, where there is one, is asserted too.
"""

from __future__ import annotations

import numpy as np
import pytest

from minigraph.compiler import CompiledProgram
from minigraph.compiler.strategy import BuildStrategy
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.verify import verify
from minigraph.passes.attention.memory_efficient_attention import memory_efficient_attention
from minigraph.passes.engine.log import PassReport
from minigraph.passes.engine.pattern import Pattern
from minigraph.passes.engine.rule import Rule, apply_rule, refuse_unless
from minigraph.passes.fuse_activation_grad import fuse_activation_grad
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.passes.fuse_matmul_transpose import fuse_matmul_transpose
from minigraph.program import Program
from minigraph.program.backward import append_backward, gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import same
from tests.support.net import Net
from tests.support.random_programs import random_program

OWN = "{} would be an operand of what computes it"


@pytest.fixture
def net() -> Net:
    return Net()


def test_tanh_gelu_without_reserve_space(net):
    out = net.g.gelu(net.linear(net.data("x", 3, 4), 8), approximate=True)
    counts, _ = net.fuse(out)
    assert counts == {"fused_gemm_epilogue": 1}


@pytest.mark.parametrize("rows", [-1, 4])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_gradient_of_an_inner_value_is_not_that_of_the_result(net, activation, rows):
    s = net.linear(net.data("x", rows, 4), 3)
    out = getattr(net.g, activation)(s)
    grads = gradients([s], [net.block.var("w"), net.block.var("b")])
    counts, reasons = net.fuse(out, *grads)
    if activation == "tanh":
        assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 1
    else:
        assert any("is the gradient of an inner value" in r for r in reasons)


def test_gradient_of_the_product_is_not_that_of_the_sum(net):
    x, w, b = net.data("x", 2, 3), net.param("w", 3, 3), net.param("b", 3)
    z = net.g.matmul(x, w)
    out = net.g.elementwise_add(z, b)
    counts, reasons = net.fuse(out, *gradients([z], [w]))
    assert "fused_gemm_epilogue" not in counts
    assert "is the gradient of an inner value" in reasons[0]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gradients_that_nobody_reads_leave_no_empty_operator(net, activation):
    s = net.linear(net.data("x", 2, 3), 3)
    out = getattr(net.g, activation)(s)
    gradients([net.g.reduce_mean(out)], [s])
    counts, _ = net.fuse(out)
    assert counts["fused_gemm_epilogue"] == 1 and "fused_gemm_epilogue_grad" not in counts
    assert f"{activation}_grad" not in counts


def test_result_that_is_overwritten_is_not_written_before_its_last_reader(net):
    """x changes between matmul and add, so the fused operator could only stand before `tanh` reads h."""
    x, h0 = net.state("x", 2, 3), net.state("h0", 2, 3)
    h = net.g.assign(h0)
    z = net.g.matmul(x, net.param("w", 3, 3))
    net.g.increment(x, out={"Out": x})
    read = net.g.tanh(h)
    out = net.g.elementwise_add(z, net.param("b", 3), out={"Out": h})
    counts, reasons = net.fuse(read, out)
    assert "fused_gemm_epilogue" not in counts
    assert reasons == [f"{h.name} would be overwritten before tanh {read.name}"]


def test_result_is_not_written_before_the_value_that_it_overwrites(net):
    x, q = net.state("x", 2, 3), net.data("q", 2, 3)
    z = net.g.matmul(x, net.param("w", 3, 3))
    net.g.increment(x, out={"Out": x})
    h = net.g.assign(q)
    out = net.g.elementwise_add(z, net.param("b", 3), out={"Out": h})
    counts, reasons = net.fuse(out)
    assert "fused_gemm_epilogue" not in counts
    assert reasons == [f"{h.name} would be overwritten before assign {h.name}"]


def test_product_moves_up_to_where_its_operand_still_holds(net):
    x = net.state("x", 2, 3)
    z = net.g.matmul(x, net.param("w", 3, 3))
    net.g.increment(x, out={"Out": x})
    counts, _ = net.fuse(net.g.elementwise_add(z, net.param("b", 3)))
    assert counts == {"fused_gemm_epilogue": 1, "increment": 1}


def test_product_cannot_move_past_its_bias(net):
    x, b = net.state("x", 2, 3), net.param("b", 3)
    z = net.g.matmul(x, net.param("w", 3, 3))
    net.g.increment(x, out={"Out": x})
    counts, reasons = net.fuse(net.g.elementwise_add(z, net.g.tanh(b)))
    assert "fused_gemm_epilogue" not in counts
    assert reasons[0].startswith("the operators cannot be brought together")


def test_who_reads_only_a_shape_gets_another_value(net):
    x = net.data("x", -1, 3)
    z = net.g.matmul(x, net.param("w", 3, 5))
    out = net.g.elementwise_add(z, net.param("b", 5))
    counts, _ = net.fuse(net.g.fill_any_like(z, value=2.0), out)
    assert counts == {"fused_gemm_epilogue": 1, "fill_any_like": 1}


def test_no_stand_in_that_was_overwritten(net):
    x = net.data("x", 2, 3)
    z = net.g.matmul(x, net.param("w", 3, 5))
    out = net.g.elementwise_add(z, net.param("b", 5))
    net.g.increment(out, out={"Out": out})
    counts, reasons = net.fuse(net.g.fill_any_like(z, value=2.0), out)
    assert "fused_gemm_epilogue" not in counts
    assert "needs the shape of" in reasons[0]


def test_shape_of_an_inner_gradient(net):
    z = net.g.matmul(net.data("x", 2, 3), net.param("w", 3, 5))
    loss = net.g.reduce_mean(net.g.elementwise_add(z, net.param("b", 5)))
    append_backward(loss)
    like = net.g.fill_any_like(net.block.var(z.grad_name), value=2.0)
    counts, _ = net.fuse(loss, like)
    assert counts["fused_gemm_epilogue_grad"] == 1


def test_new_names_avoid_declared_ones(net):
    """The user has a state, used by nobody, that is called like the ReserveSpace would be."""
    h = net.g.relu(net.linear(net.data("x", 2, 3), 4, "1"))
    state = net.state(f"{h.name}.reserve", 2)
    loss = net.g.reduce_mean(net.linear(h, 2, "2"))
    append_backward(loss)
    net.fuse(loss)
    graph = to_graph(net.program)
    fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
    after = to_program(graph, net.program)
    fused = next(op for op in after.ops if "ReserveSpace" in op.outputs)
    assert fused.output("ReserveSpace") == [f"{state.name}_1"]
    assert after.vars[state.name].persistable and after.vars[state.name].shape == (2,)


def test_operators_added_after_compilation_have_numbers_of_their_own(net):
    net.linear(net.data("x", 2, 3), 4)
    after = to_program(to_graph(net.program), net.program)
    Builder(after.global_block()).tanh(after.vars["x"])
    numbers = [op.number for op in after.ops]
    assert len(set(numbers)) == len(numbers)


def test_both_orders_of_operands_are_tried(net):
    """The bias is a product too, so the sum matches in the wrong order first."""
    bias = net.g.matmul(net.param("v", 3), net.param("u", 3, 5))
    z = net.g.matmul(net.data("x", 2, 3), net.param("w", 3, 5))
    out = net.g.elementwise_add(bias, z)
    grads = append_backward(net.g.reduce_mean(net.g.tanh(out)))
    counts, reasons = net.fuse(out, *(g for _, g in grads))
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 1 and not reasons


@pytest.mark.parametrize("activation", ["relu", "gelu", None])
@pytest.mark.parametrize("training", [False, True])
def test_a_product_is_not_its_own_bias(net, activation, training):
    """With one row its shape is that of a bias."""
    h = net.g.matmul(net.data("x", 1, 3), net.param("w", 3, 5))
    out = net.g.elementwise_add(h, h)
    out = out if activation is None else getattr(net.g, activation)(out)
    grads = append_backward(net.g.reduce_mean(out)) if training else []
    counts, reasons = net.fuse(out, *(g for _, g in grads))
    assert OWN.format("matmul_0.tmp_0") in reasons
    assert counts["matmul"] == 1 and "fused_gemm_epilogue" not in counts


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("keep", [False, True])
def test_fused_operators_by_hand_take_part(net, activation, keep):
    """Without ReserveSpace gelu's gradient computes the pre-activation again, which is not the kept one."""
    x, w, b = net.data("x", 2, 3), net.param("w1", 3, 5), net.param("b1", 5)
    h, _ = net.g.fused_gemm_epilogue(x, w, b, activation=activation, needs=["ReserveSpace"] * keep)
    grads = append_backward(net.g.reduce_mean(net.g.tanh(net.linear(h, 4, "2"))))
    counts, reasons = net.fuse(*(g for _, g in grads))
    assert counts["fused_gemm_epilogue_grad"] == 2
    merged = activation == "relu" or keep
    assert (f"{activation}_grad" not in counts) == merged
    assert merged == (not reasons)
    assert merged or "which is not the input of" in reasons[0]


def test_compiled_programs_keep_what_is_fetched(net):
    """Each set of fetched names has a compilation of its own."""
    h = net.g.relu(net.linear(net.data("x", -1, 3), 5))
    s = net.program.ops[1].outputs["Out"][0]
    strategy = BuildStrategy()
    strategy.fuse_gemm_epilogue = True
    compiled, exe, scope = CompiledProgram(net.program, strategy), Executor(), Scope()
    for name, array in net.values.items():
        scope.write(name, array)
    (one,) = exe.run(compiled, feed=net.feeds, fetch_list=[h], scope=scope)
    assert [op.type for op in compiled.after.ops] == ["fused_gemm_epilogue"]
    inner, two = exe.run(compiled, feed=net.feeds, fetch_list=[s, h], scope=scope)
    assert [op.type for op in compiled.after.ops] == ["fused_gemm_epilogue", "relu"]
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.maximum(inner, 0), two)


def test_an_attribute_that_is_float64_is_not_one_that_is_none():
    """np.dtype("float64") == None, since to NumPy None is a name of float64."""
    assert not same(np.dtype("float64"), None) and not same(None, np.dtype("float64"))
    assert same(None, None) and same(np.dtype("float64"), np.dtype("float64")) and same(1, 1) and not same(1, 2)
    for dtype, count in ((None, 1), ("float64", 0)):
        program = Program()
        x, y = (program.global_block().create_var(n, (2, 2), "float64", is_data=True) for n in "xy")
        Builder(program.global_block()).matmul(x, y, out_dtype=dtype)
        (op,) = to_graph(program).ops
        matches, _, reason = Pattern(lambda p, x, y: p.matmul(x, y)).match(op)
        assert len([*matches]) == count
    assert "has out_dtype=float64, wanted None" in str(reason)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("operand", ["values", "bias"])
def test_scores_are_not_their_own_bias_nor_values(net, operand, training):
    scores = net.g.matmul(net.data("q", 1, 3, 4), net.param("k", 1, 3, 4), trans_y=True)
    biased = net.g.elementwise_add(scores, scores) if operand == "bias" else scores
    weights = net.g.softmax(biased)
    out = net.g.matmul(weights, net.data("v", 1, 3, 4) if operand == "bias" else weights)
    grads = append_backward(net.g.reduce_mean(net.g.tanh(out))) if training else []
    graph, report = to_graph(net.program, [out.name, *(g.name for _, g in grads)]), PassReport("attention")
    assert memory_efficient_attention(graph, report) == 0
    verify(graph)
    assert [r.reason for r in report.refused] == [OWN.format((scores if operand == "bias" else weights).name)]


class Halfway(Rule):
    """tanh(X) -> relu(X), which is taken back, or X itself"""

    def __init__(self, returns_operand: bool) -> None:
        self.returns_operand = returns_operand

    def pattern(self, p, X):
        return p.tanh(X)

    def rewrite(self, g, X):
        g.relu(X)
        refuse_unless(self.returns_operand, "on second thoughts")
        return X


@pytest.mark.parametrize(
    ("returns_operand", "reason"), [(False, "on second thoughts"), (True, "which is there already")]
)
def test_what_is_refused_leaves_nothing_behind(net, returns_operand, reason):
    x = net.g.abs(net.data("x", 2, 3))
    net.g.tanh(x)
    graph, report = to_graph(net.program), PassReport("halfway")
    before = [*graph.nodes], dict(graph.newest), {v: dict(v.read_by) for v in graph.variables}
    assert apply_rule(graph, Halfway(returns_operand), report) == 0
    assert reason in report.refused[0].reason
    assert ([*graph.nodes], dict(graph.newest), {v: dict(v.read_by) for v in graph.variables}) == before
    assert not graph.changed


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_the_nearest_miss_is_the_same_where_a_type_is_lacking(seed, monkeypatch):
    """Anchors are left out only where none of them could be a nearer miss."""
    case = random_program(seed)
    for op_pass in (fuse_gemm_epilogue, fuse_matmul_transpose, fuse_activation_grad):
        reports = []
        for without in (False, True):
            with monkeypatch.context() as patch:
                if without:
                    patch.setattr(Pattern, "most_in", lambda self, graph: None)
                report = PassReport("pass")
                op_pass(to_graph(case.program, case.fetches), report)
                reports.append((report.applied, report.refused, report.miss))
        assert reports[0] == reports[1]


def test_a_nearer_miss_is_found_where_a_type_is_lacking(net):
    x = net.data("x", 3, 3)
    net.g.relu(net.g.tanh(x))
    net.g.relu(net.g.elementwise_add(x, net.param("b", 3)))
    report = PassReport("pass")
    fuse_gemm_epilogue(to_graph(net.program), report)
    assert report.miss is not None and (report.miss.rule, report.miss.matched) == ("LinearRelu", 2)


def test_where_a_type_is_lacking_one_miss_is_enough(net, monkeypatch):
    x = net.data("x", 3, 3)
    for i in range(5):
        x = net.g.matmul(x, net.param(f"w{i}", 3, 3))
    tried, match = [], Pattern.match
    monkeypatch.setattr(Pattern, "match", lambda self, anchor: tried.append(anchor) or match(self, anchor))
    report = PassReport("pass")
    fuse_matmul_transpose(to_graph(net.program), report)
    assert len(tried) == 1
    assert report.miss is not None and report.miss.matched == 1
