"""Inference models and files of `mg.save`: what is kept, what a crash leaves, what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import DTypeError, MinigraphError, ProgramError, UninitializedError
from minigraph.runtime.checkpoint import storage


@pytest.fixture
def net():
    """x, y, out, loss, an Executor that has run the startup program."""
    x, y = static.data("x", [None, 3]), static.data("y", [None, 1])
    out = nn.Linear(3, 1)(nn.functional.dropout(x, 0.5))
    loss = mg.mean((out - y) ** 2)
    mg.optimizer.Adam(0.1).minimize(loss)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    return x, y, out, loss, exe


def test_only_what_is_needed_is_kept(net):
    x, _, out, _, _ = net
    program = static.normalize_program(out.program, [x], [out])
    assert [op.type for op in program.ops] == ["dropout", "matmul", "elementwise_add"]
    assert program.ops[0].attrs["is_test"] is True
    assert {v.name for v in program.list_vars() if v.persistable} == {"linear_0.w_0", "linear_0.b_0"}
    assert len(out.program.ops) > 10


def test_a_computed_value_may_be_an_input(net, tmp_path: Path):
    _, _, out, _, exe = net
    hidden = next(iter(out.program.ops[0].output_vars))
    static.save_inference_model(tmp_path / "net", hidden, out, exe)
    program, feeds, fetches = static.load_inference_model(tmp_path / "net", exe)
    assert feeds == [hidden.name]
    assert [op.type for op in program.ops] == ["matmul", "elementwise_add"]
    fed = np.ones((2, 3), "float32")
    expected = exe.run(out.program.clone(for_test=True), {"x": fed}, [out], use_prune=True)
    assert (exe.run(program, {hidden.name: fed}, fetches)[0] == expected[0]).all()


def test_what_is_refused(net, tmp_path: Path):
    x, y, out, loss, exe = net
    for feeds, fetches, why in (
        ([x], [loss], "needs y: f32"), ([x, x], [out], "holds a variable twice"),
        ([x], [], "must be a Variable or a list"),
        ([x, out.program.all_parameters()[0]], [out], "kept between runs"),
        ([y], [static.Program], "must be a Variable"),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match=why):
            static.save_inference_model(tmp_path / "net", feeds, fetches, exe)
    for call, why in (
        (lambda: static.save_inference_model(tmp_path / "net", x, out, None), "executor must be an Executor"),
        (lambda: static.save_inference_model(tmp_path / "net", x, out, exe, programm=1), "did you mean 'program'"),
    ):
        with pytest.raises(DTypeError, match=why):
            call()
    for bad in ("", str(tmp_path) + "/", 3, "a\0b"):
        with pytest.raises(ProgramError):
            static.save_inference_model(bad, x, out, exe)
    with static.scope_guard(static.Scope()), pytest.raises(UninitializedError, match="startup program"):
        static.save_inference_model(tmp_path / "net", x, out, exe)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_change_nothing(net):
    x, _, out, _, exe = net
    program = static.deserialize_program(static.serialize_program([x], [out]))
    before = {n: v.copy() for n, v in program.state_dict().items()}
    wrong = {n: np.zeros((2, *v.shape), "float32") for n, v in before.items()}
    for state in (wrong, {}, {**before, "other": np.zeros(1)}):
        with pytest.raises(MinigraphError):
            static.deserialize_persistables(program, _weights(state), exe)
    assert all((program.state_dict()[n] == v).all() for n, v in before.items())


def _weights(state: dict[str, np.ndarray]) -> bytes:
    from minigraph.runtime.checkpoint.tensors import packed

    return b"".join(packed(state, "").parts())


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 40, -1])
def test_damaged_bytes(net, cut: int):
    x, _, out, _, exe = net
    weights = static.serialize_persistables([x], [out], exe)
    with pytest.raises(ProgramError, match="are no weights"):
        static.deserialize_persistables(out.program, weights[:cut], exe)
    with pytest.raises(ProgramError):
        static.deserialize_program(b"\xff\xfe" + weights)


class Trap:
    """Pickled, it would write a file as soon as it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "opened")


