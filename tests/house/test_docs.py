"""Pages: links lead somewhere, lines are short, flags and words are explained once."""

from __future__ import annotations

import html
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from minigraph import cuda
from minigraph.compiler.strategy import PASSES, RUN_FLAGS
from tests.support.pages import ROOT, pages

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
WIDEST = 100  # characters of prose; tables, code and links may be wider


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall(prose(page)) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_is_not_wide(page):
    wide = [line for line in prose(page).splitlines() if len(line) > WIDEST and not line.startswith("|")]
    assert wide == []


def test_files_of_figures_that_pages_name_are_there():
    named = {name for page in pages() for name in re.findall(r"`((?:\w+/)*\w+\.json)`", prose(page))}
    assert len(named) > 40
    tops = (ROOT, ROOT / "bench" / "results")
    assert [name for name in named if not any((top / name).exists() for top in tops)] == []


def test_the_changelog_says_each_thing_once():
    for version in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", version, re.MULTILINE)
        assert kinds == [kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed") if kind in kinds]
        changes = re.findall(r"^- .+$", version, re.MULTILINE)
        assert len(changes) == len(set(changes))


def test_readme_is_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_architecture_names_every_room_and_no_file_that_is_not_there():
    """On one screen."""
    text, package = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), ROOT / "minigraph"
    first = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    named = {word.rstrip("/").split("/")[0] for word in re.findall(r"`([^`]+)`", first)}
    rooms = {path.stem for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms <= named
    paths = re.findall(r"`((?:\w+/)+\w+\.\w+)`", text)
    assert len(paths) > 25
    tops = (ROOT, package, package / "kernels/cuda")
    assert [path for path in paths if not any((top / path).exists() for top in tops)] == []
    assert len(text.splitlines()) <= 80


def words_of_drawing(dot: str) -> Counter[str]:
    return Counter(word for label in re.findall(r'label="(.*?)"', dot) for word in label.split(r"\n"))


def words_of_picture(path: Path) -> Counter[str]:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"))
    return Counter(html.unescape(text) for text in texts)


@pytest.fixture
def script(monkeypatch):
    """A script of docs/ by its name, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cuda, "is_available", lambda: False)  # calls are listed for the same GPU everywhere
    return importlib.import_module


def test_pictures_are_those_of_the_script(script):
    """Their words, at least: Graphviz, which draws them, need not be here."""
    pictures = script("pictures")
    drawings = pictures.drawings()
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == drawings.keys()
    for name, dot in drawings.items():
        assert words_of_picture(pictures.FOLDER / f"{name}.svg") == words_of_drawing(dot), name


def test_every_rewrite_has_its_page_as_the_script_writes_it(script):
    """Make them with `python docs/flag_pages.py`. Each program shows its rewrite: something was applied."""
    flag_pages = script("flag_pages")
    module, names = flag_pages.programs(), {step.flag for step in PASSES}
    assert {path.stem for path in flag_pages.FOLDER.glob("*.md")} == names | RUN_FLAGS.keys() | {"README"}
    assert {path.stem.rpartition("_")[0] for path in flag_pages.PICTURES.glob("*.svg")} == names
    for row in PASSES:
        example = flag_pages.Example(row, module)
        assert example.compiled.reports[row.flag].applied, row.flag
        written = (flag_pages.FOLDER / f"{row.flag}.md").read_text(encoding="utf-8")
        assert written == flag_pages.page(example), row.flag
        for when, dot in example.drawings().items():
            assert words_of_picture(flag_pages.PICTURES / f"{row.flag}_{when}.svg") == words_of_drawing(dot), row.flag


@pytest.mark.parametrize("flag", RUN_FLAGS)
def test_every_flag_of_the_run_has_its_page_as_the_script_writes_it(script, flag):
    """Its two values print different texts."""
    flag_pages = script("flag_pages")
    text = flag_pages.page_of_the_run(flag, flag_pages.programs("of_the_run"))
    assert (flag_pages.FOLDER / f"{flag}.md").read_text(encoding="utf-8") == text
    printed = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(set(printed)) == len(printed) and ("Only a GPU" in text) == (not printed)


def test_every_page_is_in_the_list_of_pages():
    """Once: docs/README.md is the navigation of the site."""
    index = ROOT / "docs" / "README.md"
    named = [(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))]
    folders = {page.parent for page in named if page.name == "README.md" and page.parent.parent == index.parent}
    wanted = [page for page in pages() if page.parent not in folders or page.name == "README.md"]
    assert sorted(named) == sorted(set(wanted) - {index, ROOT / "README.md"})


def test_every_flag_has_a_row():
    """In the order of the table, which is the order of the passes."""
    text = (ROOT / "docs" / "rewrites.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(flags/(\w+)\.md\) ", text, re.MULTILINE)
    assert {row for row, page in rows if row == page} == {step.flag for step in PASSES} | RUN_FLAGS.keys()


def test_the_glossary_explains_each_word_once():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\* ", text, re.MULTILINE)
    assert 0 < len(words) <= 60
    assert len(set(words)) == len(words)
    assert words == sorted(words, key=str.lower)
