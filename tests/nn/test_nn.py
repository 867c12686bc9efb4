"""Layers, their functions, losses and initialisers, in float64 against formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import (
    AttrError,
    DTypeError,
    KernelError,
    MinigraphError,
    ProgramError,
    ShapeError,
)
from minigraph.nn import functional as F
from minigraph.nn import initializer

pytestmark = pytest.mark.usefixtures("in_float64")

X = np.array([[0.5, -1.5, 2.0], [3.0, 0.25, -0.75], [-0.1, 0.0, 0.9], [1.0, 2.0, -2.0]])
SOFT = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.6, 0.4], [0.1, 0.1, 0.8]])
LABEL = np.array([2, 0, 1, 1])
WEIGHT = np.array([0.5, 2.0, 1.5])


def run(build: Callable[..., Any], *arrays: np.ndarray, known: bool = True) -> Any:
    """What `build` makes of data variables, after the startup program, run on `arrays`."""
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 5
    with static.program_guard(main, startup):
        variables = [
            static.data(f"x{i}", a.shape if known else [None, *a.shape[1:]], a.dtype) for i, a in enumerate(arrays)
        ]
        built = build(*variables)
    exe = static.Executor()
    exe.run(startup)
    values = exe.run(main, feed={f"x{i}": a for i, a in enumerate(arrays)}, fetch_list=built)
    return values if isinstance(built, (list, tuple)) else values[0]


def assert_same(actual: np.ndarray, expected: Any, tolerance: float = 1e-13) -> None:
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-15)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def erf_gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


ACTIVATIONS = {
    "relu": (F.relu, nn.ReLU, lambda x: np.maximum(x, 0)),
    "gelu": (F.gelu, nn.GELU, erf_gelu),
    "gelu tanh": (lambda x: F.gelu(x, approximate=True), lambda: nn.GELU(approximate=True), tanh_gelu),
    "silu": (F.silu, nn.SiLU, lambda x: x * sigmoid(x)),
    "tanh": (F.tanh, nn.Tanh, np.tanh),
    "sigmoid": (F.sigmoid, nn.Sigmoid, sigmoid),
    "softmax": (F.softmax, nn.Softmax, softmax),
    "softmax axis": (lambda x: F.softmax(x, axis=0), lambda: nn.Softmax(axis=0), lambda x: softmax(x, 0)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    function, layer, expected = ACTIVATIONS[name]
    assert_same(run(function, X), expected(X), 1e-12)
    assert_same(run(lambda x: layer()(x), X), expected(X), 1e-12)


def test_other_functions() -> None:
    assert_same(run(lambda x: F.leaky_relu(x, 0.1), X), np.where(X > 0, X, 0.1 * X))
    assert_same(run(F.softplus, X), np.log1p(np.exp(X)), 1e-12)
    assert_same(run(F.log_softmax, X), np.log(softmax(X)), 1e-12)
    assert_same(run(lambda x: F.softmax(x, dtype="float64"), X.astype("f4")), softmax(X.astype("f4").astype("f8")))
    assert_same(run(lambda i: F.one_hot(i, 3), LABEL), np.eye(3)[LABEL])
    assert_same(run(lambda x, w: F.linear(x, w), X, SOFT[:3]), X @ SOFT[:3])
    assert_same(run(lambda x, w, b: F.linear(x, w, b), X, SOFT[:3], WEIGHT), X @ SOFT[:3] + WEIGHT)
    assert_same(run(lambda x: F.label_smooth(x, epsilon=0.3), SOFT), SOFT * 0.7 + 0.1)
    assert_same(run(lambda x, p: F.label_smooth(x, p, 0.3), SOFT, WEIGHT[None]), SOFT * 0.7 + 0.3 * WEIGHT)
    assert_same(run(F.square_error_cost, X, SOFT), (X - SOFT) ** 2)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", np.mean), ("sum", np.sum), ("none", np.asarray)])
def test_mse_loss(reduction: str, expected: Callable[..., Any]) -> None:
    for loss in (lambda x, y: F.mse_loss(x, y, reduction), lambda x, y: nn.MSELoss(reduction)(x, y)):
        assert_same(run(loss, X, SOFT), expected((X - SOFT) ** 2))


def test_linear_layer() -> None:
    def build(x: Any) -> Any:
        layer = nn.Linear(3, 2, bias_attr=initializer.Constant(0.5))
        return layer(x), layer.weight, layer.bias

    out, weight, bias = run(build, X)
    assert weight.shape == (3, 2)
    assert np.abs(weight).max() <= math.sqrt(6 / 5)
    assert_same(bias, [0.5, 0.5])
    assert_same(out, X @ weight + 0.5)


def test_linear_without_bias_and_higher_rank() -> None:
    x = static.data("x", [None, 5, 3])
    layer = nn.Linear(3, 2, bias_attr=False)
    assert layer(x).shape == (-1, 5, 2)
    assert layer.bias is None
    assert [op.type for op in static.default_main_program().ops] == ["matmul"]
    assert [p.name for p in layer.parameters()] == ["linear_0.w_0"]


def test_embedding_layer() -> None:
    def build(i: Any) -> Any:
        layer = nn.Embedding(4, 3, padding_idx=-1, weight_attr=initializer.Normal())
        return layer(i), layer.weight

    ids = np.array([[0, 3], [2, 2]])
    out, weight = run(build, ids)
    expected = weight[ids]
    expected[0, 1] = 0
    assert_same(out, expected)
    with pytest.raises(AttrError, match="padding_idx 4 is no row of 4"):
        nn.Embedding(4, 3, padding_idx=4)


def test_layer_norm() -> None:
    cube = np.random.default_rng(0).normal(size=(2, 3, 4))
    assert_same(run(lambda x: nn.LayerNorm(4)(x), cube, known=False), normalized(cube, (2,)), 1e-12)
    assert_same(run(lambda x: nn.LayerNorm([3, 4], epsilon=0.1)(x), cube), normalized(cube, (1, 2), 0.1), 1e-12)
    scaled = run(lambda x, w, b: F.layer_norm(x, 3, w, b), X, WEIGHT, SOFT[0])
    assert_same(scaled, normalized(X, (1,)) * WEIGHT + SOFT[0], 1e-12)
    bare = nn.LayerNorm(4, weight_attr=False, bias_attr=False)
    assert bare.parameters() == []
    assert_same(run(bare, cube), normalized(cube, (2,)), 1e-12)
    with pytest.raises(ShapeError, match=r"layer_norm: x x0: f64\[4,3\] does not end in normalized_shape \[4\]"):
        run(lambda x: F.layer_norm(x, 4), X)
    with pytest.raises(ShapeError, match="does not end in"):
        run(lambda x: F.layer_norm(x, [1, 4, 3]), X)


def test_dropout() -> None:
    ones = np.ones((100, 50))
    out = run(lambda x: F.dropout(x, 0.3), ones)
    assert set(np.unique(out)) == {0.0, 1 / 0.7}
    assert 0.25 < (out == 0).mean() < 0.35
    out = run(lambda x: F.dropout(x, 0.3, mode="downscale_in_infer"), ones)
    assert set(np.unique(out)) == {0.0, 1.0}
    assert_same(run(lambda x: F.dropout(x, 0.3, training=False), ones), ones)
    assert_same(run(lambda x: F.dropout(x, 0.3, training=False, mode="downscale_in_infer"), ones), ones * 0.7)


@pytest.mark.parametrize(("axis", "same_along"), [(0, 1), ([1], 0), (-2, 1)])
def test_dropout_along_an_axis(axis: Any, same_along: int) -> None:
    x = np.random.default_rng(1).normal(size=(60, 40))
    kept = run(lambda x: F.dropout(x, 0.5, axis=axis), x, known=False) / x
    assert set(np.unique(kept.round(12))) == {0.0, 2.0}
    assert np.ptp(kept.round(12), axis=same_along).max() == 0
    assert np.ptp(kept.round(12), axis=1 - same_along).max() == 2
    assert_same(run(lambda x: F.dropout(x, 0.5, axis=axis, training=False), x), x)


def test_dropout_layer_follows_train_eval_and_clone() -> None:
    x = static.data("x", [40, 40])
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    y = net(x)
    net.eval()
    assert not any(layer.training for layer in net.sublayers(include_self=True))
    z = net(x)
    net.train()
    assert all(layer.training for layer in net.sublayers(include_self=True))
    feed, exe, main = {"x": np.ones((40, 40))}, static.Executor(), static.default_main_program()
    trained, evaluated = exe.run(main, feed=feed, fetch_list=[y, z])
    assert set(np.unique(trained)) == {0.0, 4.0}
    assert (evaluated == 1).all()
    (tested,) = exe.run(main.clone(for_test=True), feed=feed, fetch_list=[y.name])
    assert (tested == 1).all()


def rows_of_loss(x: np.ndarray, target: np.ndarray, use_softmax: bool = True) -> np.ndarray:
    """-sum(target * log(p)) per row, from the definition."""
    p = softmax(x) if use_softmax else x
    return -(target * np.log(p)).sum(1)


HOT = np.eye(3)[LABEL]
KEPT = LABEL != 1
CROSS_ENTROPY: list[tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]] = [
    # options, label, loss of each row, weight of each row in the mean
    ({}, LABEL, rows_of_loss(X, HOT), np.ones(4)),
    ({}, LABEL[:, None], rows_of_loss(X, HOT), np.ones(4)),
    ({}, LABEL.astype(np.uint8), rows_of_loss(X, HOT), np.ones(4)),
    ({"ignore_index": 1}, LABEL, rows_of_loss(X, HOT) * KEPT, KEPT),
    ({"ignore_index": 1}, LABEL[:, None], rows_of_loss(X, HOT) * KEPT, KEPT),
    ({"ignore_index": -1}, np.where(KEPT, LABEL, -1), rows_of_loss(X, HOT) * KEPT, KEPT),
    ({}, np.where(KEPT, LABEL, -100), rows_of_loss(X, HOT) * KEPT, KEPT),
    ({"weight": WEIGHT}, LABEL, rows_of_loss(X, HOT) * WEIGHT[LABEL], WEIGHT[LABEL]),
    (
        {"weight": WEIGHT, "ignore_index": -1}, np.where(KEPT, LABEL, -1),
        rows_of_loss(X, HOT) * WEIGHT[LABEL] * KEPT, WEIGHT[LABEL] * KEPT,
    ),
    ({"soft_label": True}, SOFT, rows_of_loss(X, SOFT), np.ones(4)),
    ({"soft_label": True, "weight": WEIGHT}, SOFT, rows_of_loss(X, SOFT) * (SOFT @ WEIGHT), SOFT @ WEIGHT),
    ({"label_smoothing": 0.3}, LABEL, rows_of_loss(X, HOT * 0.7 + 0.1), np.ones(4)),
    ({"label_smoothing": 0.3, "soft_label": True}, SOFT, rows_of_loss(X, SOFT * 0.7 + 0.1), np.ones(4)),
    (
        {"label_smoothing": 0.3, "ignore_index": -1}, np.where(KEPT, LABEL, -1),
        rows_of_loss(X, HOT * 0.7 + 0.1) * KEPT, KEPT,
    ),
    (
        {"label_smoothing": 0.3, "weight": WEIGHT, "ignore_index": 1}, LABEL[:, None],
        rows_of_loss(X, HOT * 0.7 + 0.1) * ((HOT * 0.7 + 0.1) @ WEIGHT) * KEPT, ((HOT * 0.7 + 0.1) @ WEIGHT) * KEPT,
    ),
    ({"use_softmax": False}, LABEL, rows_of_loss(softmax(X), HOT, False), np.ones(4)),
    ({"use_softmax": False, "soft_label": True}, SOFT, rows_of_loss(softmax(X), SOFT, False), np.ones(4)),
]  # fmt: skip


@pytest.mark.parametrize("known", [True, False], ids=["rows known", "rows unknown"])
@pytest.mark.parametrize("case", range(len(CROSS_ENTROPY)))
def test_cross_entropy(case: int, known: bool) -> None:
    options, label, losses, rows = CROSS_ENTROPY[case]
    scores = X if options.get("use_softmax", True) else softmax(X)

    def build(x: Any, y: Any, reduction: str) -> Any:
        given = {k: mg.assign(v) if k == "weight" else v for k, v in options.items()}
        direct = F.cross_entropy(x, y, reduction=reduction, **given)
        return [direct, nn.CrossEntropyLoss(reduction=reduction, **given)(x, y)]

    each = losses if label.ndim == 1 else losses[:, None]
    for reduction, expected in (("mean", losses.sum() / rows.sum()), ("sum", losses.sum()), ("none", each)):
        for value in run(lambda x, y, r=reduction: build(x, y, r), scores, label, known=known):
            assert_same(value, expected, 1e-12)


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.2}, {"use_softmax": False}])
def test_cross_entropy_of_no_row_is_zero(options: dict[str, Any]) -> None:
    def build(x: Any, y: Any) -> Any:
        x.stop_gradient = False
        given = {k: mg.assign(v) if k == "weight" else v for k, v in options.items()}
        loss = F.cross_entropy(x, y, ignore_index=-1, **given)
        return [loss, *static.gradients(loss, x)]

    without_class_0 = softmax(X)
    without_class_0[:, 0] = -np.inf if options.get("use_softmax", True) else 0.0
    for scores in (softmax(X), without_class_0):
        for ignored in (np.full(4, -1), np.full((4, 1), -1)):
            value, grad = run(build, scores, ignored)
            assert_same(value, 0.0)
            assert_same(grad, np.zeros((4, 3)))


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.2}, {"use_softmax": False}])
def test_cross_entropy_along_an_inner_axis(options: dict[str, Any]) -> None:
    x = softmax(np.random.default_rng(3).normal(size=(2, 3, 4)), 1)
    label = np.random.default_rng(4).integers(0, 3, size=(2, 4))

    def build(x: Any, y: Any, axis: int) -> Any:
        given = {k: mg.assign(v) if k == "weight" else v for k, v in options.items()}
        return F.cross_entropy(x, y, axis=axis, reduction="none", ignore_index=1, **given)

    expected = run(lambda x, y: build(x, y, -1), x.transpose(0, 2, 1), label)
    assert expected.any()
    assert_same(run(lambda x, y: build(x, y, 1), x, label), expected, 1e-12)
    assert_same(run(lambda x, y: build(x, y, 1), x, label[:, None]), expected[:, None], 1e-12)


@pytest.mark.parametrize("case", range(len(CROSS_ENTROPY)))
def test_gradient_of_cross_entropy(case: int) -> None:
    options, label, _, _ = CROSS_ENTROPY[case]
    scores = X if options.get("use_softmax", True) else (softmax(X) + 0.5) / 2.5

    def loss(x: Any, y: Any) -> Any:
        given = {k: mg.assign(v) if k == "weight" else v for k, v in options.items()}
        return F.cross_entropy(x, y, **given)

    def grad(x: Any, y: Any) -> Any:
        x.stop_gradient = False
        return static.gradients(loss(x, y), x)[0]

    actual, differences = run(grad, scores, label), np.zeros_like(scores)
    for i in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[i] = 1e-5
        differences[i] = (run(loss, scores + step, label) - run(loss, scores - step, label)) / 2e-5
    np.testing.assert_allclose(actual, differences, atol=1e-8)


def test_cross_entropy_counts_in_float32_for_half_precision() -> None:
    x, label = np.zeros((70_000, 2), np.float16), np.zeros(70_000, np.int64)
    assert_same(run(F.cross_entropy, x, label), np.float16(math.log(2)), 1e-3)


def test_softmax_with_cross_entropy() -> None:
    loss, probability = run(lambda x, y: F.softmax_with_cross_entropy(x, y, return_softmax=True), X, LABEL[:, None])
    assert_same(loss, rows_of_loss(X, HOT)[:, None], 1e-12)
    assert_same(probability, softmax(X), 1e-12)
    soft = run(lambda x, y: F.softmax_with_cross_entropy(x, y, soft_label=True), X, SOFT)
    assert_same(soft, rows_of_loss(X, SOFT)[:, None], 1e-12)


def test_the_plain_loss_is_one_operator_and_a_mean_over_kept_rows() -> None:
    F.cross_entropy(static.data("x", [None, 3]), static.data("y", [None], "int64"))
    types = [op.type for op in static.default_main_program().ops]
    assert types == [
        "fill_constant", "not_equal", "softmax_with_cross_entropy", "reduce_sum", "fill_constant", "elementwise_max",
        "reduce_sum", "cast", "elementwise_div",
    ]  # fmt: skip


def test_errors_of_losses() -> None:
    x, y = static.data("x", [4, 3]), static.data("y", [4], "int64")
    with pytest.raises(AttrError, match=r"reduction of cross_entropy 'avg' does not exist"):
        F.cross_entropy(x, y, reduction="avg")
    with pytest.raises(AttrError, match="reduction of mse_loss"):
        F.mse_loss(x, x, reduction="average")
    with pytest.raises(AttrError, match=r"label_smoothing 2 is not in \[0, 1\]"):
        F.cross_entropy(x, y, label_smoothing=2)
    with pytest.raises(DTypeError, match="Label must hold class numbers, is float64"):
        F.cross_entropy(x, x)
    with pytest.raises(ProgramError, match="cross_entropy: label must be a Variable, is a list"):
        F.cross_entropy(x, [1, 2])
    with pytest.raises(ShapeError, match="Label must have Logits' shape"):
        F.cross_entropy(x, static.data("z", [5], "int64"))
    with pytest.raises(ShapeError, match="must be known"):
        F.cross_entropy(static.data("u", [4, None]), y, label_smoothing=0.1)
    with pytest.raises(KernelError, match=r"label 3 of row 2 is not a class in \[0, 3\)"):
        run(F.cross_entropy, X, np.array([0, 1, 3, 1]))


# layers


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.blocks = nn.LayerList([nn.Linear(4, 4) for _ in range(2)])
        self.shared = self.first
        self.scale = self.create_parameter([4], default_initializer=initializer.Constant(2.0))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = F.relu(block(x))
        return x * self.scale


def test_layer_finds_parameters_and_layers() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == [
        "scale", "first.weight", "first.bias", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias",
    ]  # fmt: skip
    assert [p.name for p in net.parameters()][:2] == ["net_0.w_0", "linear_0.w_0"]
    assert [p.name for p in net.parameters(include_sublayers=False)] == ["net_0.w_0"]
    assert [name for name, _ in net.named_sublayers()] == ["first", "blocks", "blocks.0", "blocks.1"]
    assert list(net.state_dict()) == [name for name, _ in net.named_parameters()]
    assert [type(layer) for layer in net.children()] == [nn.Linear, nn.LayerList, nn.Linear]
    assert net.full_name() == "net_0"
    assert run(lambda x: Net()(x), X).shape == (4, 4)


def test_attributes_can_be_replaced_and_deleted() -> None:
    net = Net()
    net.first = nn.ReLU()
    net.shared = None
    del net.scale
    assert [name for name, _ in net.named_sublayers()] == ["blocks", "blocks.0", "blocks.1", "first"]
    assert len(net.parameters()) == 4
    assert net.add_parameter("bias", None) is None
    with pytest.raises(ProgramError, match="must be a Layer"):
        net.add_sublayer("wrong", np.tanh)


def test_layer_before_init_is_refused() -> None:
    class Wrong(nn.Layer):
        def __init__(self) -> None:
            self.linear = nn.Linear(2, 2)

    with pytest.raises(ProgramError, match=r"Wrong.linear is set before Layer.__init__ ran"):
        Wrong()
    with pytest.raises(NotImplementedError, match="Layer has no forward"):
        nn.Layer()(1)


def test_sequential() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert len(net) == 3
    assert isinstance(net[1], nn.ReLU)
    assert len(net[1:]) == 2
    assert [type(layer).__name__ for layer in net] == ["Linear", "ReLU", "Linear"]
    named = nn.Sequential(("a", nn.Tanh()), ("b", nn.Tanh()))
    assert named["b"] is named[1]
    assert_same(run(named, X), np.tanh(np.tanh(X)))
    assert_same(run(nn.Sequential(), X), X)
    assert repr(net) == (
        "Sequential(\n  (0): Linear(in_features=3, out_features=4)\n  (1): ReLU()\n"
        "  (2): Linear(in_features=4, out_features=2)\n)"
    )
    with pytest.raises(ProgramError, match="sublayer 0 must be a Layer"):
        nn.Sequential(F.relu)


def test_layer_list() -> None:
    layers = nn.LayerList([nn.ReLU()])
    layers.append(nn.Tanh()).extend([nn.Sigmoid()])
    layers.insert(0, nn.GELU())
    assert [type(layer).__name__ for layer in layers] == ["GELU", "ReLU", "Tanh", "Sigmoid"]
    layers[1] = nn.SiLU()
    del layers[2]
    assert [type(layer).__name__ for layer in layers] == ["GELU", "SiLU", "Sigmoid"]
    assert [name for name, _ in layers.named_children()] == ["0", "1", "2"]
    assert len(layers) == 3
    assert isinstance(layers[-1], nn.Sigmoid)
    assert len(layers[:2]) == 2
    with pytest.raises(ProgramError, match="LayerList holds Layers"):
        layers[0] = np.tanh


# parameters and their initialisers


def test_names_of_the_worked_example() -> None:
    """Section 8 of the specification: shared weights, sums by operators."""
    mg.set_default_dtype("float32")
    x, y = static.data("x", [None, 8]), static.data("y", [None, 1], "int64")
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    h = F.relu(first(x))
    a = second(h)
    b = second(a)
    out = (a + b) + h
    loss = mg.mean(F.softmax_with_cross_entropy(out, y))
    assert first.weight.name == "linear_0.w_0"
    assert second.bias.name == "linear_1.b_0"
    names = [name for op in static.default_main_program().ops for name in op.output_arg_names]
    assert names == [
        "linear_2.tmp_0", "linear_2.tmp_1", "relu_0.tmp_0", "linear_3.tmp_0", "linear_3.tmp_1", "linear_4.tmp_0",
        "linear_4.tmp_1", "tmp_0", "tmp_1", "softmax_with_cross_entropy_0.tmp_0", "softmax_with_cross_entropy_0.tmp_1",
        "mean_0.tmp_0",
    ]  # fmt: skip
    _, params_grads = mg.optimizer.Adam().minimize(loss)
    assert [(p.name, g.name) for p, g in params_grads] == [
        ("linear_0.w_0", "linear_0.w_0@GRAD"), ("linear_0.b_0", "linear_0.b_0@GRAD"),
        ("linear_1.w_0", "linear_1.w_0@GRAD"), ("linear_1.b_0", "linear_1.b_0@GRAD"),
    ]  # fmt: skip
    known = static.default_main_program().vars
    for name in ("relu_0.tmp_0", "linear_3.tmp_1", "linear_1.w_0"):
        assert f"{name}@GRAD@RENAME@block0@0" in known
        assert f"{name}@GRAD@RENAME@block0@1" in known
    for state in ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0"):
        assert f"linear_1.w_0_{state}" in known
    assert "learning_rate_0" in known
    startup = static.default_startup_program().ops
    assert len(startup) == 21
    assert [op.type for op in startup[:4]] == ["uniform_random", "fill_constant", "uniform_random", "fill_constant"]


def test_param_attr() -> None:
    attr = mg.ParamAttr(
        name="w", initializer=initializer.Assign([[1.0, 2.0]]), learning_rate=0.5, trainable=False, need_clip=False,
        regularizer=mg.regularizer.L2Decay(0.1),
    )  # fmt: skip
    layer = nn.Linear(1, 2, weight_attr=attr, bias_attr="b")
    w = layer.weight
    assert (w.name, w.trainable, w.need_clip, w.optimize_attr) == ("w", False, False, {"learning_rate": 0.5})
    assert w.regularizer is attr.regularizer
    assert layer.bias.name == "b"
    assert_same(run(lambda: nn.Linear(1, 2, weight_attr=attr).weight), [[1.0, 2.0]])
    assert repr(mg.ParamAttr(name="w", trainable=False)) == "ParamAttr(name='w', trainable=False)"
    with pytest.raises(ProgramError, match="a parameter attribute is a ParamAttr"):
        nn.Linear(1, 2, weight_attr=3.0)
    with pytest.raises(ProgramError, match=r"is none of nn\.initializer"):
        mg.ParamAttr(initializer=0.0)
    with pytest.raises(ProgramError, match="name must be a str"):
        mg.ParamAttr(name=3)
    with pytest.raises(ProgramError, match="learning_rate is a factor >= 0 on the optimizer's rate, not 'a'"):
        mg.ParamAttr(learning_rate="a")
    with pytest.raises(AttrError, match="weight_attr=False"):
        nn.Linear(1, 2, weight_attr=False)


def test_a_parameter_is_shared_by_its_name() -> None:
    first, second = nn.Linear(3, 4, weight_attr="shared"), nn.Linear(3, 4, weight_attr="shared")
    assert first.weight is second.weight
    assert sum("shared" in op.output_arg_names for op in static.default_startup_program().ops) == 1
    with pytest.raises(ProgramError, match=r"parameter shared: f64\[3,4\] exists already, f64\[3,5\] is asked for"):
        nn.Linear(3, 5, weight_attr="shared")
    static.data("x", [3, 4])
    with pytest.raises(ProgramError, match="exists already and is no parameter"):
        nn.Linear(3, 4, weight_attr="x")


def test_two_programs_share_one_startup_program() -> None:
    startup = static.Program()
    for _ in range(2):
        with static.program_guard(static.Program(), startup), mg.base.unique_name.guard():
            nn.Linear(3, 4)
    assert [op.output_arg_names[0] for op in startup.ops] == ["linear_0.w_0", "linear_0.b_0"]
    with (
        static.program_guard(static.Program(), startup),
        mg.base.unique_name.guard(),
        pytest.raises(ProgramError, match=r"linear_0.w_0 is f64\[3,4\] in the startup program, f64\[3,5\] is asked"),
    ):
        nn.Linear(3, 5)


BIG = (400, 250)
RANDOM = {
    "XavierUniform": (initializer.XavierUniform(), "uniform", math.sqrt(6 / 650)),
    "XavierUniform fans": (initializer.XavierUniform(fan_in=6, fan_out=18, gain=2.0), "uniform", 1.0),
    "XavierNormal": (initializer.XavierNormal(), "normal", math.sqrt(2 / 650)),
    "KaimingUniform": (initializer.KaimingUniform(), "uniform", math.sqrt(2) * math.sqrt(3 / 400)),
    "KaimingNormal": (initializer.KaimingNormal(), "normal", math.sqrt(2 / 400)),
    "KaimingNormal out": (initializer.KaimingNormal(mode="fan_out"), "normal", math.sqrt(2 / 250)),
    "KaimingNormal fan": (initializer.KaimingNormal(fan_in=8), "normal", 0.5),
    "Kaiming leaky": (
        initializer.KaimingNormal(negative_slope=0.5, nonlinearity="leaky_relu"), "normal", math.sqrt(2 / 1.25 / 400),
    ),
    "Uniform": (initializer.Uniform(-0.25, 0.25), "uniform", 0.25),
    "Normal": (initializer.Normal(0.0, 3.0), "normal", 3.0),
    "TruncatedNormal": (initializer.TruncatedNormal(0.0, 3.0), "truncated", 3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_initialiser(name: str) -> None:
    init, kind, size = RANDOM[name]
    value = run(lambda: static.create_parameter(BIG, default_initializer=init))
    assert value.dtype == np.float64
    assert abs(value.mean()) < 0.02 * size
    if kind == "uniform":
        assert 0.999 * size < np.abs(value).max() <= size
        assert value.std() == pytest.approx(size / math.sqrt(3), rel=0.01)
    elif kind == "normal":
        assert value.std() == pytest.approx(size, rel=0.01)
        assert np.abs(value).max() > 3 * size
    else:
        assert np.abs(value).max() <= 2 * size
        assert value.std() == pytest.approx(0.8796 * size, rel=0.01)


def test_fans() -> None:
    assert initializer.fans(()) == (1, 1)
    assert initializer.fans((7,)) == (7, 7)
    assert initializer.fans((3, 5)) == (3, 5)
    assert initializer.fans((8, 3, 2, 2)) == (12, 32)
    assert initializer.calculate_gain("tanh") == 5 / 3
    with pytest.raises(ProgramError, match=r"nonlinearity 'rellu' has no gain") as info:
        initializer.calculate_gain("rellu")
    assert "relu" in str(info.value)


def test_exact_initialisers() -> None:
    constant = initializer.Constant(1.5)
    assert_same(run(lambda: static.create_parameter([2, 2], default_initializer=constant)), [[1.5, 1.5], [1.5, 1.5]])
    assert_same(run(lambda: static.create_parameter([3], attr=initializer.Assign(WEIGHT))), WEIGHT)
    half = run(lambda: static.create_parameter([3], "float16", attr=initializer.Assign(WEIGHT)))
    assert_same(half, WEIGHT.astype(np.float16))
    with pytest.raises(ShapeError, match=r"cannot hold a value of shape \[3\]"):
        static.create_parameter([4], attr=initializer.Assign(WEIGHT))
    with pytest.raises(ProgramError, match="must be an array"):
        initializer.Assign(static.data("x", [2]))
    with pytest.raises(ProgramError, match="value is no array"):
        initializer.Assign([[1], [2, 3]])
    with pytest.raises(AttrError, match="bounds are -2 and 2"):
        initializer.TruncatedNormal(a=-1.0)
    with pytest.raises(ProgramError, match="is not fan_in or fan_out"):
        initializer.KaimingNormal(mode="both")


def test_initialisers_draw_different_numbers_for_each_parameter() -> None:
    first, second = run(lambda: [static.create_parameter([50]), static.create_parameter([50])])
    assert not (first == second).any()
    (again, _) = run(lambda: [static.create_parameter([50]), static.create_parameter([50])])
    assert (first == again).all(), "one seed, one result"


def test_a_failed_parameter_leaves_nothing_behind() -> None:
    for attempt in (
        lambda: nn.Linear(3, -2),
        lambda: nn.Linear(3, None),
        lambda: nn.Linear("3", 2),
        lambda: static.create_parameter([2], attr=mg.ParamAttr("w", initializer.Normal(0.0, -1.0))),
        lambda: static.create_parameter([2], attr=mg.ParamAttr("w", initializer.Assign([1.0]))),
        lambda: static.create_parameter([2], "int64", name="w"),
    ):
        with pytest.raises(MinigraphError) as info:
            attempt()
        assert "test_nn.py" in str(info.value), "the user's line is missing"
        for program in (static.default_main_program(), static.default_startup_program()):
            assert not program.vars
            assert not program.ops
    w = static.create_parameter([2], attr=mg.ParamAttr("w", initializer.Constant(2.0)))
    exe = static.Executor()
    exe.run(static.default_startup_program())
    assert exe.run(fetch_list=[w])[0].tolist() == [2.0, 2.0]


def test_layers_of_another_program_are_refused() -> None:
    layer = nn.Linear(3, 4)
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
        with pytest.raises(MinigraphError, match=r"Y=linear_0.w_0 belongs to another program"):
            layer(x)
