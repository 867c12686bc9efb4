"""How much memory of the host this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .cores import cgroup_folders, text_of

PAGE_CACHE = "inactive_file", "active_file"  # lines of memory.stat: what the kernel gives back when it is asked for


def available(root: Path = Path("/")) -> int | None:
    """Bytes that the machine and the cgroups of this process have left; None where nothing says it.

    root  where /proc and /sys lie
    Sources: /proc/meminfo, MemAvailable in KiB; cgroup v2, memory.max and memory.current; v1, memory.limit_in_bytes and
    memory.usage_in_bytes.
    """
    return min(_left(root), default=None)


def _left(root: Path) -> Iterator[int]:
    known = _table(text_of(root / "proc/meminfo").replace(":", " "))
    if "MemAvailable" in known:
        yield known["MemAvailable"] << 10
    for folder in cgroup_folders(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = (text_of(folder / name).strip() for name in (limit, used))
            if most.isdecimal() and now.isdecimal():
                stat = _table(text_of(folder / "memory.stat"))
                yield max(0, int(most) - int(now) + sum(stat.get(name, 0) for name in PAGE_CACHE))


def _table(text: str) -> dict[str, int]:
    """The number behind the first word of each line."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
