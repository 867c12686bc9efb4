"""BuildStrategy.verify="each_pass": the program before and after a pass runs on made-up numbers."""

from __future__ import annotations

import numpy as np
import pytest

import minigraph as mg
from minigraph.compiler import compiler
from minigraph.compiler.strategy import PassRow
from minigraph.compiler.validate import distance, evaluate, made_up_values, validate
from minigraph.errors import VerifyError
from minigraph.passes.fuse_gemm_epilogue import LinearRelu, fuse_gemm_epilogue
from tests.support.net import Net


def strategy():
    chosen = mg.static.BuildStrategy()
    chosen.fuse_gemm_epilogue, chosen.verify = True, "each_pass"
    return chosen


def network(dtype="float32"):
    """A classifier with everything that made-up numbers must suit: labels, Adam's states, unknown sizes."""
    main, startup = mg.static.Program(), mg.static.Program()
    mg.set_default_dtype(dtype)
    try:
        with mg.static.program_guard(main, startup):
            x, y = mg.static.data("x", [None, 4], dtype), mg.static.data("y", [None, 1], "int64")
            h = mg.nn.functional.relu(mg.nn.Linear(4, 6)(x))
            loss = mg.nn.functional.cross_entropy(mg.nn.Linear(6, 3)(h), y)
            mg.optimizer.AdamW(0.1).minimize(loss)
    finally:
        mg.set_default_dtype("float32")
    return main, loss


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_right_pass_is_accepted(dtype):
    main, loss = network(dtype)
    compiled = mg.static.CompiledProgram(main, strategy())
    assert compiled.program_for([loss.name])
    explained = compiled.explain()
    assert "applied" in explained and "not validated" not in explained


def test_every_value_is_finite_and_in_float64():
    """Else the comparison would be blind."""
    main, _ = network("float16")
    for name, array in evaluate(main, made_up_values(main)).items():
        assert array.dtype not in (np.float16, np.float32) and np.isfinite(array).all(), name


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_a_wrong_pass_is_named_with_variable_and_magnitude(monkeypatch, activation):
    monkeypatch.setattr(LinearRelu, "activation", activation)
    main, loss = network()
    with pytest.raises(VerifyError, match=r"fuse_gemm_epilogue changed relu_\d+.tmp_0: f32\[-1,6\] by 0\.\d"):
        mg.static.CompiledProgram(main, strategy()).program_for([loss.name])


def test_other_modes_do_not_validate(monkeypatch):
    monkeypatch.setattr(LinearRelu, "activation", "none")
    main, loss = network()
    for mode in ("off", "structure"):
        chosen = mg.static.BuildStrategy()
        chosen.fuse_gemm_epilogue, chosen.verify = True, mode
        assert mg.static.CompiledProgram(main, chosen).program_for([loss.name])


def test_each_pass_is_compared_with_the_one_before(monkeypatch):
    """The pass that did it is named, not the last one."""
    passes = (PassRow("fuse_gemm_epilogue", fuse_gemm_epilogue), PassRow("enable_inplace", lambda graph, report: 0))
    monkeypatch.setattr(compiler, "PASSES", passes)
    monkeypatch.setattr(LinearRelu, "activation", "none")
    chosen = strategy()
    chosen.enable_inplace = True
    main, _ = network()
    with pytest.raises(VerifyError, match="fuse_gemm_epilogue changed"):
        mg.static.CompiledProgram(main, chosen).program_for()


def test_a_pass_that_changes_nothing_is_not_compared(monkeypatch):
    """Nor one that found only what cannot be rewritten; what a removal leaves no trace of in the graph is a change."""
    compared = []
    monkeypatch.setattr(compiler, "validate", lambda before, after, name, *rest: compared.append(name))
    net = Net()
    out = net.g.relu(net.data("x", 2, 3))
    net.g.fill_constant(shape=(2,), value=1.0, dtype="float32")
    chosen = mg.static.BuildStrategy(
        dead_code_elimination=True, fuse_gemm_epilogue=True, fuse_foreach=True, verify="each_pass"
    )
    assert len(mg.static.CompiledProgram(net.program, chosen).program_for([out.name]).ops) == 1
    assert compared == ["dead_code_elimination"]


def test_what_cannot_be_checked_says_so():
    net = Net()
    index = net.block.create_var("index", (2,), "int64", is_data=True)
    x = net.data("x", 0, 3)
    out = net.g.gather(x, index)
    net.g.relu(x)  # which nobody reads: the pass has something to change
    chosen = mg.static.BuildStrategy(dead_code_elimination=True, verify="each_pass")
    compiled = mg.static.CompiledProgram(net.program, chosen)
    compiled.program_for([out.name])
    assert "! not validated, the program does not run on made-up numbers" in compiled.explain()


def test_a_program_that_does_not_run_any_more():
    net = Net()
    x = net.data("x", 2, 3)
    out = net.g.tanh(net.g.relu(x))
    broken = net.program.clone()
    del broken.ops[0]
    with pytest.raises(VerifyError, match="broken made a program that does not run"):
        validate(net.program, broken, "broken")
    gone = net.program.clone()
    del gone.ops[1]
    with pytest.raises(VerifyError, match=f"removed {out.name}, which is fetched"):
        validate(net.program, gone, "gone", [out.name])
    assert validate(net.program, gone, "gone") is None


def test_same_random_numbers_on_both_sides():
    net = Net()
    x = net.g.cast(net.data("x", 3), dtype="float32")
    net.g.elementwise_add(net.g.gaussian_random(shape=(3, 3), dtype="float32"), x)
    assert validate(net.program, net.program.clone(), "nothing") is None


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 4.0], [1.0, 3.0], 0.25), ([0.1], [0.2], 0.1), ([np.nan], [np.nan], 0.0),
        ([np.nan], [1.0], np.inf), ([1.0], [np.nan], np.inf), ([np.inf], [np.inf], 0.0), ([np.inf], [-np.inf], np.inf),
        ([1.0], [[1.0]], np.inf), ([], [], 0.0), ([1], [1], 0.0), ([1], [2], np.inf), ([1], [1.0], np.inf),
    ],
)  # fmt: skip
def test_distance(a, b, expected):
    assert distance(np.array(a), np.array(b)) == pytest.approx(expected, abs=1e-15)


def test_a_last_value_that_nobody_reads_may_be_left_out():
    net = Net()
    x = net.data("x", 2, 3)
    y = net.g.tanh(x)
    out = net.g.relu(y)
    net.g.assign(x, out={"Out": y})
    chosen = mg.static.BuildStrategy(dead_code_elimination=True, verify="each_pass")
    compiled = mg.static.CompiledProgram(net.program, chosen)
    assert [op.type for op in compiled.program_for([out.name]).ops] == ["tanh", "relu"]
