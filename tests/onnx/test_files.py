"""Files of ONNX: names, weights and sizes, what is refused, and what the command line and Netron make of them."""

from __future__ import annotations

import errno
import json
import os
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.command import main as command
from minigraph.errors import MinigraphError, PlaceError, ProgramError, UninitializedError
from minigraph.onnx import protobuf
from minigraph.program.scope import Scope
from minigraph.runtime.executor import Executor
from tests.support.checkpoints import FailingDisk, with_disk
from tests.support.onnx_runtime import checked, onnx, served


@pytest.fixture
def net(tmp_path):
    """(program, its result, the file) of a small net with 4 KB of weights."""
    x = static.data("x", [None, 16])
    out = nn.functional.gelu(nn.Linear(16, 64)(x), approximate=True) * 2 + 1
    Executor().run(static.default_startup_program())
    main, rng = static.default_main_program(), np.random.default_rng(3)
    for v in main.all_parameters():  # a bias that begins with zeros would hide where it is read
        v.set_value(rng.normal(size=v.shape).astype(np.float32))
    return main, out, tmp_path / "net.onnx"


def feed_of(rows=3):
    return {"x": np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)}


# names


def test_odd_names_survive_and_later_values_get_new_ones(tmp_path):
    """A name of a user is a name of ONNX; a variable that is written again has one value there for each time."""
    names = ['x @ "1"/é\\{}', "t1", "elementwise_mul.constant", "Out", "größe ≠ 0"]
    block = static.default_main_program().global_block()
    given = [static.data(name, [None, 2]) for name in names]
    total = given[0] * 0.5
    for v in given:
        total = nn.functional.silu(total + v)
    counter = block.create_var("step.1", [1], "float32")
    block.append_op("fill_constant", {}, {"Out": counter}, {"shape": [1], "value": 3.0})
    block.append_op("increment", {"X": counter}, {"Out": counter}, {"step": 2.0})
    first = total + counter
    block.append_op("increment", {"X": counter}, {"Out": counter}, {"step": 2.0})
    outs = [first, total + counter, counter, given[0]]
    program = static.default_main_program()
    program.to_onnx(tmp_path / "odd.onnx", outs)
    message = checked(tmp_path / "odd.onnx")
    assert [v.name for v in message.graph.input] == names
    written = [name for node in message.graph.node for name in node.output]
    assert len(set(written)) == len(written)
    feed = {name: np.full((2, 2), i + 0.5, np.float32) for i, name in enumerate(names)}
    for a, b in zip(Executor().run(program, feed, outs), served(tmp_path / "odd.onnx", feed), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_a_reader_finds_operators_scopes_and_lines(net):
    program, out, path = net
    with mg.static.program_guard(program), mg.static.name_scope("head"):
        silu = nn.functional.silu(out)
    program.to_onnx(path, [silu])
    node = checked(path).graph.node[-1]
    assert (node.domain, node.op_type, node.name) == ("minigraph", "silu", "head/silu_1")
    assert node.doc_string.startswith("test_files.py:")
    assert str(Path(__file__).parent) not in str(checked(path))


# weights


def beside(path: Path) -> Path:
    """The file with the weights of the one at `path`."""
    (found,) = path.parent.glob("net.onnx.*.data")
    return found


def test_weights_beside_the_file_are_the_same(net, monkeypatch):
    program, out, path = net
    monkeypatch.setattr(protobuf, "SMALLEST", 256)  # the bias goes there, too, behind a page
    program.to_onnx(path, [out])
    within, expected = path.stat().st_size, served(path, feed_of())[0]
    program.to_onnx(path, [out], external_data=True)
    assert path.stat().st_size < within - 4000 and beside(path).stat().st_size >= 4096
    np.testing.assert_array_equal(served(path, feed_of())[0], expected)
    scope = Scope()
    loaded = mg.onnx.load(path, scope)
    (ours,) = Executor().run(loaded, feed_of(), list(loaded.fetched), scope=scope)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*is written, but after a loss of power")
@pytest.mark.parametrize("error", [None, errno.ENOSPC])
def test_a_model_and_the_weights_beside_it_are_of_one_export(net, error):
    """A crash or an error of any call of the system leaves the former ones or the new ones."""
    program, out, path = net

    def export(shift: float, disk: FailingDisk | None = None) -> None:
        program.set_state_dict({name: a + np.float32(shift) for name, a in first.items()})
        with_disk(disk or FailingDisk(), lambda: program.to_onnx(path, [out], external_data=True))

    def weights() -> dict[str, bytes]:
        model = onnx.load(str(path))
        return {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}

    first = program.state_dict()
    export(1)
    new, counted = weights(), FailingDisk()
    export(0)
    old = weights()
    assert old != new
    export(1, counted)
    for at in range(counted.count):
        export(0)
        with suppress(ProgramError):
            export(1, FailingDisk(at, error))
        assert weights() in (old, new), at
        export(1)
        assert weights() == new
        assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, beside(path).name])
    program.to_onnx(path, [out])
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_weights_beyond_the_limit_go_beside_the_file_unasked(net, monkeypatch):
    program, out, path = net
    monkeypatch.setattr(protobuf, "LARGEST", 4096)
    program.to_onnx(path, [out])
    assert beside(path).exists()
    monkeypatch.setattr(protobuf, "LARGEST", 0)
    monkeypatch.setattr(protobuf, "ROOM", 0)
    with pytest.raises(ProgramError, match=r"more than 2 GB(?s:.*)external_data=True"):
        program.to_onnx(path, [out], external_data=False)


