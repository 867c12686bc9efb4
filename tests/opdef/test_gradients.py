"""`@op("X_grad", of=name)`: rule and samples follow from the signatures of both operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph.opdef import OPS, OpDef, op


@pytest.fixture
def pair(monkeypatch) -> tuple[OpDef, OpDef]:
    """weighted(Ids, X) with an attribute that its gradient does not have, and weighted_grad(Ids, Out, Out_grad)."""
    monkeypatch.setattr("minigraph.opdef.opdef.OPS", OPS | {})

    @op("Out")
    def weighted(Ids, X, *, factor: float = 1.0, note: str = ""):
        """Ids * X * factor"""
        return np.asarray(Ids * X * factor).astype(X.dtype)

    weighted.infer(lambda Ids, X, **_: X)

    @weighted.samples
    def _(rng):
        yield (np.array([1, 2]), np.array([1.0, -1.0])), {"factor": 2.0, "note": "n"}
        yield (np.array([1, 2]), np.array([1, 3])), {}

    @op("X_grad", of=weighted)
    def weighted_grad(Ids, X, Out, Out_grad, *, factor: float = 1.0):
        """Ids * Out_grad * factor"""
        return Ids * Out_grad * factor

    return weighted, weighted_grad


def test_the_rule_emits_the_operator_with_what_it_reads(pair):
    weighted, _ = pair
    seen: dict[str, Any] = {}

    class Emits:
        def emit(self, op_type: str, *inputs: Any, **attrs: Any) -> Any:
            seen.update(op_type=op_type, inputs=inputs, attrs=attrs)
            return "the gradient"

    assert weighted.grad_parameters == ("Ids", "X", "Out", "Out_grad")
    found = weighted.grad_function(Emits(), "ids", "x", "out", "slope", factor=3.0, note="n")
    assert found == (None, "the gradient")  # in the order of the inputs of `weighted`
    assert seen == {"op_type": "weighted_grad", "inputs": ("ids", "x", "out", "slope"), "attrs": {"factor": 3.0}}


def test_what_the_operator_does_not_have_is_seen_at_once(pair):
    weighted, _ = pair
    with pytest.raises(AssertionError, match="other_grad: Y, scale is nothing of weighted"):

        @op("X_grad", of=weighted)
        def other_grad(Y, Out_grad, *, scale: float = 1.0):
            """Y * Out_grad * scale"""
            return Y * Out_grad * scale


def test_its_samples_are_those_of_floats_with_what_is_computed_of_them(pair):
    _, grad = pair
    ((values, attrs),) = grad.samples_function(np.random.default_rng(0))
    ids, x, out, slope = values
    assert attrs == {"factor": 2.0} and out.tolist() == (ids * x * 2.0).tolist()
    assert slope.shape == out.shape and (abs(slope) >= 0.5).all()


def test_an_output_has_the_type_of_the_slot_whose_gradient_it_is(pair):
    _, grad = pair
    ids, x = mg.types.tensor_type((2,), np.int64), mg.types.tensor_type((2,), np.float64)
    types = grad.infer_types({"Ids": [ids], "X": [x], "Out": [x], "Out_grad": [x]}, {"factor": 1.0})
    assert types == {"X_grad": [x]}


def test_gradients_that_may_be_missing_may_be_missing():
    """Of layer_norm nobody need read Mean; Scale is an input that a call may lack."""
    assert OPS["layer_norm"].optional_grads == {"Mean_grad", "Variance_grad"}
    assert OPS["elementwise_add_grad"].optional_grads == {"X_grad_grad", "Y_grad_grad"}
