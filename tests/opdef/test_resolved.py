"""What a call of an operator resolves to is kept for the same types and values, and for no others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minigraph.errors import AttrError, ShapeError
from minigraph.opdef import get_op
from minigraph.types import broadcast_shapes, float32, tensor_type


def value(*shape: int) -> Any:
    return SimpleNamespace(type=tensor_type(shape, float32))


def attr_of(op_type: str, name: str, **given: Any) -> Any:
    return get_op(op_type).resolved({}, given)[0][name]


@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_a_zero_keeps_its_sign(order):
    for given in order:
        got = attr_of("fill_constant", "value", shape=(2,), value=given, dtype=float32)
        assert math.copysign(1, got) == math.copysign(1, given)


def test_equal_values_of_other_types_stay_what_they_are():
    kinds = [type(attr_of("fill_constant", "value", shape=(2,), value=v, dtype=float32)) for v in (1, 1.0, True)]
    assert kinds == [int, float, bool]
    with pytest.raises(AttrError):
        attr_of("fill_constant", "value", shape=(True,), value=1.0, dtype=float32)


def test_a_list_that_changes_is_read_again():
    shape, found = [2, 3], []
    for size in (3, 4):
        shape[1] = size
        bound, types = get_op("fill_constant").resolved({}, {"shape": shape, "value": 1.0, "dtype": np.dtype("f4")})
        found.append((bound["shape"], types["Out"][0].shape))
    assert found == [((2, 3), (2, 3)), ((2, 4), (2, 4))]


def test_attributes_belong_to_one_call():
    attrs = {"trans_x": False, "trans_y": True}
    first, _ = get_op("matmul").resolved({"X": [value(2, 3)], "Y": [value(4, 3)]}, attrs)
    first["trans_y"] = False
    again, types = get_op("matmul").resolved({"X": [value(2, 3)], "Y": [value(4, 3)]}, attrs)
    assert again["trans_y"] is True and types["Out"][0].shape == (2, 4)


def test_other_types_are_asked_anew_and_refusals_each_time():
    matmul, attrs = get_op("matmul"), {"trans_y": True}
    matmul.resolved({"X": [value(2, 3)], "Y": [value(4, 3)]}, attrs)
    assert matmul.resolved({"X": [value(2, 3)], "Y": [value(5, 3)]}, attrs)[1]["Out"][0].shape == (2, 5)
    for _ in range(2):
        with pytest.raises(ShapeError):
            matmul.resolved({"X": [value(2, 3)], "Y": [value(4, 5)]}, attrs)


def test_the_same_question_is_answered_without_asking(monkeypatch):
    matmul, asked = get_op("matmul"), []
    inferred = matmul.infer_types
    monkeypatch.setattr(matmul, "infer_types", lambda *given: asked.append(1) or inferred(*given))
    for _ in range(3):
        matmul.resolved({"X": [value(7, 3)], "Y": [value(11, 3)]}, {"trans_y": True})
    assert len(asked) == 1


def test_all_of_many_shapes_are_broadcast():
    """Without names there were two operands: a third was overlooked."""
    assert broadcast_shapes((1,), (1,), (5,)) == broadcast_shapes((1,), (), (1,), (5,)) == (5,)
    assert broadcast_shapes((2, 1), (1, 1), (1, 3), names=("A",)) == (2, 3)
    with pytest.raises(ShapeError, match="X has 2, operand 2 has 3"):
        broadcast_shapes((2,), (1,), (3,))


def test_which_values_are_read_depends_on_what_is_written():
    """Also where it was asked before for other outputs."""
    opdef = get_op("fused_gemm_epilogue_grad")
    asked = [["DX"], ["DY"], ["DX", "DY"], ["DBias"], ["DX"], ["DXSums", "DY"]]
    assert [set(opdef.unread(outputs)) for outputs in asked] == [{"X"}, {"Y"}, set(), {"X", "Y"}, {"X"}, set()]
