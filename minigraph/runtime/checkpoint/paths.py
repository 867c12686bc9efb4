"""What the files of a checkpoint are called.

    mlp.manifest                      names the state that holds
    mlp.pdparams                      a file of it
    mlp.pdparams.5f0c9a7be1d24368     the same, until the save that wrote it has ended; the token is new in each save
    mlp.lock                          there while somebody saves
"""

from __future__ import annotations

import os
import re
from typing import Any

from minigraph.errors import require_path
from minigraph.errors.kinds import STORAGE

PARAMS, OPT, MODEL = "pdparams", "pdopt", "pdmodel"
KINDS = (PARAMS, OPT, MODEL)
MANIFEST, LOCK = "manifest", "lock"
TOKEN = re.compile("[0-9a-f]{16}")


def plain(path: str, kind: str) -> str:
    """The file of a kind under its lasting name."""
    return f"{path}.{kind}"


def fresh(path: str, kind: str, token: str) -> str:
    """The same under the name that it has until the save has ended."""
    return f"{path}.{kind}.{token}"


def token_of(path: str, name: str) -> str | None:
    """The token in the name of a file in the folder of `path`; None of names that no save gives."""
    kind, _, token = name.removeprefix(os.path.basename(path) + ".").partition(".")
    ours = name.startswith(os.path.basename(path) + ".") and kind in (*KINDS, MANIFEST)
    return token if ours and TOKEN.fullmatch(token) else None


def former_saver(path: str, name: str) -> int | None:
    """The process that wrote `mlp.pdparams.4711.partial`, as minigraph called files before there were manifests."""
    kinds = "|".join(KINDS)
    match = re.fullmatch(rf"{re.escape(os.path.basename(path))}\.(?:{kinds})\.([0-9]{{1,9}})\.partial", name)
    return int(match[1]) if match else None


def text_of(path: Any, name: str = "path") -> str:
    """A path, which the caller knows as `name`, as a text; an error for what is none."""
    require_path(path, name)
    return os.fsdecode(os.fspath(path))


def checked_path(model_path: Any) -> str:
    """The path without a file's ending."""
    path = text_of(model_path, "model_path")
    for kind in KINDS:
        path = path.removesuffix(f".{kind}")
    if not os.path.basename(path) or "\0" in path or not can_be_encoded(path):
        raise STORAGE(f"{model_path!r} names no file")
    return path


def can_be_encoded(path: str) -> bool:
    """Whether the system can have a file of this name."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def shown(path: str) -> str:
    """A path in a message; what cannot be printed is escaped."""
    return path.encode("utf-8", "backslashreplace").decode()
