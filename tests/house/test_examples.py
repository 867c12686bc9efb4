"""The examples and the README's code run as a user runs them, and do what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minigraph.ir.text import parse

ROOT = Path(__file__).parents[2]
pytest.importorskip("sklearn", reason="needs the examples extra")
pytest.importorskip("matplotlib", reason="needs the examples extra")


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run_python(folder: Path, *arguments: str) -> str:
    """What `python ...` prints in `folder`, where modules of that folder can be imported."""
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_readme_prints_what_it_says(tmp_path):
    """Times aside: they are another machine's."""
    (tmp_path / "train.py").write_text(readme_blocks("python")[0])
    printed, said = run_python(tmp_path, "train.py"), readme_blocks("text")[0]
    printed, said = (re.sub(r" +[0-9.]+ ms", " ms", text).strip() for text in (printed, said))
    assert printed == said


def test_the_operator_of_the_readme_passes_the_table_test(tmp_path):
    (tmp_path / "softsign.py").write_text("import minigraph\n" + readme_blocks("python")[1])
    arguments = ["-m", "pytest", "-q", "-p", "softsign", str(ROOT / "tests" / "test_ops.py"), "-k", "softsign"]
    printed = run_python(tmp_path, *arguments, "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", printed)
    assert passed
    assert int(passed[1]) >= 8


MERGE_SCALES = """
import minigraph
from minigraph.ir.convert import to_graph, to_program
from minigraph.ir.text import parse
from minigraph.ir.verify import verify
from minigraph.passes.engine.log import PassReport
from minigraph.compiler.validate import validate
from fusion import merge_scales

before = parse('''program p
  data x : f32[2]
forward
  a : f32[2] = scale(X=x) {scale=2.0}
  b : f32[2] = scale(X=a) {scale=3.0}
  c : f32[2] = scale(X=b) {bias=1.0}
fetch c''')
graph = to_graph(before)
report = PassReport("merge_scales")
merge_scales(graph, report)
verify(graph)
after = to_program(graph, before)
print(len(report.applied), validate(before, after, "merge_scales", before.fetched))
print(after)
"""


def test_the_fusion_of_the_readme_fuses(tmp_path):
    (tmp_path / "fusion.py").write_text(readme_blocks("python")[2])
    (tmp_path / "merge_scales.py").write_text(MERGE_SCALES)
    applied, *program = run_python(tmp_path, "merge_scales.py").splitlines()
    assert applied == "1 None"
    assert program[3:] == ["  b : f32[2] = scale(X=x) {scale=6.0}", "  c : f32[2] = scale(X=b) {bias=1.0}", "fetch c"]


def train_mlp(out: Path, *arguments: str) -> str:
    script = [sys.executable, str(ROOT / "examples" / "train_mlp.py"), "--out", str(out), *arguments]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def curve(out: Path) -> list[tuple[float, float]]:
    """(loss, accuracy) of each epoch."""
    rows = (out / "loss_accuracy.csv").read_text().splitlines()[1:]
    return [(float(loss), float(accuracy)) for _, loss, accuracy in (row.split(",") for row in rows)]


def test_the_mlp_learns_the_digits(tmp_path):
    printed = train_mlp(tmp_path)
    history = curve(tmp_path)
    assert history[-1][1] >= 0.97
    assert history[-1][0] < 0.1 * history[0][0]
    assert re.search(r"fuse_gemm_epilogue +4 applied", printed)
    assert "reloaded weights predict" in printed
    before, after = ((tmp_path / f"{name}.txt").read_text() for name in ("before", "after"))
    assert parse(before).to_string() == before.strip()
    assert [op.type for op in parse(after).ops].count("fused_gemm_epilogue") == 3
    assert "fused_gemm_epilogue" not in before
    assert "fused_gemm_epilogue 0 -> 3" in (tmp_path / "diff.txt").read_text()
    assert (tmp_path / "mlp_after.dot").read_text().startswith('digraph "mlp" {')
    assert (tmp_path / "mlp_before.dot").exists()
    assert (tmp_path / "loss_accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "mlp.pdparams").stat().st_size > 4 * (64 * 256 + 256 * 128 + 128 * 10)


def test_fusion_does_not_change_the_curve(tmp_path):
    for flag in ("--fuse", "--no-fuse"):
        printed = train_mlp(tmp_path / flag, flag, "--dtype", "float64", "--epochs", "4")
        off = next(line for line in printed.splitlines() if line.startswith("off "))
        assert ("fuse_gemm_epilogue" in off) == (flag == "--no-fuse")
    fused, plain = curve(tmp_path / "--fuse"), curve(tmp_path / "--no-fuse")
    assert len(fused) == len(plain) == 4
    for (loss, accuracy), (other, other_accuracy) in zip(fused, plain, strict=True):
        assert abs(loss - other) < 1e-10
        assert accuracy == other_accuracy


def test_optimizer_levels_are_compared(tmp_path):
    """Fewer operators and calls at each level, equal results, and a plot."""
    said = run_python(
        tmp_path, str(ROOT / "examples" / "optimizer_levels.py"), "--tensors", "12", "--size", "500", "--steps", "4",
        "--out", str(tmp_path),
    )  # fmt: skip
    rows = {name: [int(operators), int(calls)] for name, operators, calls in re.findall(
        r"^(for-loop|foreach|fused) +(\d+) +(\d+) ", said, re.MULTILINE)}  # fmt: skip
    assert rows["for-loop"] > rows["foreach"] > rows["fused"] == [6, 8]
    assert "all levels end with equal parameters" in said
    assert "31 struct4k" in said or "CUDAPlace" in said
    assert (tmp_path / "optimizer_levels.png").stat().st_size > 5000
