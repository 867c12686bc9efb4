"""Graphs of cuDNN for attention: drawn with its frontend, planned for a GPU, run at given addresses.

The frontend finds libcudnn by itself: on LD_LIBRARY_PATH, or in the package nvidia-cudnn-cu12 or -cu13. A graph
is planned once, when a plan of minigraph is made; to run it launches kernels on a stream and nothing else, so it
can be captured. Of its plans those of the library itself are taken, not the frontend's own kernels, which need
other packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from minigraph.errors import PlaceError
from minigraph.types import float16

KEPT = 64  # planned graphs
FIRST = 1  # number of the first operand; those after it count on


class Planned:
    """A graph that is ready to run, with `nbytes` of workspace."""

    def __init__(self, graph: Any, handle: Any) -> None:
        self.graph, self.handle = graph, handle
        self.nbytes = graph.get_workspace_size()

    def run(self, operands: Sequence[int], workspace: int, stream: int) -> None:
        """Launch on the stream; operands and workspace are addresses."""
        import cudnn

        cudnn.set_stream(self.handle, stream)
        self.graph.execute(dict(enumerate(operands, FIRST)), workspace, handle=self.handle)


@lru_cache(KEPT)
def planned(asked: Any, device: int) -> Planned:
    """The graph for an `Sdpa`, planned for a GPU; a PlaceError with the library's reason where it cannot be."""
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, RuntimeError) as problem:
        raise PlaceError(
            f"cuDNN cannot be used: {problem}", hint="pip install nvidia-cudnn-cu13, or -cu12, besides its frontend"
        ) from None
    import cupy

    try:
        with cupy.cuda.Device(device):
            handle = _handle(device)
            graph = drawn(asked, handle=handle)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            _select_library(graph)
            graph.check_support()
            graph.build_plans()
            return Planned(graph, handle)
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError) as problem:
        raise PlaceError(f"cuDNN cannot compute this: {str(problem).strip()}") from None


@cache
def _handle(device: int) -> Any:
    import cudnn

    return cudnn.create_handle()


def _select_library(graph: Any) -> None:
    """Take the first plan that is libcudnn's."""
    for number in range(len(graph.plans)):
        graph.select_plan(number)
        if graph.selected_engine is None:
            return
    raise RuntimeError("the library has no plan")


def drawn(asked: Any, **options: Any) -> Any:
    """The graph for an `Sdpa`, not yet planned."""
    import cudnn

    c, types = asked.call, cudnn.data_type
    numbers = types.HALF if c.dtype == float16 else types.BFLOAT16
    g = cudnn.pygraph(
        io_data_type=numbers, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, **options
    )
    q, out = _layout(c, c.heads, c.queries, c.d), _layout(c, c.heads, c.queries, c.dv)
    k, v = _layout(c, c.kv_heads, c.keys, c.d), _layout(c, c.kv_heads, c.keys, c.dv)
    sums = {"dim": [c.batch, c.heads, c.queries, 1], "stride": [c.heads * c.queries, c.queries, 1, 1]}
    given = {}
    for i, (name, x, steps) in enumerate(zip("qkv", (q, k, v), asked.strides, strict=True)):
        given[name] = g.tensor(dim=x["dim"], stride=[*steps, 1], uid=FIRST + i)
    facts = _facts(cudnn, asked)
    if asked.backward:
        given["o"] = g.tensor(**out, uid=FIRST + 3)
        given["stats"] = g.tensor(**sums, data_type=types.FLOAT, uid=FIRST + 4)
        given["dO"] = g.tensor(**out, uid=FIRST + 5)
        found, made, first = g.sdpa_backward(**given, **facts), (q, k, v), FIRST + 6
    else:
        found, made, first = g.sdpa(**given, generate_stats=asked.statistics, **facts), (out, sums), FIRST + 3
    for number, (tensor, x) in enumerate(zip(found, made, strict=True), first):
        if tensor is not None:
            tensor.set_output(True).set_dim(x["dim"]).set_stride(x["stride"]).set_uid(number)
            tensor.set_data_type(types.FLOAT if x is sums else numbers)
    return g


def _layout(c: Any, heads: int, rows: int, width: int) -> dict[str, list[int]]:
    """[batch, heads, rows, width] as it lies in memory."""
    row, head = (heads * width, width) if c.bshd else (width, rows * width)
    return {"dim": [c.batch, heads, rows, width], "stride": [heads * rows * width, head, row, 1]}


def _facts(cudnn: Any, asked: Any) -> dict[str, Any]:
    """The attributes of the operation."""
    facts = {"attn_scale": asked.scale}
    if asked.left is not None:
        facts["diagonal_band_left_bound"] = asked.left + 1  # keys from the diagonal on, itself included
    if asked.right is not None:
        facts["diagonal_band_right_bound"] = asked.right
    if len(facts) > 1:
        corner = cudnn.diagonal_alignment
        facts["diagonal_alignment"] = corner.BOTTOM_RIGHT if asked.bottom_right else corner.TOP_LEFT
    return facts
