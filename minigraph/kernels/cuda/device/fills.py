"""Small fills of a captured graph as kernels.

The driver gives a graph of nothing but kernels to the GPU at once. A node that sets bytes divides it, which takes
a microsecond of the host in each run; products of cuBLASLt that share tiles out at run time have one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.kernels.cuda.record.binder import blocks_for
from minigraph.kernels.cuda.record.bindings import driver
from minigraph.kernels.cuda.record.compile import full_source

SMALL = 1 << 16  # bytes; the driver's own fill is faster for many
THREADS = 256


def kernel() -> tuple[str, str]:
    """The source of the kernel, and its name."""
    return full_source("device/fill.cu"), "fill"


def as_kernels(graph: int, function: Callable[[], int]) -> int:
    """Put kernels in the place of the nodes of a cudaGraph_t that set few bytes to one value; returns how many.

    function  gives the CUfunction of `kernel`; asked where there is such a node
    A RuntimeError tells which call of the driver failed.
    """
    d = driver()

    def asked(call: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        status, *answer = call(*args)
        if int(status):
            raise RuntimeError(f"{call.__name__}: {status.name}")
        return tuple(answer)

    connect = getattr(d, "cuGraphAddDependencies_v2", d.cuGraphAddDependencies)  # the name in CUDA 12
    whole, replaced = d.CUgraph(graph), 0
    count = asked(d.cuGraphGetNodes, whole)[-1]
    for node in asked(d.cuGraphGetNodes, whole, count)[0][:count]:
        if asked(d.cuGraphNodeGetType, node)[0] != d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET:
            continue
        (fill,) = asked(d.cuGraphMemsetNodeGetParams, node)
        nbytes, one_byte = fill.width * fill.elementSize, fill.elementSize == 1 or fill.value == 0
        if fill.height != 1 or nbytes > SMALL or not one_byte:
            continue
        before, after = (
            list(asked(nodes, node, asked(nodes, node)[-1])[0])
            for nodes in (d.cuGraphNodeGetDependencies, d.cuGraphNodeGetDependentNodes)
        )
        own = d.CUDA_KERNEL_NODE_PARAMS()
        own.func, own.sharedMemBytes = d.CUfunction(function()), 0
        own.gridDimX, own.gridDimY, own.gridDimZ = blocks_for(nbytes, THREADS), 1, 1
        own.blockDimX, own.blockDimY, own.blockDimZ = THREADS, 1, 1
        args = np.array([int(fill.dst), nbytes, fill.value], np.int64)
        pointers = args.ctypes.data + args.itemsize * np.arange(args.size)
        own.kernelParams = pointers.ctypes.data  # the node copies what they point to
        (made,) = asked(d.cuGraphAddKernelNode, whole, before, len(before), own)
        if after:
            asked(connect, whole, [made] * len(after), after, None, len(after))
        asked(d.cuGraphDestroyNode, node)
        replaced += 1
    return replaced
