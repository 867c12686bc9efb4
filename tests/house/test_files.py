"""Files of the repository are tidy: text that ends with a newline, no blanks at ends of lines, nothing large."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LARGEST = 512 * 1024  # bytes; results of a bench are the largest
BINARY = {".png", ".npz", ".npy", ".safetensors"}


def tracked() -> list[Path]:
    """The files that git knows; none outside of a checkout."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def faults(path: Path) -> list[str]:
    content = path.read_bytes()
    found = [f"{len(content)} bytes"] if len(content) > LARGEST else []
    if path.suffix in BINARY or not content:
        return found
    text = content.decode("utf-8")
    lines = text.split("\n")
    found += [f"line {i}: blanks at its end" for i, line in enumerate(lines, 1) if line != line.rstrip(" \t\r")]
    conflict = ("<" * 7 + " ", ">" * 7 + " ")
    found += [f"line {i}: a conflict's mark" for i, line in enumerate(lines, 1) if line.startswith(conflict)]
    if not text.endswith("\n"):
        found.append("no newline at its end")
    return found


def test_files_are_tidy():
    files = tracked()
    if not files:
        pytest.skip("not a checkout of git")
    assert {path.relative_to(ROOT).as_posix(): found for path in files if (found := faults(path))} == {}


@pytest.mark.parametrize("content", [b"a \n", b"a\r\n", b"a", b"<<<<<<< ours\n", b"a" * LARGEST + b"\n"])
def test_what_is_not_tidy_is_seen(content, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert faults(path)
    path.write_bytes(b"")
    assert not faults(path)
