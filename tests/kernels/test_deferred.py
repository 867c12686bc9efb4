"""Ctrl-C that waits for the end of what it would leave broken."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from minigraph.kernels.interrupts import deferred


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A process that a shell starts in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_at_the_end_of_the_block() -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def interrupted() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == ["block"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_user_is_told_once() -> None:
    told = list[Any]()
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert told == []
        assert told == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with deferred():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)

    def inside() -> Any:
        with deferred():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() is before


FIRST_IMPORT = """
import builtins, signal, sys
import numpy as np
import minigraph as mg
from minigraph import static
whole, came = builtins.__import__, []

def interrupted(name, *how):
    if name == "numba.core.typing.templates" and not came:
        came.append(name)
        signal.raise_signal(signal.SIGINT)
    return whole(name, *how)

x = static.data("x", [1, 300])
mg.optimizer.AdamW(0.1).minimize(mg.mean(static.nn.fc(x, 300)))
exe, feed = static.Executor(), {"x": np.ones([1, 300], "float32")}
exe.run(static.default_startup_program())
builtins.__import__ = interrupted
try:
    exe.run(feed=feed)
except KeyboardInterrupt:
    print("interrupted", len(came))
exe.run(static.default_startup_program())
exe.run(feed=feed)
print("minigraph.kernels.cpu.compiled" in sys.modules)
"""


def test_an_interrupt_in_numbas_first_import_leaves_it_whole() -> None:
    pytest.importorskip("numba")
    done = subprocess.run([sys.executable, "-c", FIRST_IMPORT], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("interrupted 1\nTrue\n", 0), done.stderr
