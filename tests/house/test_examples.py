"""The examples and the code of all pages run as a user runs them, and do what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from minigraph.ir.text import parse
from tests.house.test_recipes import RECIPES
from tests.support.pages import ROOT, blocks, pages
from tests.support.report_pages import facts_in
from tests.support.scripts import run_script

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("sklearn", "matplotlib")), reason="needs the examples extra"
)  # their children import them, nothing here does


@pytest.mark.parametrize("page", ["README.md", "docs/check_nan_inf.md", "docs/kernels.md"])
def test_a_page_prints_what_it_says(page, tmp_path):
    """In a new Python. Times aside: they are another machine's. `...` stands for lines that are left out."""
    code, said = (next(b.code for b in blocks(page) if b.language == name) for name in ("python", "text"))
    (tmp_path / "train.py").write_text(code)
    result = subprocess.run(
        [sys.executable, "-W", "error", "train.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    printed = re.sub(r" +[0-9.]+ ms", " ms", result.stdout)
    shown = re.escape(re.sub(r" +[0-9.]+ ms", " ms", said)).replace(re.escape("...\n"), r"(.*\n)*")
    assert re.fullmatch(shown, printed), printed


def code_of(page: Path) -> str:
    """The python blocks of a page as one script with the page's line numbers, those for a GPU left out."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not block.marks:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines)


def is_run_elsewhere(page: Path) -> bool:
    """Recipes, and pages that are made of programs, which test_docs.py runs."""
    return page.relative_to(ROOT).as_posix() in RECIPES or page.parent.name == "flags"


@pytest.mark.parametrize("page", [p for p in pages() if code_of(p) and not is_run_elsewhere(p)], ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page, tmp_path):
    """Its blocks run in order, in one namespace, without a warning."""
    if "import onnxruntime" in code_of(page) and None in map(find_spec, ("onnx", "onnxruntime")):
        pytest.skip("needs onnx and onnxruntime")
    (tmp_path / f"{page.stem}.py").write_text(code_of(page))
    run_script(tmp_path, tmp_path / f"{page.stem}.py", strict=True)


def test_every_block_of_code_is_run_or_says_why_not():
    """`python gpu` needs a GPU, `python skip` another machine or file, `python raises` is run by tests/errors;
    recipes have a test of their own."""
    for page in pages():
        marks = {mark for block in blocks(page) if block.language == "python" for mark in block.marks}
        assert marks <= {"gpu", "skip", "raises"}, page
        fences = len(re.findall(r"^ *```py", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == sum(block.language == "python" for block in blocks(page)), page


def run_example(name: str, folder: Path, *arguments: object) -> str:
    return run_script(folder, ROOT / "examples" / f"{name}.py", *arguments)


def train_mlp(out: Path, *arguments: object, source: Path = ROOT / "examples" / "train_mlp.py") -> str:
    return run_script(out, source, "--out", out, *arguments)


def zeros(printed: str) -> list[str]:
    return re.findall(r"relu gave (\d+)% zeros", printed)


def curve(out: Path) -> list[tuple[float, float]]:
    """(loss, accuracy) of each epoch."""
    rows = (out / "loss_accuracy.csv").read_text().splitlines()[1:]
    return [(float(loss), float(accuracy)) for _, loss, accuracy in (row.split(",") for row in rows)]


def test_the_mlp_learns_the_digits(tmp_path):
    printed = train_mlp(tmp_path)
    history = curve(tmp_path)
    assert history[-1][1] >= 0.97
    assert history[-1][0] < 0.1 * history[0][0]
    assert re.search(r"fuse_gemm_epilogue +3 applied, 2 refused", printed)
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


def test_the_refusal_of_the_demo_is_mended_by_the_line_below_the_one_it_names(tmp_path):
    """As README says; the demo then says the same of its relu."""
    source = (ROOT / "examples" / "train_mlp.py").read_text(encoding="utf-8").splitlines(keepends=True)
    said = train_mlp(tmp_path, "--epochs", 1)
    refusals = facts_in((tmp_path / "report.html").read_text(encoding="utf-8"))["refusals"]
    assert [r["rule"] for r in refusals] == ["LinearRelu", "ReluGradLinearGrad"]
    (line,) = map(int, re.findall(r"- relu relu_0.* is fetched, .*train_mlp\.py:(\d+)", said))
    assert "relu(" in source[line - 1]
    assert source[line].startswith("    watched = before ")
    source[line] = "    watched = after\n"
    (tmp_path / "mended.py").write_text("".join(source), encoding="utf-8")
    mended = train_mlp(tmp_path, "--epochs", 1, source=tmp_path / "mended.py")
    assert re.search(r"fuse_gemm_epilogue +4 applied, 0 refused", mended)
    assert zeros(said) == zeros(mended) != []


@pytest.mark.sweep
def test_fusion_does_not_change_the_curve(tmp_path):
    for flag in ("--fuse", "--no-fuse"):
        (tmp_path / flag).mkdir()
        printed = train_mlp(tmp_path / flag, flag, "--dtype", "float64", "--epochs", 4)
        off = next(line for line in printed.splitlines() if line.startswith("off "))
        assert ("fuse_gemm_epilogue" in off) == (flag == "--no-fuse")
    fused, plain = curve(tmp_path / "--fuse"), curve(tmp_path / "--no-fuse")
    assert len(fused) == len(plain) == 4
    for (loss, accuracy), (other, other_accuracy) in zip(fused, plain, strict=True):
        assert abs(loss - other) < 1e-10
        assert accuracy == other_accuracy


def test_parts_of_keys_are_joined(tmp_path):
    said = run_example("ring_attention", tmp_path)
    assert [line.split()[0] for line in said.splitlines()] == ["out", "dq", "dk", "dv"]


def test_roots_take_as_many_steps_as_they_need(tmp_path):
    said = run_example("newton_steps", tmp_path).splitlines()
    steps = [int(line.split()[0]) for line in said]
    assert len(steps) == 2
    assert steps[0] < 8 < steps[1]


def test_clicks_are_predicted_nearly_as_well_as_they_can_be(tmp_path):
    said = run_example("wide_and_deep", tmp_path, "--epochs", 3)
    reached, best = (float(n) for n in re.findall(r"(0\.\d{4})", said.splitlines()[-1]))
    assert best == pytest.approx(0.8543, abs=1e-4)  # of the data alone
    assert best - 0.05 < reached < best


def test_texts_are_told_and_the_saved_model_is_served(tmp_path):
    said = run_example("text_classifier", tmp_path, "--steps", 300, "--out", tmp_path)
    share = re.search(r"([\d.]+)% of 1000 new texts", said)
    assert share is not None
    assert float(share[1]) > 80
    model = tmp_path / "text_classifier"
    served = run_example("text_classifier", tmp_path, "--load", model, "it was great", "it was bad")
    praise = [int(line.split("%")[0]) for line in served.splitlines()]
    assert praise[0] > 50 > praise[1]


@pytest.mark.sweep
def test_optimizer_levels_are_compared(tmp_path):
    """Fewer operators and calls at each level, equal results, and a plot."""
    sizes = ("--tensors", 12, "--size", 500, "--steps", 4)
    said = run_example("optimizer_levels", tmp_path, *sizes, "--out", tmp_path)
    rows = {name: [int(operators), int(calls)] for name, operators, calls in re.findall(
        r"^(for-loop|foreach|fused) +(\d+) +(\d+) ", said, re.MULTILINE)}  # fmt: skip
    assert rows["for-loop"] > rows["foreach"] > rows["fused"] == [6, 8]
    assert "all levels end with equal parameters" in said
    assert "31 struct4k" in said or "CUDAPlace" in said
    assert (tmp_path / "optimizer_levels.png").stat().st_size > 5000
