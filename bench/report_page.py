"""How large reports are, how long they take to write, and how long a browser takes until they answer.

    python -m bench.report_page [--sizes 1000 10000]        needs Chromium: apt-get install chromium

Asked, for 1,000 operators: less than 2 MB, open in less than a second. Beside it the time of all passes without and
with the history of their rewrites, asked: 10 % more at most. The arms take turns.
"""

from __future__ import annotations

import argparse
import gc
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import minigraph as mg

from .compile_time import ROWS, WIDTH, network
from .harness import machine, now, versions, write_report

SIZES = (1000, 10_000)
TURNS = 11
READY = """<script>
  const drawn = performance.now();
  addEventListener("load", () => { document.title = `drawn ${drawn} ready ${performance.now()}`; });
</script>"""


def opened(path: Path, browser: str) -> tuple[float, float]:
    """Milliseconds from the start of loading until both programs are drawn, and until all tables stand below them."""
    page = path.read_text(encoding="utf-8")
    end = page.rindex("</body>")
    tried = path.with_name("tried.html")
    tried.write_text(page[:end] + READY + page[end:], encoding="utf-8")
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", profile, "--dump-dom", tried.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.search(r"<title>drawn ([\d.]+) ready ([\d.]+)</title>", shown)
    assert found is not None
    return float(found.group(1)), float(found.group(2))


def passes(program: Any, loss: Any, kept: bool) -> tuple[float, Any]:
    gc.collect()
    start = time.process_time()
    made = mg.static.CompiledProgram(program, mg.static.BuildStrategy.all(keep_history=kept))
    made.program_for([loss.name])
    return time.process_time() - start, made


def measured(operators: int, browser: str | None, folder: Path) -> dict[str, Any]:
    """All figures of one size: medians of turns."""
    program, loss = network(operators)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    made: Any = None
    for turn in range(TURNS):
        for kept in (False, True) if turn % 2 else (True, False):
            spent, one = passes(program, loss, kept)
            seconds[kept].append(spent)
            made = one if kept else made
    plain, kept = (statistics.median(seconds[kind]) for kind in (False, True))
    start = time.process_time()
    path = made.report(folder / "report.html", {"x": [ROWS, WIDTH]}, [loss])
    row: dict[str, Any] = {
        "operators": len(program.ops), "rewrites": len(made.history), "passes_s": round(plain, 4),
        "passes_with_history_s": round(kept, 4), "history_share": round(kept / plain - 1, 4),
        "write_s": round(time.process_time() - start, 3), "bytes": path.stat().st_size,
    }  # fmt: skip
    if browser is not None:
        opened(path, browser)  # a browser that was never started makes its profile first
        times = [opened(path, browser) for _ in range(5)]
        for name, each in zip(("drawn_ms", "open_ms"), zip(*times, strict=True), strict=True):
            row |= {name: round(statistics.median(each)), f"{name}_all": [round(t) for t in each]}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report_page", description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    options = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(size, browser, Path(folder)) for size in options.sizes]
    for row in rows:
        print("  ".join(f"{k} {v}" for k, v in row.items()))
    report = {
        "bench": "report_page", "command": "python -m bench.report_page", "browser": browser,
        "date": now(), "machine": machine(),
        "versions": versions(), "rows": rows,
    }  # fmt: skip
    write_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
