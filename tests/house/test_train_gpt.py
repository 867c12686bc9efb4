"""examples/train_gpt.py: the same curve with and without rewrites and after a resume; bad input is refused whole."""

from __future__ import annotations

import gc
import importlib
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from tests.support.pages import ROOT
from tests.support.scripts import run_script
from tests.support.worker_threads import are_gone, serving

pytestmark = pytest.mark.skipif(None in map(find_spec, ("matplotlib", "tqdm")), reason="needs the examples extra")
TINY = {
    "layers": 1, "heads": 2, "width": 16, "block": 16, "batch": 4, "accumulate": 2, "steps": 6, "megabytes": 0.03,
    "dropout": 0.1, "check": 3, "sample": 5,
}  # fmt: skip


def train(out: Path, *flags: str, fails: bool = False, **changes: object) -> str:
    """What the example prints; its error where it `fails`."""
    arguments = [f"--{name}={value}" for name, value in {**TINY, **changes}.items()]
    script, said, wrong = str(ROOT / "examples" / "train_gpt.py"), io.StringIO(), io.StringIO()
    code, others = 0, serving()
    gc.freeze()  # what lived before is not looked through below
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(wrong):
        patch.syspath_prepend(str(ROOT / "examples"))
        patch.setattr(sys, "argv", [script, f"--out={out}", *flags, *arguments])
        try:
            importlib.import_module("train_gpt").main()
        except SystemExit as end:  # its code is what Python would print
            code = end.code
        finally:
            mg.set_default_dtype("float32")
    gc.collect()  # an import that failed inside of `plot` holds the frames below it, and is held by its own
    gc.unfreeze()
    assert (code not in (0, None)) == fails, said.getvalue() + wrong.getvalue() + str(code)
    assert are_gone(serving() - others), "the thread of a loader that nobody has"
    return f"{wrong.getvalue()}{code}" if fails else said.getvalue()


def history(out: Path) -> list[dict[str, float]]:
    return json.loads((out / "train_gpt.json").read_text())["history"]


def losses(out: Path) -> list[float]:
    return [h["loss"] for h in history(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A training without a stop."""
    out = tmp_path_factory.mktemp("whole")
    printed = train(out, "--dtype=float64")
    assert "bits per byte after 6 steps; lzma needs" in printed
    assert "sampled:\ndef " in printed
    assert (out / "train_gpt.png").read_bytes().startswith(b"\x89PNG")
    assert sorted({p.stem for p in out.glob("gpt-*")}) == ["gpt-6"]
    return out


def test_it_learns(whole):
    curve = history(whole)
    assert len(curve) == TINY["steps"]
    assert curve[5]["bits"] < curve[2]["bits"] < 8.5
    assert losses(whole)[-1] < losses(whole)[0]


def test_rewrites_do_not_change_the_curve(whole, tmp_path):
    train(tmp_path, "--dtype=float64", "--no-fuse")
    np.testing.assert_allclose(losses(tmp_path), losses(whole), rtol=1e-9)
    assert abs(history(tmp_path)[-1]["bits"] - history(whole)[-1]["bits"]) < 1e-9


def test_a_resumed_training_has_the_same_bits(whole, tmp_path):
    flags = [f"--out={tmp_path}", "--stop=4", "--dtype=float64", "--recompute"]
    run_script(tmp_path, ROOT / "examples" / "train_gpt.py", *flags, *(f"--{n}={value}" for n, value in TINY.items()))
    train(tmp_path, "--dtype=float64", "--resume")
    assert losses(tmp_path) == losses(whole)


def test_a_resumed_training_in_16_bits_has_the_same_bits(tmp_path):
    """With the loss scale, the sums of gradients and the float32 copies of parameters."""
    amp = ["--amp=O2", "--amp-dtype=float16"]
    said = train(tmp_path / "whole", *amp)
    assert "--amp=O2 on a CPU is for trying: it computes float16 in float32 and rounds" in said
    train(tmp_path / "cut", *amp, stop=4)
    said = train(tmp_path / "cut", "--amp=O2", "--resume", fails=True)
    assert "is of another network: amp_dtype is float16, not bfloat16" in said
    train(tmp_path / "cut", *amp, "--resume")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert history(tmp_path / "cut")[-1] == history(tmp_path / "whole")[-1]
    assert losses(tmp_path / "cut")[-1] < losses(tmp_path / "cut")[0]


def test_a_resume_from_another_network_changes_nothing(whole, tmp_path):
    before = {p.name: p.read_bytes() for p in whole.iterdir()}
    said = train(whole, "--dtype=float64", "--resume", fails=True, width=32)
    assert "is of another network: width is 16, not 32" in said
    said = train(whole, "--dtype=float64", "--resume", fails=True, batch=8)
    assert "is of another training: batch is 4, not 8" in said
    assert {p.name: p.read_bytes() for p in whole.iterdir()} == before
    assert "there is no checkpoint in" in train(tmp_path, "--resume", fails=True)


def test_a_text_that_is_too_short(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("x = 1\n" * 10)
    said = train(tmp_path, fails=True, text=text, vocabulary=256)  # bytes, whether tokenizers is installed or not
    assert "the training text has 57 numbers, a batch needs 4 blocks of 16" in said


def test_sizes_that_are_refused(tmp_path):
    assert "--steps must be positive, is 0" in train(tmp_path, fails=True, steps=0)
    said = train(tmp_path, "--amp=O2", "--dtype=float64", fails=True)
    assert "--amp=O2 casts float32 to bfloat16; it cannot go with --dtype=float64" in said
    assert "argument --amp-dtype: invalid choice: 'float8'" in train(tmp_path, "--amp-dtype=float8", fails=True)
    assert "embed_dim 16 is no multiple of num_heads 3" in train(tmp_path, fails=True, heads=3)


def test_bytes_and_their_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    python_text = importlib.import_module("python_text")
    training, validation = python_text.python_source(200_000)
    assert training
    assert 0.03 * len(training) < len(validation) < 0.5 * len(training)
    words = python_text.vocabulary(training, 256)
    assert words.decode(words.encode("def f(ä):").tolist()) == "def f(ä):"
    assert words.lengths[words.encode("ä")].sum() == 2
    assert 0 < python_text.lzma_bits(training, validation) < 8


@pytest.mark.skipif(find_spec("tokenizers") is None, reason="needs the library tokenizers")
def test_byte_pairs_and_their_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    python_text = importlib.import_module("python_text")
    training, _ = python_text.python_source(200_000)
    words = python_text.vocabulary(training, 600)
    text = "def f(ä):\n    return None\n"
    numbers = words.encode(text)
    assert len(numbers) < len(text.encode()) == words.lengths[numbers].sum()
    assert words.decode(numbers.tolist()) == text
    assert 256 < len(words) <= 600