def test_pickles_are_never_opened(net, tmp_path: Path):
    *_, exe = net
    sprung = tmp_path / "sprung"
    content = pickle.dumps({"w": Trap(sprung)}, protocol=4)
    for name in ("net.pdparams", "net.pdmodel", "net.pdiparams", "net"):
        (tmp_path / name).write_bytes(content)
    for call in (
        lambda: mg.load(tmp_path / "net.pdparams"), lambda: static.load_inference_model(tmp_path / "net", exe),
        lambda: static.load(static.default_main_program(), str(tmp_path / "net")),
        lambda: static.deserialize_program(content),
        lambda: static.deserialize_persistables(static.default_main_program(), content, exe),
    ):  # fmt: skip
        with pytest.raises(ProgramError, match="a pickle, as paddle") as raised:
            call()
        assert "safetensors" in (raised.value.hint or "")
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("head", "what"),
    [(b"\x0a\x94v\x08\x00\x10\xff", "protobuf"),
     (bytes(24), "inference model"), (b"PK\x03\x04aaaa", "a zip of pickles")],
)
def test_other_files_of_paddle(tmp_path: Path, head: bytes, what: str):
    (tmp_path / "w").write_bytes(head + b"abcdefgh")
    with pytest.raises(ProgramError, match=what):
        mg.load(tmp_path / "w")


def test_a_model_whose_text_is_another_says_so(net, tmp_path: Path):
    x, _, out, _, exe = net
    static.save_inference_model(tmp_path / "net", x, out, exe)
    (tmp_path / "net.pdmodel").write_text("program other\n")
    with pytest.warns(UserWarning, match="is not the program in"):
        program, _, _ = static.load_inference_model(tmp_path / "net", exe)
    assert len(program.ops) == 3
    (tmp_path / "net.pdmodel").unlink()
    assert len(static.load_inference_model(tmp_path / "net", exe)[0].ops) == 3


def test_a_failed_write_leaves_the_model_before(net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x, _, out, _, exe = net
    static.save_inference_model(tmp_path / "net", x, out, exe)
    before = (tmp_path / "net.pdiparams").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_new", full)
    with pytest.raises(ProgramError, match=r"cannot write .*No space left"):
        static.save_inference_model(tmp_path / "net", x, out, exe)
    assert (tmp_path / "net.pdiparams").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.pdiparams", "net.pdmodel"]


def test_data_of_all_kinds(net, tmp_path: Path):
    x, *_ = net
    data = {"a": [1, 2.5, None, True, "text", (np.arange(3), np.float32(2))], "empty": {}, "program": x.program}
    mg.save(data, tmp_path / "data")
    loaded = mg.load(tmp_path / "data")
    assert loaded["a"][:5] == data["a"][:5]
    assert isinstance(loaded["a"][5], tuple)
    assert (loaded["a"][5][0] == np.arange(3)).all()
    assert loaded["a"][5][1].dtype == np.float32
    assert str(loaded["program"]) == str(x.program)
    assert loaded["empty"] == {}


def test_data_that_cannot_be_saved(net, tmp_path: Path):
    x, *_ = net
    own: list = []
    own.append(own)
    for data, why in ((x, "no value of its own"), ({1: 2}, "keys"), ([object()], "cannot be saved"), (own, "levels")):
        with pytest.raises(MinigraphError, match=why):
            mg.save(data, tmp_path / "data")
    with pytest.raises(ProgramError, match="folder"):
        mg.save({}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_is_damaged(tmp_path: Path):
    for text in (b'{"array": "x"}', b'{"list": 3}', b"[", b'{"a": 1, "b": 2}', b"[" * 100_000):
        (tmp_path / "x").write_bytes(_weights({"__structure__": np.frombuffer(text, np.uint8)}))
        with pytest.raises(ProgramError):
            mg.load(tmp_path / "x")
