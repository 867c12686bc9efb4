"""fuse_gemm_epilogue: Paddle's acceptance matrix, and the traps that Paddle fell into."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import ShapeError
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.program.backward import append_backward
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from minigraph.types import as_dtype, float16, float32
from tests.support.net import Net

ACTIVATIONS = {"relu": mg.nn.ReLU, "gelu": mg.nn.GELU}
BATCH, LENGTH, HIDDEN = 3, 5, 8


class MultiFCLayer(mg.nn.Layer):
    """Paddle's test network: three linear layers, two products with a rank-3 right-hand side."""

    def __init__(self, hidden, Activation):
        super().__init__()
        self.linear1 = mg.nn.Linear(hidden, 4 * hidden)
        self.linear2 = mg.nn.Linear(4 * hidden, hidden)
        self.linear3 = mg.nn.Linear(hidden, hidden)
        self.act1, self.act2, self.act3 = Activation(), Activation(), Activation()

    def forward(self, x, matmul_y, ele_y):
        output = self.linear1(x)
        output = self.act1(output)
        output = self.linear2(output)
        output1 = mg.matmul(output, matmul_y)
        output = self.linear3(output)
        output = self.act2(output)
        output = mg.matmul(output, matmul_y)
        output = mg.add(output, ele_y)
        output = self.act3(output)
        return mg.add(output, output1)


def build(activation: str, training: bool, dtype: str):
    """(program, what is fetched) of Paddle's test."""
    mg.set_default_dtype(dtype)
    try:
        main, startup = mg.static.Program(), mg.static.Program()
        with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
            x = mg.static.data("x", [None, LENGTH, HIDDEN], dtype)
            matmul_y = mg.static.data("matmul_y", [1, HIDDEN, HIDDEN], dtype)
            ele_y = mg.static.data("ele_y", [HIDDEN], dtype)
            with mg.static.amp.fp16_guard():
                out = MultiFCLayer(HIDDEN, ACTIVATIONS[activation])(x, matmul_y, ele_y)
                loss = mg.mean(out)
            fetches = [loss.name]
            if training:
                grads = mg.static.append_backward(loss)
                assert len(grads) == 6
                fetches += [g.name for _, g in grads]
    finally:
        mg.set_default_dtype("float32")
    return main, fetches


def values(program, seed=0):
    """(feeds, scope) with the same float16 numbers for every data type."""
    rng, feeds, scope = np.random.default_rng(seed), {}, Scope()
    for v in program.list_vars():
        shape = tuple(BATCH if s == -1 else s for s in v.shape)
        if v.is_data or v.persistable:
            array = (rng.uniform(size=shape) - 0.5).astype(float16).astype(v.dtype)
            if v.is_data:
                feeds[v.name] = array
            else:
                scope.write(v.name, array)
    return feeds, scope


def compiled(program):
    strategy = mg.static.BuildStrategy()
    strategy.fuse_gemm_epilogue = True
    return mg.static.CompiledProgram(program, build_strategy=strategy)


def results(program, fetches, fuse):
    feeds, scope = values(program)
    target = compiled(program) if fuse else program
    return Executor().run(target, feed=feeds, fetch_list=fetches, scope=scope)


MATRIX = list(itertools.product(ACTIVATIONS, [False, True]))


@pytest.mark.parametrize(("activation", "training"), MATRIX)
def test_histogram(activation, training):
    program, fetches = build(activation, training, "float32")
    before = {"matmul": 5, "elementwise_add": 5, activation: 3, "reduce_mean": 1}
    after = {"fused_gemm_epilogue": 3, "matmul": 2, "elementwise_add": 2, activation: 1, "reduce_mean": 1}
    if training:
        same = {"fill_constant": 1, "reduce_mean_grad": 1, "sum": 1}
        before |= {"matmul_grad": 5, "elementwise_add_grad": 5, f"{activation}_grad": 3, **same}
        after |= {"fused_gemm_epilogue_grad": 3, "matmul_grad": 2, "elementwise_add_grad": 2,
                  f"{activation}_grad": 2, **same}  # fmt: skip
    graph = to_graph(program, fetches)
    assert graph.count() == before
    report = PassReport("fuse_gemm_epilogue")
    fuse_gemm_epilogue(graph, report)
    verify(graph, "fuse_gemm_epilogue")
    assert graph.count() == after
    fused = [op for op in graph.ops if op.type == "fused_gemm_epilogue_grad"]
    kinds = [(op.attrs["activation_grad"], "DX" in op.outputs) for op in fused]
    assert kinds == ([("none", True), (f"{activation}_grad", True), ("none", False)] if training else [])


