"""Graph: versions, producers and consumers, surgery; conversion from a Program and back."""

from __future__ import annotations

import sys

import pytest

import minigraph as mg
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.diff import first_difference
from minigraph.ir.graph import Graph, OpNode
from minigraph.ir.verify import verify
from minigraph.opdef import get_op
from minigraph.program.backward import append_backward
from minigraph.types import float32, tensor_type
from tests.support.net import Net
from tests.support.random_programs import random_program

F = tensor_type((2, 3), float32)


@pytest.mark.parametrize("seed", range(60))
def test_conversion_both_ways_changes_nothing(seed):
    case = random_program(seed)
    graph = to_graph(case.program, case.fetches)
    verify(graph)
    assert first_difference(case.program, to_program(graph, case.program)) is None
    assert sum(graph.count().values()) == len(case.program.ops)


def test_versions_of_a_state():
    net = Net()
    s = net.state("s", 2)
    net.g.tanh(s)
    net.g.increment(s, out={"Out": s})
    net.g.increment(s, out={"Out": s})
    graph = to_graph(net.program)
    first, second, third = (graph.vars["s", i] for i in range(3))
    tanh, one, two = graph.ops
    assert first.given and first.producer is None and first.consumers == [tanh, one]
    assert second.producer is one and second.consumers == [two] and second.next_version is third
    assert third.producer is two and third.consumers == [] and third.next_version is None
    assert [v.pinned for v in (first, second, third)] == ["persistable"] * 3


def test_written_state_has_the_value_from_before():
    net = Net()
    s = net.state("s", 2, 3)
    net.g.assign(net.data("x", 2, 3), out={"Out": s})
    graph = to_graph(net.program)
    assert graph.vars["s", 0].given and graph.vars["s", 1].producer is graph.ops[0]


def test_fetch_means_the_last_version():
    net = Net()
    h = net.g.tanh(net.data("x", 2))
    net.g.assign(net.data("y", 2), out={"Out": h})
    graph = to_graph(net.program, [h.name])
    assert [graph.vars[h.name, i].pinned for i in (0, 1)] == [None, "fetched"]
    net.program.fetched = (h.name,)
    assert to_graph(net.program).fetched == {h.name}


def test_links_follow_operators():
    net = Net()
    out = net.linear(net.data("x", 2, 3), 4)
    append_backward(net.g.reduce_mean(out))
    graph = to_graph(net.program)
    by_type = {op.type: op for op in graph.ops}
    assert by_type["matmul"].grads == {by_type["matmul_grad"]: None}
    assert by_type["elementwise_add_grad"].forward is by_type["elementwise_add"]
    back = to_program(graph, net.program)
    forward = {op.type: op for op in back.ops}
    assert forward["matmul_grad"].forward is forward["matmul"]


def test_temporaries_that_nobody_uses_are_dropped_and_declarations_stay():
    net = Net()
    x = net.data("x", 2, 3)
    net.data("unused", 1)
    net.param("p", 2)
    t = net.g.tanh(x)
    graph = to_graph(net.program)
    graph.remove_op(graph.ops[0])
    assert list(to_program(graph, net.program).vars) == ["x", "unused", "p"]
    assert t.name not in to_program(graph, net.program).vars


def test_reading_shapes_only_is_not_reading_values():
    net = Net()
    x = net.data("x", 2, 3)
    net.g.fill_any_like(x, value=1.0)
    net.g.elementwise_add_grad(x, x, x, needs=["X_grad"])
    graph = to_graph(net.program)
    v = graph.vars["x", 0]
    assert [op.reads_values_of(v) for op in graph.ops] == [False, True]


def graph_of_two() -> tuple[Graph, OpNode, OpNode]:
    graph = Graph("g")
    x, h, y = (graph.add_var(name, F) for name in ("x", "h", "y"))
    x.given = True
    first = graph.add_op(OpNode(get_op("tanh"), {"X": [x]}, {"Out": [h]}, {}, rank=(0,)))
    slots = {"X": [h], "Y": [h]}
    second = graph.add_op(OpNode(get_op("elementwise_add"), slots, {"Out": [y]}, {"axis": -1}, rank=(1,)))
    return graph, first, second


def test_a_variable_takes_the_place_of_another():
    """Also where one operator reads both, and at two positions."""
    graph, first, second = graph_of_two()
    h, other = graph.vars["h", 0], graph.add_var("other", F)
    third = graph.add_var("third", F)
    slots = {"X": [h], "Y": [other]}
    both = graph.add_op(OpNode(get_op("elementwise_add"), slots, {"Out": [third]}, {"axis": -1}, rank=(2,)))
    graph.changed.clear()
    graph.merge_var(h, other)
    assert first.outputs == {"Out": [other]} and second.inputs == both.inputs == {"X": [other], "Y": [other]}
    assert ("h", 0) not in graph.vars and other.producer is first and other.consumers == [second, both]
    assert {first, second, both, other} <= graph.changed.keys()
    edges = {(other, both, ("X", 0)), (other, both, ("Y", 0)), (first, other, ("Out", 0))}
    assert set(graph.nx.edges(keys=True)) >= edges
    verify(graph)


