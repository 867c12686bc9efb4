"""Adam of some rows, and Adam whose betas are variables: what they compute, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError

IDS = np.array([[0, 1], [1, 1], [3, 0]])


def table_after(optimizer, sparse=True, dense_reader=False):
    """A table of ones after three steps with loss = sum of squares of the rows that are named."""
    ids = static.data("ids", [2], "int64")
    table = mg.create_parameter([4, 2], "float64", default_initializer=mg.nn.initializer.Constant(1.0))
    rows = mg.nn.functional.embedding(ids, table, sparse=sparse)
    loss = mg.sum(rows * rows) + (mg.sum(table) if dense_reader else 0.0)
    optimizer.minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    for fed in IDS:
        exe.run(feed={"ids": fed}, fetch_list=[loss])
    return np.array(table.get_value())


def adam(named_only):
    """The same in NumPy."""
    p, m, v = np.ones((4, 2)), np.zeros((4, 2)), np.zeros((4, 2))
    for step, fed in enumerate(IDS, 1):
        grad = np.zeros_like(p)
        np.add.at(grad, fed, 2 * p[fed])
        at = np.unique(fed) if named_only else slice(None)
        m[at] = 0.9 * m[at] + 0.1 * grad[at]
        v[at] = 0.99 * v[at] + 0.01 * grad[at] ** 2
        p[at] -= 0.1 * (m[at] / (1 - 0.9**step)) / (np.sqrt(v[at] / (1 - 0.99**step)) + 1e-8)
    return p


def test_lazy_mode_leaves_rows_alone_that_no_id_names():
    found = table_after(mg.optimizer.Adam(0.1, beta2=0.99, lazy_mode=True))
    np.testing.assert_allclose(found, adam(named_only=True), rtol=1e-10)
    assert (found[2] == 1).all() and abs(found - adam(named_only=False)).max() > 1e-3


@pytest.mark.parametrize("given", [{"sparse": False}, {"dense_reader": True}])
def test_tables_that_others_read_are_updated_whole(given):
    found = table_after(mg.optimizer.Adam(0.1, beta2=0.99, lazy_mode=True), **given)
    if "sparse" in given:
        np.testing.assert_allclose(found, adam(named_only=False), rtol=1e-10)
    else:
        assert (found[2] < 1).all()


def test_layers_say_that_they_are_sparse():
    layer = mg.nn.Embedding(4, 2, sparse=True)
    layer(static.data("ids", [2], "int64"))
    assert layer.weight.sparse and not mg.nn.Embedding(4, 2).weight.sparse


def test_lazy_mode_with_merged_gradients_is_refused():
    merged = mg.incubate.optimizer.GradientMergeOptimizer(mg.optimizer.Adam(0.1, lazy_mode=True), 2)
    with pytest.raises(AttrError, match="lazy_mode of a sparse table goes with float32 and float64"):
        table_after(merged)


def test_betas_that_are_variables_are_refused_with_amsgrad():
    beta = mg.full([1], 0.9)
    with pytest.raises(AttrError, match="betas that are variables go with float32 and float64, without amsgrad"):
        table_after(mg.optimizer.Adam(0.1, beta1=beta, amsgrad=True))
    with pytest.raises(AttrError, match="beta1 must be a number or a float variable of one element"):
        mg.optimizer.Adam(0.1, beta1=mg.full([2], 0.9))
