"""The examples run as a user runs them, and reach what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigraph.ir.text import parse

ROOT = Path(__file__).parent.parent
pytest.importorskip("sklearn", reason="needs the examples extra")
pytest.importorskip("matplotlib", reason="needs the examples extra")


def train_mlp(out: Path, *arguments: str) -> str:
    script = [sys.executable, str(ROOT / "examples" / "train_mlp.py"), "--out", str(out), *arguments]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def curve(out: Path) -> list[tuple[float, float]]:
    """(loss, accuracy) of each epoch."""
    rows = (out / "loss_accuracy.csv").read_text().splitlines()[1:]
    return [(float(loss), float(accuracy)) for _, loss, accuracy in (row.split(",") for row in rows)]


def test_the_mlp_learns_the_digits_in_under_a_minute(tmp_path):
    start = time.perf_counter()
    printed = train_mlp(tmp_path)
    assert time.perf_counter() - start < 60
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
        assert ("fuse_gemm_epilogue             off" in printed) == (flag == "--no-fuse")
    fused, plain = curve(tmp_path / "--fuse"), curve(tmp_path / "--no-fuse")
    assert len(fused) == len(plain) == 4
    for (loss, accuracy), (other, other_accuracy) in zip(fused, plain, strict=True):
        assert abs(loss - other) < 1e-10
        assert accuracy == other_accuracy
