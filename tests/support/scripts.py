"""Scripts as a user runs them, each in a process of its own.

The processes are forked from one that has imported what most scripts import, which takes longer than most of them.
Nothing else was done in it: a script sees what a new Python gives it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["minigraph", "sklearn.datasets", "matplotlib.pyplot"])  # those that there are
SECONDS = 240


def run_script(folder: Path, script: Path, *arguments: object, strict: bool = False) -> str:
    """What `python script arguments...` prints in `folder`; `strict` makes errors of warnings."""
    words = [str(word) for word in (script, *arguments)]
    printed, said = folder / "stdout.txt", folder / "stderr.txt"
    process = PROCESSES.Process(target=_run, args=(folder, words, strict, printed, said))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, printed.read_text("utf-8") + said.read_text("utf-8")
    return printed.read_text("utf-8")


def _run(folder: Path, words: Sequence[str], strict: bool, *outputs: Path) -> None:
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).absolute().parent))
    if strict:
        warnings.simplefilter("error")
    runpy.run_path(words[0], run_name="__main__")
