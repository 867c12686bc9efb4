"""The file of a report: its data, its scripts and its libraries in one page that needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from minigraph.errors import require_path
from minigraph.errors.kinds import STORAGE
from minigraph.runtime.checkpoint.single import write_text

FOLDER = Path(__file__).parent
PLACE = re.compile(r"\{\{\w+\}\}")
SCRIPTS = (
    "bundle/cytoscape.min.js", "bundle/cytoscape-dagre.min.js", "model.js", "graph.js", "details.js", "memory.js",
    "timeline.js", "app.js",
)  # fmt: skip


def page(facts: Mapping[str, Any]) -> str:
    """The HTML of a report. No name of a user is markup in it: they stand in JSON, in which `<` is escaped."""
    text = _file("page.html")
    parts = {
        "{{title}}": escape(f"minigraph: {facts['name']}"),
        "{{style}}": _file("page.css"),
        "{{facts}}": _json(facts),
        "{{scripts}}": "\n".join(f"<script>{_file(name)}</script>" for name in SCRIPTS),
    }
    return PLACE.sub(lambda place: parts[place.group()], text)


def _json(facts: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def write(path: str | Path, facts: Mapping[str, Any]) -> Path:
    """Write the page and return its path; a ProgramError where that fails."""
    require_path(path)
    path = Path(path)
    try:
        write_text(path, page(facts))
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        raise STORAGE(f"{str(path)!r} cannot be written: {why}", hint="give a file in a folder that can") from None
    return path
