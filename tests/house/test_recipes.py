"""The recipes in docs/ work as they stand: their blocks are pasted into a copy of the repository, their commands run.

A block says where it goes: its first line is `# new file: path` or `# at the end of: path`, or it is a diff. A python
block that says nothing is run, and so is each line of a `sh` block.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks

RECIPES = ("docs/add_an_operator.md", "docs/add_a_fusion.md")
COPIED = ("bench", "docs", "minigraph", "tests", "README.md", "pyproject.toml")
PLACE = re.compile(r"# (new file|at the end of): (\S+)\n")


@pytest.fixture
def copy(tmp_path):
    """The repository without what a recipe does not need, with the bytecode of what a recipe does not change."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def paste(root: Path, language: str, code: str) -> bool:
    """Put a block where it says; False where it says nothing."""
    if language == "diff":
        apply_diff(root, code)
        return True
    if (place := PLACE.match(code)) is None:
        return False
    how, path, text = place[1], root / place[2], code[place.end() :]
    assert path.exists() == (how == "at the end of"), f"{how}: {place[2]}"
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    return True


def apply_diff(root: Path, diff: str) -> None:
    """Replace each hunk's old lines by its new ones; the old ones stand in the file once."""
    path = root
    for hunk in re.split(r"^@@\n|(?=^--- )", diff, flags=re.MULTILINE):
        if hunk.startswith("--- "):
            head, _, hunk = hunk.partition("\n")
            path = root / head.removeprefix("--- ")
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
        if not old:
            continue
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"these lines stand {text.count(old)} times in {path.relative_to(root)}:\n{old}"
        path.write_text(text.replace(old, new), encoding="utf-8")


def run(root: Path, *command: str) -> str:
    """What a command prints in `root`, where it finds the copy and this Python's programs."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    result = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root), "PATH": path}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("page", RECIPES)
def test_recipe_works_as_it_stands(page, copy):
    for block in blocks(page):
        if block.language == "sh":
            for line in block.code.splitlines():
                printed = run(copy, *shlex.split(line))
                assert "pytest" not in line or re.search(r"\d+ passed", printed), printed
        elif not paste(copy, block.language, block.code):
            run(copy, sys.executable, "-c", block.code)


def test_a_stale_recipe_is_seen(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(AssertionError, match=r"stand 0 times in a\.py"):
        apply_diff(tmp_path, "--- a.py\n-x = 2\n+x = 3\n")
    with pytest.raises(AssertionError, match=r"at the end of: b\.py"):
        paste(tmp_path, "python", "# at the end of: b.py\ny = 1\n")
    apply_diff(tmp_path, "--- a.py\n+w = 0\n x = 1\n@@\n-x = 1\n+x = 2\n")
    assert (tmp_path / "a.py").read_text() == "w = 0\nx = 2\n"
