"""The words of the text form of a Program, for who writes it (dump.py) and who reads it (ir/text.py, ir/tokens.py)."""

from __future__ import annotations

import json
import re

from minigraph.program.operator import ROLES

MARKS = ":=,(){}[]#"
PLAIN_NAME = re.compile(rf"[^\s\"';{re.escape(MARKS)}]+")
DECLARATIONS = {"data": True, "param": False, "state": True, "var": False}  # kind of variable -> frozen where unsaid
PARAMETER_FACTS = {"learning_rate": 1.0, "need_clip": True}  # of a parameter alone, where unsaid
KEYWORDS = frozenset({
    "program", "seed", *DECLARATIONS, "frozen", "live", "persistable", *ROLES, "for", "of", "in", "number", "fetch",
    "block", "end",
})  # fmt: skip
VALUES = {"true": True, "false": False, "null": None}


def quote(name: str) -> str:
    """A name as it is, or as a JSON string where it holds a character that the grammar uses."""
    if PLAIN_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return json.dumps(name, ensure_ascii=False)
