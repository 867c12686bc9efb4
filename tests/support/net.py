"""Net: a small program written by hand, for tests of passes."""

from __future__ import annotations

import numpy as np

from minigraph.ir.convert import to_graph
from minigraph.passes.engine.log import PassReport
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.program import Program, Variable
from minigraph.program.builder import Builder
from minigraph.types import float64, tensor_type
from tests.fuzz import check
from tests.support.random_programs import Case


class Net:
    """A program by hand: `net.g.<op>`, data, params, states."""

    def __init__(self) -> None:
        self.program = Program("net")
        self.block = self.program.global_block()
        self.g = Builder(self.block)
        self.rng = np.random.default_rng(7)
        self.values: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}

    def data(self, name: str, *shape: int, rows: int = 4) -> Variable:
        v = self.block.create_var(name, type=tensor_type(shape, float64), is_data=True, stop_gradient=True)
        self.feeds[name] = self.rng.normal(size=tuple(rows if s == -1 else s for s in shape))
        return v

    def param(self, name: str, *shape: int, trainable: bool = True) -> Variable:
        self.values[name] = np.asarray(self.rng.normal(size=shape))
        return self.block.create_parameter(name, shape, float64, trainable=trainable)

    def state(self, name: str, *shape: int) -> Variable:
        self.values[name] = self.rng.normal(size=shape)
        return self.block.create_var(
            name, type=tensor_type(shape, float64), persistable=True, stop_gradient=True
        )

    def linear(self, x: Variable, n: int, name: str = "", **attrs: bool) -> Variable:
        w = self.param(f"w{name}", *((n, x.shape[-1]) if attrs.get("trans_y") else (x.shape[-1], n)))
        return self.g.elementwise_add(self.g.matmul(x, w, **attrs), self.param(f"b{name}", n))

    def fuse(self, *fetches: Variable | str | None) -> tuple[dict[str, int], list[str]]:
        """Check that the pass changes no result; (counts of operators after it, reasons of refusals)."""
        names = [v if isinstance(v, str) else v.name for v in fetches if v is not None]
        check(Case(0, 0, self.program, self.values, self.feeds, names), [("fuse_gemm_epilogue",)])
        graph, report = to_graph(self.program, names), PassReport("fuse_gemm_epilogue")
        fuse_gemm_epilogue(graph, report)
        return dict(graph.count()), [r.reason for r in report.refused]
