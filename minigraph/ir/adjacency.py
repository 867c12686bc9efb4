"""Adjacency: who writes and who reads a variable; as a networkx graph for who asks for one.

An edge is kept once, at its variable: `producer`, the operator that writes it, and `read_by`. What an operator reads
and writes is in its slots. networkx's views and functions take several times longer, and its import longer than all
passes of a small program. Only this file and `graph.py` change edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

Position = tuple[str, int]  # slot, index in it
Edges = Collection[Position]  # between two nodes: a single one in a tuple, which is shared, several as keys of a dict


class _Single(dict[str, list[Edges]]):
    """For each slot the edges at its positions, where they are the only ones between two nodes: all share these."""

    def __missing__(self, slot: str) -> list[Edges]:
        self[slot] = [((slot, 0),)]
        return self[slot]

    def first(self, slot: str, number: int) -> list[Edges]:
        """Those at so many positions from the first one on, or more."""
        edges = self[slot]
        edges += [((slot, i),) for i in range(len(edges), number)]
        return edges


class Versions:
    """The newest version of each variable by its name; the versions before it are linked.

    declared   names of the Program's variables, which new ones must not take
    """

    def __init__(self, declared: Iterable[str] = ()) -> None:
        self.newest: dict[str, Any] = {}
        self.declared = frozenset(declared)

    @property
    def variables(self) -> list[Any]:
        """All versions of all variables, later ones before those before them."""
        found = list(self.newest.values())
        for v in found:  # which grows meanwhile
            if v.previous_version is not None:
                found.append(v.previous_version)
        return found

    @property
    def vars(self) -> dict[tuple[str, int], Any]:
        """All variables by name and version, as they are now."""
        return {(v.name, v.version): v for v in self.variables}

    def holds(self, v: Any) -> bool:
        """Whether a version of a variable is in the graph."""
        own = self.newest.get(v.name)
        while own is not None and own is not v:
            own = own.previous_version
        return own is v

    def fresh_name(self, base: str) -> str:
        """`base`, numbered if the graph or its Program has that name already."""
        if self.is_free(base):
            return base
        return next(n for i in itertools.count(1) if self.is_free(n := f"{base}_{i}"))

    def is_free(self, name: str) -> bool:
        return name not in self.newest and name not in self.declared

    def rename_var(self, v: Any, name: str) -> None:
        """Give a variable of one version another name that is free."""
        assert v.version == 0 and v.next_version is None and name not in self.newest
        del self.newest[v.name]
        v.name = name
        self.newest[name] = v

    def enter_var(self, v: Any, name: str) -> None:
        """Give a value that operators of the graph write, but which is not in it yet, a name that is free."""
        assert name not in self.newest
        v.name = name
        self.newest[name] = v


class Adjacency(Versions):
    """The edges of variables: v.producer, None where no operator writes it, and v.read_by, {operator: positions}."""

    nodes: dict[Any, None]
    changed: dict[Any, None]
    _by_type: Any  # of the Graph, as are these
    _sorted: Any
    _wrote: Any

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

    def __contains__(self, op: Any) -> bool:
        return op in self.nodes

    def readers(self, v: Any) -> list[Any]:
        """The operators that read `v`, in no particular order; cheap where there are many."""
        return list(v.read_by)

    def order_problem(self, rank: tuple[int, ...], reads: Iterable[Any]) -> str | None:
        """Why an operator that reads these cannot stand at `rank`; None if it can."""
        for v in reads:
            writer, newer = v.producer, v.next_version
            if writer is not None and writer.rank >= rank:
                return f"{v.name} is computed later"
            if newer is not None and (writer := newer.producer) is not None and writer.rank < rank:
                return f"{v.name} is updated in place before"
        return None

    def _with(self, edges: Any, at: Position) -> Edges:
        """The edges between two nodes and one more."""
        if len(edges) == 1:
            return {**dict.fromkeys(edges), at: None}
        edges[at] = None  # an update of 10,000 tensors may read one value for all
        return edges

    def _connect(self, v: Any, op: Any, slot: str, index: int) -> None:
        """Add the edge of a value that is read."""
        edges = v.read_by.get(op)
        v.read_by[op] = ((slot, index),) if edges is None else self._with(edges, (slot, index))

    def _disconnect(self, v: Any, op: Any, slot: str, index: int) -> None:
        """Remove the edge of a value that is read."""
        edges = v.read_by[op]
        if len(edges) == 1:
            del v.read_by[op]
        elif len(edges) == 2:
            v.read_by[op] = tuple([at for at in edges if at != (slot, index)])
        else:
            del edges[slot, index]
