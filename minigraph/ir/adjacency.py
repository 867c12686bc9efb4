"""Adjacency: who writes and who reads a variable; as a networkx graph for who asks for one.

An edge is kept once, at its variable: `producer`, the operator that writes it, and `read_by`. What an operator reads
and writes is in its slots. networkx's views and functions take several times longer, and its import longer than all
passes of a small program. Only this file and `graph.py` change edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .versions import Versions

Position = tuple[str, int]  # slot, index in it
Edges = dict[Position, None]  # between two nodes; a single edge is shared, several belong to their two nodes


class _Single(dict[Position, Edges]):
    """The edge at a position, where it is the only one between two nodes: all of these share it."""

    def __missing__(self, at: Position) -> Edges:
        self[at] = {at: None}
        return self[at]


class Adjacency(Versions):
    """The edges of variables: v.producer, None where no operator writes it, and v.read_by, {operator: positions}."""

    nodes: dict[Any, None]

    def __init__(self, declared: Iterable[str] = ()) -> None:
        super().__init__(declared)
        self._single = _Single()

    @property
    def nx(self) -> Any:
        """A networkx.MultiDiGraph of the nodes as they are now, for its algorithms; (slot, index) are keys of edges."""
        import networkx as nx  # late: no compilation needs it

        graph: Any = nx.MultiDiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_nodes_from(self.variables)
        for op in self.nodes:
            graph.add_edges_from((v, op, (s, i), {}) for s, vs in op.inputs.items() for i, v in enumerate(vs))
            graph.add_edges_from((op, v, (s, i), {}) for s, vs in op.outputs.items() for i, v in enumerate(vs))
        return graph

    def _join(self, op: Any) -> None:
        """Add the edges of an operator, which are those of its slots."""
        single = self._single
        for slot, vs in op.inputs.items():
            for i, v in enumerate(vs):
                readers = v.read_by
                if op in readers:
                    readers[op] = self._with(readers[op], (slot, i))
                else:
                    readers[op] = single[slot, i]
        for vs in op.outputs.values():
            for v in vs:
                v.producer = op

    def _cut(self, op: Any) -> None:
        """Remove all edges of an operator."""
        for vs in op.inputs.values():
            for v in vs:
                v.read_by.pop(op, None)
        for vs in op.outputs.values():
            for v in vs:
                if v.producer is op:
                    v.producer = None

    def _with(self, edges: Edges, at: Position) -> Edges:
        """The edges between two nodes and one more."""
        if len(edges) == 1:
            return {**edges, at: None}
        edges[at] = None  # an update of 10,000 tensors may read one value for all
        return edges

    def _connect(self, v: Any, op: Any, slot: str, index: int) -> None:
        """Add the edge of a value that is read."""
        edges = v.read_by.get(op)
        v.read_by[op] = self._single[slot, index] if edges is None else self._with(edges, (slot, index))

    def _disconnect(self, v: Any, op: Any, slot: str, index: int) -> None:
        """Remove the edge of a value that is read."""
        edges = v.read_by[op]
        if len(edges) == 1:
            del v.read_by[op]
        elif len(edges) == 2:
            (left,) = (at for at in edges if at != (slot, index))
            v.read_by[op] = self._single[left]
        else:
            del edges[slot, index]
