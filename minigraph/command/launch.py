"""The command `launch`: a script on several ranks of this machine, under mpirun.

    mpirun -> ranks, which write into files of a folder -> their lines, with numbers in front

When a rank ends with an error mpirun ends the others; what the first one said is shown last.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, TextIO

from minigraph.errors import PlaceError, ProgramError, require

LOOKS = 0.05  # seconds between two looks at what the ranks wrote
SHOWN = 30  # lines of an error
BEGINS = re.compile(r"Traceback|\w*Error\b|Abort\(")


class Output:
    """What one rank writes to one of its streams, line by line."""

    def __init__(self, path: Path, rank: int, to: TextIO) -> None:
        self.path, self.rank, self.to = path, rank, to
        self.read, self.rest, self.lines = 0, "", list[str]()

    def pass_on(self, last: bool = False) -> None:
        """Write the lines that came since the last look."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            file.seek(self.read)
            text = self.rest + file.read()
            self.read = file.tell()
        *lines, self.rest = text.split("\n")
        if last and self.rest:
            lines, self.rest = [*lines, self.rest], ""
        for line in lines:
            self.to.write(f"[{self.rank}] {line}\n")
        self.to.flush()
        self.lines = [*self.lines, *lines][-200:]


def launch(options: Namespace) -> tuple[dict[str, Any], str]:
    """Run a script on `nproc` ranks; the text is the error of the rank that failed first."""
    require(options.nproc > 0, f"--nproc is a number of ranks, 1 or more, not {options.nproc}", ProgramError)
    require(Path(options.script).is_file(), f"there is no script {options.script}", ProgramError)
    with tempfile.TemporaryDirectory(prefix="minigraph-launch-") as folder:
        kinds = {"out": sys.stdout, "err": sys.stderr}
        patterns = [part for kind in kinds for part in (f"-{kind}file-pattern", f"{folder}/{kind}.%r")]
        command = [_mpirun(), "-n", str(options.nproc), *patterns, sys.executable, "-u", options.script, *options.args]
        outputs = [
            Output(Path(folder, f"{kind}.{rank}"), rank, to)
            for kind, to in kinds.items() for rank in range(options.nproc)
        ]  # fmt: skip
        code, first = _followed(command, outputs)
    if not code:
        return {"ranks": options.nproc, "code": 0}, f"{options.nproc} ranks have ended"
    said = "\n".join(f"[{first.rank}] {line}" for line in _error(first)) if first else "no rank wrote an error"
    ended = f"signal {code}" if code in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT) else "another process"
    named = f"rank {first.rank} failed first" if first else f"a rank was ended by {ended}"
    data = {"ranks": options.nproc, "code": code, "first": first.rank if first else None, "failed": True}
    return data, f"exit code {code}, {named}:\n{said}"


def _followed(command: list[str], outputs: list[Output]) -> tuple[int, Output | None]:
    """(exit code, the error stream of the rank that wrote an error first) of a command that is run to its end."""
    first: Output | None = None
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as an interrupt: the ranks end, too
    ranks = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            code = ranks.poll()
            for output in outputs:
                output.pass_on(last=code is not None)
                if first is None and output.to is sys.stderr and any(map(BEGINS.match, output.lines)):
                    first = output
            if code is not None:
                return code, first
            time.sleep(LOOKS)
    finally:
        if ranks.poll() is None:  # this process was interrupted: mpirun ends the ranks
            ranks.terminate()
            ranks.wait()


def _error(output: Output) -> list[str]:
    begin = next(i for i, line in enumerate(output.lines) if BEGINS.match(line))
    return output.lines[begin:][:SHOWN]


def _mpirun() -> str:
    """mpirun of this environment, else of the machine."""
    own = Path(sys.executable).with_name("mpirun")
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        raise PlaceError("there is no mpirun, which starts the ranks", hint="pip install 'minigraph[mpi]'")
    return found
