"""fuse_parallel_linears: the same values and gradients in float64, what it becomes, where it says no."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.graph import Graph
from minigraph.nn.functional.attention import attend
from minigraph.passes import fuse_parallel_linears as passes
from minigraph.passes.engine.log import PassReport
from minigraph.program import Program, unique_name
from minigraph.program.backward import gradients
from minigraph.program.builder import Builder
from minigraph.program.scope import Scope
from minigraph.runtime.cuda.bind import bind_program
from minigraph.runtime.executor import Executor
from minigraph.static import BuildStrategy, CompiledProgram
from minigraph.types import TensorType

B, S, H, D = 64, 16, 2, 4  # 1024 rows
W = H * D


class Net:
    """Q, K and V of one value, their attention, a loss, gradients of all that has one."""

    def __init__(self, dtype: str = "float64") -> None:
        self.dtype, self.rng = dtype, np.random.default_rng(0)
        self.values: dict[str, np.ndarray] = {}
        self.program = Program()
        self.block = self.program.global_block()
        self.feeds: dict[str, np.ndarray] = {}
        self.fetches: list[str] = []

    def parameter(self, *shape: int) -> Any:
        name = f"p{len(self.values)}"
        self.values[name] = self.rng.normal(size=shape) * 0.4
        return self.block.create_parameter(name, shape, self.dtype)

    def data(self, *shape: int) -> Any:
        name = f"d{len(self.feeds)}"
        self.feeds[name] = self.rng.normal(size=shape)
        return self.block.create_var(name, shape, self.dtype, is_data=True, stop_gradient=True)

    def linear(self, x: Any, n: int = W, bias: bool = True, turned: bool = False) -> Any:
        k = x.shape[-1]
        y = mg.matmul(x, self.parameter(n, k) if turned else self.parameter(k, n), transpose_y=turned)
        return y + self.parameter(n) if bias else y

    def attention(self, q: Any, k: Any, v: Any, heads: int = H) -> Any:
        q, k, v = (mg.reshape(x, [B, -1, x.shape[-1] // D, D]) for x in (q, k, v))
        return mg.reshape(attend("net", q, k, v, layout="bshd", causal=True), [B, -1, heads * D])

    def finish(self, out: Any, *more: str) -> None:
        loss = mg.sum(out * self.data(*out.shape))
        wanted = [v for v in self.block.all_parameters() if not v.stop_gradient]
        self.fetches = [out.name, *(g.name for g in gradients([loss], wanted) if g is not None), *more]

    def run(self, program: Any) -> list[np.ndarray]:
        scope = Scope()
        for name, value in self.values.items():
            scope.write(name, value.copy())
        return Executor().run(program, self.feeds, self.fetches, scope=scope)

    def compiled(self, **flags: Any) -> CompiledProgram:
        """Verified by the interpreter, and compared with the program as it is."""
        on = BuildStrategy(fuse_gemm_epilogue=True, fuse_parallel_linears=True, verify="each_pass", **flags)
        found = CompiledProgram(self.program, on)
        for a, b in zip(self.run(self.program), self.run(found), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-12)
        return found

    def counts(self, compiled: CompiledProgram) -> Counter[str]:
        return Counter(op.type for op in compiled.program_for(self.fetches).ops)


def built(body: Callable[[Net, Any], tuple[Any, ...]]) -> Net:
    net = Net()
    with unique_name.guard(), mg.static.program_guard(net.program, Program()):
        x = mg.tanh(net.data(B, S, W) * net.parameter(W))
        out, *more = body(net, x)
        net.finish(out, *more)
    return net


def plain(net: Net, x: Any) -> tuple[Any, ...]:
    return (net.attention(*(net.linear(x) for _ in range(3))),)


def residual(net: Net, x: Any) -> tuple[Any, ...]:
    return (x + net.attention(*(net.linear(x) for _ in range(3))),)


def without_bias(net: Net, x: Any) -> tuple[Any, ...]:
    return (net.attention(*(net.linear(x, bias=False) for _ in range(3))),)


def turned(net: Net, x: Any) -> tuple[Any, ...]:
    return (net.attention(*(net.linear(x, turned=True) for _ in range(3))),)


def grouped(net: Net, x: Any) -> tuple[Any, ...]:
    """Four heads of Q share one of K and one of V."""
    return (net.attention(net.linear(x, 4 * D), net.linear(x, D), net.linear(x, D), heads=4),)


def of_data(net: Net, x: Any) -> tuple[Any, ...]:
    """The first layer of a network: its input has no gradient."""
    x = net.data(B, S, W)
    return (net.attention(*(net.linear(x) for _ in range(3))),)


def crossed(net: Net, x: Any) -> tuple[Any, ...]:
    """Only K and V are of one value."""
    return (net.attention(net.linear(mg.tanh(x)), net.linear(x), net.linear(x)),)


CASES = [plain, residual, without_bias, turned, grouped, of_data, crossed]


@pytest.mark.parametrize("body", CASES, ids=lambda f: f.__name__)
def test_the_same_values_and_gradients(body):
    net = built(body)
    compiled = net.compiled()
    assert "fuse_parallel_linears            1 applied, 0 refused" in str(compiled.explain())
    counts, kind = net.counts(compiled), "matmul" if body is without_bias else "fused_gemm_epilogue"
    others = int(body is crossed)  # the layer of Q
    assert counts[kind] == counts[f"{kind}_grad"] == 1 + others
    biases = 0 if body is without_bias else 1
    joined = 2  # weights, gradients of the results
    assert (counts["split"], counts["concat"], counts["concat_grad"]) == (1, joined + biases, 1 + biases)
    assert counts["sum"] == (body in (residual, crossed))
    net.compiled(fuse_grad_accumulation=True, fuse_elementwise=True)


def test_a_program_without_gradients():
    net = Net()
    with unique_name.guard(), mg.static.program_guard(net.program, Program()):
        (out,) = plain(net, net.data(B, S, W))
    net.fetches = [out.name]
    counts = net.counts(net.compiled())
    assert (counts["fused_gemm_epilogue"], counts["split"], counts["concat"]) == (1, 1, 2)


def fetched(net: Net, x: Any) -> tuple[Any, ...]:
    parts = [net.linear(x) for _ in range(3)]
    return net.attention(*parts), parts[1].name


def read_whole(net: Net, x: Any) -> tuple[Any, ...]:
    parts = [net.linear(x) for _ in range(3)]
    return (net.attention(*parts) + mg.tanh(parts[2]),)


def two_gates(net: Net, x: Any) -> tuple[Any, ...]:
    return (mg.tanh(net.linear(x)) * net.linear(x),)


def few_rows(net: Net, x: Any) -> tuple[Any, ...]:
    x = mg.tanh(net.data(B, 1, W) * net.parameter(W))
    return (net.attention(*(net.linear(x) for _ in range(3))),)


def one_frozen(net: Net, x: Any) -> tuple[Any, ...]:
    parts = [net.linear(x) for _ in range(3)]
    net.block.all_parameters()[-2].stop_gradient = True
    return (net.attention(*parts),)


def gradient_fetched(net: Net, x: Any) -> tuple[Any, ...]:
    parts = [net.linear(x) for _ in range(3)]
    return net.attention(*parts), parts[0].grad_name


def twice_the_weight(net: Net, x: Any) -> tuple[Any, ...]:
    w = net.parameter(W, W)
    q, k = mg.matmul(x, w), mg.matmul(x, w)
    return (net.attention(q, k, net.linear(mg.tanh(x))),)


REFUSED = {
    fetched: "is fetched", read_whole: "which would need a copy", two_gates: "which would need a copy",
    few_rows: "has 64 rows for certain, fewer than 1024", one_frozen: "not all of them have the same gradients",
    gradient_fetched: "is fetched", twice_the_weight: "is the weight of two",
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED, ids=lambda f: f.__name__)
def test_where_it_says_no(body):
    net = built(body)
    compiled = net.compiled()
    assert "fuse_parallel_linears            0 applied" in str(compiled.explain())
    assert REFUSED[body] in str(compiled.explain())


def test_wide_layers_are_left_alone(monkeypatch):
    monkeypatch.setattr(passes, "COLUMNS", W - 1)
    assert f"weights of {W} columns each fill a GPU" in str(built(plain).compiled().explain())


def says(change: Callable[[Graph], None]) -> str:
    """Why the pass refuses the graph of three layers once it was changed."""
    net = built(without_bias)
    with mg.static.program_guard(net.program, Program()):
        first = next(op for op in net.program.ops if op.type == "matmul_grad")
        twice = Builder(net.block).scale(first.outputs["Y_grad"][0], scale=2.0)
    graph, report = to_graph(net.program, [*net.fetches, twice.name]), PassReport("fuse_parallel_linears")
    change(graph)
    before = str(to_program(graph, net.program))
    assert passes.fuse_parallel_linears(graph, report) == 0 and str(to_program(graph, net.program)) == before
    return report.refused[0].reason


def test_a_gradient_that_is_read_before_the_last_layer_is_left_alone():
    def early(graph: Graph) -> None:
        (reader,), first = graph.ops_of(["scale"]), min(graph.ops_of(["matmul_grad"]), key=lambda op: op.rank)
        graph.move_op(reader, (*first.rank, 0))

    assert "is read earlier by scale" in says(early)


def test_a_gradient_that_is_added_twice_is_left_alone():
    def twice(graph: Graph) -> None:
        (total,) = graph.ops_of(["sum"])
        graph.set_input(total, "X", 1, total.inputs["X"][0])

    assert "does not add each gradient once" in says(twice)


def among_ranks(fused: bool) -> tuple[str, list[np.ndarray]]:
    """(the explanation, parameters after two steps) of two ranks."""
    net, startup = Net(), Program()
    with unique_name.guard(), mg.static.program_guard(net.program, startup):
        x = mg.reshape(mg.tanh(mg.static.data("x", [None, S, W], "float64") * net.parameter(W)), [B, S, W])
        loss = mg.sum(net.attention(*(net.linear(x) for _ in range(3))) ** 2)
        mg.optimizer.SGD(1e-3).minimize(loss)
    exe, scope = mg.static.Executor(mg.CPUPlace()), Scope()
    for name, value in net.values.items():
        scope.write(name, value.copy())
    exe.run(startup, scope=scope)
    strategy = mg.static.BuildStrategy(fuse_gemm_epilogue=True, fuse_parallel_linears=fused, verify="each_pass")
    compiled = CompiledProgram(net.program).with_data_parallel(loss.name, strategy, places=mg.static.cpu_places(2))
    for step in range(2):
        feed = np.random.default_rng(step).normal(size=(2 * B, S, W))
        exe.run(compiled, {"x": feed}, [loss], scope=scope)
    return str(compiled.explain()), [scope.read(name) for name in net.values]


def test_among_ranks_reductions_wait_for_the_joined_gradient():
    explained, found = among_ranks(True)
    assert "fuse_parallel_linears            1 applied, 0 refused" in explained
    for a, b in zip(found, among_ranks(False)[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_a_gpu_copies_weights_only():
    """Q, K and V lie in the joined result, their gradients are written where they are joined."""
    net = built(residual)
    compiled = net.compiled()
    types = {n: TensorType(x.shape, x.dtype) for n, x in net.feeds.items()}
    bound = bind_program(compiled.program_for(net.fetches), types, net.fetches)
    steps = {s.op.type: s for s in bound.schedule.steps}
    attention = steps["memory_efficient_attention"]
    assert len({id(bound.buffers[i].owner) for i in attention.inputs[:3]}) == 1
    copies = Counter(s.op.type for s, span in zip(bound.schedule.steps, bound.spans, strict=True) for _ in span)
    assert copies["split"] == 0 and copies["concat"] == 2 and copies["concat_grad"] == 2
    assert not any(text.startswith("copies") for _, text in bound.schedule.remarks)
