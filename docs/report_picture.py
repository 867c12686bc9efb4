"""The pictures of reports, taken by a headless Chromium: README has demo.png, reading_a_program.md report.png.

    python docs/report_picture.py        needs `chromium`: apt-get install chromium

demo.png    what `make demo` writes, with the relu that was refused
report.png  three residual layers with AdamW, at the first rewrite of `fuse_gemm_epilogue`
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import minigraph as mg

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SIZE = 1280, 720
REFUSED = """<script>
  document.querySelector("#details .link").click();
  report.panes.forEach((pane) => pane.fit());
</script>"""
FUSED = """<script>
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


def take(browser: str, page: Path, script: str, picture: Path) -> None:
    """A picture of a page on which `script` has run."""
    text = page.read_text(encoding="utf-8")
    end = text.rindex("</body>")
    page.write_text(text[:end] + script + text[end:], encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
        f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={picture}", page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here (apt-get install chromium)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        write_report(path)
        take(browser, path, FUSED, PICTURES / "report.png")
        demo = [sys.executable, "examples/train_mlp.py", "--epochs", "1", "--out", folder]
        subprocess.run(demo, check=True, capture_output=True, cwd=ROOT)
        take(browser, path, REFUSED, PICTURES / "demo.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
