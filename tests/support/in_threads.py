"""Calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

PATIENCE = 120  # seconds until a thread counts as one that does not end


def in_threads(call: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """What `call` gives for each argument, all at once; the first error of a thread is raised here."""
    given = list(arguments)
    found, problems = [None] * len(given), []

    def run(place: int) -> None:
        try:
            found[place] = call(given[place])
        except BaseException as problem:  # a thread's own is shown to nobody
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread does not end"
    if problems:
        raise problems[0]
    return found