def test_the_scope_must_have_the_weights(net):
    program, out, path = net
    with pytest.raises(UninitializedError, match="run the startup program first"):
        program.to_onnx(path, [out], scope=Scope())


# what is refused


def test_an_operator_without_counterpart_is_named_with_its_line(net):
    program, out, path = net
    drawn = out * mg.uniform([64], "float32")
    inverse = mg.linalg.pinv(out)
    for result, said in ((drawn, "uniform_random"), (inverse, "pinv")):
        with pytest.raises(ProgramError, match=rf"{said}\(.*no counterpart: operator {said}\n  built at .*test_files"):
            program.to_onnx(path, [result])
    assert not path.exists()


def test_what_is_no_output(net):
    program, out, path = net
    mg.optimizer.SGD(0.1).minimize(mg.mean(out))
    with pytest.raises(ProgramError, match="is computed for training only"):
        program.to_onnx(path, [next(v.name for v in program.list_vars() if v.name.endswith("@GRAD"))])
    with pytest.raises(ProgramError, match="nothing"):
        program.to_onnx(path, ["nothing"])
    with pytest.raises(ProgramError, match="computes nothing that could be an output"):
        static.Program().to_onnx(path)


def test_without_the_package(net, monkeypatch):
    program, out, path = net
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    for call in (lambda: program.to_onnx(path, [out]), lambda: mg.onnx.load(__file__)):
        with pytest.raises(PlaceError, match=r"package onnx is not installed(?s:.*)minigraph\[onnx\]"):
            call()


def edited(path, change):
    """The file with its message changed."""
    message = onnx.load(str(path), load_external_data=False)
    change(message)
    path.write_bytes(message.SerializeToString())


def _another_node(m):
    m.graph.node[0].op_type = "LSTM"


def _another_domain(m):
    m.graph.node[0].domain = "com.example"


def _another_body(m):
    m.functions[0].node[-1].op_type = "Sub"


def _larger(m):
    m.graph.initializer[0].dims[0] = 2**40


def _negative(m):
    m.graph.initializer[0].dims[0] = -1


def _cut(m):
    m.graph.initializer[0].raw_data = m.graph.initializer[0].raw_data[:-1]


def _odd_type(m):
    m.graph.initializer[0].data_type = 17


def _later_opset(m):
    m.opset_import[0].version = 99


def _twice(m):
    m.graph.node.add().CopyFrom(m.graph.node[0])


def _no_text(m):
    m.graph.node[0].attribute.add(name="a", type=3, s=b"\xff\xfe")


def _no_value(m):
    m.graph.node[0].input[0] = "nobody"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_another_node, "node 0, fused_gemm_epilogue_1: minigraph::LSTM: no operator is known for it"),
        (_another_domain, "com.example::fused_gemm_epilogue: no operator is known"),
        (_another_body, "function fused_gemm_epilogue does not compute what fused_gemm_epilogue does here"),
        (_larger, "has 4096 bytes, its sizes say"), (_negative, "has a negative size"), (_cut, "has 4095 bytes"),
        (_odd_type, "data type that is not known"), (_later_opset, "opset 99 is not one of 13 to 23"),
        (_twice, "gets a second value"), (_no_text, "is no UTF-8"), (_no_value, "nobody has no value"),
    ],
)  # fmt: skip
def test_a_file_that_says_something_else_changes_nothing(net, change, said):
    program, out, path = net
    static.CompiledProgram(program, static.BuildStrategy.all()).to_onnx(path, [out])
    edited(path, change)
    scope = Scope()
    with pytest.raises(MinigraphError, match=r"net\.onnx: ") as problem:
        mg.onnx.load(path, scope)
    assert said in str(problem.value)
    assert scope.list_names() == []


@pytest.mark.parametrize("place", ["/etc/passwd", "../secret", "inner/../../secret", "", "link", "there\0"])
def test_weights_are_read_from_the_folder_of_the_file_alone(net, tmp_path, place):
    program, out, _ = net
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"s" * 8192)
    os.symlink(tmp_path / "secret", folder / "link")
    program.to_onnx(folder / "net.onnx", [out], external_data=True)

    def redirect(message):
        entries = message.graph.initializer[0].external_data
        next(e for e in entries if e.key == "location").value = place

    edited(folder / "net.onnx", redirect)
    with pytest.raises(ProgramError, match="lies outside the folder"):
        mg.onnx.load(folder / "net.onnx")


