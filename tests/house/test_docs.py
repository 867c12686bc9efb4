"""Pages: links lead somewhere, lines are short, flags and words are explained once."""

from __future__ import annotations

import html
import importlib.util
import re
from collections import Counter

import pytest

from minigraph.compiler.strategy import PASSES, RUN_FLAGS
from tests.support.pages import ROOT, pages

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
WIDEST = 100  # characters of prose; tables, code and links may be wider


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_is_not_wide(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith("|")]
    assert wide == []


def test_readme_is_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_pictures_are_those_of_the_script():
    """Their words, at least: Graphviz, which draws them, need not be here."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawings = script.drawings()
    assert {path.stem for path in script.FOLDER.glob("*.svg")} == drawings.keys()
    for name, dot in drawings.items():
        labels = Counter(word for label in re.findall(r'label="(.*?)"', dot) for word in label.split(r"\n"))
        svg = (script.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert Counter(html.unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg)) == labels, name


def test_every_flag_has_a_row():
    """In the order of the table, which is the order of the passes."""
    text = (ROOT / "docs" / "rewrites.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` ", text, re.MULTILINE)
    flags = [step.flag for step in PASSES]
    assert {row for row in rows if row in flags} == set(flags)
    assert RUN_FLAGS.keys() <= set(rows)


def test_the_glossary_explains_each_word_once():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* ", text, re.MULTILINE)
    assert 0 < len(words) <= 60
    assert len(set(words)) == len(words)
    assert words == sorted(words, key=str.lower)
