"""Values of variables and of the scope that scripts set by hand; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import AttrError, DTypeError, MinigraphError, ProgramError, ShapeError
from minigraph.program import unique_name


def test_a_variable_without_a_value_says_what_to_do():
    w, x = static.create_parameter([2]), static.data("x", [2])
    with pytest.raises(ProgramError, match="run the startup program first"):
        w.get_value()
    with pytest.raises(ProgramError, match="only persistables are kept"):
        x.set_value(np.zeros(2))


def test_a_value_must_fit():
    v = static.create_global_var([2], 1, "float32", persistable=True)
    static.Executor().run(static.default_startup_program())
    with pytest.raises(ShapeError, match="not"):
        v.set_value(np.zeros(3))
    with pytest.raises(DTypeError, match="cannot hold"):
        v.set_value(np.array([1j, 2]))
    assert np.array(v.get_value()).tolist() == [1, 1]


def test_a_value_of_another_scope():
    v, scope = static.create_global_var([2], 1, "float32", persistable=True), static.Scope()
    static.Executor().run(static.default_startup_program(), scope=scope)
    v.set_value([2, 3], scope)
    assert np.array(v.get_value(scope)).tolist() == [2, 3]
    assert static.global_scope().find_var(v.name) is None


def test_a_global_variable_that_does_not_persist_is_filled_in_each_run():
    v = static.create_global_var([2], 3, "int64")
    assert static.Executor().run(fetch_list=[v + 1])[0].tolist() == [4, 4]


def test_a_global_variable_leaves_nothing_behind_where_it_is_refused():
    main, startup = static.default_main_program(), static.default_startup_program()
    static.create_global_var([2], 1, "float32", persistable=True, name="v")
    for shape, name in (([2], "v"), ([-1], "w")):
        with pytest.raises(MinigraphError):
            static.create_global_var(shape, 1, "float32", persistable=True, name=name)
    assert (len(main.vars), len(startup.vars), len(startup.ops)) == (1, 1, 1)


def test_variables_of_a_scope_that_have_no_value_yet():
    scope = static.Scope()
    tensor = scope.var("x").get_tensor()
    assert tensor.shape() == []
    with pytest.raises(ProgramError, match="not in the scope"):
        np.array(tensor)
    tensor.set([[1.0, 2.0]], mg.CPUPlace())
    assert tensor.shape() == [1, 2]
    with pytest.raises(ProgramError, match="name must be a str"):
        scope.var("")


def test_switch_gives_names_back():
    names = unique_name.generate("a"), unique_name.switch()
    assert (names[0], unique_name.generate("a")) == ("a_0", "a_0")
    unique_name.switch(names[1])
    assert unique_name.generate("a") == "a_1"
    with pytest.raises(ProgramError, match="takes what switch returned"):
        unique_name.switch("prefix")


@pytest.mark.parametrize("device", ["tpu", "gpu:", "gpu:x", "cpu:0", 3, None])
def test_devices_that_are_none(device):
    with pytest.raises(AttrError, match="device must be 'cpu', 'gpu' or"):
        mg.set_device(device)


@pytest.mark.skipif(mg.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(MinigraphError):
        mg.set_device("gpu")
    assert mg.get_device() == "cpu"


def test_readers_ahead_of_others_stop_with_them():
    asked = []

    def reader():
        for i in range(100):
            asked.append(i)
            yield i

    ahead = mg.reader.buffered(reader, 2)()
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()  # pyright: ignore
    assert len(asked) < 10

    def failing():
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(mg.reader.buffered(failing, 4)())
    with pytest.raises(ZeroDivisionError):
        list(mg.reader.xmap_readers(lambda i: 1 // i, lambda: iter([1, 0]), 2, 2)())
    with pytest.raises(AttrError, match="buf_size must be an int > 0"):
        mg.reader.shuffle(reader, 0)


def test_what_a_user_hangs_on_variables_is_on_their_copies():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x, w = static.data("x", [2]), static.create_parameter([2], "float32", name="w")
        y = x * w
    for v in (x, w, y):
        v.remark = [v.name]
    w.optimize_attr = {"learning_rate": 0.5}
    strategy = static.BuildStrategy(dead_code_elimination=True)
    copy, compiled = main.clone(), static.CompiledProgram(main, strategy).program_for((y.name,))
    for program in (copy, compiled):
        for v in (x, w, y):
            own = program.vars[v.name]
            assert type(own) is type(v) and own.remark is v.remark and own.block is program.global_block()
        own = program.vars["w"]
        own.optimize_attr["learning_rate"] = 0.25  # that of the copy alone
        assert w.optimize_attr["learning_rate"] == 0.5 and own.regularizer is None and own.need_clip
    copy.vars["x"].remark = copy.vars["w"].other = "changed"
    assert x.remark == ["x"] and not hasattr(w, "other")
