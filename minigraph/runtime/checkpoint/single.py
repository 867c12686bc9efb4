"""One file that stands for itself: it is the one before or the new one, whenever a crash comes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from minigraph.errors import require_path
from minigraph.errors.kinds import STORAGE

from . import storage
from .paths import LOCK, can_be_encoded, shown
from .tensors import read

PARTIAL = "partial_save"  # what a file is called until it is whole


def file_path(path: Any) -> str:
    """A path of a file; an error for what cannot be one."""
    require_path(path)
    name = os.fsdecode(os.fspath(path))
    if not os.path.basename(name) or "\0" in name or not can_be_encoded(name):
        raise STORAGE(f"{shown(name)!r} names no file")
    if storage.is_folder(name):
        raise STORAGE(f"{shown(name)} is a folder")
    return name


def write_file(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Put these bytes into the file at `path`, in place of what is there.

    Who holds its lock is the only one who writes it, so what a crash left of a save is always the same file, which the
    next one removes.
    """
    folder, fresh = os.path.dirname(path) or ".", f"{path}.{PARTIAL}"
    try:
        storage.make_folder(folder)
        with storage.locked(f"{path}.{LOCK}"):
            try:
                storage.remove(fresh)
                storage.write_new(fresh, parts)
                storage.rename(fresh, path)
            except BaseException:
                with suppress(OSError):
                    storage.remove(fresh)
                raise
            storage.sync_folder(folder)
    except OSError as problem:
        raise storage.problem_with("write", path, problem) from None


def read_file(path: str) -> bytes:
    """All bytes of a file."""
    try:
        descriptor = storage.open_file(path)
        try:
            return storage.read_whole(descriptor, storage.size_of(descriptor))
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise storage.problem_with("read", path, problem) from None


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file."""
    try:
        descriptor = storage.open_file(path)
        try:
            return read(path, descriptor, None)[0]
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise storage.problem_with("read", path, problem) from None
