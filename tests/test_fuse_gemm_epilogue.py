"""fuse_gemm_epilogue: Paddle's acceptance matrix, the two operators, and the traps Paddle fell into."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from test_rule import Net

import minigraph as mg
from minigraph.backward import append_backward
from minigraph.builder import Builder
from minigraph.errors import MinigraphError, ShapeError
from minigraph.executor import Executor
from minigraph.ir.convert import to_graph
from minigraph.ir.verify import verify
from minigraph.ops.gemm_epilogue import pack_mask, unpack_mask
from minigraph.passes.fuse_gemm_epilogue import fuse_gemm_epilogue
from minigraph.passes.log import PassReport
from minigraph.program import Program
from minigraph.scope import Scope
from minigraph.types import as_dtype, float16, float32, float64, tensor_type

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


# the operators


def erf_gelu(z):
    return z * np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))), otypes=[float64])(z)


def tanh_gelu(z):
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


FORMULAS = {
    ("none", False): lambda z: z, ("relu", False): lambda z: np.where(z > 0, z, 0.0), ("gelu", False): erf_gelu,
    ("gelu", True): tanh_gelu,
}  # fmt: skip
TOLERANCES = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3}


def call(op_type, dtype, needs, arrays, **attrs):
    """Run one operator through a Program; {output slot: array}."""
    program, feeds = Program(), {}
    block = program.global_block()
    for slot, array in arrays.items():
        array = array.astype(dtype) if array.dtype.kind == "f" else array
        block.create_var(slot, type=tensor_type(array.shape, array.dtype), is_data=True)
        feeds[slot] = array
    outs = Builder(block).emit(op_type, needs=needs, **{s: block.var(s) for s in arrays}, **attrs)
    fetched = Executor().run(program, feed=feeds, fetch_list=[v for v in outs if v is not None])
    slots = [s for s, v in zip(block.ops[0].opdef.output_names, outs, strict=True) if v is not None]
    return dict(zip(slots, fetched, strict=True))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("activation", "approximate"), FORMULAS)
@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "trans_x", "trans_y"),
    [((8, 4), False, False), ((4, 8), True, False), ((8, 4), False, True), ((4, 8), True, True),
     ((2, 2, 8, 4), False, False), ((2, 3, 4), False, True), ((1, 4), False, False), ((0, 4), False, False)],
)  # fmt: skip
@pytest.mark.parametrize("columns", [128, 3, 1])
def test_forward_op(dtype, activation, approximate, reserve, x_shape, trans_x, trans_y, columns):
    rng = np.random.default_rng(3)
    X, Y, Bias = rng.normal(size=x_shape), rng.normal(size=(4, columns)) / 2, rng.normal(size=columns)
    X, Y, Bias = (a.astype(float16).astype(float64) for a in (X, Y, Bias))
    arrays = {"X": X, "Y": Y.T if trans_y else Y, "Bias": Bias}
    needs = ["ReserveSpace"] if reserve else ()
    found = call("fused_gemm_epilogue", dtype, needs, arrays, trans_x=trans_x, trans_y=trans_y,
                 activation=activation, approximate=approximate)  # fmt: skip
    z = (X.T if trans_x else X) @ Y + Bias
    tolerance = TOLERANCES[dtype] * max(1.0, np.max(np.abs(z), initial=0.0))
    np.testing.assert_allclose(found["Out"], FORMULAS[activation, approximate](z), rtol=0, atol=tolerance)
    assert ("ReserveSpace" in found) == (reserve and activation != "none")
    if reserve and activation == "gelu":
        np.testing.assert_allclose(found["ReserveSpace"], z, rtol=0, atol=tolerance)
    if reserve and activation == "relu":
        mask = found["ReserveSpace"]
        assert mask.dtype == np.uint8 and mask.shape == (*z.shape[:-1], 16 * -(-columns // 128))
        clear = np.abs(z) > tolerance
        np.testing.assert_array_equal(unpack_mask(mask, columns)[clear], (z > 0)[clear])
        assert not np.unpackbits(mask, axis=-1, bitorder="little")[..., columns:].any()


SLOPES = {"none": (False,), "relu_grad": (False,), "gelu_grad": (False, True)}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("needs", [("DX", "DY", "DBias"), ("DY", "DBias"), ("DY",), ("DX", "DY"), ("DX",), ("DBias",)])
@pytest.mark.parametrize(("activation_grad", "approximate"), [(a, b) for a, bs in SLOPES.items() for b in bs])
@pytest.mark.parametrize(("rank", "trans_x", "trans_y"), [(2, False, False), (2, True, False), (2, False, True),
                                                           (2, True, True), (3, False, False), (4, False, True)])  # fmt: skip
def test_grad_op(dtype, needs, activation_grad, approximate, rank, trans_x, trans_y):
    rng = np.random.default_rng(5)
    rows = {2: (6,), 3: (2, 3), 4: (1, 2, 3)}[rank]
    X, Y, DOut = (rng.normal(size=s).astype(float16).astype(float64) for s in ((*rows, 5), (5, 7), (*rows, 7)))
    Z = rng.normal(size=(*rows, 5)).astype(float16).astype(float64)
    if activation_grad == "relu_grad":
        slope, reserve = (Z > 0).astype(float64), Z > 0
    else:
        eps, form = 1e-6, tanh_gelu if approximate else erf_gelu
        slope, reserve = (form(Z + eps) - form(Z - eps)) / (2 * eps), Z
    if activation_grad == "none":
        slope = np.ones_like(Z)
    DX = slope * (DOut @ Y.T)
    DY = X.reshape(-1, 5).T @ DOut.reshape(-1, 7)
    DBias = DOut.reshape(-1, 7).sum(axis=0)
    expected = {"DX": DX.T if trans_x else DX, "DY": DY.T if trans_y else DY, "DBias": DBias}
    arrays = {"DOut": DOut, "X": X.T.copy() if trans_x else X, "Y": Y.T.copy() if trans_y else Y}
    if activation_grad != "none":
        reserve = np.ascontiguousarray(reserve.T) if trans_x else reserve
        arrays["ReserveSpace"] = pack_mask(reserve) if activation_grad == "relu_grad" else reserve
    found = call("fused_gemm_epilogue_grad", dtype, needs, arrays, trans_x=trans_x, trans_y=trans_y,
                 activation_grad=activation_grad, approximate=approximate)  # fmt: skip
    assert tuple(found) == needs
    noise = 1e-9 if activation_grad == "gelu_grad" else 0.0  # of the difference quotient
    for slot, array in found.items():
        tolerance = max(TOLERANCES[dtype], noise) * max(1.0, np.max(np.abs(expected[slot])))
        np.testing.assert_allclose(array, expected[slot], rtol=0, atol=tolerance, err_msg=slot)


@pytest.mark.parametrize(("x", "y", "b"), [((3, 0), (0, 2), 2), ((2, 3, 0), (0, 2), 2), ((3, 4), (4, 0), 0)])
def test_zero_sizes(x, y, b):
    arrays = {"X": np.ones(x), "Y": np.ones(y), "Bias": np.ones(b)}
    out = call("fused_gemm_epilogue", "float64", ["ReserveSpace"], arrays, activation="relu")["Out"]
    np.testing.assert_array_equal(out, np.ones((*x[:-1], b)))
    arrays = {"DOut": out, "X": np.ones(x), "Y": np.ones(y)}
    grads = call("fused_gemm_epilogue_grad", "float64", ["DX", "DY", "DBias"], arrays)
    assert [grads[s].shape for s in ("DX", "DY", "DBias")] == [x, y, (b,)]
    np.testing.assert_array_equal(grads["DBias"], np.full(b, float(np.prod(x[:-1]))))


def test_nan_passes_through_relu():
    """cuBLASLt's epilogue would turn it into 0 and hide a divergence."""
    arrays = {"X": np.array([[np.nan, 1.0]]), "Y": np.eye(2), "Bias": np.zeros(2)}
    out = call("fused_gemm_epilogue", "float32", (), arrays, activation="relu")["Out"]
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("shapes", "attrs", "fact"),
    [
        (((2, 3), (3, 4), (5,)), {}, "Bias has 5 elements, Y has 4 columns"),
        (((2, 3), (4, 5), (5,)), {}, "inner sizes differ"),
        (((2, 3), (1, 3, 4), (4,)), {}, "Y must be 2-D"),
        (((3,), (3, 4), (4,)), {}, "X must have rank 2 or more"),
        (((2, 3), (3, 4), (1, 4)), {}, "Bias must be 1-D"),
        (((2, 3, 4), (3, 4), (4,)), {"trans_x": True}, "trans_x takes X of rank 2 only"),
        (((2, 3), (3, 4), (4,)), {"activation": "tanh"}, "is not none, relu or gelu"),
    ],
)
def test_bad_calls_are_refused_when_built(shapes, attrs, fact):
    arrays = {slot: np.zeros(s) for slot, s in zip(("X", "Y", "Bias"), shapes, strict=True)}
    with pytest.raises(MinigraphError, match=fact):
        call("fused_gemm_epilogue", "float32", (), arrays, **attrs)


