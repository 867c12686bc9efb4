"""The pages that a user reads, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class CodeBlock(NamedTuple):
    """A fenced block of a page.

    line   of the page, on which its code begins
    marks  words behind the language: `gpu` where it needs a GPU, `skip` where it is not run, `raises` where it fails
    """

    line: int
    language: str
    marks: tuple[str, ...]
    code: str


def pages() -> list[Path]:
    """README and whatever else is written for readers."""
    folders = (ROOT, ROOT / "docs", ROOT / "docs" / "decisions", ROOT / "docs" / "flags", ROOT / "bench")
    return sorted(page for folder in folders for page in folder.glob("*.md"))


def blocks(page: str | Path) -> list[CodeBlock]:
    """The blocks of a page with a language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        CodeBlock(text.count("\n", 0, found.start()) + 2, found[1], tuple(found[2].split()), found[3])
        for found in BLOCK.finditer(text)
    ]
