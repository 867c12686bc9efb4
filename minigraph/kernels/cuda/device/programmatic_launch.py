"""Edges of a captured graph that let a kernel come to the GPU while those before it end.

Our kernels begin with a wait for all that the graph has before them (compile.py): until these have ended and what they
wrote can be seen. So an edge from a kernel to one of ours need not hold it back, which saves most of the microsecond
between two launches. This is CUDA's programmatic dependent launch, of compute capability 9.0; the kernels before it say
nothing themselves, so it begins when their last blocks end. Since every kernel waits before it does anything, what
follows from two edges holds as well, and so does memory that is used again. Between large kernels there is little to
gain, so plans ask for it where a step is short (mlp_step.json and edges.json of bench/results/studies). Only edges
between two of our kernels change: those of a library may let others begin early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from minigraph.kernels.cuda.record.bindings import driver

DRIVER = 12030  # the version from which edges have data


def loosen(graph: int, waiting: Collection[int]) -> int:
    """Make edges of a cudaGraph_t between our kernels programmatic; returns how many.

    waiting   the CUfunctions that wait by themselves; other nodes, and kernels of libraries, are held back as before
    A RuntimeError tells which call of the driver failed.
    """
    d = driver()

    def asked(name: str, *args: Any) -> tuple[Any, ...]:
        call: Callable[..., Any] = getattr(d, f"{name}_v2", None) or getattr(d, name)  # CUDA 12: with data of edges
        status, *answer = call(*args)
        if int(status):
            raise RuntimeError(f"{name}: {status.name}")
        return tuple(answer)

    def function(node: Any) -> int:
        """The CUfunction of a node; 0 where it is no kernel."""
        if asked("cuGraphNodeGetType", node)[0] != d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            return 0
        return int(asked("cuGraphKernelNodeGetParams", node)[0].func)

    if not waiting or asked("cuDriverGetVersion")[0] < DRIVER:
        return 0
    whole = d.CUgraph(graph)
    count = asked("cuGraphGetEdges", whole, 0)[-1]
    before, after = asked("cuGraphGetEdges", whole, count)[:2]
    of = {int(node): function(node) for node in (*before, *after)}
    edges = [(a, b) for a, b in zip(before, after, strict=True) if of[int(a)] in waiting and of[int(b)] in waiting]
    if not edges:
        return 0
    sources, targets = ([edge[i] for edge in edges] for i in (0, 1))
    early = d.CUgraphEdgeData()
    early.type = d.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    early.from_port = d.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    asked("cuGraphRemoveDependencies", whole, sources, targets, [d.CUgraphEdgeData()] * len(edges), len(edges))
    asked("cuGraphAddDependencies", whole, sources, targets, [early] * len(edges), len(edges))
    return len(edges)
