"""How much memory of the host this process may still take."""

from __future__ import annotations

from pathlib import Path

from .cores import cgroup_folders, text_of

PAGE_CACHE = "inactive_file", "active_file"  # lines of memory.stat: what the kernel gives back when it is asked for


def available(root: Path = Path("/")) -> int | None:
    """Bytes that the machine and the cgroups of this process have left; None where nothing says it.

    root  where /proc and /sys lie
    Sources: /proc/meminfo, MemAvailable in KiB; cgroup v2, memory.max and memory.current; v1, memory.limit_in_bytes and
    memory.usage_in_bytes.
    """
    known = _table(text_of(root / "proc/meminfo").replace(":", " "))
    least = known["MemAvailable"] << 10 if "MemAvailable" in known else None
    for folder in cgroup_folders(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = (text_of(folder / name).strip() for name in (limit, used))
            if not most.isdecimal() or not now.isdecimal():
                continue
            room = int(most) - int(now)
            if least is None or room < least:  # memory.stat takes milliseconds, and only adds to the room
                stat = _table(text_of(folder / "memory.stat"))
                room = max(0, room + sum(stat.get(name, 0) for name in PAGE_CACHE))
                least = room if least is None else min(least, room)
    return least


def _table(text: str) -> dict[str, int]:
    """The number behind the first word of each line."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
