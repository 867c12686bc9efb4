"""Files that a compilation writes where its BuildStrategy names a place: drawings, and the text after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from minigraph.errors.kinds import STORAGE
from minigraph.ir.dot import to_dot
from minigraph.passes.engine.history import History
from minigraph.program import Program
from minigraph.runtime.checkpoint.single import write_text


def write_dot(path: Path, before: Program, after: Program) -> None:
    """`<stem>_before.dot` and `<stem>_after.dot`; into the folder itself where the path is one."""
    folder, stem = (path, "graph") if path.suffix == "" or _is_folder(path) else (path.parent, path.stem)
    texts = {f"{stem}_before.dot": to_dot(before), f"{stem}_after.dot": to_dot(after, before)}
    _write("debug_graphviz_path", path, folder, texts)


def write_texts(folder: Path, history: History, flags: Sequence[str]) -> None:
    """`00_input.txt` and `01_<pass>.txt`, ...: the text of the program before the first pass and after each."""
    text, ends = history.at(0).to_string(with_details=True), history.ends()
    texts, step = {"00_input.txt": text}, 0
    for number, flag in enumerate(flags, 1):
        if ends.get(flag, 0) > step:
            step = ends[flag]
            text = history.at(step).to_string(with_details=True)
        texts[f"{number:02}_{flag}.txt"] = text
    _write("dump_dir", folder, folder, texts)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _write(flag: str, path: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """The files of one flag; `path` is its value."""
    try:
        for name, text in texts.items():
            write_text(folder / name, text)
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path, or what its encoding lacks
        why = getattr(problem, "strerror", None) or str(problem)
        raise STORAGE(
            f"{flag} {str(path)!r} cannot be written: {why}",
            hint="a folder, or a file in one, that can be written; '' writes none",
        ) from None
