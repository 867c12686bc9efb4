"""Reader: the files of the current state, and the arrays in them.

A save may go on meanwhile. The files are opened first; where the manifest is still the same after
that, they are those that it names, since no save writes into a file that has a name already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigraph.errors.kinds import DAMAGED, STORAGE

from . import storage
from .manifest import LIMIT, Manifest, parsed
from .paths import MANIFEST, OPT, PARAMS, fresh, plain, shown
from .tensors import HOW_TO_GO_ON, read

TRIES = 100  # a save would have to end within each


class Checkpoint:
    """The current state at a path: `read(kind)` gives the arrays of a file.

    manifest  None for files of former versions, which have none
    verify    whether files must be those that the manifest names
    """

    def __init__(self, path: str, manifest: Manifest | None, files: Mapping[str, int], verify: bool) -> None:
        self.path, self.manifest, self.verify = path, manifest, verify
        self._files, self._marks = files, dict[str, Any]()

    @property
    def training(self) -> dict[str, Any]:
        """The state of the training, empty where none was kept."""
        return self.manifest.training if self.manifest is not None else {}

    def has(self, kind: str) -> bool:
        return kind in self._files if self.manifest is None else kind in self.manifest.files

    def read(self, kind: str) -> dict[str, np.ndarray]:
        """The arrays of a file of this kind, by name; all files that are read must come from one save."""
        path = plain(self.path, kind)
        if kind not in self._files:
            raise DAMAGED(f"cannot read {shown(path)}: the state that was saved has none")
        record = self.manifest.files.get(kind) if self.manifest is not None and self.verify else None
        try:
            arrays, self._marks[path] = read(path, self._files[kind], record)
        except OSError as problem:
            raise storage.problem_with("read", path, problem) from None
        if self.verify and len(set(self._marks.values())) > 1:
            names = " and ".join(map(shown, self._marks))
            raise DAMAGED(f"{names} come from different saves", hint=HOW_TO_GO_ON)
        return arrays


@contextmanager
def opened(path: str, kinds: Sequence[str] = (PARAMS, OPT), verify: bool = True) -> Iterator[Checkpoint]:
    """The current state at a path; a file of `kinds` that it should have and has not is refused."""
    manifest, files = _found(path, kinds)
    try:
        yield Checkpoint(path, manifest, files, verify)
    finally:
        for descriptor in files.values():
            storage.close(descriptor)


def _found(path: str, kinds: Sequence[str]) -> tuple[Manifest | None, dict[str, int]]:
    for _ in range(TRIES):
        manifest = _manifest(path)
        files: dict[str, int] = {}
        kept = False
        try:
            missing = _open_all(path, kinds, manifest, files)
            kept = _token(_manifest(path)) == _token(manifest)
            if kept and missing is not None:
                raise missing
        except BaseException:
            kept = False
            raise
        finally:
            if not kept:
                for descriptor in files.values():
                    storage.close(descriptor)
        if kept:
            return manifest, files
    raise STORAGE(f"cannot read {shown(path)}: others save there all the time")


def _token(manifest: Manifest | None) -> str | None:
    return None if manifest is None else manifest.token


def _open_all(path: str, kinds: Sequence[str], manifest: Manifest | None, files: dict[str, int]) -> Any:
    """Open the files into `files`; the error for one that is not there."""
    for kind in kinds:
        if manifest is not None and kind not in manifest.files:
            continue
        try:
            files[kind] = _open(path, kind, manifest)
        except OSError as problem:
            if kind != OPT or manifest is not None or not isinstance(problem, FileNotFoundError):
                return storage.problem_with("read", plain(path, kind), problem)
    return None


def _open(path: str, kind: str, manifest: Manifest | None) -> int:
    if manifest is not None:
        try:
            return storage.open_file(fresh(path, kind, manifest.token))
        except FileNotFoundError:
            pass  # its save has ended
    return storage.open_file(plain(path, kind))


def _manifest(path: str) -> Manifest | None:
    """The manifest at a path, None where there is none."""
    at = plain(path, MANIFEST)
    try:
        descriptor = storage.open_file(at)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise storage.problem_with("read", at, problem) from None
    try:
        return parsed(at, storage.read_whole(descriptor, LIMIT))
    except OSError as problem:
        raise storage.problem_with("read", at, problem) from None
    finally:
        storage.close(descriptor)
