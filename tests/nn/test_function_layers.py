"""Layers made from functions, containers, hooks, buffers; random functions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import AttrError, MinigraphError, ProgramError, ShapeError
from minigraph.nn import functional as F
from minigraph.nn import initializer
from minigraph.nn.functional_layer import FunctionalLayer
from tests.paddle.nn_programs import SIGNS, X, Y

LAYERS = [layer for layer in vars(nn).values() if isinstance(layer, type) and issubclass(layer, FunctionalLayer)]


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    mg.set_default_dtype("float64")
    with static.program_guard(static.Program(), static.Program()):
        yield


def run(outs: Any, for_test: bool = False, **feed: np.ndarray) -> list[np.ndarray]:
    main = static.default_main_program()
    main.random_seed = 7
    exe = static.Executor(mg.CPUPlace())
    exe.run(static.default_startup_program())
    return exe.run(main.clone(for_test=True) if for_test else main, feed=feed, fetch_list=list(outs))


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_a_layer_shows_its_arguments(layer: type[FunctionalLayer]) -> None:
    """Where help() and editors look."""
    assert layer.__doc__
    shown = inspect.signature(layer).parameters
    assert "x" not in shown
    assert "training" not in shown
    with pytest.raises(TypeError, match=rf"{layer.__name__}\(\) got an unexpected keyword argument 'slope_of'"):
        layer(slope_of=1, **{n: 1 for n, p in shown.items() if p.default is p.empty})


def test_options_are_attributes_that_may_change() -> None:
    layer = nn.ELU(0.5)
    assert (layer.alpha, repr(layer)) == (0.5, "ELU(alpha=0.5)")
    layer.alpha = 2.0
    (found,) = run([layer(static.data("x", [3]))], x=np.array([-1.0, 0.0, 2.0]))
    np.testing.assert_allclose(found, [2 * np.expm1(-1), 0, 2])

    class Steep(nn.ELU):
        """A subclass keeps the function."""

    assert Steep(3.0).alpha == 3.0
    weight = static.create_parameter([3])
    assert nn.NLLLoss(weight).parameters() == []


def test_hooks_see_and_change_inputs_and_results() -> None:
    layer, seen = nn.Tanh(), []
    before = layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0] * 2.0,))
    after = layer.register_forward_post_hook(lambda layer, inputs, out: out + 1.0)
    layer.register_forward_post_hook(lambda layer, inputs, out: seen.append((type(layer), len(inputs))))
    x = static.data("x", [2])
    first = layer(x)
    before.remove()
    after.remove()
    after.remove()
    found = run([first, layer(x)], x=np.array([0.5, -1.0]))
    np.testing.assert_allclose(found, [np.tanh([1.0, -2.0]) + 1, np.tanh([0.5, -1.0])])
    assert seen == [(nn.Tanh, 1)] * 2


def test_apply_goes_from_the_leaves_up() -> None:
    net, seen = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), []
    assert net.apply(lambda layer: seen.append(type(layer).__name__)) is net
    assert seen == ["ReLU", "Sequential", "Linear", "Sequential"]


def test_buffers() -> None:
    class Counting(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            block = static.default_main_program().global_block()
            self.register_buffer("count", block.create_var("count", shape=[2], dtype="float64", persistable=True))
            self.register_buffer("passing", mg.zeros([1]), persistable=False)

    net = nn.Sequential(Counting(), nn.Linear(2, 1))
    assert [path for path, _ in net.named_buffers()] == ["0.count", "0.passing"]
    assert list(net.state_dict()) == ["1.weight", "1.bias", "0.count"]
    net[0].count = None
    assert len(net.buffers()) == 1


def test_set_state_dict_reads_arrays_by_path() -> None:
    net = nn.Sequential(nn.Linear(2, 1))
    x = static.data("x", [1, 2])
    out = net(x)
    exe = static.Executor(mg.CPUPlace())
    exe.run(static.default_startup_program())
    net.set_state_dict({"0.weight": np.array([[2.0], [3.0]]), "0.bias": np.array([1.0])})
    (found,) = exe.run(feed={"x": np.array([[1.0, 10.0]])}, fetch_list=[out])
    assert found.tolist() == [[33.0]]
    with pytest.raises(ProgramError, match=r"state of Sequential '0.wait' does not exist\n.*\n.*0.weight"):
        net.set_state_dict({"0.wait": np.zeros(1)})
    with pytest.raises(ProgramError, match="is the variable"):
        net.set_state_dict(net.state_dict())


def test_layer_dict() -> None:
    layers = nn.LayerDict({"a": nn.Linear(2, 2), "update": nn.ReLU()})
    assert (len(layers), list(layers), "a" in layers) == (2, ["a", "update"], True)
    assert len(layers.parameters()) == 2
    layers.update([("b", nn.Tanh())])
    assert isinstance(layers.pop("b"), nn.Tanh)
    assert [type(v).__name__ for v in layers.values()] == ["Linear", "ReLU"]
    with pytest.raises(ProgramError, match="LayerDict has no layer 'c'"):
        del layers["c"]
    with pytest.raises(ProgramError, match="LayerDict holds Layers, not 3"):
        layers["c"] = 3
    layers.clear()
    assert list(layers.items()) == list(layers.keys()) == []


def test_parameter_list() -> None:
    first, second = static.create_parameter([2]), static.create_parameter([3])
    some = nn.ParameterList([first])
    some.append(second)
    assert [id(p) for p in some] == [id(p) for p in some.parameters()] == [id(first), id(second)]
    some[0] = second
    assert (len(some), some[0] is second) == (2, True)
    with pytest.raises(ProgramError, match="ParameterList holds Parameters"):
        some.append(3)  # pyright: ignore[reportArgumentType]


def test_initializers_for_all_parameters() -> None:
    initializer.set_global_initializer(initializer.Constant(3.0), initializer.Constant(4.0))
    try:
        layer, norm = nn.Linear(2, 1), nn.LayerNorm(2)
        own = nn.Linear(2, 1, weight_attr=mg.ParamAttr(initializer=initializer.Constant(5.0)))
    finally:
        initializer.set_global_initializer(None)
    found = run([layer.weight, layer.bias, norm.weight, own.weight, nn.LayerNorm(2).weight])
    assert [float(v.reshape(-1)[0]) for v in found] == [3, 4, 3, 5, 1]
    with pytest.raises(ProgramError, match="weight_init must be an initializer"):
        initializer.set_global_initializer(3)  # pyright: ignore[reportArgumentType]


def test_a_triplet_with_a_distance_of_ones_own() -> None:
    x, y, z = (static.data(n, X.shape) for n in "xyz")

    def distance(a: Any, b: Any) -> Any:
        return mg.abs(a - b).sum(axis=-1)

    loss = nn.TripletMarginWithDistanceLoss(distance, margin=2.0, reduction="none")(x, y, z)
    (found,) = run([loss], x=X, y=Y, z=SIGNS)
    expected = np.maximum(np.abs(X - Y).sum(-1) - np.abs(X - SIGNS).sum(-1) + 2, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_random_slopes_lie_between_their_bounds_and_are_their_mean_in_a_test() -> None:
    x = static.data("x", [None, 50])
    outs = [nn.RReLU(0.25, 0.5)(x)]
    values = np.full((40, 50), -1.0)
    (found,) = run(outs, x=values)
    assert -0.5 <= found.min() < -0.49
    assert -0.26 < found.max() <= -0.25
    np.testing.assert_array_equal(run(outs, for_test=True, x=values)[0], np.full((40, 50), -0.375))


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = static.data("x", [None])
    out = nn.AlphaDropout(0.25)(x)
    values = np.random.default_rng(0).normal(size=200_000)
    (found,) = run([out], x=values)
    assert abs(found.mean()) < 0.01
    assert abs(found.var() - 1) < 0.02
    dropped = np.unique(found, return_counts=True)[1].max()  # all of them have one value
    assert abs(dropped / found.size - 0.25) < 0.01
    np.testing.assert_array_equal(run([out], for_test=True, x=values)[0], values)


def test_channels_are_dropped_whole() -> None:
    x = static.data("x", [None, 8, 2, 3])
    (found,) = run([nn.Dropout2D(0.5)(x)], x=np.ones((50, 8, 2, 3)))
    assert set(np.unique(found)) == {0.0, 2.0}
    assert (found == found[:, :, :1, :1]).all()


def test_gumbel_softmax_chooses_by_probability() -> None:
    x = static.data("x", [None, 3])
    x.stop_gradient = False
    hard, soft = F.gumbel_softmax(x, hard=True), F.gumbel_softmax(x, temperature=0.5)
    (grad,) = static.gradients([hard[:, 0].sum()], [x])
    p = np.array([0.5, 0.3, 0.2])
    chosen, weights, slope = run([hard, soft, grad], x=np.log(np.tile(p, (20_000, 1))))
    np.testing.assert_allclose(chosen.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(chosen.mean(0), p, atol=0.02)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)
    assert np.abs(slope).max() > 0.1


REFUSALS: list[tuple[type[MinigraphError], str, Any]] = [
    (AttrError, "reduction of l1_loss 'avg' does not exist", lambda x: F.l1_loss(x, x, "avg")),
    (ProgramError, "label must be a Variable", lambda x: F.smooth_l1_loss(x, 1.0)),
    (ShapeError, "the shapes must be the same", lambda x: F.smooth_l1_loss(x, x[0])),
    (AttrError, "margin must not be negative", lambda x: F.triplet_margin_loss(x, x, x, margin=-1)),
    (AttrError, "alpha must not be 0", lambda x: F.celu(x, 0)),
    (AttrError, "scale must be greater than 1", lambda x: F.selu(x, scale=0.5)),
    (AttrError, "threshold must not be negative", lambda x: F.softshrink(x, -1)),
    (AttrError, "beta must not be 0", lambda x: F.softplus(x, beta=0)),
    (AttrError, "min 2.0 is larger than max", lambda x: F.hardtanh(x, 2.0)),
    (ShapeError, "no channels in groups of 3", lambda x: F.maxout(x, 3)),
    (ShapeError, "one element for each of the channels", lambda x: F.prelu(x, mg.zeros([3]))),
    (AttrError, "0 <= lower <= upper <= 1 does not hold", lambda x: F.rrelu(x, 0.5, 0.25)),
    (AttrError, "temperature must be positive", lambda x: F.gumbel_softmax(x, 0)),
    (ShapeError, "x must have rank 4", lambda x: F.dropout2d(x)),
    (AttrError, "data_format 'NC' is not", lambda x: F.dropout2d(x, data_format="NC")),
    (AttrError, r"p must lie in \[0, 1\]", lambda x: F.alpha_dropout(x, 2)),
    (AttrError, "epsilon must be positive", lambda x: F.poisson_nll_loss(x, x, epsilon=0)),
    (ShapeError, "variance .* does not fit", lambda x: F.gaussian_nll_loss(x, x, x[0])),
    (ShapeError, "must be input .* without axis 1", lambda x: F.nll_loss(x, x)),
    (ShapeError, r"input must be \[N, C\]", lambda x: F.multi_margin_loss(x[0], x)),
    (ShapeError, "must be 1-D", lambda x: F.cosine_embedding_loss(x, x, x)),
    (ShapeError, "must be 2-D, weight", lambda x: F.bilinear(x, x, x)),
    (AttrError, "p must not be negative", lambda x: F.normalize(x, p=-1)),
    (AttrError, "more than one size open", lambda x: nn.Unflatten(1, [-1, -1])),
    (ShapeError, "has no axis 5", lambda x: nn.Unflatten(5, [2, 2])(x)),
    (ShapeError, "x must have rank 3 or 4", lambda x: nn.Softmax2D()(x)),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSALS, ids=[message for _, message, _ in REFUSALS])
def test_what_does_not_fit_is_refused(error: type[MinigraphError], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call(static.data("x", [3, 4]))


def test_a_mask_is_as_long_as_is_said_or_as_the_longest() -> None:
    lengths = static.data("n", [None], "int64")
    (found,) = run([F.sequence_mask(lengths, 3, "bool")], n=np.array([2, 0]))
    np.testing.assert_array_equal(found, [[True, True, False], [False, False, False]])
    for maxlen in (None, mg.max(lengths)):
        (found,) = run([F.sequence_mask(lengths, maxlen, "bool")], n=np.array([2, 0]))
        np.testing.assert_array_equal(found, [[True, True], [False, False]])
    with pytest.raises(AttrError, match="maxlen must be an int > 0, is 0"):
        F.sequence_mask(lengths, 0)


def test_what_older_norms_refuse() -> None:
    with pytest.raises(AttrError, match=r"averages of nn\.BatchNorm are not trained"):
        nn.BatchNorm(3, trainable_statistics=True)
    with pytest.raises(AttrError, match=r"activation of nn\.BatchNorm"):
        nn.BatchNorm(3, act="steep")
    with pytest.raises(ShapeError, match="weight must be a matrix or more with known sizes"):
        nn.SpectralNorm([4])
    with pytest.raises(AttrError, match="power_iters must not be negative"):
        nn.SpectralNorm([4, 3], power_iters=-1)
    with pytest.raises(AttrError, match="dim 2 is not 0 or 1"):
        nn.SpectralNorm([4, 3], dim=2)


def test_what_transformers_refuse() -> None:
    with pytest.raises(AttrError, match="embed_dim 8 is no multiple of num_heads 3"):
        nn.TransformerEncoderLayer(8, 3, 16)
    with pytest.raises(AttrError, match="dim_feedforward must be positive"):
        nn.TransformerEncoderLayer(8, 2, 0)
    with pytest.raises(AttrError, match="did you mean 'relu'"):
        nn.TransformerDecoderLayer(8, 2, 16, activation="rely")
    with pytest.raises(AttrError, match="weight_attr is a list of 4, the layer has 3 parts"):
        nn.TransformerDecoderLayer(8, 2, 16, weight_attr=[None] * 4)
    with pytest.raises(AttrError, match="num_layers must be a positive int"):
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 0)
    assert static.default_main_program().ops == []
