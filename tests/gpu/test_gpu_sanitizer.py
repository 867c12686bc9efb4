"""A tool of compute-sanitizer is called clean only if every check ran, passed, and nothing was reported."""

from __future__ import annotations

import json
import sys

import pytest

from tests.gpu import sanitizer as gpu_sanitizer
from tests.gpu.check import Check

NAMES = [f"check {i}" for i in range(5)]
TOOL = """#!{python}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
rc = subprocess.call(sys.argv[sys.argv.index("--log-file") + 2:])
open(log, "w").write("========= {summary}\\n")
sys.exit(rc)
"""
INNER = """
import json, sys
sys.path[:0] = {path!r}
import time
from tests.gpu import sanitizer as gpu_sanitizer
from tests.gpu.check import Check
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--claims") + 1])
for c in gpu_sanitizer.claimed([Check(n, lambda: None) for n in {names!r}], folder, time.time() + {seconds}):
    print(gpu_sanitizer.RESULT + json.dumps(dict(name=c.name, error={error!r}, seconds=0.0)))
{last}
"""


def judged(monkeypatch, tmp_path, parts, summary="ERROR SUMMARY: 0 errors", error=None, seconds=60, last=""):
    tool = tmp_path / "tool"
    tool.write_text(TOOL.format(python=sys.executable, summary=summary))
    tool.chmod(0o755)
    monkeypatch.setattr(gpu_sanitizer.shutil, "which", lambda _: str(tool))
    monkeypatch.setitem(gpu_sanitizer.TOOLS, "memcheck", parts)
    script = INNER.format(path=sys.path, names=NAMES, error=error, seconds=seconds, last=last)
    begun = gpu_sanitizer.begin("memcheck", tmp_path, tmp_path, [sys.executable, "-c", script], 60)
    return gpu_sanitizer.joined([gpu_sanitizer.ended(*part) for part in begun], NAMES)


def test_all_checks_in_silence_are_clean_and_each_runs_once(monkeypatch, tmp_path):
    found = judged(monkeypatch, tmp_path, 2)
    assert found["clean"] and found["checks"] == len(NAMES) and not found["not_run"]
    assert len(list((tmp_path / "memcheck").iterdir())) == len(NAMES)
    assert not list(tmp_path.glob("sanitizer_*.txt")), "a log that says nothing"


@pytest.mark.parametrize(
    "trouble",
    [
        {"summary": "ERROR SUMMARY: 1 error"},
        {"summary": "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"},
        {"summary": "it broke off"}, {"error": "wrong"}, {"seconds": -1}, {"last": "sys.exit(3)"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_anything_else_is_not(monkeypatch, tmp_path, trouble):
    found = judged(monkeypatch, tmp_path, 1, **trouble)
    assert not found["clean"]
    assert found["not_run"] == (NAMES if "seconds" in trouble else [])


def test_what_a_tool_does_not_see_is_not_judged_by_it():
    for check, tools in (
        (Check("a", print, True), {"memcheck", "racecheck", "initcheck", "synccheck"}),
        (Check("b", print, True, product=True), {"memcheck", "synccheck"}),
        (Check("c", print, True, unwritten=True), {"memcheck", "racecheck", "synccheck"}), (Check("d", print), set()),
    ):  # fmt: skip
        assert {tool for tool in gpu_sanitizer.TOOLS if check.judged_by(tool)} == tools
