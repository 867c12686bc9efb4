"""Edges between kernels of a captured graph that wait by themselves; the driver is a made-up one."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from minigraph.kernels.cuda.device import programmatic_launch
from minigraph.kernels.cuda.record import compile as nvrtc
from tests.runtime.test_fills import Driver, Node, memset, pretend

OURS, THEIRS = "7", "9"  # names of kernels are their handles


class EdgeDriver(Driver):
    """A driver whose edges have data: "plain" or what they were made."""

    def __init__(self, nodes: Any, found: Any, version: int = 13000) -> None:
        super().__init__(nodes, found)
        self.version, self.data = version, dict.fromkeys(self.edges, "plain")
        self.CUgraphEdgeData = SimpleNamespace
        self.CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")
        self.CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC="early")
        self.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = "port"

    def cuDriverGetVersion(self) -> Any:
        return self.answer("cuDriverGetVersion", self.version)

    def cuGraphGetEdges(self, graph: int, number: int = 0) -> Any:
        found = sorted(self.data)[:number]
        ends = [[Node(edge[i]) for edge in found] for i in (0, 1)]
        return self.answer("cuGraphGetEdges", *ends, [None] * number, len(self.data))

    def cuGraphKernelNodeGetParams(self, node: Node) -> Any:
        return self.answer("cuGraphKernelNodeGetParams", SimpleNamespace(func=self.nodes[int(node)]))

    def cuGraphRemoveDependencies(self, graph: int, a: Any, b: Any, data: Any, count: int) -> Any:
        assert len(a) == len(b) == len(data) == count
        for edge in zip(map(int, a), map(int, b), strict=True):
            assert self.data.pop(edge) == "plain"
        return self.answer("cuGraphRemoveDependencies")

    def cuGraphAddDependencies(self, graph: int, a: Any, b: Any, data: Any, count: int) -> Any:
        assert len(a) == len(b) == len(data) == count
        for x, y, how in zip(a, b, data, strict=True):
            self.data[int(x), int(y)] = f"{how.type} {how.from_port}"
        return self.answer("cuGraphAddDependencies")


def loosened(monkeypatch: pytest.MonkeyPatch, driver: EdgeDriver) -> int:
    pretend(monkeypatch, driver)
    return programmatic_launch.loosen(1, {int(OURS)})


def test_edges_from_kernels_to_those_that_wait(monkeypatch):
    driver = EdgeDriver([OURS, OURS, THEIRS, memset(8), OURS], [(0, 1), (0, 2), (2, 4), (3, 4), (1, 3), (0, 4)])
    assert loosened(monkeypatch, driver) == 2
    early = {edge for edge, how in driver.data.items() if how == "early port"}
    assert early == {(0, 1), (0, 4)}, "kernels of a library, and what is no kernel, neither wait nor let others wait"
    assert set(driver.data) == driver.edges, "no dependency is lost"


def test_nothing_to_loosen(monkeypatch):
    for driver in (EdgeDriver([OURS, THEIRS], [(0, 1)]), EdgeDriver([OURS, OURS], [(0, 1)], version=12020)):
        assert loosened(monkeypatch, driver) == 0
        assert set(driver.data.values()) == {"plain"}


def test_a_call_of_the_driver_that_fails_is_named(monkeypatch):
    driver = EdgeDriver([OURS, OURS], [(0, 1)])
    driver.fails = "cuGraphAddDependencies"
    with pytest.raises(RuntimeError, match="cuGraphAddDependencies: INVALID"):
        loosened(monkeypatch, driver)


KERNEL = 'extern "C" __global__ void __launch_bounds__(32) %s(const float* __restrict__ x, float* y)\n{ %s }\n'


def test_every_kernel_waits_before_it_touches_memory(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
    source = KERNEL % ("one", "y[threadIdx.x] = x[threadIdx.x];") + KERNEL % ("two", "y[0] = x[1];")
    assert nvrtc.compile_source(source, "sm_90a").waits_first
    assert not nvrtc.compile_source(source, "sm_80").waits_first, "it has no such wait"
    monkeypatch.setattr(nvrtc, "KERNEL", re.compile(r"__global__[^{;]* one[^{;]*\{"))
    assert not nvrtc.compile_source(source, "sm_90a").waits_first, "one of two kernels does not wait"
    late = KERNEL % ("late", f"const float v = x[threadIdx.x];{nvrtc.WAIT} y[threadIdx.x] = v;")
    assert not nvrtc.compile_source(late, "sm_90a").waits_first
