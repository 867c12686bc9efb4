"""What a wheel and an sdist will hold, counted without building them; one source of the version."""

from __future__ import annotations

import ast
import tomllib

import minigraph
from tests.support.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "minigraph"


def files_of_the_package() -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package():
    """Python files of packages that setuptools finds, and what package-data names, py.typed and CUDA sources too."""
    setuptools = PROJECT["tool"]["setuptools"]
    assert setuptools["packages"]["find"]["include"] == ["minigraph*"]
    patterns = setuptools["package-data"]["minigraph"]
    python = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    data = {path.relative_to(PACKAGE).as_posix() for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert files_of_the_package() - python - data == set()
    assert {name for name in data if name.endswith(".cu")} and "py.typed" in data
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        packages = [folder, *folder.parents][: len(folder.relative_to(ROOT).parts)]
        assert all((package / "__init__.py").exists() for package in packages), folder


def test_the_sdist_holds_whatever_is_not_the_package():
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    named = {word for line in manifest.splitlines() for word in line.split()[1:]}
    pages = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
    for name in ("bench", "docs", "examples", "tests", "Makefile", *pages):
        assert name in named and (ROOT / name).exists()


def test_the_version_is_written_once():
    """pyproject.toml reads it from the package without importing it, so it is a literal there."""
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "minigraph.runtime.version.VERSION"}
    source = ast.parse((PACKAGE / "runtime" / "version.py").read_text(encoding="utf-8"))
    values = [n.value for n in source.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "VERSION"]
    assert [ast.literal_eval(value) for value in values] == [minigraph.__version__]
