"""ir/verify.py sees each way in which a pass can leave a graph broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from minigraph.compiler import compiler
from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import VerifyError
from minigraph.ir.convert import to_graph
from minigraph.ir.graph import Graph, OpNode
from minigraph.ir.verify import verify, verify_changes
from minigraph.opdef import get_op
from minigraph.program.backward import append_backward
from minigraph.types import float32, float64, tensor_type
from tests.support.net import Net


def graph() -> Graph:
    """z = x @ w; s = z + b; loss = mean(s), its gradients, and a counter that is updated after a reader."""
    net = Net()
    out = net.linear(net.data("x", 2, 3), 4)
    loss = net.g.reduce_mean(out)
    append_backward(loss)
    counter = net.state("counter", 1)
    net.g.tanh(counter)
    net.g.increment(counter, out={"Out": counter})
    return to_graph(net.program, [loss.name])


def op(graph: Graph, op_type: str) -> OpNode:
    return next(o for o in graph.ops if o.type == op_type)


def producer_gone(g: Graph) -> None:
    g.remove_op(op(g, "matmul"))


def fetched_value_gone(g: Graph) -> None:
    mean = op(g, "reduce_mean")
    for grad in list(mean.grads):
        g.remove_op(grad)
    g.remove_op(mean)


def two_writers(g: Graph) -> None:
    z = op(g, "matmul").outputs["Out"][0]
    s = op(g, "elementwise_add").outputs["Out"][0]
    g.add_op(OpNode(get_op("assign"), {"X": [z]}, {"Out": [s]}, {}, rank=(1, 0)))


def reads_before_it_is_written(g: Graph) -> None:
    op(g, "matmul").rank = (1, 5)
    g._sorted = None


def reads_after_the_update(g: Graph) -> None:
    last = g.ops[-1].rank[0]
    op(g, "tanh").rank = (last, 1)
    g._sorted = None


def edge_without_slot(g: Graph) -> None:
    tanh = op(g, "tanh")
    tanh.inputs["X"][0] = g.vars["x", 0]


def slot_without_edge(g: Graph) -> None:
    del g.vars["x", 0].read_by[op(g, "matmul")]


def edge_of_what_is_gone(g: Graph) -> None:
    del g.nodes[op(g, "tanh")]
    g._sorted = None


def second_of_two_alike(g: Graph) -> None:
    """What fits one operator is not asked again of one like it; what they write must be alike, too."""
    like = op(g, "tanh")
    for i, dtype in enumerate((float64, float32)):
        out = g.add_var(f"out{i}", tensor_type((1,), dtype))
        g.add_op(OpNode(like.opdef, {"X": like.inputs["X"]}, {"Out": [out]}, {}, rank=(*like.rank, i)))


def write_edge_without_slot(g: Graph) -> None:
    op(g, "tanh").outputs["Out"][0] = g.add_var("other", tensor_type((1,), float64))


def versions_in_the_wrong_order(g: Graph) -> None:
    t = op(g, "tanh").outputs["Out"][0]
    counter, new = g.vars["counter", 0], g.add_var(t.name, t.type)
    g.add_op(OpNode(get_op("assign"), {"X": [counter]}, {"Out": [new]}, {}, rank=(0, 1)))


def slot_that_is_none(g: Graph) -> None:
    mean = op(g, "reduce_mean")
    x = mean.inputs["X"][0]
    mean.inputs["Wrong"] = [x]
    g._connect(x, mean, "Wrong", 0)


def missing_slot(g: Graph) -> None:
    add = op(g, "elementwise_add")
    g._disconnect(add.inputs["Y"][0], add, "Y", 0)
    del add.inputs["Y"]


def type_that_is_not_inferred(g: Graph) -> None:
    op(g, "elementwise_add").outputs["Out"][0].type = tensor_type((2, 5), float64)


def wrong_dtype(g: Graph) -> None:
    op(g, "tanh").outputs["Out"][0].type = tensor_type((1,), float32)


def attribute_that_does_not_fit(g: Graph) -> None:
    op(g, "elementwise_add").attrs["axis"] = 7


def output_that_is_none(g: Graph) -> None:
    g.set_output(op(g, "tanh"), "Mask", 0, g.add_var("mask", tensor_type((1,), float64)))


def link_to_what_is_gone(g: Graph) -> None:
    lost = op(g, "tanh")
    grad = op(g, "matmul_grad")
    g.remove_op(lost)
    g.link(grad, lost)


BROKEN: list[tuple[Callable[[Graph], None], str]] = [
    (producer_gone, "is read but no operator writes it"),
    (fetched_value_gone, "is fetched but no operator writes it"),
    (two_writers, "has 2 writers"),
    (reads_before_it_is_written, "is computed later|is read before by"),
    (reads_after_the_update, "counter is updated in place before"),
    (edge_without_slot, "edges and input slots differ"),
    (slot_without_edge, "edges and input slots differ"),
    (edge_of_what_is_gone, "is read by tanh .*, which is gone"),
    (second_of_two_alike, "out1: .* is inferred as"),
    (write_edge_without_slot, "edges and output slots differ|has 0 writers|no operator writes"),
    (versions_in_the_wrong_order, "is written before its earlier version"),
    (slot_that_is_none, "input slot of reduce_mean 'Wrong' does not exist"),
    (missing_slot, "input Y is missing"),
    (type_that_is_not_inferred, "is inferred as"),
    (wrong_dtype, "is inferred as"),
    (attribute_that_does_not_fit, "axis 7 does not place Y"),
    (output_that_is_none, "Mask"),
    (link_to_what_is_gone, "its forward operator tanh .* is gone"),
]


def test_a_sound_graph_passes():
    verify(graph())


@pytest.mark.parametrize(("break_it", "fact"), BROKEN, ids=[b.__name__ for b, _ in BROKEN])
def test_a_broken_graph_is_named(break_it, fact):
    g = graph()
    break_it(g)
    with pytest.raises(VerifyError, match=fact) as caught:
        verify(g, "some_pass")
    assert "after some_pass" in str(caught.value)


def moved_before_its_operands(g: Graph) -> None:
    g.move_op(op(g, "elementwise_add"), (-1,))


def moved_behind_its_readers(g: Graph) -> None:
    g.move_op(op(g, "elementwise_add"), (g.ops[-1].rank[0], 1))


def moved_behind_the_update(g: Graph) -> None:
    g.move_op(op(g, "tanh"), (g.ops[-1].rank[0], 1))


def update_moved_before_a_reader(g: Graph) -> None:
    g.move_op(op(g, "increment"), (-1,))


def reads_a_value_of_another_type(g: Graph) -> None:
    g.set_input(op(g, "elementwise_add"), "Y", 0, g.vars["x", 0])


def linked_operator_gone(g: Graph) -> None:
    mean = op(g, "reduce_mean")
    out = mean.outputs["Out"][0]
    g.remove_op(mean)
    g.add_op(OpNode(get_op("fill_constant"), {}, {"Out": [out]}, {"shape": (), "value": 1.0, "dtype": float64},
                    rank=(*mean.rank, 0)))  # fmt: skip


def optional_output_that_is_read_gone(g: Graph) -> None:
    g.drop_output(op(g, "elementwise_add_grad"), "X_grad")


BY_FUNCTIONS = [
    producer_gone, fetched_value_gone, two_writers, versions_in_the_wrong_order, output_that_is_none,
    moved_before_its_operands, moved_behind_its_readers, moved_behind_the_update, update_moved_before_a_reader,
    reads_a_value_of_another_type, linked_operator_gone, optional_output_that_is_read_gone,
]  # fmt: skip


@pytest.mark.parametrize("break_it", BY_FUNCTIONS, ids=lambda f: f.__name__)
def test_what_the_functions_of_a_graph_broke_is_found_among_the_changes(break_it):
    """As a look at everything finds it."""
    changed, whole = graph(), graph()
    for g in (changed, whole):
        verify(g)
        break_it(g)
    with pytest.raises(VerifyError):
        verify(whole, "some_pass")
    with pytest.raises(VerifyError, match="after some_pass"):
        verify_changes(changed, "some_pass")


def test_changes_are_looked_at_once():
    g = graph()
    verify(g)
    assert not g.changed
    g.set_input(op(g, "tanh"), "X", 0, g.vars["counter", 0])
    verify_changes(g, "some_pass")
    assert not g.changed


# which pass it was


def compiled(monkeypatch, **planted):
    """A program through all passes, with these instead of some of them; only its tanh is fetched beside its loss."""
    net = Net()
    h = net.g.cumsum(net.g.tanh(net.g.cumsum(net.linear(net.data("x", 2, 3), 4), axis=0)), axis=0)
    steps = [dataclasses.replace(step, apply=planted.get(step.flag, step.apply)) for step in compiler.PASSES]
    monkeypatch.setattr(compiler, "PASSES", steps)
    return compiler.CompiledProgram(net.program, BuildStrategy.all()).program_for((h.name,))


def write_another_type(op):
    op.outputs["Out"][0].type = tensor_type((7,), float64)


def read_without_an_edge(op):
    op.inputs["X"][0] = next(v for v in op.inputs["X"][0].graph.vars.values() if v.given)


def breaking(break_it, noted):
    """A pass that breaks the graph; `noted` as the functions of a graph note what they change."""

    def apply(graph, report, **options):
        broken = op(graph, "tanh")
        break_it(broken)
        if noted:
            graph.changed[broken] = None

    return apply


@pytest.mark.parametrize("break_it", [read_without_an_edge, write_another_type])
@pytest.mark.parametrize("flag", ["constant_folding", "fuse_grad_accumulation"])
def test_the_pass_that_broke_the_graph_is_named(monkeypatch, flag, break_it):
    """Though passes behind it ran."""
    said = {read_without_an_edge: "edges and input slots differ", write_another_type: "is inferred as"}[break_it]
    with pytest.raises(VerifyError, match=f"after {flag}: .*{said}"):
        compiled(monkeypatch, **{flag: breaking(break_it, noted=True)})


def test_what_bypassed_the_functions_of_the_graph_is_found_at_the_end(monkeypatch):
    with pytest.raises(VerifyError, match="after the last pass: edges and input slots differ"):
        compiled(monkeypatch, fuse_grad_accumulation=breaking(read_without_an_edge, noted=False))


def test_a_pass_that_fails_on_what_another_broke_is_not_blamed(monkeypatch):
    def failing(graph, report, **options):
        raise AssertionError(f"cannot go on with {op(graph, 'tanh').outputs['Out'][0]}")

    planted = breaking(write_another_type, noted=True)
    with pytest.raises(VerifyError, match="after constant_folding"):
        compiled(monkeypatch, constant_folding=planted, fuse_gemm_epilogue=failing)


def test_a_pass_that_fails_by_itself_raises_its_own_error(monkeypatch):
    def failing(graph, report, **options):
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError, match="planted"):
        compiled(monkeypatch, fuse_gemm_epilogue=failing)


def test_the_users_line_is_in_the_message():
    g = graph()
    attribute_that_does_not_fit(g)
    with pytest.raises(VerifyError, match=r"built at tests/support/net.py:\d+"):
        verify(g, "some_pass")
