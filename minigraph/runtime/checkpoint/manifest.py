"""Manifest: what belongs to one state. Whoever reads it knows all files, or refuses.

    {"minigraph_checkpoint": 1, "sha256": ..., "state": {
        "minigraph": version of the writer,
        "token": the mark of the save, in names of files and in their metadata,
        "files": {"pdparams": {"size": bytes, "head": {"size", "sha256"},
                               "tensors": {name: {"sha256", "dtype", "shape"}}}, ...},
        "training": see training.py}}

`sha256` is that of `state` as `_canonical` writes it, so that a flipped digit of a step does not pass.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minigraph.errors import ProgramError
from minigraph.errors.kinds import DAMAGED, NEWER
from minigraph.runtime.version import VERSION

from .paths import KINDS, TOKEN, shown

SCHEMA = 1
SCHEMA_KEY = "minigraph_checkpoint"
LIMIT = 256 << 20  # bytes of a manifest, about a million tensors
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass
class Manifest:
    """One state: the token of its save, a record of each file by kind, and the state of the training."""

    token: str
    files: dict[str, dict[str, Any]]
    training: dict[str, Any] = field(default_factory=dict)
    writer: str = VERSION

    def dumped(self) -> bytes:
        state = {"minigraph": self.writer, "token": self.token, "files": self.files, "training": self.training}
        return _canonical({SCHEMA_KEY: SCHEMA, "sha256": _hash(state), "state": state})


def parsed(path: str, content: bytes) -> Manifest:
    """The manifest in a file at `path`; refused unless it is one, whole and as it was written."""
    try:
        document = json.loads(content, object_pairs_hook=_without_twins)
        _require(isinstance(document, dict) and SCHEMA_KEY in document, "it is none of minigraph's")
        schema = document[SCHEMA_KEY]
        _require(_is_size(schema), "its schema is no number")
        if schema > SCHEMA:
            raise NEWER(
                f"{shown(path)} has schema {schema}, this minigraph {VERSION} reads {SCHEMA}",
                hint="read it with a newer minigraph",
            )
        _require(schema == SCHEMA, f"there is no schema {schema}")
        _require(document.keys() == {SCHEMA_KEY, "sha256", "state"}, "its parts are others")
        state = document["state"]
        _require(document["sha256"] == _hash(state), "its hash is not that of its content")
        _check(state)
    except ProgramError:
        raise
    except (ValueError, RecursionError, _WrongError) as problem:
        raise _refusal(path, str(problem)) from None
    return Manifest(state["token"], state["files"], state["training"], state["minigraph"])


def _refusal(path: str, why: str) -> ProgramError:
    hint = "take it from a backup; without it the files are read unchecked, and training begins anew"
    return DAMAGED(f"{shown(path)} is no manifest of a checkpoint: {why}", hint=hint)


class _WrongError(Exception):
    """What is wrong with a manifest."""


def _require(condition: bool, fact: str) -> None:
    if not condition:
        raise _WrongError(fact)


def _check(state: Any) -> None:
    fits = isinstance(state, dict) and state.keys() == {"minigraph", "token", "files", "training"}
    _require(fits, "its state has other parts")
    _require(isinstance(state["minigraph"], str), "its version is no text")
    _require(isinstance(state["token"], str) and bool(TOKEN.fullmatch(state["token"])), "its token is none")
    _require(isinstance(state["training"], dict), "its state of the training is none")
    files = state["files"]
    _require(isinstance(files, dict) and files.keys() <= set(KINDS), "it names other files")
    for kind, record in files.items():
        wrong = f"its record of {kind} is none"
        head = record.get("head") if isinstance(record, dict) else None
        _require(isinstance(head, dict) and _is_size(head.get("size")) and _is_hash(head.get("sha256")), wrong)
        _require(_is_size(record.get("size")) and isinstance(record.get("tensors"), dict), wrong)
        for tensor in record["tensors"].values():
            _require(isinstance(tensor, dict) and tensor.keys() == {"sha256", "dtype", "shape"}, wrong)
            _require(_is_hash(tensor["sha256"]), wrong)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(SHA256.fullmatch(value))


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _hash(state: Any) -> str:
    return hashlib.sha256(_canonical(state)).hexdigest()


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    _require(len(fields) == len(pairs), "a name stands twice in it")
    return fields
