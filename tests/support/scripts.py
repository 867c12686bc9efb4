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
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["minigraph", "sklearn.datasets", "matplotlib.pyplot"])  # those that there are
SECONDS = 240


def run_script(folder: Path, script: Path, *arguments: object, strict: bool = False) -> str:
    """What `python script arguments...` prints in `folder`; `strict` makes errors of warnings."""
    printed, said = folder / "stdout.txt", folder / "stderr.txt"
    process = begun(folder, (script, *arguments), (printed, said), strict)
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, printed.read_text("utf-8") + said.read_text("utf-8")
    return printed.read_text("utf-8")


def begun(
    folder: Path, command: Sequence[object], outputs: tuple[Path, Path], strict: bool = False,
    variables: Mapping[str, str] | None = None,
) -> BaseProcess:  # fmt: skip
    """A process that runs a script in `folder`, with more environment variables; what it prints goes to two files."""
    for path in outputs:
        path.write_bytes(b"")
    facts = folder, [*map(str, command)], outputs, strict, dict(variables or {})
    process = PROCESSES.Process(target=_run, args=facts)
    process.start()
    return process


def _run(
    folder: Path, words: Sequence[str], outputs: tuple[Path, Path], strict: bool, variables: Mapping[str, str]
) -> None:
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).absolute().parent))
    if strict:
        warnings.simplefilter("error")
    runpy.run_path(words[0], run_name="__main__")
