"""Docstrings as they stand in the code, for mkdocstrings: lists of `name   meaning` become tables, the rest is text."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROW = re.compile(r"^(\S+(?: \S+)*?) {2,}(\S.*)$")  # a name, two blanks or more, its meaning


def markdown(text: str) -> str:
    """Markdown of a docstring."""
    return "\n\n".join(_part(part) for part in re.split(r"\n[ \t]*\n", text.strip("\n")))


def _part(part: str) -> str:
    lines = part.split("\n")
    if all(line.startswith("    ") for line in lines):
        return part  # code
    if not any(ROW.match(line) for line in lines):
        return _escaped(part)
    shown: list[str] = []
    in_table = False
    for line in lines:
        row = ROW.match(line)
        if row:
            shown += [] if in_table else ["", "| | |", "|---|---|"]
            shown.append(f"| `{_cell(row[1])}` | {_escaped(_cell(row[2]))} |")
        elif in_table and line.startswith("  "):  # what goes on below a row
            shown[-1] = f"{shown[-1].removesuffix(' |')} {_escaped(_cell(line.strip()))} |"
        else:
            shown += [*([""] if in_table else []), _escaped(line)]
        in_table = row is not None or (in_table and line.startswith("  "))
    return "\n".join(shown).strip("\n")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Text outside of backticks whose stars, underscores and angles are no markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<\[])", r"\\\1", p) for p in parts)


class Docstrings(Extension):
    """Rewrites each docstring when it is read."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