def test_masks_and_pre_activations_are_not_mixed_up():
    """ReserveSpace is typed: relu's mask cannot feed gelu's gradient, nor the other way round."""
    d, x, y = np.zeros((4, 6)), np.zeros((4, 8)), np.zeros((8, 6))
    for kind, reserve in (("gelu_grad", pack_mask(x > 0)), ("relu_grad", x)):
        with pytest.raises(ShapeError, match="ReserveSpace of"):
            call("fused_gemm_epilogue_grad", "float64", ["DX"], {"DOut": d, "X": x, "Y": y, "ReserveSpace": reserve},
                 activation_grad=kind)  # fmt: skip


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
    [((2, 5), -1, "Bias must be 1-D"), ((1, 5), -1, "Bias must be 1-D"), ((1,), -1, "one element per column"),
     ((), -1, "Bias must be 1-D"), ((5,), 0, "added along axis 0")],
)  # fmt: skip
def test_what_is_no_bias_is_refused(net, bias, axis, reason):
    """A residual, a scalar, a column: decided by rank and axis, also where sizes happen to fit."""
    rows = 5 if axis == 0 else 2
    z = net.g.matmul(net.data("x", rows, 4), net.param("w", 4, 5))
    counts, reasons = net.fuse(net.g.elementwise_add(z, net.param("b", *bias), axis=axis))
    assert "fused_gemm_epilogue" not in counts and reason in reasons[0]


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
    assert "fuse_gemm_epilogue             0 applied; no operator" in compiled(net.program).explain()
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
    x, y, b = (net.block.create_var(n, s, "int64", is_data=True) for n, s in (("x", (2, 3)), ("y", (3, 2)), ("b", (2,))))
    net.g.elementwise_add(net.g.matmul(x, y), b)
    report = PassReport("fuse_gemm_epilogue")
    assert fuse_gemm_epilogue(to_graph(net.program), report) == 0
    assert report.refused[0].reason == "X must be a float, is i64[2,3]"


def test_float32_network_keeps_its_types(net):
    program, fetches = build("gelu", True, "float32")
    after = compiled(program).program_for(fetches)
    assert {v.dtype for v in after.list_vars()} == {float32}
