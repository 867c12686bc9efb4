"""Small fills of a captured graph become kernels in their places; the driver is a made-up one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minigraph.kernels.cuda.device import fills


class Status(Enum):
    SUCCESS = 0
    INVALID = 1

    def __int__(self) -> int:
        return self.value


class Node:
    """A node; those that the driver hands out twice are two objects of one number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __int__(self) -> int:
        return self.number


def memset(nbytes: int, value: int = 0, element: int = 1, height: int = 1) -> SimpleNamespace:
    return SimpleNamespace(dst=1000, width=nbytes // element, elementSize=element, value=value, height=height)


class Driver:
    """A graph of nodes, a memset or the name of a kernel, and edges."""

    def __init__(self, nodes: Sequence[Any], edges: Sequence[tuple[int, int]]) -> None:
        self.nodes, self.edges = dict(enumerate(nodes)), set(edges)
        self.CUgraph, self.CUfunction = (lambda handle: handle), (lambda handle: handle)
        self.CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
        self.CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET="memset")
        self.fails = ""

    def answer(self, name: str, *found: Any) -> tuple[Any, ...]:
        return (Status.INVALID if name == self.fails else Status.SUCCESS, *found)

    def cuGraphGetNodes(self, graph: int, number: int = 0) -> Any:
        return self.answer("cuGraphGetNodes", [Node(n) for n in self.nodes][:number], len(self.nodes))

    def cuGraphNodeGetDependencies(self, node: Node, number: int = 0) -> Any:
        found = [Node(a) for a, b in sorted(self.edges) if b == int(node)]
        return self.answer("cuGraphNodeGetDependencies", found[:number], [None] * number, len(found))

    def cuGraphNodeGetDependentNodes(self, node: Node, number: int = 0) -> Any:
        found = [Node(b) for a, b in sorted(self.edges) if a == int(node)]
        return self.answer("cuGraphNodeGetDependentNodes", found[:number], [None] * number, len(found))

    def cuGraphNodeGetType(self, node: Node) -> Any:
        return self.answer("cuGraphNodeGetType", "kernel" if isinstance(self.nodes[int(node)], str) else "memset")

    def cuGraphMemsetNodeGetParams(self, node: Node) -> Any:
        return self.answer("cuGraphMemsetNodeGetParams", self.nodes[int(node)])

    def cuGraphAddKernelNode(self, graph: int, before: Sequence[Node], count: int, call: Any) -> Any:
        assert count == len(before)
        made = max(self.nodes) + 1
        places = (ctypes.c_uint64 * 3).from_address(call.kernelParams)
        address, nbytes, value = (ctypes.c_int64.from_address(place).value for place in places)
        assert (call.gridDimX - 1) * call.blockDimX < nbytes <= call.gridDimX * call.blockDimX
        self.nodes[made] = f"{call.func} {address} {nbytes} {value}"
        self.edges |= {(int(b), made) for b in before}
        return self.answer("cuGraphAddKernelNode", Node(made))

    def cuGraphAddDependencies(self, graph: int, a: Sequence[Node], b: Sequence[Node], data: None, count: int) -> Any:
        self.edges |= {(int(x), int(y)) for x, y in zip(a, b, strict=True)}
        assert count == len(a)
        return self.answer("cuGraphAddDependencies")

    def cuGraphDestroyNode(self, node: Node) -> Any:
        del self.nodes[int(node)]
        self.edges = {edge for edge in self.edges if int(node) not in edge}
        return self.answer("cuGraphDestroyNode")


def pretend(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Let this be cuda.bindings.driver."""
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setattr(sys.modules["cuda.bindings"], "driver", driver, raising=False)
    monkeypatch.setattr(sys.modules["cuda"], "bindings", sys.modules["cuda.bindings"], raising=False)


def replaced(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> int:
    pretend(monkeypatch, driver)
    return fills.as_kernels(1, lambda: 55)


def named(driver: Driver) -> set[tuple[str, str]]:
    """Edges between the texts of nodes."""
    return {(str(driver.nodes[a]), str(driver.nodes[b])) for a, b in driver.edges}


def test_a_fill_between_kernels(monkeypatch):
    driver = Driver(["a", memset(16, 0, element=4), "b", "c"], [(0, 1), (1, 2), (1, 3), (0, 3)])
    assert replaced(monkeypatch, driver) == 1
    fill = "55 1000 16 0"
    assert named(driver) == {("a", fill), (fill, "b"), (fill, "c"), ("a", "c")}
    assert sorted(driver.nodes.values()) == [fill, "a", "b", "c"]


def test_fills_that_follow_each_other(monkeypatch):
    driver = Driver([memset(1000, 7), memset(8), memset(3, 255)], [(0, 1), (1, 2)])
    assert replaced(monkeypatch, driver) == 3
    first, second, third = "55 1000 1000 7", "55 1000 8 0", "55 1000 3 255"
    assert named(driver) == {(first, second), (second, third)}


@pytest.mark.parametrize(
    "left",
    [memset(fills.SMALL + 1), memset(16, 7, element=4), memset(16, height=2), "kernel"],
    ids=["large", "words that are no bytes", "rows", "no fill"],
)
def test_what_is_left_to_the_driver(monkeypatch, left):
    driver = Driver(["a", left], [(0, 1)])
    assert replaced(monkeypatch, driver) == 0
    assert driver.nodes == {0: "a", 1: left} and driver.edges == {(0, 1)}


def test_a_call_of_the_driver_that_fails_is_named(monkeypatch):
    driver = Driver(["a", memset(16)], [(0, 1)])
    driver.fails = "cuGraphAddKernelNode"
    with pytest.raises(RuntimeError, match="cuGraphAddKernelNode: INVALID"):
        replaced(monkeypatch, driver)