def test_surgery_keeps_edges_and_slots_together():
    graph, first, second = graph_of_two()
    x, h = graph.vars["x", 0], graph.vars["h", 0]
    assert h.consumers == [second] and x.consumers == [first]
    graph.set_input(second, "Y", 0, x)
    assert h.consumers == [second] and x.consumers == [first, second]
    graph.set_input(second, "X", 0, x)
    assert h.consumers == [] and second.inputs == {"X": [x], "Y": [x]}
    verify(graph)
    other = graph.add_var("z", F)
    graph.set_output(second, "Out", 0, other)
    assert other.producer is second and graph.vars["y", 0].producer is None
    graph.remove_op(second)
    assert second not in graph and x.consumers == [first]
    graph.remove_var(other)
    with pytest.raises(AssertionError, match="still used"):
        graph.remove_var(h)


def test_a_value_read_at_many_positions():
    """Edges at one position are shared between pairs of nodes, those at several are changed in place."""
    graph, _, _ = graph_of_two()
    x, h, out, twin = graph.vars["x", 0], graph.vars["h", 0], graph.add_var("out", F), graph.add_var("twin", F)
    many, other = [
        graph.add_op(OpNode(get_op("sum"), {"X": [x] * n}, {"Out": [o]}, {}, rank=(r,)))
        for n, o, r in ((4, out, 2), (1, twin, 3))
    ]
    for left in ([0, 1, 3], [0, 3], [3], []):
        (gone,) = {i for i, v in enumerate(many.inputs["X"]) if v is x} - set(left)
        graph.set_input(many, "X", gone, h)
        assert set(graph.nx.edges(x, keys=True)) == {
            (x, v, ("X", i)) for v, at in ((many, left), (other, [0]), (h.producer, [0])) for i in at
        }
        verify(graph)
    for i in (2, 0, 1, 3):
        graph.set_input(many, "X", i, x)
        verify(graph)
    assert graph.nx.number_of_edges(x, many) == 4 and other.inputs == {"X": [x]}


def test_networkx_is_imported_for_who_asks_only(monkeypatch):
    net = Net()
    out = net.g.relu(net.g.matmul(net.data("x", 2, 3), net.data("y", 3, 2)))
    monkeypatch.setitem(sys.modules, "networkx", None)  # an import fails
    compiled = mg.static.CompiledProgram(net.program, build_strategy=mg.static.BuildStrategy.all())
    assert compiled.program_for((out.name,)).ops
    graph = to_graph(net.program)
    with pytest.raises(ImportError):
        _ = graph.nx
    monkeypatch.undo()
    assert list(graph.nx.nodes) == [*graph.ops, *graph.vars.values()] and graph.nx.number_of_edges() == 5


def test_order_follows_ranks_and_tickets_make_them_unique():
    graph, first, second = graph_of_two()
    x = graph.vars["x", 0]
    late = [
        graph.add_op(
            OpNode(get_op("tanh"), {"X": [x]}, {"Out": [graph.add_var(f"n{i}", F)]}, {}, rank=(0, graph.ticket()))
        )
        for i in range(3)
    ]
    assert graph.ops == [first, *late, second]


def test_names():
    graph, _, _ = graph_of_two()
    assert graph.fresh_name("new") == "new" and graph.fresh_name("h") == "h_1"
    graph.rename_var(graph.vars["h", 0], "hidden")
    assert ("h", 0) not in graph.vars and graph.vars["hidden", 0].name == "hidden"
    assert graph.add_var("hidden", F).version == 1


def test_links_can_move_and_vanish():
    graph, first, second = graph_of_two()
    g = graph.add_var("g", F)
    grad = graph.add_op(
        OpNode(get_op("assign"), {"X": [graph.vars["y", 0]]}, {"Out": [g]}, {}, rank=(2,), forward=first)
    )
    graph.link(grad, second)
    assert not first.grads and list(second.grads) == [grad]
    graph.remove_op(grad)
    assert not second.grads


def test_order_problem():
    net = Net()
    s = net.state("s", 2)
    t = net.g.tanh(s)
    net.g.increment(s, out={"Out": s})
    graph = to_graph(net.program)
    old, new, h = graph.vars["s", 0], graph.vars["s", 1], graph.vars[t.name, 0]
    assert graph.order_problem((0, 5), [old]) is None
    assert graph.order_problem((1, 5), [old]) == "s is updated in place before"
    assert graph.order_problem((0, 5), [new]) == "s is computed later"
    assert graph.order_problem((0,), [h]) == f"{t.name} is computed later"
    assert graph.order_problem((1, 5), [new, h]) is None
