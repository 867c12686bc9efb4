"""The picture of a report in reading_a_program.md, taken by a headless Chromium.

    python docs/report_picture.py        needs `chromium`: apt-get install chromium

Three residual layers with AdamW, at the first rewrite of `fuse_gemm_epilogue`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import minigraph as mg

PICTURE = Path(__file__).parent / "pictures" / "report.png"
SIZE = 1280, 720
SHOWN = """<script>
  const { model, panes } = report;
  const step = model.facts.steps.findIndex((s) => s.flag === "fuse_gemm_epilogue") + 1;
  const slider = document.getElementById("step");
  slider.value = step; slider.dispatchEvent(new Event("input"));
  panes[1].cy.nodes().filter((n) => n.data("node").name === "fused_gemm_epilogue")[0].emit("tap");
</script>"""


def write_report(path: Path) -> None:
    """The report of a training step."""
    main = mg.static.Program("residual layers")
    with mg.static.program_guard(main, mg.static.Program()), mg.base.unique_name.guard():
        h = mg.static.data("x", [32, 64])
        for i in range(3):
            with mg.static.name_scope(f"layer{i}"):
                h = mg.nn.functional.gelu(mg.nn.Linear(64, 64)(h)) + h
        loss = mg.mean(h * h)
        mg.optimizer.AdamW(1e-3).minimize(loss)
    mg.static.CompiledProgram(main, mg.static.BuildStrategy.all()).report(path, fetch_list=[loss])


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here (apt-get install chromium)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(path)
        page = path.read_text(encoding="utf-8")
        end = page.rindex("</body>")
        path.write_text(page[:end] + SHOWN + page[end:], encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
            f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={PICTURE}", path.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
