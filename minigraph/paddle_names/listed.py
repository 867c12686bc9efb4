"""The public names of Paddle 2.6.2, by namespace; tests/paddle/record_names.py recorded them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

VERSION = "2.6.2"
PAGE = Path(__file__).with_name("paddle_2_6_2.json")


@cache
def listed() -> dict[str, frozenset[str]]:
    """{namespace: its names}; "" is paddle itself, words with a capital are classes. Read when first asked for."""
    rows = json.loads(PAGE.read_text(encoding="utf-8"))["names"]
    return {space: frozenset(names.split()) for space, names in rows.items()}