@pytest.mark.parametrize(("activation", "training"), MATRIX)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-6)])
def test_results(activation, training, dtype, tolerance):
    program, fetches = build(activation, training, dtype)
    off, on = results(program, fetches, fuse=False), results(program, fetches, fuse=True)
    for name, a, b in zip(fetches, off, on, strict=True):
        assert a.dtype == b.dtype == as_dtype(dtype) and a.shape == b.shape
        assert np.max(np.abs(a - b)) <= tolerance * np.max(np.abs(a)), name


@pytest.mark.parametrize(("activation", "training"), MATRIX)
def test_results_in_float16(activation, training):
    """The fused program errs at most twice as much as the unfused one against float64."""
    program, fetches = build(activation, training, "float16")
    exact = results(build(activation, training, "float64")[0], fetches, fuse=False)
    off, on = results(program, fetches, fuse=False), results(program, fetches, fuse=True)
    for name, want, a, b in zip(fetches, exact, off, on, strict=True):
        ulp = np.finfo(float16).eps * np.max(np.abs(want))
        assert np.max(np.abs(b - want)) <= 2 * np.max(np.abs(a - want)) + ulp, name
        assert np.max(np.abs(b - want)) <= 8 * ulp, name


def test_usage_example_of_paddle_pr_39437():
    """The script of the pull request with its import changed."""
    paddle = mg
    batch, seqlen, hidden = 2, 4, 16
    paddle.enable_static()
    main_prog, startup_prog = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main_prog, startup_prog):
        data = paddle.static.data(name="_data", shape=[-1, seqlen, hidden], dtype="float32")
        matmul_y = paddle.static.data(name="_matmul_y", shape=[1, hidden, hidden], dtype="float32")
        ele_y = paddle.static.data(name="_ele_y", shape=[hidden], dtype="float32")
        multi_layer = MultiFCLayer(hidden, paddle.nn.ReLU)
        with paddle.static.amp.fp16_guard():
            out = multi_layer(data, matmul_y, ele_y)
            loss = paddle.mean(out)
        paddle.static.append_backward(loss=loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        exe.run(startup_prog)
        build_strategy = paddle.static.BuildStrategy()
        build_strategy.fuse_gemm_epilogue = True
        program = paddle.static.CompiledProgram(main_prog)
        program = program.with_data_parallel(
            loss_name=loss.name, build_strategy=build_strategy, places=paddle.static.cpu_places()
        )
        feed = {
            "_data": np.random.default_rng(0).random((batch, seqlen, hidden)).astype("float32") - 0.5,
            "_matmul_y": np.random.default_rng(1).random((1, hidden, hidden)).astype("float32") - 0.5,
            "_ele_y": np.random.default_rng(2).random((hidden,)).astype("float32") - 0.5,
        }
        (fused,) = exe.run(program, feed=feed, fetch_list=[loss.name])
        (plain,) = exe.run(main_prog, feed=feed, fetch_list=[loss])
    assert fused == pytest.approx(plain, rel=1e-5)
    types = [op.type for op in program.after.ops]
    counts = [types.count(t) for t in ("fused_gemm_epilogue", "fused_gemm_epilogue_grad", "relu", "relu_grad")]
    assert counts == [3, 3, 1, 2]


# what Paddle got wrong, and partial gradients


@pytest.fixture
def net() -> Net:
    return Net()


def two_layers(net, activation="relu", n=5, **attrs):
    h = getattr(net.g, activation)(net.linear(net.data("x", -1, 4), n, "1"), **attrs)
    return h, net.linear(h, 3, "2")


def train(net, out, *frozen):
    for name in frozen:
        net.block.var(name).stop_gradient = True
    return [g for _, g in append_backward(net.g.reduce_mean(net.g.elementwise_mul(out, out)))]


@pytest.mark.parametrize("columns", [1, 5, 8, 100, 128, 130])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_any_number_of_columns_fuses(net, activation, columns):
    _, out = two_layers(net, activation, columns)
    counts, _ = net.fuse(*train(net, out))
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 2
    assert not counts.keys() & {"matmul", "relu", "gelu", "relu_grad", "gelu_grad", "matmul_grad"}


FREEZING = [("w1",), ("b1",), ("w1", "b1"), ("w2",), ("b2",), ("w2", "b2"), ("w1", "w2"), ("b1", "b2"),
            ("w1", "b1", "b2"), ("w1", "b1", "w2"), ("w1", "w2", "b2")]  # fmt: skip


@pytest.mark.parametrize("frozen", FREEZING, ids="+".join)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_frozen_weights_and_biases_fuse_what_is_left(net, activation, frozen):
    _, out = two_layers(net, activation)
    grads = train(net, out, *frozen)
    counts, reasons = net.fuse(*grads)
    assert counts["fused_gemm_epilogue"] == 2 and not reasons
    layers = [not {"w1", "b1"} <= set(frozen), True]
    assert counts["fused_gemm_epilogue_grad"] == sum(layers)
    assert f"{activation}_grad" not in counts and "matmul_grad" not in counts
    assert "elementwise_add_grad" not in counts


def outputs_of_grads(net):
    graph = to_graph(net.program)
    fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
    verify(graph)
    return [sorted(op.outputs) for op in graph.ops if op.type == "fused_gemm_epilogue_grad"]


@pytest.mark.parametrize(
    ("frozen", "outputs"),
    [((), [["DBias", "DX", "DY"], ["DBias", "DY"]]), (("w2",), [["DBias", "DX"], ["DBias", "DY"]]),
     (("b2",), [["DX", "DY"], ["DBias", "DY"]]), (("w1", "b1"), [["DBias", "DY"]]),
     (("b1", "b2", "w2"), [["DX"], ["DY"]]), (("w1", "b2", "w2"), [["DX"], ["DBias"]])],
)  # fmt: skip
def test_only_the_wanted_gradients_are_computed(net, frozen, outputs):
    _, out = two_layers(net)
    train(net, out, *frozen)
    assert outputs_of_grads(net) == outputs


def test_no_reserve_space_that_nobody_reads(net):
    """relu feeds something that is no linear layer: no mask. gelu_grad reads the pre-activation itself."""
    h = net.g.relu(net.linear(net.data("x", 2, 4), 5))
    train(net, net.g.tanh(h))
    graph = to_graph(net.program)
    fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
    fused = next(op for op in graph.ops if op.type == "fused_gemm_epilogue")
    assert fused.attrs["activation"] == "relu" and list(fused.outputs) == ["Out"]


def test_fetched_values_survive(net):
    h, out = two_layers(net)
    s = next(op.outputs["Out"][0] for op in net.program.ops if op.type == "elementwise_add")
    counts, reasons = net.fuse(s, *train(net, out))
    assert counts["relu"] == 1 and counts["fused_gemm_epilogue"] == 2
    assert reasons[0] == f"{s.name} is fetched, the fused operator would not produce it"
    assert h.name in net.block.vars


def test_fetched_gradient_of_an_inner_value_survives(net):
    h, out = two_layers(net)
    train(net, out)
    counts, _ = net.fuse(h.grad_name)
    assert counts["relu_grad"] == 1 and counts["fused_gemm_epilogue_grad"] == 2


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_erf_stays_erf_and_tanh_stays_tanh(net, approximate, training):
    _, out = two_layers(net, "gelu", approximate=approximate)
    if training:
        train(net, out)
    graph = to_graph(net.program)
    fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
    forms = [(op.attrs.get("activation", op.attrs.get("activation_grad")), op.attrs["approximate"])
             for op in graph.ops if op.type.startswith("fused_")]  # fmt: skip
    gelus = [form for kind, form in forms if kind.startswith("gelu")]
    assert gelus == [approximate] * (2 if training else 1)


@pytest.mark.parametrize(
    ("bias", "axis", "reason"),
    [((2, 5), -1, "Bias must be [N] or"), ((1, 1), -1, "one element per column"), ((1,), -1, "one element per column"),
     ((), -1, "Bias must be [N] or"), ((5,), 0, "added along axis 0")],
)  # fmt: skip
def test_what_is_no_bias_is_refused(net, bias, axis, reason):
    """A residual, a scalar, a column: decided by rank and axis, also where sizes happen to fit."""
    rows = 5 if axis == 0 else 2
    z = net.g.matmul(net.data("x", rows, 4), net.param("w", 4, 5))
    counts, reasons = net.fuse(net.g.elementwise_add(z, net.param("b", *bias), axis=axis))
    assert "fused_gemm_epilogue" not in counts and reason in reasons[0]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_bias_may_be_a_row(net, activation):
    """[1, N], whose gradient is one, too."""
    h = net.g.elementwise_add(net.g.matmul(net.data("x", 3, 4), net.param("w", 4, 5)), net.param("b", 1, 5))
    out = net.linear(getattr(net.g, activation)(h), 3, "2")
    fetches = [out.name, *(g.name for g in train(net, out))]
    counts, _ = net.fuse(*fetches)
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 2
    off, on = results(net.program, fetches, fuse=False), results(net.program, fetches, fuse=True)
    for a, b in zip(off, on, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    assert (1, 5) in [a.shape for a in on]


def test_bias_may_stand_first_or_be_computed(net):
    z = net.g.matmul(net.data("x", 2, 4), net.param("w", 4, 5))
    out = net.g.elementwise_add(net.g.tanh(net.param("b", 5)), z)
    counts, _ = net.fuse(*train(net, out))
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 1


def test_reserve_names_do_not_depend_on_what_was_compiled_before():
    def names(activation):
        net = Net()
        with mg.base.unique_name.guard():
            _, out = two_layers(net, activation)
            train(net, out)
        graph = to_graph(net.program)
        fuse_gemm_epilogue(graph, PassReport("fuse_gemm_epilogue"))
        return [v.name for v in graph.vars.values() if v.name.endswith("reserve")]

    first = names("relu")
    names("gelu")
    assert names("relu") == first == ["relu_0.tmp_0.reserve"]


def test_product_that_does_not_fit_is_refused_when_built(net):
    with pytest.raises(ShapeError, match="inner sizes differ"):
        net.g.matmul(net.data("x", 2, 3), net.param("w", 4, 5))


def test_flag_that_found_nothing_says_so(net):
    net.g.tanh(net.data("x", 2, 3))
    assert "fuse_gemm_epilogue               0 applied; no operator" in compiled(net.program).explain()
    net.g.elementwise_add(net.block.var("x"), net.param("b", 3))
    explained = compiled(net.program).explain()
    assert "0 applied; nearest miss" in explained and "is not computed by a matmul" in explained
    off = mg.static.CompiledProgram(net.program)
    assert "off" in off.explain()


def test_static_nn_fc_fuses():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup):
        x = mg.static.data("x", [None, 3, 4], "float64")
        h = mg.static.nn.fc(x, 6, num_flatten_dims=2, activation="relu")
        out = mg.static.nn.fc(h, 2, num_flatten_dims=1)
        mg.static.append_backward(mg.mean(out))
    types = [op.type for op in compiled(main).after.ops]
    assert types.count("fused_gemm_epilogue") == types.count("fused_gemm_epilogue_grad") == 2
    assert "relu" not in types and "matmul" not in types


def test_shared_weight_sums_its_gradients(net):
    w, b = net.param("w", 4, 4), net.param("b", 4)
    h = net.data("x", 3, 4)
    for _ in range(3):
        h = net.g.relu(net.g.elementwise_add(net.g.matmul(h, w), b))
    grads = train(net, h)
    counts, _ = net.fuse(*grads)
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 3
    assert counts["sum"] == 3 and counts["relu_grad"] == 1  # of w, of b, and of the factor of the loss


def test_a_value_with_two_readers_keeps_its_activation_gradient(net):
    h, out = two_layers(net)
    both = net.g.elementwise_add(out, net.linear(h, 3, "3"))
    counts, _ = net.fuse(*train(net, both))
    assert counts["fused_gemm_epilogue"] == counts["fused_gemm_epilogue_grad"] == 3
    assert counts["relu_grad"] == 1 and counts["sum"] == 2  # of h, and of the factor of the loss


def test_integers_are_left_alone(net):
    shapes = {"x": (2, 3), "y": (3, 2), "b": (2,)}
    x, y, b = (net.block.create_var(name, shape, "int64", is_data=True) for name, shape in shapes.items())
    net.g.elementwise_add(net.g.matmul(x, y), b)
    report = PassReport("fuse_gemm_epilogue")
    assert fuse_gemm_epilogue(to_graph(net.program), report) == 0
    assert report.refused[0].reason == "X must be a float, is i64[2,3]"


def test_float32_network_keeps_its_types(net):
    program, fetches = build("gelu", True, "float32")
    after = compiled(program).program_for(fetches)
    assert {v.dtype for v in after.list_vars()} == {float32}
