"""How many threads this process may use: the one place that reads the environment for it.

The least of: cores that the scheduler allows the thread that asks, the CPU quota of the cgroup, OMP_NUM_THREADS,
NUMBA_NUM_THREADS, and what `set_num_threads` was given. Quota and variables are read once in each process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from minigraph.errors import AttrError, require

VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
_limit: list[int] = []


def cores() -> int:
    """The number of threads that compute at the same time for the one that asks, one at least."""
    return min(_allowed_cores(), _available(), *_limit)


def set_num_threads(n: int) -> None:
    """Let programs on a CPU use at most `n` threads from now on, as numba.set_num_threads does.

    More than the process may use are not used. Results have the same bits whatever n is. `n` that is no int of 1 or
    more raises AttrError.
    """
    fits = isinstance(n, int) and not isinstance(n, bool) and n >= 1
    require(fits, f"set_num_threads takes an int of 1 or more, not {n!r}", AttrError)
    _limit[:] = [n]


def get_num_threads() -> int:
    """How many threads programs on a CPU use at most."""
    return cores()


@cache
def _available() -> int:
    """What variables and quota leave to this process."""
    quota = cpu_quota()
    limits = [os.cpu_count() or 1, *_of_environment()]
    if quota is not None:
        limits.append(int(quota))  # one thread more would make all of them wait for the next period
    return max(1, min(limits))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_available.cache_clear)  # workers set variables of their own


def allowed() -> set[int]:
    """The cores that the scheduler allows this thread; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _allowed_cores() -> int:
    return len(allowed()) or os.cpu_count() or 1


def core_of_this_thread() -> int | None:
    """The core on which this thread runs; None where the system does not say."""
    ask = _sched_getcpu()
    here = -1 if ask is None else ask()
    return None if here < 0 else here


@cache
def _sched_getcpu() -> Callable[[], int] | None:
    """sched_getcpu(3) of the C library: reading /proc takes ten times as long."""
    try:
        return ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):  # not Linux
        return None


@cache
def physical_cores(root: Path = Path("/")) -> int:
    """Cores for threads that do no arithmetic in parallel loops, as a compiler's: two on one core are slower each.

    What the scheduler and the cgroup allow; variables limit loops only.
    """
    quota, numbers = cpu_quota(root), os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    files = [root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list" for number in numbers]
    count = len({text_of(file) or str(file) for file in files}) or os.cpu_count() or 1
    return max(1, min(count, int(quota))) if quota is not None else count


def _of_environment() -> Iterator[int]:
    """What the variables say; "4,2" means 4 on the outer level, and what is no number is ignored."""
    for name in VARIABLES:
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdecimal() and int(text) > 0:
            yield int(text)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the cgroups of this process have, the least of all levels; None without a limit.

    root  where /proc and /sys lie
    Sources: cgroup v2, cpu.max: "quota period" or "max period"; v1, cpu.cfs_quota_us (-1: none) and cpu.cfs_period_us.
    """
    quotas = [quota for folder in cgroup_folders(root, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the cgroups of this process that may limit its "cpu" time or its "memory", and of those around them.

    In a container /proc/self/cgroup may name folders of the host; then the mount itself is the process's own.
    """
    mounts, text = root / "sys/fs/cgroup", text_of(root / "proc/self/cgroup")
    for line in text.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        own = path.strip("/")
        if not controllers:
            tops = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            tops = [mounts / controllers, mounts / controller]
        else:
            continue
        for top in tops:
            parts = own.split("/") if own else []
            yield from (top.joinpath(*parts[:n]) for n in range(len(parts) + 1) if ".." not in parts)


def _quota(folder: Path) -> float | None:
    """The limit that one folder sets."""
    words = text_of(folder / "cpu.max").split() or [
        text_of(folder / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period")
    ]
    with suppress(ValueError, ZeroDivisionError):
        quota, period = map(int, words)
        return quota / period if quota > 0 else None
    return None


def text_of(path: Path) -> str:
    """What a file says; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
