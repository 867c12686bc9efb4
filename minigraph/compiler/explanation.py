"""The text of explain(), which a notebook shows folded: one part for each pass that did or refused something."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.program.text.html import folded, text


class Explanation(str):
    """A str that notebooks show by its parts."""

    __slots__ = ()

    def parts(self) -> Iterable[tuple[str, list[str]]]:
        """(line of a pass or flag, the lines under it)"""
        found: list[tuple[str, list[str]]] = []
        for line in self.split("\n"):
            if line.startswith("  ") and found:
                found[-1][1].append(line)
            else:
                found.append((line, []))
        return found

    def _repr_html_(self) -> str:
        others = "\n".join(title for title, lines in self.parts() if not lines)
        parts = "".join(folded(title, text("\n".join(lines))) for title, lines in self.parts() if lines)
        return parts + (folded("passes and flags without a rewrite", text(others)) if others.strip() else "")
