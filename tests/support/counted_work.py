"""How much work something is: lines of the package that Python runs, the same on an idle and on a busy machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import minigraph

PACKAGE = str(Path(minigraph.__file__).parent)


def lines(work: Callable[[], Any], most: float = math.inf) -> int:
    """Lines of minigraph that `work` runs; each turn of a loop or comprehension counts its own.

    More than `most` are an error, also where `work` raises one. What happens inside one call of a built-in, as the
    search of a list, is one line here.
    """
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
        assert count <= most, f"{count} lines of minigraph have run, at most {most} should"
    return count


def check_proportion(few: int, many: int, factor: float, room: float = 1.3) -> None:
    """`many` is at most `factor` times `few`, with some room; quadratic work is `factor` times worse."""
    assert few > 0
    assert many <= room * factor * few, f"{few} lines, and {many} lines for {factor:g} times as much"
