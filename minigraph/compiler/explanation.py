"""The text of explain(), which a notebook shows folded: one part for each pass that did or refused something."""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.program import Program
from minigraph.program.text.html import folded, text
from minigraph.runtime.parallel.traffic import Traffic


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


def rank_lines(sent: Traffic | None, whole: Iterable[str]) -> list[str]:
    """What ranks send each other, and which updates they do not share."""
    lines = [f"{'ranks':<32} {sent.line()}", *sent.lines()] if sent is not None else []
    return [*lines, *(f"  - {remark}" for remark in whole)]


def kernel_remarks(program: Program) -> list[str]:
    """Where kernels of a GPU differ from what the operators ask for."""
    if not program.notes:
        return []
    lines = [f"  - {op.type} {op.output_arg_names[0]}   {remark}    {op.site or ''}" for op, remark in program.notes]
    return [f"{'kernels on the GPU':<30} {len(program.notes)} remarks", *lines]
