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
    first = next((i for i, line in enumerate(lines) if ROW.match(line)), len(lines))
    if not any(ROW.match(line) for line in lines) or not all(_fits(line) for line in lines[first:]):
        return _escaped(part) if all(not line.startswith("  ") for line in lines) else f"```text\n{part}\n```"
    rows: list[list[str]] = []
    for line in lines[first:]:
        if row := ROW.match(line):
            rows.append([row[1], row[2]])
        else:
            rows[-1][1] += f" {line.strip()}"
    table = ["| | |", "|---|---|", *(f"| `{_cell(name)}` | {_escaped(_cell(meaning))} |" for name, meaning in rows)]
    return "\n".join([*map(_escaped, lines[:first]), *([""] if first else []), *table])


def _fits(line: str) -> bool:
    """A row, or what goes on below one."""
    return ROW.match(line) is not None or line.startswith("  ")


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
