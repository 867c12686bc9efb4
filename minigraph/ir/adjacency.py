"""Adjacency: nodes and edges as a networkx graph, whose dictionaries are read and written directly.

networkx's own views and functions take several times longer. Only this file and
`graph.py` change these dictionaries.
"""

from __future__ import annotations

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
    """Nodes with edges in both directions.

    nx          a networkx.MultiDiGraph of the nodes, for its algorithms
    pred, succ  its dictionaries {node: {neighbour: {(slot, position): {}}}}. All nodes and edges share one empty
                dictionary of attributes, and single edges of one position theirs
    """

    def __init__(self) -> None:
        import networkx as nx  # late: half of the time of `import minigraph`

        self.nx = nx.MultiDiGraph()
        self.pred: dict[Any, dict[Any, Any]] = self.nx._pred  # pyright: ignore[reportAttributeAccessIssue]
        self.succ: dict[Any, dict[Any, Any]] = self.nx._succ  # pyright: ignore[reportAttributeAccessIssue]
        self._nodes: dict[Any, dict[str, Any]] = self.nx._node  # pyright: ignore[reportAttributeAccessIssue]
        self._single = _Single()

    def _add_node(self, node: Any, before: dict[Any, Edges], after: dict[Any, Edges]) -> None:
        """Add a node with its own two dictionaries of edges; those of its neighbours stay as they are."""
        self._nodes[node], self.pred[node], self.succ[node] = NOTHING, before, after

    def _remove_node(self, node: Any) -> None:
        """Remove a node and all its edges."""
        for source in self.pred.pop(node):
            del self.succ[source][node]
        for target in self.succ.pop(node):
            del self.pred[target][node]
        del self._nodes[node]

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
        own, others = (self.pred, self.succ) if before else (self.succ, self.pred)
        for node, edges in own[old].items():
            of_node, known = others[node], own[new].get(node)
            del of_node[old]
            of_node[new] = own[new][node] = edges if known is None else {**known, **edges}
        own[old].clear()

    def _connect(self, source: Any, target: Any, slot: str, index: int) -> None:
        """Add an edge."""
        edges = self._with(self.succ[source].get(target), (slot, index))
        self.succ[source][target] = self.pred[target][source] = edges

    def _disconnect(self, source: Any, target: Any, slot: str, index: int) -> None:
        """Remove an edge."""
        edges = self.succ[source][target]
        if len(edges) == 1:
            del self.succ[source][target], self.pred[target][source]
        elif len(edges) == 2:
            (left,) = (at for at in edges if at != (slot, index))
            self.succ[source][target] = self.pred[target][source] = self._single[left]
        else:
            del edges[slot, index]
