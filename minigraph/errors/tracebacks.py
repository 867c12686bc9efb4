"""Tracebacks of errors that nobody catches end at the user's line; `MINIGRAPH_TRACEBACK=full` shows all frames.

An error keeps its whole traceback: debuggers, pytest, logs and whoever catches it see every frame. Only while Python,
a thread or IPython shows an error of ours, frames of the package are taken out of a copy, whichever hook shows it.
Errors that are not ours, also as causes of ours, are shown as ever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from . import MinigraphError, is_ours

HOW_TO_SEE_ALL = "(MINIGRAPH_TRACEBACK=full shows the {} calls inside minigraph, too)"


def install() -> None:
    """Show errors of ours short from now on, by the hooks that are there."""
    shows, shows_in_thread, ipython = sys.excepthook, threading.excepthook, sys.modules.get("IPython")

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with shortened(error):
            shows(kind, error, trace and error.__traceback__)

    def thread_hook(args: Any) -> None:
        with shortened(args.exc_value):
            shows_in_thread(threading.ExceptHookArgs([*args[:2], args[2] and args.exc_value.__traceback__, args[3]]))

    def notebook_hook(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> None:
        with shortened(error):
            shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

    sys.excepthook, threading.excepthook = hook, thread_hook
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.set_custom_exc((MinigraphError,), notebook_hook)


@contextmanager
def shortened(error: BaseException | None) -> Iterator[None]:
    """Inside the block errors of ours, `error` or what led to it, have no frames of ours, and a note says so."""
    whole = []
    for e in _chain(error):
        frames = list(_frames(e.__traceback__))
        kept = [t for t in frames if not is_ours(t.tb_frame)]
        if isinstance(e, MinigraphError) and 0 < len(kept) < len(frames):
            whole.append((e, e.__traceback__))
            e.__traceback__ = _joined(kept)
            e.add_note(HOW_TO_SEE_ALL.format(len(frames) - len(kept)))
    try:
        yield
    finally:
        for e, trace in whole:
            e.__traceback__ = trace
            e.__notes__.pop()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _joined(frames: list[TracebackType]) -> TracebackType | None:
    """A copy of these frames as one traceback."""
    joined = None
    for t in reversed(frames):
        joined = TracebackType(joined, t.tb_frame, t.tb_lasti, t.tb_lineno)
    return joined
