"""What is shown of errors that nobody catches, and that nothing is lost for those who do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import MinigraphError, tracebacks
from minigraph.errors.tracebacks import shortened
from tests.support.pages import ROOT

SCRIPT = """
import minigraph as mg

def model(x):
    return mg.matmul(x, x)

model(mg.static.data("x", [2, 3]))
"""
NOTE = "(MINIGRAPH_TRACEBACK=full shows the"


def wrong():
    with mg.static.program_guard(mg.static.Program()):
        return mg.matmul(mg.static.data("x", [2, 3]), mg.static.data("y", [2, 3]))


def caught(function=wrong) -> BaseException:
    with pytest.raises(Exception) as info:  # noqa: PT011  any one
        function()
    return info.value


def files(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def has_ours(error: BaseException | None) -> bool:
    return any("/minigraph/" in name for name in files(error))


@pytest.mark.parametrize("word", ["short", "full", "long"])
def test_a_script_ends_with_the_users_line(word, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINIGRAPH_TRACEBACK": word}
    run = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    if word == "long":
        said = "MINIGRAPH_TRACEBACK must be short or full, is 'long'"
        assert said in run.stderr
        return
    frames, _, message = run.stderr.partition("minigraph.errors.ShapeError: [MG-SHAPE-005] matmul(")
    assert message
    assert frames.startswith("Traceback (most recent call last):\n")
    assert ("/minigraph/" in frames) == (word == "full") == (NOTE not in message)
    assert word == "full" or "return mg.matmul(x, x)" in frames.splitlines()[-2]


def test_an_error_has_its_text_where_the_working_directory_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert f"called at {__file__}:" in str(caught()) or f"built at {__file__}:" in str(caught())


def test_the_error_has_all_frames_before_and_after():
    error = caught()
    whole, message = error.__traceback__, str(error)
    with shortened(error):
        assert not has_ours(error)
        assert files(error)[-1] == __file__
        assert NOTE in "".join(traceback.format_exception(error))
        assert str(error) == message
    assert error.__traceback__ is whole
    assert has_ours(error)
    assert NOTE not in "".join(traceback.format_exception(error))


def test_notes_of_the_user_stay():
    error = caught()
    error.add_note("batch 7")
    with shortened(error):
        assert error.__notes__[0] == "batch 7"
        assert NOTE in error.__notes__[1]
    assert error.__notes__ == ["batch 7"]


def test_causes_are_shortened_where_they_are_ours():
    def chained():
        try:
            wrong()
        except MinigraphError as problem:
            raise ValueError("mine") from problem

    error = caught(chained)
    with shortened(error):
        assert not has_ours(error.__cause__)
        text = "".join(traceback.format_exception(error))
        assert "The above exception was the direct cause" in text
    assert has_ours(error.__cause__)


def test_other_errors_are_left_alone():
    def run():
        main = mg.static.Program()
        with mg.static.program_guard(main):
            x = mg.static.data("x", [2])
            y = main.current_block().create_var(name="y", shape=[2], dtype="float32")
            mg.static.py_func(lambda a: 1 / 0, x, y)
        mg.static.Executor().run(main, {"x": np.ones(2, "f4")}, [y])

    error = caught(run)
    assert type(error) is ZeroDivisionError
    with shortened(error):
        assert has_ours(error)
    assert not hasattr(error, "__notes__")


def test_the_users_function_inside_ours_is_shown():
    """It stands between frames that are left out."""

    def body():
        return wrong()

    with mg.static.program_guard(mg.static.Program()):
        flag = mg.static.data("flag", [1], "bool")
        error = caught(lambda: mg.static.nn.cond(flag, body, body))
    with shortened(error):
        shown = [f.name for f in traceback.extract_tb(error.__traceback__)]
        assert not has_ours(error)
    assert shown[-2:] == ["body", "wrong"]


def test_an_error_that_only_ours_saw_keeps_its_frames():
    error = caught()
    while error.__traceback__ is not None and "/minigraph/" not in error.__traceback__.tb_frame.f_code.co_filename:
        error.__traceback__ = error.__traceback__.tb_next
    with shortened(error):
        assert has_ours(error)


def test_errors_that_cause_each_other_come_to_an_end():
    one, other = caught(), caught()
    one.__cause__, other.__cause__ = other, one
    with shortened(one):
        assert not has_ours(one)
        assert not has_ours(other)
    one.__cause__ = other.__cause__ = None


class Shell:
    """As much of IPython's shell as is asked."""

    def __init__(self) -> None:
        self.shown: list[bool] = []

    def set_custom_exc(self, kinds, handler):
        self.kinds, self.handler = kinds, handler

    def showtraceback(self, exc_tuple, tb_offset):
        self.shown.append(any("/minigraph/" in f.filename for f in traceback.extract_tb(exc_tuple[2])))


def test_hooks_of_others_show_the_short_one(monkeypatch):
    """Those that were there before: of Python, of a thread, of a notebook."""
    seen, shell = [], Shell()
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append((error, has_ours(error), trace)))
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append((args, has_ours(args.exc_value), None)))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    tracebacks.install()
    error = caught()
    sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=wrong, name="loader")
    thread.start()
    thread.join()
    (first, short, trace), (args, in_thread, _) = seen
    assert first is error
    assert not short
    assert not in_thread
    assert trace is not error.__traceback__
    assert args.thread is thread
    shell.handler(shell, type(error), error, error.__traceback__, tb_offset=1)
    assert shell.kinds == (MinigraphError,)
    assert shell.shown == [False]
    assert has_ours(error)
