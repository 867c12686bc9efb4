"""The command line: sources it looks at, answers for readers and for programs, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import minigraph as mg
from minigraph.command import machine, main
from minigraph.command.main import COMMANDS, SOURCES
from minigraph.compiler import compiler
from minigraph.errors import VerifyError
from minigraph.kernels.cuda.record import compile as compiled_kernels
from minigraph.runtime.executor import Executor
from minigraph.static import program_guard

SCRIPT = """
import sys
import numpy as np
import minigraph as mg

main, startup = mg.static.Program("trained"), mg.static.Program()
with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
    x = mg.static.data("x", [None, 8])
    loss = mg.mean(mg.nn.functional.gelu(mg.nn.Linear(8, 4)(x)))
    mg.optimizer.SGD(0.1).minimize(loss)
exe = mg.static.Executor()
exe.run(startup)
program = main
if "plain" not in sys.argv:
    program = mg.static.CompiledProgram(main, mg.static.BuildStrategy(fuse_gemm_epilogue=True))
print("begins", sys.argv[1:])
for i in range(100):
    try:
        exe.run(program, {"x": np.ones((5, 8), "float32")}, [loss])
    except Exception:
        print("swallowed")
    print("step", i)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def answered(capsys, *line: str) -> tuple[dict, str]:
    """(data of --json, what went to stderr)"""
    assert main([*line[:1], "--json", *line[1:]]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_a_script_runs_until_its_first_compiled_step(script, capsys):
    run, argv = Executor.run, sys.argv
    data, said = answered(capsys, "explain", script)
    assert said == "begins []\n"
    assert list(data["passes"]) == ["fuse_gemm_epilogue"]
    (fused, *_) = data["passes"]["fuse_gemm_epilogue"]["applied"]
    assert fused["rule"] == "LinearGelu" and fused["line"].endswith("train.py:9")
    assert (Executor.run, sys.argv) == (run, argv)


def test_a_script_that_is_looked_at_prepares_no_plan(tmp_path, capsys, monkeypatch):
    path, prepare, made = tmp_path / "train.py", Executor.prepare, list[str]()
    prepared = 'exe.prepare(program, {"x": [5, 8]}, [loss])\nprint('
    path.write_text(SCRIPT.replace("print(", prepared, 1), encoding="utf-8")
    own = Executor._make_plan
    monkeypatch.setattr(Executor, "_make_plan", lambda *given: made.append(given[1].name) or own(*given))
    data, said = answered(capsys, "explain", str(path))
    assert said == "begins []\n" and list(data["passes"]) == ["fuse_gemm_epilogue"]
    assert len(made) == 1 and "trained" not in made and Executor.prepare is prepare  # that of the startup program


def test_a_script_that_compiles_nothing_runs_until_its_second_step(script, capsys):
    data, said = answered(capsys, "diff", script, "--", "plain")
    assert said == "begins ['plain']\nstep 0\n"
    assert data["after"] < data["before"]
    assert any(line.startswith("+ ") and "fused_gemm_epilogue" in line for line in data["diff"])


def test_passes_are_those_of_the_script_unless_others_are_named(script, capsys):
    assert list(answered(capsys, "explain", script, "--passes", "none")[0]["passes"]) == []
    assert len(answered(capsys, "explain", script, "--passes", "all")[0]["passes"]) > 5
    named = answered(capsys, "explain", script, "--passes", "constant_folding,fuse_gemm_epilogue")[0]["passes"]
    assert list(named) == ["constant_folding", "fuse_gemm_epilogue"]


def program_and_loss():
    main, startup = mg.static.Program("saved"), mg.static.Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x = mg.static.data("x", [None, 8])
        out = mg.nn.functional.gelu(mg.nn.Linear(8, 4)(x))
        loss = mg.mean(out)
        mg.optimizer.AdamW(0.1).minimize(loss)
    return main, startup, x, out


@pytest.fixture(params=["text", "mg.save", "inference model"])
def saved(request, tmp_path):
    """A path; the program has a product, a bias and gelu."""
    main, startup, x, out = program_and_loss()
    path = tmp_path / "saved.txt"
    if request.param == "text":
        path.write_text(str(main), encoding="utf-8")
    elif request.param == "mg.save":
        mg.save(main, path)
    else:
        with mg.static.scope_guard(mg.static.Scope()):
            exe = Executor()
            exe.run(startup)
            mg.static.save_inference_model(str(tmp_path / "saved"), [x], [out], exe, program=main)
        path = tmp_path / "saved.pdmodel"
    return str(path)


def test_saved_programs_are_shown_and_run(saved, capsys, tmp_path):
    data, _ = answered(capsys, "summary", saved, "--shape", "x=6,8")
    product = next(row for row in data["rows"] if row["operator"] == "matmul")
    assert (product["flops"], product["type"]) == (2 * 6 * 8 * 4, "f32[6,4]")
    assert data["totals"]["operators"] == len(data["rows"])
    data, _ = answered(capsys, "profile", saved, "--steps", "2", "--trace", str(tmp_path / "t.json"))
    assert data["runs"] == 2 and any(row["type"].startswith("fused_") for row in data["operator"])
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    data, _ = answered(capsys, "bench", saved, "--steps", "2")
    assert [len(own) for own in data["all"].values()] == [2, 2] and data["ratio"] > 0
    data, _ = answered(capsys, "verify", saved)
    assert not data["failed"] and "fuse_gemm_epilogue" in data["passes"] and data["not_compared"] == {}
    data, _ = answered(capsys, "report", saved, "--out", str(tmp_path / "r.html"), "--profile", "2")
    assert '"times":[{"name":"' in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (tmp_path / "r.html").stat().st_size == data["bytes"]


def test_kernels_are_compiled_before_a_gpu_is_there(script, capsys, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(compiled_kernels, "CACHE", tmp_path / "cache")
    folder = tmp_path / "minigraph_kernels"
    data, _ = answered(capsys, "compile", script, "--gpu", "a100", "--out", str(folder))
    assert data["arch"] == "sm_80" and data["folder"] == str(folder) and data["calls"] > data["kernels"] > 3
    assert len(list(folder.glob("*.cubin"))) == len(list(folder.glob("*.log"))) == data["kernels"]


def test_dumps_are_texts_of_each_step(script, capsys, tmp_path):
    assert main(["dump", script, "--step", "0"]) == 0
    before = capsys.readouterr().out
    assert "= gelu(" in before and mg.static.Program.__name__ in type(read(before)).__name__
    data, _ = answered(capsys, "dump", script, "--dir", str(tmp_path / "out"))
    assert "fused_gemm_epilogue" in data["text"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["00_input.txt", "01_fuse_gemm_epilogue.txt"]
    assert main(["dump", script, "--dot"]) == 0
    assert capsys.readouterr().out.startswith('digraph "trained"')


def read(text: str):
    from minigraph.ir.text import parse

    return parse(text)


def written(folder, name, function):
    """The text of a small program in a file."""
    program = mg.static.Program("net")
    with mg.static.program_guard(program), mg.base.unique_name.guard():
        function(mg.static.data("x", [2, 3]), name="y")
    path = folder / f"{name}.txt"
    path.write_text(str(program), encoding="utf-8")
    return str(path)


def test_two_programs_are_compared(tmp_path, script, capsys):
    one, other = written(tmp_path, "one", mg.tanh), written(tmp_path, "other", mg.exp)
    assert main(["diff", "--json", one, other]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["diff"][-2:] == ["- y.tmp_0 : f32[2,3] = tanh(X=x)", "+ y.tmp_0 : f32[2,3] = exp(X=x)"]
    assert "tanh" in data["first_difference"]
    assert answered(capsys, "diff", one, written(tmp_path, "again", mg.tanh))[0]["first_difference"] is None
    assert answered(capsys, "diff", one)[0]["first_difference"] is None  # with its own rewrites
    assert main(["diff", script, one, "--", "plain"]) == 1
    assert "begins ['plain']" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["diff", one, str(tmp_path / "nothing.txt")])
    assert stopped.value.code == 2


def test_a_program_is_held_against_its_rewritten_text(tmp_path, script, capsys):
    text, _ = answered(capsys, "dump", script)
    (tmp_path / "kept.txt").write_text(text["text"], encoding="utf-8")
    kept = str(tmp_path / "kept.txt")
    assert main(["diff", "--passes", "none", script, kept]) == 1
    capsys.readouterr()
    assert answered(capsys, "diff", "--passes", "fuse_gemm_epilogue", script, kept)[0]["failed"] is False


def test_help_says_the_exit_codes(capsys):
    for line in (["--help"], ["diff", "--help"], ["cache", "--help"]):
        with pytest.raises(SystemExit):
            main(line)
        said = " ".join(capsys.readouterr().out.split())
        assert "exit codes: 0 done; 1 an error, or verify or diff of two found a difference; 2" in said


def test_a_difference_is_an_exit_code(script, capsys, monkeypatch):
    def differs(*_: object) -> None:
        raise VerifyError("planted made another loss")

    monkeypatch.setattr(compiler, "validate", differs)
    assert main(["verify", script]) == 1
    assert "planted made another loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["explain", "no_such_file.py"], "there is no file no_such_file.py"),
        (["explain", "{tmp}/words.txt"], "holds no program"),
        (["explain", "{tmp}/idle.py"], "ran to its end, fed no program"),
        (["explain", "{tmp}"], "is a folder"),
        (["explain", "{tmp}/train.py", "--fetch", "mean_0.tmp"], "there is no variable mean_0.tmp; did you mean"),
        (["summary", "{tmp}/train.py", "--shape", "x=1,8"], "feeds its program"),
        (["bench", "{tmp}/train.py", "--steps", "0"], "0 is no number of steps"),
        (["report", "{tmp}/train.py", "--profile", "-1"], "-1 is no number of steps"),
        (["explain", "{tmp}/train.py", "--passes", "fuse_all"], "there is no pass fuse_all"),
        (["summary", "{tmp}/saved.txt", "--shape", "z=1"], "--shape z=1: give a data variable"),
        (["dance"], "invalid choice: 'dance'"),
        ([], "the following arguments are required: command"),
    ],
)
def test_a_wrong_line_is_one_message_and_code_2(script, tmp_path, capsys, line, said):
    (tmp_path / "words.txt").write_text("once upon a time", encoding="utf-8")
    (tmp_path / "idle.py").write_text("x = 1", encoding="utf-8")
    (tmp_path / "saved.txt").write_text(str(program_and_loss()[0]), encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        main([word.format(tmp=tmp_path) for word in line])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_an_error_of_minigraph_is_its_text_and_code_1(script, capsys):
    assert main(["dump", script, "--step", "99"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("begins []\n[MG-PROGRAM-002] minigraph dump: 99 is no step of this compilation")
    assert main(["error", "MG-NO-001"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("[MG-PROGRAM-002] minigraph error: code 'MG-NO-001'") and " at " not in said


def test_an_error_of_the_script_is_shown_from_its_own_lines_on(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("def f():\n    1 / 0\nf()", encoding="utf-8")
    assert main(["explain", str(tmp_path / "bad.py")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.endswith("ZeroDivisionError: division by zero\n")
    assert said.count("  File ") == 2
    (tmp_path / "wrong.py").write_text("import minigraph as mg\nmg.static.data('x', [-5])", encoding="utf-8")
    assert main(["explain", str(tmp_path / "wrong.py")]) == 1
    assert "wrong.py:2: mg.static.data" in capsys.readouterr().err


def test_a_script_that_only_builds_is_looked_at_too(tmp_path, capsys):
    lines = ["import minigraph as mg", "x = mg.static.data('x', [None, 4])",
             "y = mg.nn.functional.relu(mg.nn.Linear(4, 3)(x))"]  # fmt: skip
    (tmp_path / "built.py").write_text("\n".join(lines), encoding="utf-8")
    with program_guard(mg.static.Program(), mg.static.Program()):
        data, _ = answered(capsys, "summary", str(tmp_path / "built.py"), "--shape", "x=6,4")
    assert [row["type"] for row in data["rows"]] == ["f32[6,3]"] * 3


def test_the_demo_has_lines_of_its_program(capsys):
    assert main(["demo"]) == 0
    assert "demo.py:" in capsys.readouterr().out


def test_the_machine_and_its_caches(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_kernels, "CACHE", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "k.cubin").write_bytes(b"12345")
    (tmp_path / "tuned-1.json").write_bytes(b"{}")
    data, _ = answered(capsys, "info")
    assert data["versions"]["minigraph"] == mg.__version__ and data["why_no_gpu"] == mg.cuda.why_not()
    assert data["cache"] == {"folder": str(tmp_path), "files": 2, "tuned": 1, "bytes": 7}
    assert answered(capsys, "cache")[0]["files"] == 2
    assert answered(capsys, "cache", "clear")[0]["left"]["files"] == 0
    assert not (tmp_path / "tuned-1.json").exists()


def test_the_demo_trains_both(capsys):
    data, _ = answered(capsys, "demo")
    plain, fused = data["losses"].values()
    assert plain[-1] < plain[0] / 10
    np.testing.assert_allclose(plain, fused, rtol=1e-3)
    assert data["operators"][1] < data["operators"][0]


def test_every_command_has_help_and_is_completed(capsys):
    assert set(machine.NAMES.split()) == set(COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert "--json" in shown and ("--passes" in shown) == (name in SOURCES)
    for shell in ("bash", "zsh", "fish"):
        assert "explain" in answered(capsys, "completion", shell)[0]["script"]


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "minigraph", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"minigraph {mg.__version__}\n"