@pytest.mark.parametrize(("key", "value", "said"), [
    ("offset", "99999999", "ends behind the end"), ("length", "12", "has 12 bytes"), ("offset", "-4", "has no place"),
    ("offset", "²", "has no place"),
])  # fmt: skip
def test_weights_that_are_not_there(net, key, value, said):
    program, out, path = net
    program.to_onnx(path, [out], external_data=True)

    def move(message):
        next(e for e in message.graph.initializer[0].external_data if e.key == key).value = value

    edited(path, move)
    with pytest.raises(ProgramError, match=said):
        mg.onnx.load(path)


@pytest.mark.parametrize("content", [b"", b"once upon a time", b"PK\x03\x04", b"\x80\x04cposix\nsystem\n"])
def test_no_onnx_file(tmp_path, content):
    path = tmp_path / "no.onnx"
    path.write_bytes(content)
    with pytest.raises(ProgramError, match=r"no\.onnx: (the file has no graph|it is no ONNX file)"):
        mg.onnx.load(path)


# others read it, and we read others'


def test_a_model_of_another_exporter(tmp_path):
    """As others write an MLP: weights as inputs too, numbers in typed fields, axes as attributes, old opset."""
    h, T = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(2)
    w, b = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4,)).astype(np.float32)
    nodes = [
        h.make_node("Gemm", ["x", "w", "b"], ["z"], transB=1), h.make_node("Relu", ["z"], ["r"]),
        h.make_node("Unsqueeze", ["r", "axes"], ["u"]), h.make_node("ReduceMean", ["u"], ["m"], axes=[1], keepdims=0),
        h.make_node("Softmax", ["m"], ["y\n"]),
    ]  # fmt: skip
    weights = [h.make_tensor("w", T.FLOAT, [4, 3], w.reshape(-1)), h.make_tensor("b", T.FLOAT, [4], b),
               h.make_tensor("axes", T.INT64, [1], [1])]  # fmt: skip
    inputs = [h.make_tensor_value_info("x", T.FLOAT, ["n", 3]), h.make_tensor_value_info("w", T.FLOAT, [4, 3])]
    graph = h.make_graph(nodes, "theirs", inputs, [h.make_tensor_value_info("y\n", T.FLOAT, ["n", 4])], weights)
    path = tmp_path / "theirs.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=8), str(path))
    program, feed = mg.onnx.load(path), {"x": rng.normal(size=(5, 3)).astype(np.float32)}
    compiled = static.CompiledProgram(program, static.BuildStrategy.all())
    for which in (program, compiled):
        (ours,) = Executor().run(which, feed, list(program.fetched))
        np.testing.assert_allclose(ours, served(path, feed)[0], rtol=1e-6)


def test_the_command_line_takes_a_file(net, capsys, tmp_path):
    program, out, path = net
    program.to_onnx(path, [out])
    for name in ("summary", "explain", "dump", "diff", "verify"):
        assert command([name, str(path)]) == 0
    assert command(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert command(["summary", "--json", str(path), "--shape", "x=7,16"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert totals["parameters"] == 16 * 64 + 64 and totals["flops"] > 2 * 7 * 16 * 64
    edited(path, _another_node)
    with pytest.raises(SystemExit) as stopped:
        command(["summary", str(path)])
    assert stopped.value.code == 2 and "ai.onnx::LSTM: no operator is known" in capsys.readouterr().err


def test_netron_serves_the_file(net):
    netron = pytest.importorskip("netron", reason="the extra viz is not installed")
    program, out, path = net
    static.CompiledProgram(program, static.BuildStrategy.all()).to_onnx(path, [out])
    address = netron.serve(str(path), None, browse=False)
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/data/{path.name}", timeout=60) as answer:
            assert answer.read() == path.read_bytes()
    finally:
        netron.stop(address)


def test_a_loaded_model_runs_with_passes_and_any_batch(net, tmp_path):
    """What save_inference_model wrote, and what to_onnx writes of it."""
    program, out, path = net
    exe = Executor()
    expected = {n: exe.run(program, feed_of(n), [out])[0] for n in (1, 6)}
    static.save_inference_model(tmp_path / "net", [program.vars["x"]], [out], exe, program=program)
    with static.scope_guard(static.Scope()):
        loaded, _, fetches = static.load_inference_model(tmp_path / "net", exe)
        compiled = static.CompiledProgram(loaded, static.BuildStrategy.all())
        loaded.to_onnx(path)
        for n in (1, 6):
            np.testing.assert_allclose(exe.run(compiled, feed_of(n), fetches)[0], expected[n], rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(served(path, feed_of(n))[0], expected[n], rtol=1e-5, atol=1e-6)
        assert len(compiled.after.ops) < len(loaded.ops)
