"""Values of a state_dict, and scopes, as Paddle's scripts use them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, MinigraphError, ProgramError


def test_set_writes_to_the_scope_it_came_from():
    w = mg.create_parameter([2], "float32", default_initializer=mg.nn.initializer.Constant(1.0))
    scope, exe = static.Scope(), static.Executor()
    exe.run(static.default_startup_program(), scope=scope)
    exe.run(static.default_startup_program())
    value = static.default_main_program().state_dict(scope=scope)[w.name]
    value[0] = 7  # a copy
    assert np.array(scope.find_var(w.name).get_tensor()).tolist() == [1, 1]
    value.set([3, 4], mg.CPUPlace())
    assert value.tolist() == np.array(scope.find_var(w.name).get_tensor()).tolist() == [3, 4]
    assert np.array(w.get_value()).tolist() == [1, 1]
    with pytest.raises(MinigraphError, match="shape"):
        value.set([1, 2, 3])
    for other in (value * 2, pickle.loads(pickle.dumps(value))):
        with pytest.raises(ProgramError, match="stands in no scope"):
            other.set([1, 2])


def test_a_scope_has_no_scopes_inside():
    with pytest.raises(AttrError, match=r"Scope.new_scope: a Scope has no scopes inside"):
        static.Scope().new_scope()
