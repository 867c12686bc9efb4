"""The site of the documentation: its order of pages, its reference, how docstrings are read. `make docs` builds it."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.support.pages import ROOT, pages

pytest.importorskip("mkdocs", reason="needs the docs extra")
pytest.importorskip("griffe", reason="needs the docs extra")


@pytest.fixture(scope="module")
def site():
    """The module of docs/site by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        yield importlib.import_module


def leaves(entry):
    """Paths in a navigation."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [path for one in inner for path in leaves(one)]


def test_every_page_is_in_the_navigation_once(site):
    hook = site("pages")
    found = leaves(hook.navigation())
    written = [path for path in found if not path.startswith("docs/api/")]
    assert sorted(written) == sorted(page.relative_to(ROOT).as_posix() for page in pages())
    assert sorted(set(found) - set(written)) == sorted(hook.reference())


def test_the_reference_has_every_public_name_once(site):
    text = "\n".join(site("pages").reference().values())
    told = re.findall(r"^::: (.+)$", text, re.MULTILINE)
    assert len(set(told)) == len(told) > 300
    names = {path.rpartition(".")[2] for path in told}
    assert {"Executor", "CompiledProgram", "BuildStrategy", "Linear", "gelu", "AdamW", "Profiler", "Rule"} <= names


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("Adds x_y and 2 * z.", "Adds x\\_y and 2 \\* z."),
        ("One.\n\n    a -> b\n", "One.\n\n    a -> b"),
        ("x  first\ny_z   second,\n     goes on", "| | |\n|---|---|\n| `x` | first |\n| `y_z` | second, goes on |"),
        ("`a_b` is\nx  first", "`a_b` is\n\n| | |\n|---|---|\n| `x` | first |"),
        ("x  one\ntext\ny  two", "| | |\n|---|---|\n| `x` | one |\n\ntext\n\n| | |\n|---|---|\n| `y` | two |"),
    ],
)  # fmt: skip
def test_docstrings_are_text_and_tables(site, docstring, markdown):
    assert site("docstrings").markdown(docstring) == markdown


def test_nothing_is_loaded_from_elsewhere():
    """No address stands in the configuration, and the theme is told to bring no fonts."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "://" not in text
    assert re.search(r"^  font: false", text, re.MULTILINE)
