"""The page of Paddle's names: `python docs/paddle_page.py` writes docs/paddle.md from the code.

Which names Paddle 2.6.2 has was recorded from it (tests/paddle/record_names.py), which of them are here is found by
looking, and why the others are not stands in minigraph/paddle_names/reasons.py.
"""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path

import minigraph  # noqa: F401  (says which modules have Paddle's names)
from minigraph.paddle_names import Entry, entries

PAGE = Path(__file__).with_name("paddle.md")
HEAD = """\
# Paddle's names

Which public names of Paddle 2.6.2 are here. A script in static mode changes one line, `import
minigraph as paddle`. A name that is not here raises one error that says what this page says.

This page is made from the code: `python docs/paddle_page.py`.
"""
CLASSES = "Methods and fields of"


def title(space: str) -> str:
    if not space:
        return "paddle"
    return f"{CLASSES} {space}" if space[0].isupper() else f"paddle.{space}"


def overview(spaces: dict[str, list[Entry]]) -> str:
    rows = [f"| {title(s)} | {sum(e.here for e in es)} | {len(es)} |" for s, es in spaces.items()]
    here, known = (sum(sum(f(e) for e in es) for es in spaces.values()) for f in (lambda e: e.here, lambda e: True))
    return "\n".join(["| namespace | here | in Paddle |", "|---|---|---|", *rows, f"| all | {here} | {known} |"])


def section(space: str, rows: list[Entry]) -> str:
    here = [f"`{e.name}`" for e in rows if e.here]
    parts = [f"## {title(space)}"]
    if here:
        parts.append(textwrap.fill(f"Yes: {', '.join(here)}.", 100, break_long_words=False, break_on_hyphens=False))
    missing = sorted((e for e in rows if not e.here), key=lambda e: (e.why, e.instead or "", e.name))
    if missing:
        table = ["| no | why | instead |", "|---|---|---|"]
        for (why, instead), group in groupby(missing, key=lambda e: (e.why, e.instead)):
            names = ", ".join(f"`{e.name}`" for e in group)
            table.append(f"| {names} | {why} | {instead or ''} |".replace("  |", " |"))
        parts.append("\n".join(table))
    return "\n\n".join(parts)


def page() -> str:
    spaces = {space: list(rows) for space, rows in groupby(entries(), key=lambda e: e.space)}
    ordered = dict(sorted(spaces.items(), key=lambda item: (item[0][:1].isupper(), item[0])))
    return "\n\n".join([HEAD + "\n" + overview(ordered), *(section(*item) for item in ordered.items())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
