"""WeightNormParamAttr: the weight is g * v / |v|, and both are trained."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import AttrError


@pytest.mark.parametrize(("dim", "axes"), [(None, (0, 1)), (0, (1,)), (1, (0,)), (-1, (0,))])
def test_both_parameters_have_the_gradient_of_the_formula(dim, axes, rng):
    mg.set_default_dtype("float64")
    layer = nn.Linear(3, 4, weight_attr=static.WeightNormParamAttr(dim, "w"), bias_attr=False)
    out = layer(static.data("x", [None, 3]))
    weights = rng.normal(size=(5, 4))
    grads = sorted(static.append_backward(mg.sum(out * mg.assign(weights))), key=lambda pair: pair[0].name)
    assert [p.name for p, _ in grads] == ["w_g", "w_v"]
    exe = static.Executor()
    exe.run(static.default_startup_program())
    scope = static.global_scope()
    v, x = rng.normal(size=(3, 4)), rng.normal(size=(5, 3))
    g = rng.normal(size=np.sum(v, axis=axes, keepdims=True).shape)
    for name, value in (("w_g", g), ("w_v", v)):
        scope.find_var(name).get_tensor().set(value)
    found, *slopes = exe.run(feed={"x": x}, fetch_list=[out, *(grad for _, grad in grads)])

    def formula(g, v):
        return x @ (g * v / np.sqrt(np.sum(v * v, axis=axes, keepdims=True)))

    np.testing.assert_allclose(found, formula(g, v), rtol=1e-12, atol=1e-12)
    for place, (slope, value) in enumerate(zip(slopes, (g, v), strict=True)):
        for at in np.ndindex(value.shape):
            moved = []
            for step in (1e-6, -1e-6):
                arrays = [g.copy(), v.copy()]
                arrays[place][at] += step
                moved.append(np.sum(weights * formula(*arrays)))
            assert slope[at] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-6, abs=1e-7)


def test_the_weight_begins_as_v_of_length_g():
    attr = static.WeightNormParamAttr(0, "w", nn.initializer.Constant(2.0))
    static.nn.fc(static.data("x", [None, 4]), 9, weight_attr=attr, bias_attr=False)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    g = np.array(static.global_scope().find_var("w_g").get_tensor())
    np.testing.assert_array_equal(g, np.full((4, 1), 6.0))


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(AttrError, match="dim 2 of WeightNormParamAttr is no axis of a weight of rank 2"):
        nn.Linear(3, 4, weight_attr=static.WeightNormParamAttr(2))
    assert static.default_main_program().all_parameters() == []
