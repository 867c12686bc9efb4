"""Adjacency: the edges of nodes in the form of networkx, which is imported for who asks for its graph.

Each node holds its own two dictionaries. networkx's views and functions take several times longer, and its import
longer than all passes of a small program. Only this file and `graph.py` change edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Position = tuple[str, int]  # slot, index in it
Edges = dict[Position, dict[str, Any]]  # between two nodes; a single edge is shared, several belong to their two nodes
NOTHING: dict[str, Any] = {}  # the attributes of every node and edge


class _Single(dict[Position, Edges]):
    """The edge at a position, where it is the only one between two nodes: all of these share it."""

    def __missing__(self, at: Position) -> Edges:
        self[at] = {at: NOTHING}
        return self[at]


class Adjacency:
    """Nodes with edges in both directions: node.before and node.after, {neighbour: {(slot, position): {}}}.

    All edges share one empty dictionary of attributes, and single edges of one position theirs.
    """

    def __init__(self) -> None:
        self._single = _Single()

    def _nodes(self) -> Iterable[Any]:
        """All nodes."""
        raise NotImplementedError

    @property
    def nx(self) -> Any:
        """A networkx.MultiDiGraph of the nodes as they are now, for its algorithms; it shows the edges themselves."""
        import networkx as nx  # late: no compilation needs it

        graph: Any = nx.MultiDiGraph()
        for node in self._nodes():
            graph._node[node] = NOTHING
            graph._pred[node], graph._succ[node] = node.before, node.after
        return graph

    def _join(self, op: Any) -> None:
        """Add the edges of an operator, which are those of its slots."""
        op.before, op.after = self._edges_of(op.inputs), self._edges_of(op.outputs)
        for v, edges in op.before.items():
            v.read_by[op] = edges
        for v, edges in op.after.items():
            v.written_by[op] = edges

    def _cut(self, op: Any) -> None:
        """Remove all edges of an operator."""
        for v in op.before:
            del v.read_by[op]
        for v in op.after:
            del v.written_by[op]
        op.before, op.after = {}, {}

    def _edges_of(self, slots: dict[str, list[Any]]) -> dict[Any, Edges]:
        """The edges between a node and its neighbours by slot."""
        edges: dict[Any, Edges] = {}
        for slot, neighbours in slots.items():
            if len(neighbours) == 1 and (v := neighbours[0]) not in edges:  # as most are
                edges[v] = self._single[slot, 0]
                continue
            for i, v in enumerate(neighbours):
                at = slot, i
                edges[v] = self._with(edges.get(v), at)
        return edges

    def _with(self, edges: Edges | None, at: Position) -> Edges:
        """The edges between two nodes and one more."""
        if edges is None:
            return self._single[at]
        if len(edges) == 1:
            return {**edges, at: NOTHING}
        edges[at] = NOTHING  # an update of 10,000 tensors may read one value for all
        return edges

    def _exchange(self, old: Any, new: Any, before: bool) -> None:
        """Let `new` have the edges of `old` on one side, too."""
        own, others = (old.before, new.before) if before else (old.after, new.after)
        for node, edges in own.items():
            of_node, known = node.after if before else node.before, others.get(node)
            del of_node[old]
            of_node[new] = others[node] = edges if known is None else {**known, **edges}
        own.clear()

    def _connect(self, source: Any, target: Any, slot: str, index: int) -> None:
        """Add an edge."""
        edges = self._with(source.after.get(target), (slot, index))
        source.after[target] = target.before[source] = edges

    def _disconnect(self, source: Any, target: Any, slot: str, index: int) -> None:
        """Remove an edge."""
        edges = source.after[target]
        if len(edges) == 1:
            del source.after[target], target.before[source]
        elif len(edges) == 2:
            (left,) = (at for at in edges if at != (slot, index))
            source.after[target] = target.before[source] = self._single[left]
        else:
            del edges[slot, index]
