"""Values of a state_dict, and scopes, as Paddle's scripts use them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, DTypeError, KernelError, MinigraphError, ProgramError


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


@pytest.mark.parametrize("value", [np.zeros(2, "V2"), np.zeros(2, "complex64"), ["a", "b"], [None, 1]])
@pytest.mark.parametrize("there", [False, True])
def test_set_takes_numbers_of_known_types(value, there):
    scope = static.Scope()
    if there:
        scope.write("w", np.ones(2, "float32"))
    with pytest.raises(DTypeError, match=r"w is .*(no data type|no array|cannot hold)"):
        scope.var("w").get_tensor().set(value)
    assert scope.has("w") == there and (not there or scope.read("w").tolist() == [1, 1])


@pytest.mark.parametrize("value", ["text", object(), {"a": 1}, np.zeros(2, "u4"), np.zeros(2, "complex64"), None])
def test_a_scope_keeps_numbers_of_known_types(value: Any):
    scope = static.Scope()
    scope.write("w", np.ones(2, "float32"))
    with pytest.raises(DTypeError, match=r"value of w is an array of .*, no data type"):
        scope.write("w", value)
    assert scope.read("w").tolist() == [1, 1]


def test_no_room_for_a_copy_or_a_feed_is_a_clear_error(monkeypatch):
    w = mg.create_parameter([2], "float32", name="w")
    loss = mg.sum(w * static.data("x", [2]))
    main, scope, exe = static.default_main_program(), static.Scope(), static.Executor()
    exe.run(static.default_startup_program(), scope=scope)

    def full(*_):
        raise MemoryError("Unable to allocate 8 bytes")

    with monkeypatch.context() as patched:
        patched.setattr("minigraph.program.scope.as_numpy", full)
        for call in (lambda: main.state_dict(scope=scope), lambda: scope.write("w", np.zeros(2))):
            with pytest.raises(KernelError, match=r"no room for a copy of w \(Unable to allocate 8 bytes\)"):
                call()
    with monkeypatch.context() as patched:
        patched.setattr("minigraph.runtime.feeds.as_numpy", full)
        with pytest.raises(KernelError, match=r"Executor.run: out of memory: no room for a run"):
            exe.run(main, {"x": [1, 2]}, [loss], scope=scope)
    assert exe.run(main, {"x": np.zeros(2, "float32")}, [loss], scope=scope)[0] == 0


def test_no_room_for_a_tensor_of_a_file_is_a_clear_error(monkeypatch, tmp_path):
    mg.save({"w": np.zeros((2, 3))}, tmp_path / "w")

    def full(*_):
        raise MemoryError

    monkeypatch.setattr("minigraph.runtime.checkpoint.tensors.np.empty", full)
    with pytest.raises(KernelError, match="load: out of memory: no room for w\n"):
        mg.load(tmp_path / "w")


def test_a_path_that_the_system_cannot_have_is_refused(tmp_path):
    path = f"{tmp_path}/a\ud800b"
    for call in (lambda: mg.save({"a": np.ones(2)}, path), lambda: mg.load(path)):
        with pytest.raises(ProgramError, match="names no file"):
            call()


def test_a_scope_has_no_scopes_inside():
    with pytest.raises(AttrError, match=r"Scope.new_scope: a Scope has no scopes inside"):
        static.Scope().new_scope()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int32", np.array([2**40, 1])), ("int8", np.array([200, 1], "uint8")), ("int8", np.array([-129, 1])),
        ("uint8", [300, 1]), ("int64", np.array([2**63, 1], "uint64")),
    ],
)  # fmt: skip
def test_integers_that_do_not_fit_are_not_wrapped_around(dtype: str, values: Any):
    scope = static.Scope()
    scope.write("count", np.array([5, 6], dtype))
    tensor = scope.var("count").get_tensor()
    with pytest.raises(MinigraphError, match=r"cannot hold these values|no data type"):
        tensor.set(values)
    assert np.array(tensor).tolist() == [5, 6]
    tensor.set(np.array([7, 8], "int8" if dtype != "uint8" else dtype))
    assert np.array(tensor).tolist() == [7, 8]
