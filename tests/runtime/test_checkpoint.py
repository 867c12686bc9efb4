"""Files of weights: every layout leaves in C order, every byte is looked at, what is none is refused clearly."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import load as read_safetensors
from safetensors.numpy import save as serialize

import minigraph as mg
from minigraph import nn, static
from minigraph.errors import (
    DTypeError,
    MinigraphError,
    ProgramError,
    ShapeError,
    UninitializedError,
)
from minigraph.program import unique_name
from minigraph.runtime.checkpoint.tensors import packed
from minigraph.types import bfloat16
from tests.support.checkpoints import FILES, Trained

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def unaligned(a: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(b"x" + a.tobytes()), a.dtype, offset=1).reshape(a.shape)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C order": np.array,
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: np.array(a.T).T,
    "negative strides": lambda a: np.array(a[::-1, ::-1])[::-1, ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "one row for all": lambda a: np.broadcast_to(a[0], a.shape),
    "one number for all": lambda a: np.broadcast_to(a[1, 1], a.shape),
    "overlapping": lambda a: np.lib.stride_tricks.as_strided(a.reshape(-1), a.shape, (4, 4)),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, Fortran order": lambda a: np.asfortranarray(a.astype(a.dtype.newbyteorder(">"))),
    "unaligned": unaligned,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "matrix": lambda a: np.asfortranarray(a).view(np.matrix),
}  # fmt: skip

WRITERS: dict[str, Callable[[static.Program, np.ndarray], None]] = {
    "Scope.write": lambda program, a: static.global_scope().write("w", a),
    "ScopeTensor.set": lambda program, a: static.global_scope().find_var("w").get_tensor().set(a),
    "set_program_state": lambda program, a: static.set_program_state(program, {"w": a}),
    "set_state_dict": lambda program, a: program.set_state_dict({"w": a}),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_states(tmp_path: Path, layout: str, writer: str) -> None:
    static.create_parameter([3, 4], name="w")
    main, given = static.default_main_program(), LAYOUTS[layout](VALUES)
    expected = np.array(given).astype("f4").tolist()
    static.Executor().run(static.default_startup_program())
    WRITERS[writer](main, given)
    own = static.global_scope().arrays["w"]
    assert type(own) is np.ndarray and own.dtype.isnative
    assert own.flags.c_contiguous and own.flags.aligned and own.flags.writeable
    assert static.global_scope().read("w").flags.c_contiguous
    static.save(main, tmp_path / "m")
    static.global_scope().write("w", np.zeros((3, 4), "f4"))
    static.load(main, tmp_path / "m")
    assert static.global_scope().read("w").tolist() == expected
    assert read_safetensors((tmp_path / "m.pdparams").read_bytes())["w"].tolist() == expected
    static.load(main, tmp_path / "m", verify=False)
    assert static.global_scope().read("w").tolist() == expected


@pytest.mark.parametrize("layout", [*LAYOUTS, "list"])
def test_layouts_of_what_was_put_into_a_scope_by_hand(tmp_path: Path, layout: str) -> None:
    static.create_parameter([3, 4], dtype="float64", name="w")
    given: Any = VALUES.astype("f8").tolist() if layout == "list" else LAYOUTS[layout](VALUES.astype("f8"))
    static.global_scope().arrays["w"] = given
    static.save(static.default_main_program(), tmp_path / "m")
    read = static.load_program_state(tmp_path / "m")["w"]
    assert read.tolist() == np.array(given).tolist() and read.dtype.isnative
    fetched = static.Executor().run(static.default_main_program(), fetch_list=["w"])[0]
    assert fetched.tolist() == np.array(given).tolist()


@pytest.mark.parametrize("value", [[[1, 2], [3]], "text", object(), np.ma.ones((3, 4), "f4")], ids=range(4))
def test_what_is_no_array_and_was_put_into_a_scope_by_hand(tmp_path: Path, value: Any) -> None:
    static.create_parameter([3, 4], name="w")
    static.global_scope().arrays["w"] = value
    main = static.default_main_program()
    for action in (lambda: static.Executor().run(main, fetch_list=["w"]), lambda: static.save(main, tmp_path / "m")):
        with pytest.raises(MinigraphError, match=r"value of w is no array|in the scope"):
            action()


WRONG = {"type": VALUES.astype("f8"), "no type of a file": VALUES.astype("c8"), "shape": VALUES.T, "rank": VALUES[0]}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_that_load_would_refuse_is_not_saved(tmp_path: Path, wrong: str) -> None:
    """It would take the place of a state that can be loaded."""
    static.create_parameter([3, 4], name="w")
    main, scope = static.default_main_program(), static.global_scope()
    scope.write("w", VALUES)
    static.save(main, str(tmp_path / "m"))
    scope.arrays["w"] = WRONG[wrong]  # by hand: `write` refuses a type of no file
    with pytest.raises(ProgramError, match=r"save: w: f32\[3,4\] is .* in the scope"):
        static.save(main, str(tmp_path / "m"))
    static.load(main, str(tmp_path / "m"))
    assert scope.read("w").tolist() == VALUES.tolist()


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "Scope.write"])
def test_a_masked_array_is_no_state(writer: str) -> None:
    """What the mask hides would be taken for values."""
    static.create_parameter([3, 4], name="w")
    static.Executor().run(static.default_startup_program())
    with pytest.raises(DTypeError, match=r"value of w is no array: MaskedArray: it is masked"):
        WRITERS[writer](static.default_main_program(), np.ma.masked_array(VALUES, VALUES > 3))


def test_weights_of_another_framework(tmp_path: Path) -> None:
    """A transposed torch tensor is a view in Fortran order for NumPy."""

    class Tensor:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return np.array(VALUES.T).T

    static.create_parameter([3, 4], name="w")
    static.Executor().run(static.default_startup_program())
    static.global_scope().find_var("w").get_tensor().set(Tensor())
    static.save(static.default_main_program(), tmp_path / "m")
    assert static.load_program_state(tmp_path / "m")["w"].tolist() == VALUES.tolist()


@pytest.mark.parametrize("passes", [False, True], ids=["", "passes"])
def test_a_state_that_operators_write(tmp_path: Path, passes: bool) -> None:
    """Elementwise operations keep the layout of their input."""
    x = static.data("x", [3, 4])
    kept = static.default_main_program().global_block().create_var("kept", [4, 3], persistable=True)
    mg.assign(mg.transpose(x, [1, 0]) * 2.0 + 1.0, kept)
    main, program = static.default_main_program(), static.default_main_program()
    if passes:
        program = static.CompiledProgram(main, static.BuildStrategy.all())
    for _ in range(3):
        static.Executor().run(program, feed={"x": VALUES})
    assert static.global_scope().arrays["kept"].flags.c_contiguous
    static.save(main, tmp_path / "m")
    assert static.load_program_state(tmp_path / "m")["kept"].tolist() == (VALUES.T * 2 + 1).tolist()


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", bfloat16, "i8", "i4", "i2", "i1", "u1", "?"], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (3, 5), (2, 3, 4)], ids=str)
def test_the_format_is_that_of_safetensors(shape: tuple[int, ...], dtype: Any) -> None:
    a = np.asfortranarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    made = packed({"w": a, "v": np.ones(3, np.uint8)}, "00")
    content = b"".join(bytes(part) for part in made.parts())
    assert len(content) == made.nbytes
    assert dict(deserialize(content))["w"]["data"] == np.array(a, order="C").tobytes()
    if a.dtype != bfloat16:
        assert b"".join(map(bytes, packed({"w": a}, "00").parts())) == serialize(
            {"w": np.array(a, order="C")}, {"minigraph_save": "00"}
        )
        read = read_safetensors(content)["w"]
        assert (read.shape, read.dtype) == (a.shape, a.dtype) and (read == a).all()


def test_a_variable_with_the_name_of_the_metadata(tmp_path: Path) -> None:
    static.create_parameter([2], name="__metadata__")
    static.Executor().run(static.default_startup_program())
    with pytest.raises(ProgramError, match="cannot hold a variable called __metadata__"):
        static.save(static.default_main_program(), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", "<>")
def test_an_object_with_arrays_of_other_byte_orders(tmp_path: Path, order: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(f"{order}f4").T
    for kept in ({"w": array}, [array, array[0]]):
        mg.save(kept, tmp_path / "m")
        loaded = mg.load(tmp_path / "m")
        for a in loaded.values() if isinstance(loaded, dict) else loaded:
            assert a.dtype == np.float32 and a.dtype.isnative
        np.testing.assert_equal(loaded, kept)


UNSTORABLE = {"text": {"w": np.array(["a"])}, "objects": {"w": np.array([None])}, "complex": [np.ones(2, "c8")],
              "uint64": [np.uint64(3)], "records": {"w": np.zeros(2, [("a", "i4")])},
              "half a letter": {"w\udc80": np.ones(2)}}  # fmt: skip


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_what_a_file_of_weights_cannot_hold_is_not_saved(tmp_path: Path, kind: str) -> None:
    """It would take the place of a file that can be loaded."""
    mg.save({"w": VALUES}, tmp_path / "m")
    with pytest.raises(MinigraphError, match=r"a file of weights (holds float64, |cannot hold a variable called w)"):
        mg.save(UNSTORABLE[kind], tmp_path / "m")
    assert (mg.load(tmp_path / "m")["w"] == VALUES).all()


def test_files_of_variables_are_loaded_all_or_none(tmp_path: Path) -> None:
    main, scope = static.default_main_program(), static.global_scope()
    for name in "ab":
        static.create_parameter([2], name=name)
        scope.write(name, np.zeros(2, "f4"))
    static.io.save_vars(None, tmp_path, main)
    (tmp_path / "b").unlink()
    scope.write("a", np.ones(2, "f4"))
    with pytest.raises(MinigraphError):
        static.io.load_vars(None, tmp_path, main)
    assert scope.read("a").tolist() == [1, 1]


def test_files_of_variables_of_two_programs_are_loaded_all_or_none(tmp_path: Path) -> None:
    scope, own = static.global_scope(), []
    for name, size in (("a", 2), ("b", 2), ("b", 3)):
        with static.program_guard(static.Program(), static.Program()):
            own.append(static.create_parameter([size], name=name))
        scope.write(name, np.zeros(size, "f4"))
    scope.write("b", np.zeros(2, "f4"))
    static.io.save_vars(None, tmp_path, vars=own[:2])
    for name in "ab":
        scope.write(name, np.ones(2, "f4"))
    with pytest.raises(MinigraphError, match=r"state of b: f32\[3\] has shape \[2\]"):
        static.io.load_vars(None, tmp_path, vars=[own[0], own[2]])
    assert scope.read("a").tolist() == [1, 1]
    static.io.load_vars(None, tmp_path, vars=own[:2])
    assert scope.read("a").tolist() == scope.read("b").tolist() == [0, 0]


@pytest.mark.parametrize("name", ["../w", "a/../../w", "/tmp/w"])
def test_no_name_of_a_variable_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    static.create_parameter([2], name=name)
    main, folder = static.default_main_program(), tmp_path / "folder"
    static.global_scope().write(name, np.ones(2, "f4"))
    for action in (static.io.save_vars, static.io.load_vars):
        with pytest.raises(ProgramError, match=r"would lie outside of .*folder"):
            action(None, folder, main)
    assert list(tmp_path.iterdir()) == []
    static.io.save_vars(None, folder, main, filename="all")
    static.io.load_vars(None, folder, main, filename="all")


@pytest.mark.parametrize("names", [("w", "./w"), ("a//b", "c", "a/b"), ("b/./c", "b/c")])
def test_no_two_variables_get_one_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    main, scope = static.default_main_program(), static.global_scope()
    for name in names:
        static.create_parameter([2], name=name)
        scope.write(name, np.ones(2, "f4"))
    with pytest.raises(ProgramError, match=r"(?s)would have one file in .*filename= takes all of them into one"):
        static.io.save_vars(None, tmp_path, main)
    assert list(tmp_path.iterdir()) == []
    static.io.save_vars(None, tmp_path, main, filename="all")
    static.io.load_vars(None, tmp_path, main, filename="all")


def test_a_name_that_half_written_files_have_is_refused(tmp_path: Path) -> None:
    """The next save of the file beside it would remove it."""
    with pytest.raises(ProgramError, match=r"w.partial_save: a half written file is called so"):
        mg.save({"w": VALUES}, tmp_path / "w.partial_save")
    assert list(tmp_path.iterdir()) == []


# every byte is looked at


def refused(trained: Trained, path: Path, **options: Any) -> str:
    """The error of a load, which changes nothing."""
    trained.set(9)
    with static.scope_guard(trained.scope), pytest.raises(MinigraphError) as caught:
        static.load(trained.main, path, **options)
    with pytest.raises(MinigraphError):
        static.load_program_state(path, **options)
    values = {float(v) for name in trained.scope.list_names() for v in trained.scope.read(name).reshape(-1)}
    assert values == {9} and trained.scope.steps[trained.main.origin] == 9
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


@pytest.mark.parametrize("kind", ["pdparams", "pdopt", "manifest"])
def test_every_flipped_byte_is_refused(tmp_path: Path, kind: str) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    file = tmp_path / f"m.{kind}"
    content = file.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    names = {v.name for v in trained.main.list_vars() if v.persistable}
    for at in range(len(content)):
        flip = 1 << at % 8
        file.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
        message = refused(trained, path)
        assert f"m.{kind}" in message
        if kind != "manifest" and at >= data:
            assert message.startswith("[MG-FILE-002] load: ") and any(f" {name} in " in message for name in names)
    file.write_bytes(content)
    assert trained.loaded(path) == 3


@pytest.mark.parametrize("kind", ["pdparams", "pdopt", "manifest"])
def test_truncation_at_each_byte_is_refused(tmp_path: Path, kind: str) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    file = tmp_path / f"m.{kind}"
    content = file.read_bytes()
    for changed in [*(content[:at] for at in range(len(content))), content + b"\0", content + content]:
        file.write_bytes(changed)
        message = refused(trained, path)
        assert f"m.{kind}" in message
        if kind != "manifest":
            assert f"m.{kind} is no file of weights" in refused(trained, path, verify=False)


def test_a_flip_is_named_and_can_be_let_pass(tmp_path: Path) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    file = tmp_path / "m.pdparams"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\x41")
    message = refused(trained, path)
    assert f"load: b in {file} is not what was saved" in message
    assert "hint: take the file from a backup; verify=False reads it as it is" in message
    with static.scope_guard(static.Scope()):
        static.load(trained.main, path, verify=False)
        assert static.global_scope().read("a").tolist() == [3, 3, 3] != static.global_scope().read("b").tolist()
    assert static.load_program_state(path, ["a"], verify=False)["a"].tolist() == [3, 3, 3]


def test_files_of_two_saves_are_never_mixed(tmp_path: Path) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    old = (tmp_path / "m.pdopt").read_bytes()
    trained.save(path, 4)
    (tmp_path / "m.pdopt").write_bytes(old)
    assert "m.pdopt is not the one that was saved" in refused(trained, path)
    (tmp_path / "m.manifest").unlink()  # as in files of former versions
    assert "come from different saves" in refused(trained, path)


def test_files_without_a_manifest_load_as_before(tmp_path: Path) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    (tmp_path / "m.manifest").unlink()
    assert trained.loaded(path) == 3
    said = f"[MG-FILE-001] load: cannot read {tmp_path / 'n.pdparams'}: No such file"
    assert refused(trained, tmp_path / "n").startswith(said)


def changed(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: manifest.__setitem__(name, value)


MANIFESTS: list[tuple[str, Any]] = [
    ("schema 2, this minigraph", changed("minigraph_checkpoint", 2)),
    ("its schema is no number", changed("minigraph_checkpoint", True)),
    ("there is no schema 0", changed("minigraph_checkpoint", 0)),
    ("its hash is not that of its content", lambda m: m["state"]["training"].update(runs=7)),
    ("its hash is not that of its content", lambda m: m["state"].update(files={"../../evil": {}})),
    ("its parts are others", changed("more", 1)),
    ("it is none of minigraph's", lambda m: m.clear()),
]


@pytest.mark.parametrize(("phrase", "change"), MANIFESTS, ids=[phrase for phrase, _ in MANIFESTS])
def test_manifests_that_are_refused(tmp_path: Path, phrase: str, change: Callable[[Any], Any]) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    file = tmp_path / "m.manifest"
    manifest = json.loads(file.read_bytes())
    change(manifest)
    file.write_text(json.dumps(manifest))
    assert phrase in refused(trained, path)
    trained.save(path, 4)
    assert trained.loaded(path) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == FILES


@pytest.mark.parametrize(
    "content",
    [b"[" * 200_000, b'{"a":1,"a":2}', b"\xff\xfe", b"NaN", b"[]", b"null", b'"\\ud800"', b"9" * 5000, b""],
    ids=range(9),
)  # fmt: skip
def test_manifests_that_are_none(tmp_path: Path, content: bytes) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    (tmp_path / "m.manifest").write_bytes(content)
    assert "m.manifest is no manifest of a checkpoint" in refused(trained, path)


def header(text: str, data: bytes = b"") -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],'
               '"data_offsets":[0,4]}}', b"1234"),
        header('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"1234"),
        header('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', b"12345678"),
        header('{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}', b"12345678"),
        header('{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}', b"1234"),
        header("[]"), header("[" * 100_000), header("{}", b"1"), (2**63).to_bytes(8, "little") + b"{}", b"\xff" * 9,
    ],
    ids=range(10),
)  # fmt: skip
def test_files_that_are_no_weights(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.pdparams").write_bytes(content)
    assert "m.pdparams is no file of weights" in refused(Trained(), tmp_path / "m")


# what stands there instead


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a FIFO": (os.mkfifo, "not a regular file"),
    "a folder": (os.mkdir, "not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a terminal": (lambda path: path.symlink_to("/dev/tty"), "cannot read"),
    "a link to itself": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "a socket": (lambda path: bound_socket(path), "No such device"),
}


def bound_socket(path: Path) -> None:
    os.mknod(path, 0o140600)


@pytest.mark.parametrize("kind", ["pdparams", "pdopt", "manifest"])
@pytest.mark.parametrize("other", OTHERS)
def test_no_regular_file(tmp_path: Path, other: str, kind: str) -> None:
    """It is refused at once, and the next save replaces it."""
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    (tmp_path / f"m.{kind}").unlink()
    make, phrase = OTHERS[other]
    make(tmp_path / f"m.{kind}")
    if other == "a dangling link" and kind == "manifest":
        assert trained.loaded(path) == 3
    else:
        message = refused(trained, path)
        assert f"cannot read {path}.{kind}: " in message and phrase in message
    if other != "a folder":
        trained.save(path, 4)
        assert trained.loaded(path) == 4


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """As caches of downloads have them; a save puts files in their place and leaves what they lead to."""
    trained = Trained()
    trained.save(tmp_path / "n", 3)
    for name in FILES:
        (tmp_path / name).symlink_to(f"n{name[1:]}")
    assert trained.loaded(tmp_path / "m") == 3
    trained.save(tmp_path / "m", 4)
    assert (trained.loaded(tmp_path / "m"), trained.loaded(tmp_path / "n")) == (4, 3)
    assert not any((tmp_path / name).is_symlink() for name in FILES)


def test_a_lock_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.lock")
    with pytest.raises(ProgramError, match=r"cannot lock .*m\.lock: not a regular file"):
        Trained().save(tmp_path / "m", 3)


@pytest.mark.parametrize("path", ["m\ud800", "m\0", "", "folder/", "\udfff/m", b"m\0"], ids=ascii)
def test_paths_that_name_no_file(path: Any) -> None:
    trained = Trained()
    trained.set(1)
    with static.scope_guard(trained.scope):
        for action in (static.save, static.load):
            with pytest.raises(ProgramError, match=r"names no file|must be a path") as caught:
                action(trained.main, path)
            str(caught.value).encode()
        with pytest.raises(ProgramError, match=r"names no file|must be a path"):
            static.load_program_state(path)


@pytest.mark.parametrize("path", ["m\ud800", "m\0", b"m", 3, True, ["m"]], ids=ascii)
def test_names_of_files_and_folders_that_are_none(tmp_path: Path, path: Any) -> None:
    trained, exe = Trained(), static.Executor()
    trained.set(1)
    with static.scope_guard(trained.scope):
        with unique_name.guard("served_"):
            out = trained.main.vars["a"] * 2.0
        static.save_inference_model(tmp_path / "m", [], [out], exe, program=trained.main)
        for action in (
            lambda: static.io.save_vars(exe, tmp_path, trained.main, filename=path),
            lambda: static.io.load_vars(exe, tmp_path, trained.main, filename=path),
            lambda: static.io.load_vars(exe, path, trained.main),
            lambda: static.load_inference_model(tmp_path / "m", exe, model_filename=path),
            lambda: static.load_inference_model(tmp_path / "m", exe, params_filename=path),
        ):
            with pytest.raises(ProgramError) as caught:
                action()
            str(caught.value).encode()
    assert {p.name for p in tmp_path.iterdir()} == {"m.pdmodel", "m.pdiparams"}


def test_a_path_of_undecodable_bytes(tmp_path: Path) -> None:
    """As os.listdir gives it."""
    trained, path = Trained(), os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    trained.save(path, 3)
    assert trained.loaded(path) == 3
    with static.scope_guard(static.Scope()), pytest.raises(ProgramError) as caught:
        static.load(trained.main, path + "x")
    str(caught.value).encode()


def test_what_is_loaded_can_be_trained_on(tmp_path: Path) -> None:
    """Arrays out of a file can be written, and share no memory."""
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, 3)
    state = static.load_program_state(path)
    state["a"][...] = 0
    assert (state["b"] == 3).all()
    with static.scope_guard(static.Scope()):
        static.load(trained.main, path)
        static.Executor().run(trained.main)
        assert (static.global_scope().read("a") != 3).all()


def test_an_initializer_takes_any_layout() -> None:
    for layout, make in LAYOUTS.items():
        given = make(VALUES)
        p = static.create_parameter([3, 4], default_initializer=nn.initializer.Assign(given))
        c = mg.assign(np.asarray(given).astype("f4", order="K"))
        static.Executor().run(static.default_startup_program())
        assert static.global_scope().read(p.name).tolist() == np.array(given).tolist(), layout
        assert static.Executor().run(fetch_list=[c])[0].tolist() == np.array(given).tolist(), layout


def test_a_state_whose_size_a_run_decides(tmp_path: Path) -> None:
    main, startup = static.Program("main"), static.Program("startup")
    with static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        hidden = static.nn.fc(x, 3)
        hidden.persistable = True
        mg.optimizer.SGD(0.1).minimize(mg.mean(hidden))
    exe, scope = static.Executor(), static.global_scope()
    exe.run(startup)
    exe.run(main, {"x": np.ones((2, 4), "float32")})
    kept = main.state_dict()
    static.save(main, str(tmp_path / "net"))
    exe.run(main, {"x": np.ones((5, 4), "float32")})
    for put_back in (lambda: static.load(main, str(tmp_path / "net")), lambda: main.set_state_dict(kept)):
        scope.write(hidden.name, np.zeros((7, 3), "float32"))
        put_back()
        assert {name: a.tobytes() for name, a in main.state_dict().items()} == {n: a.tobytes() for n, a in kept.items()}
    with pytest.raises(ShapeError, match=r"has shape \[2, 4\]"):
        main.set_state_dict({**kept, hidden.name: np.zeros((2, 4), "float32")})


def test_a_state_of_unknown_size_is_written_before_it_is_read() -> None:
    main = static.Program("main")
    with static.program_guard(main, static.Program()):
        x = static.data("x", [None, 4])
        state = main.global_block().create_var("state", [-1, 4], "float32", persistable=True)
        total = mg.tanh(x + state)
    static.global_scope().write("state", np.ones((2, 4), "float32"))
    with pytest.raises(UninitializedError, match=r"state: .* is read before an operator writes it"):
        static.Executor().run(main, {"x": np.ones((2, 4), "float32")}, [total])


def test_a_device_stays(tmp_path: Path) -> None:
    """As root a rename would put a file in the place of /dev/null."""
    try:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    with pytest.raises(ProgramError, match=r"cannot write .*null: it is a device"):
        mg.save({"a": np.ones(2)}, tmp_path / "null")
    assert [p.is_char_device() for p in tmp_path.iterdir()] == [True]


def test_no_room_for_a_copy_of_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained()
    trained.set(1)
    before = trained.main.state_dict(scope=trained.scope)

    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(np, "array", full)
        with pytest.raises(MinigraphError, match="out of memory: no room for a copy of a"):
            trained.main.set_state_dict(before, trained.scope)
    assert all((a == 1).all() for a in trained.main.state_dict(scope=trained.scope).values())
