"""What functions of tensors do not take: one error that says why, when the program is built or when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError
from tests.tensor.test_tensor_api import evaluate

X = np.arange(6.0).reshape(2, 3)
I = np.array([[0, 1, -1], [2, 0, 1]])  # noqa: E741

REFUSED: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    ("an integer is divided by 0", lambda x, y: x // y, (I, I)),
    ("an integer is divided by 0", lambda x, y: x % y, (I, I)),
    ("only integers and truth values have bits", lambda x, y: mg.bitwise_and(x, y), (X, X)),
    ("two bools or two ints", lambda x, y: x & y, (X, X)),
    ("two bools or two ints", lambda x, y: x & (y > 0), (I, I)),
    ("not an integer", lambda x: mg.bitwise_not(x), (X,)),
    ("neighbours are known of float32 and float64", lambda x: mg.nextafter(mg.cast(x, "float16"), 1.0), (X,)),
    ("neighbours are known of float32 and float64", lambda x, i: mg.nextafter(i, i), (X, I)),
    ("not an integer", lambda x, y: mg.gcd(x, y), (X, X)),
    ("coordinate of axis 1 3 is out of range [-3, 3)", lambda x: mg.gather_nd(x, mg.assign([[0, 3]])), (X,)),
    ("Index holds 3 coordinates, X has rank 2", lambda x: mg.gather_nd(x, mg.assign([[0, 0, 0]])), (X,)),
    ("out of range [-3, 3)", lambda x: mg.take_along_axis(x, mg.assign([[3]]), 1), (X,)),
    ("out of range [-2, 2)", lambda x: mg.scatter(x, mg.assign([2]), x[:1]), (X,)),
    ("index asks for the shape [1, 3]", lambda x: mg.scatter(x, mg.assign([1]), x), (X,)),
    ("'assign' and 'add' are", lambda x: mg.put_along_axis(x, mg.assign([[0]]), 1.0, 1, reduce="mul"), (X,)),
    ("none of raise, wrap, clip", lambda x: mg.take(x, mg.assign([0]), mode="no"), (X,)),
    ("repeats takes ints", lambda x: mg.repeat_interleave(x, x[:, 0], 0), (X,)),
    ("cannot be cut into 2 equal pieces", lambda x: mg.chunk(x, 2, axis=1), (X,)),
    ("a piece of 2 from 2 on lies outside of 3", lambda x: mg.crop(x, [2, 2], [0, 2]), (X,)),
    ("num is 3", lambda x: mg.unstack(x, 0, 3), (X,)),
    ("1 shifts for 2 axes", lambda x: mg.roll(x, 1, [0, 1]), (X,)),
    ("must have ranks (3, 3)", lambda x: mg.bmm(x, x), (X,)),
    ("x must be a float", lambda x: mg.var(x), (I,)),
    ("a norm takes a number or 'fro'", lambda x: mg.norm(x, "nuc"), (X,)),
    ("x must have one element", lambda x: mg.increment(x), (X,)),
    ("there is no int in [3, 3)", lambda x: mg.randint(3, 3), (X,)),
    ("more than 2^32 ints", lambda x: mg.randint(0, 2**40), (X,)),
    ("probabilities are floats", lambda x: mg.bernoulli(x), (I,)),
    ("num must be an int > 0", lambda x: mg.linspace(0, 1, 0), (X,)),
    ("must be a vector or a matrix", lambda x: mg.diag(x.unsqueeze(0)), (X,)),
    ("k 4 is not in [1, 3]", lambda x: mg.topk(x, 4), (X,)),
    ("q must lie in [0, 1]", lambda x: mg.quantile(x, 2), (X,)),
    ("without replacement", lambda x: mg.multinomial(x, 4), (X,)),
    ("cast one of them", lambda x, i: mg.searchsorted(x[0], i), (X, I)),
    ("n must lie in [0, 20]", lambda x: mg.polygamma(x, -1), (X,)),
]


@pytest.mark.parametrize(("fact", "build", "arrays"), REFUSED, ids=[f"{i}: {r[0]}" for i, r in enumerate(REFUSED)])
def test_refused(fact, build, arrays):
    with pytest.raises(MinigraphError) as caught:
        evaluate(build, *arrays)
    assert fact in str(caught.value)
