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
    ("not an integer", lambda x, y: mg.gcd(x, y), (X, X)),
    ("coordinate of axis 1 3 is out of range [-3, 3)", lambda x: mg.gather_nd(x, mg.assign([[0, 3]])), (X,)),
    ("Index holds 3 coordinates, X has rank 2", lambda x: mg.gather_nd(x, mg.assign([[0, 0, 0]])), (X,)),
    ("out of range [-3, 3)", lambda x: mg.take_along_axis(x, mg.assign([[3]]), 1), (X,)),
    ("out of range [-2, 2)", lambda x: mg.scatter(x, mg.assign([2]), x[:1]), (X,)),
    ("index asks for the shape [1, 3]", lambda x: mg.scatter(x, mg.assign([1]), x), (X,)),
    ("'assign' and 'add' are", lambda x: mg.put_along_axis(x, mg.assign([[0]]), 1.0, 1, reduce="mul"), (X,)),
    ("none of raise, wrap, clip", lambda x: mg.take(x, mg.assign([0]), mode="no"), (X,)),
    ("known only at run time", lambda x: mg.repeat_interleave(x, mg.assign([1, 2]), 0), (X,)),
    ("n must lie in [0, 20]", lambda x: mg.polygamma(x, -1), (X,)),
]


@pytest.mark.parametrize(("fact", "build", "arrays"), REFUSED, ids=[f"{i}: {r[0]}" for i, r in enumerate(REFUSED)])
def test_refused(fact, build, arrays):
    with pytest.raises(MinigraphError) as caught:
        evaluate(build, *arrays)
    assert fact in str(caught.value)
