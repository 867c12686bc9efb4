"""Short HTML for notebooks: text, tables and folded parts. All text is escaped here, so that no name is markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

LINES, ROWS = 2000, 500  # of one part; the rest is counted


def text(content: str) -> str:
    """Lines as they are, in a box that scrolls."""
    lines = content.split("\n")
    more = f"\n... {len(lines) - LINES} more lines" if len(lines) > LINES else ""
    shown = escape("\n".join(lines[:LINES]) + more)
    return f'<pre style="max-height: 30em; overflow: auto; line-height: 1.3; margin: .3em 0">{shown}</pre>'


def folded(title: str, content: str, is_open: bool = False) -> str:
    """A part under its title; `content` is HTML, the title is text."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(title)}</summary>{content}</details>"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text under their headers."""
    given = list(rows)
    head = "".join(f"<th>{escape(h)}</th>" for h in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in given[:ROWS])
    more = f"<p>{len(given) - ROWS} more rows</p>" if len(given) > ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
