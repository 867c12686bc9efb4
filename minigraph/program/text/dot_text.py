"""Text inside drawings in Graphviz' DOT language."""

from __future__ import annotations


def quoted(*lines: str) -> str:
    """A DOT string; nothing in a name can end it or be read as an escape."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
