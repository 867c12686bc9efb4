"""Bytes to files and back. Every call of the system that a checkpoint makes stands here.

Nothing waits for a FIFO or a device: only regular files are read and written. A file is new, written
whole and forced to the disk; names change by renaming alone. Who writes holds the folder: each call
finds the last name of its path in that one, whatever is renamed or linked meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from minigraph.errors import ProgramError
from minigraph.errors.kinds import NESTED, STORAGE

from .paths import shown

PIECE = 64 << 20  # bytes of one call: an interrupt is seen between two

HELD_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # needs no right to list names

LOCK_TRIES = 10_000  # somebody else saves between two of them
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_locks: dict[Any, int] = {}  # (thread, device, number) of the lock files that threads hold or wait for -> descriptor


def problem_with(action: str, path: str, problem: OSError) -> ProgramError:
    """One sentence for what the system said."""
    return STORAGE(f"cannot {action} {shown(path)}: {problem.strerror or problem}")


@contextmanager
def held(folder: str) -> Iterator[int]:
    """A descriptor of a folder, which is made where there is none."""
    make_folder(folder)
    descriptor = os.open(folder, HELD_FLAGS)
    try:
        yield descriptor
    finally:
        close(descriptor)


def open_file(path: str, folder: int | None = None) -> int:
    """A descriptor of a regular file; an OSError for what is none. Without a held folder the path is followed."""
    name = path if folder is None else os.path.basename(path)
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def close(descriptor: int) -> None:
    """Close a file that was only read: all that was wanted of it is here, whatever the system says now."""
    with suppress(OSError):
        os.close(descriptor)


def size_of(descriptor: int) -> int:
    """Bytes of an open file."""
    return os.fstat(descriptor).st_size


def read_at(descriptor: int, at: int, into: memoryview) -> None:
    """Fill `into` with the bytes of an open file from `at` on."""
    while into:
        count = os.preadv(descriptor, [into[:PIECE]], at)
        if not count:
            raise OSError(errno.EIO, f"it ended at byte {at}, while it was read")
        at, into = at + count, into[count:]


def read_whole(descriptor: int, limit: int) -> bytes:
    """All bytes of an open file, which must not be more than `limit`."""
    size = size_of(descriptor)
    if size > limit:
        raise OSError(errno.EFBIG, f"{size} bytes are more than the {limit} that such a file may have")
    content = bytearray(size)
    read_at(descriptor, 0, memoryview(content))
    return bytes(content)


def write_new(path: str, parts: Iterable[bytes | memoryview], folder: int) -> None:
    """A new file with these bytes, on the disk when this returns."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(os.path.basename(path), flags, 0o666, dir_fd=folder)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                written = os.write(descriptor, rest[:PIECE])
                if not written:
                    raise OSError(errno.EIO, "nothing was written")
                rest = rest[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(old: str, new: str, folder: int) -> None:
    """Give a file another name, in place of what has that one.

    A disk of the network may have done it and say that it failed: the first answer was lost, and it was asked again.
    """
    old, new = os.path.basename(old), os.path.basename(new)
    file = os.lstat(old, dir_fd=folder)
    try:
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        if exists(old, folder) or not _is_at(new, folder, file):
            raise


def remove(path: str, folder: int) -> None:
    """Remove a file; nothing to do where there is none."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.basename(path), dir_fd=folder)


def is_folder(path: str, folder: int | None = None) -> bool:
    """Whether a folder has this name, which no file can then get."""
    try:
        return stat.S_ISDIR(os.lstat(path if folder is None else os.path.basename(path), dir_fd=folder).st_mode)
    except OSError:
        return False


def refuse_device(path: str, folder: int) -> None:
    """An OSError for a device: a user who may would replace /dev/null."""
    with suppress(FileNotFoundError):
        mode = os.lstat(os.path.basename(path), dir_fd=folder).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device")


def exists(path: str, folder: int) -> bool:
    try:
        os.lstat(os.path.basename(path), dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def names_in(folder: int) -> list[str]:
    """What stands in a folder."""
    descriptor = _opened(folder)
    try:
        return sorted(os.listdir(descriptor))
    finally:
        close(descriptor)


def make_folder(folder: str) -> None:
    """A folder and those around it; they are on the disk with the first file that is synced in them."""
    made = []
    while folder and not os.path.isdir(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    for new in reversed(made):
        os.makedirs(new, exist_ok=True)
        parent = os.open(os.path.dirname(new) or ".", HELD_FLAGS)
        try:
            sync_folder(parent)
        finally:
            close(parent)


def _opened(folder: int) -> int:
    """A held folder as one that can be read."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Force the names in a folder to the disk, where its file system knows how; one of the network may not."""
    descriptor = _opened(folder)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
    finally:
        close(descriptor)


@contextmanager
def locked(path: str, folder: int) -> Iterator[None]:
    """Whoever holds the lock at `path` is alone, among threads and processes; others wait.

    The file is there while somebody holds the lock; one that a crash left is taken over. An interrupt at any instant
    leaves no lock behind. Errors: ProgramError where this thread has the lock, around the signal handler that asks.
    """
    for _ in range(LOCK_TRIES):
        descriptor = os.open(os.path.basename(path), LOCK_FLAGS, 0o666, dir_fd=folder)
        mine, alone = None, False
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            found = (threading.get_ident(), *_identity(descriptor))
            if found in _locks:
                raise NESTED(
                    f"this thread is in the middle of another save that holds {shown(path)}",
                    hint="a signal handler sets a flag, which the training looks at between two runs",
                )
            mine = found
            _locks[mine] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            alone = _is_at(path, folder, os.fstat(descriptor))
            if alone:
                yield
                return
        finally:  # a call that an interrupt follows was made: each one here has the next in a `finally` of its own
            try:
                if alone and not size_of(descriptor):  # what holds bytes is a file of somebody else
                    remove(path, folder)
            except OSError:
                pass  # whoever comes next takes it over
            finally:
                try:
                    with suppress(OSError):  # closing it frees it, too; what was done under it is done
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
                finally:
                    _locks.pop(mine, None)
                    with suppress(OSError):
                        os.close(descriptor)
    raise OSError(errno.ENOENT, "it is gone each time that it was made")


def _forget_locks() -> None:
    """A child that was forked meanwhile: were a lock open here, too, it would outlive the process that has it."""
    for lock, descriptor in list(_locks.items()):
        if lock[0] != threading.get_ident():
            del _locks[lock]
            os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _is_at(path: str, folder: int, file: os.stat_result) -> bool:
    """Whether this file has that name."""
    try:
        return os.path.samestat(os.lstat(os.path.basename(path), dir_fd=folder), file)
    except FileNotFoundError:
        return False


def lives(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
