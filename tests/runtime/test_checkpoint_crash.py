"""A save that is cut anywhere leaves the state before or the new one, and the next save tidies up."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as serialize

import minigraph as mg
from minigraph import static
from minigraph.errors import ProgramError
from minigraph.runtime.checkpoint import storage
from minigraph.runtime.checkpoint.single import write_file
from tests.support.checkpoints import FILES, FailingDisk, ForgetfulDisk, Trained, with_disk
from tests.support.grades import checkered, graded

OLD, NEW, NEXT = 3, 4, 5
ERRORS = errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.ENOENT


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk knows is simulated here: nobody waits for a real one."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def nothing(folder: Path) -> None:
    """There is no state yet."""


def saved(folder: Path) -> None:
    """There is a state."""
    Trained().save(folder / "m", OLD)


def former(folder: Path) -> None:
    """There is a state of a minigraph without manifests, and what a crash left of it."""
    trained = Trained()
    trained.set(OLD)
    for kind, params in (("pdparams", "param"), ("pdopt", "opt")):
        state = trained.main.state_dict(params, trained.scope)
        (folder / f"m.{kind}").write_bytes(serialize(state, {"minigraph_save": "00"}))
    (folder / "m.pdmodel").write_text(str(trained.main))
    (folder / "m.pdparams.999999999.partial").write_bytes(b"left")


def without_states(folder: Path) -> None:
    """There is a state without an optimizer."""
    Trained(optimizer=False).save(folder / "m", OLD)


def committed(folder: Path) -> None:
    """There is a state whose files have their fresh names yet: the save ended right after its commit."""
    trained, path = Trained(), folder / "m"
    trained.save(path, OLD - 1)
    disk = FailingDisk()
    with_disk(disk, lambda: trained.save(path, OLD - 1))
    commit = disk.names.index("replace")
    with_disk(FailingDisk(commit + 2), lambda: trained.save(path, OLD))
    assert len(names(folder)) > len(FILES) + 2


def broken(folder: Path) -> None:
    """A save was cut before its commit."""
    saved(folder)
    trained = Trained()
    with_disk(FailingDisk(6), lambda: trained.save(folder / "m", 99))
    assert len(names(folder)) > len(FILES)


BEFORE: list[Callable[[Path], None]] = [nothing, saved, former, committed, broken]


def error_of(action: Callable[[], None]) -> str | None:
    """What a ProgramError says, None without one."""
    try:
        action()
    except ProgramError as problem:
        return str(problem)
    return None


def calls_of_a_save(before: Callable[[Path], None], folder: Path) -> int:
    folder.mkdir()
    before(folder)
    disk, trained = FailingDisk(), Trained()
    with_disk(disk, lambda: trained.save(folder / "m", NEW))
    assert names(folder) == FILES
    return disk.count


@pytest.mark.parametrize(
    ("before", "torn"), checkered(BEFORE, [True, False]), ids=lambda x: getattr(x, "__name__", f"torn={x}")
)
def test_a_crash_between_any_two_calls(tmp_path: Path, before: Callable[[Path], None], torn: bool) -> None:
    trained = Trained()
    count, found = calls_of_a_save(before, tmp_path / "counted"), []
    assert count > 20
    for at in range(count):
        folder = tmp_path / str(at)
        folder.mkdir()
        before(folder)
        with_disk(FailingDisk(at, torn=torn), lambda path=folder / "m": trained.save(path, NEW))
        found.append(trained.loaded(folder / "m"))
        trained.save(folder / "m", NEXT)
        assert trained.loaded(folder / "m") == NEXT
        assert names(folder) == FILES
    switch = found.index(NEW)
    old = None if before is nothing else OLD
    assert found == [old] * switch + [NEW] * (count - switch)


@pytest.mark.parametrize(
    ("before", "number"),
    graded(
        ((before, number) for before in BEFORE for number in ERRORS),
        now=lambda before, number: before is saved or number == errno.ENOSPC,
    ),
    ids=lambda x: errno.errorcode[x] if isinstance(x, int) else x.__name__,
)
def test_an_error_of_any_call(tmp_path: Path, before: Callable[[Path], None], number: int) -> None:
    """An error means that the old state holds; a warning that the new one does."""
    trained, kinds = Trained(), set()
    for at in range(calls_of_a_save(before, tmp_path / "counted")):
        folder = tmp_path / str(at)
        folder.mkdir()
        before(folder)
        old, disk = trained.loaded(folder / "m"), FailingDisk(at, number)
        there = {"m.lock", *FILES, *(names(folder) if before is committed else [])}
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            message = error_of(lambda path=folder / "m", disk=disk: with_disk(disk, lambda: trained.save(path, NEW)))
        if message:
            assert os.strerror(number) in message and str(folder) in message
            assert len(message.splitlines()) <= 3
            expected, kind = old, "error"
        else:
            expected, kind = NEW, "warning" if warned else "none"
            assert not warned or "is saved and can be loaded" in str(warned[0].message)
        kinds.add(kind)
        assert trained.loaded(folder / "m") == expected
        if disk.names[at] in ("write", "fsync") and kind == "error":
            assert set(names(folder)) <= there, "what was written is swept at once"
        trained.save(folder / "m", NEXT)
        assert trained.loaded(folder / "m") == NEXT
        assert names(folder) == FILES
    assert kinds >= {"error", "warning"}


def test_a_manifest_that_is_not_seen_for_a_moment_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a disk of the network says so of a name that it lists: the save must not sweep what it names."""
    committed(tmp_path)
    trained, real, missed = Trained(), storage.open_file, list[str]()

    def open_file(path: str, *folder: int) -> int:
        if path.endswith(".manifest") and not missed:
            missed.append(path)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return real(path, *folder)

    monkeypatch.setattr(storage, "open_file", open_file)
    disk = FailingDisk(at=1, error=errno.ENOSPC)
    disk.COUNTED = ("write",)
    assert "No space left" in (error_of(lambda: with_disk(disk, lambda: trained.save(tmp_path / "m", NEW))) or "")
    assert missed and trained.loaded(tmp_path / "m") == OLD
    trained.save(tmp_path / "m", NEXT)
    assert trained.loaded(tmp_path / "m") == NEXT and names(tmp_path) == FILES


def test_a_file_system_that_cannot_sync_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of the network say by EINVAL; any other error is one."""
    trained, number = Trained(), errno.EINVAL

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.save(tmp_path / "m", OLD)
    assert trained.loaded(tmp_path / "m") == OLD and names(tmp_path) == FILES
    number = errno.EIO
    assert error_of(lambda: trained.save(tmp_path / "m", NEW)) and trained.loaded(tmp_path / "m") == OLD


@pytest.mark.parametrize("call", ["open", "fsync"])
def test_a_single_file_whose_folder_cannot_be_synced_is_written(tmp_path: Path, call: str) -> None:
    """An error of `mg.save` means that the former file is there; this one is the new one."""
    path = tmp_path / "w"
    mg.save({"w": np.zeros(3)}, path)
    counted = FailingDisk()
    counted.COUNTED = (call,)
    with_disk(counted, lambda: mg.save({"w": np.zeros(3)}, path))
    last = FailingDisk(counted.count - 1, errno.EIO)
    last.COUNTED = (call,)
    with pytest.warns(UserWarning, match="w is written, but after a loss of power .*: Input/output error"):
        with_disk(last, lambda: mg.save({"w": np.ones(3)}, path))
    np.testing.assert_array_equal(mg.load(path)["w"], np.ones(3))
    assert names(tmp_path) == ["w"]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO], ids=errno.errorcode.get)
def test_a_name_that_was_given_although_the_disk_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on a network whose first answer was lost: an error of a save says that what was there still is."""
    trained, real = Trained(), os.replace

    def replace(*args: Any, **named: Any) -> None:
        real(*args, **named)
        raise OSError(number, os.strerror(number))

    mg.save({"w": np.zeros(3)}, tmp_path / "w")
    trained.save(tmp_path / "m", OLD)
    monkeypatch.setattr(os, "replace", replace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mg.save({"w": np.ones(3)}, tmp_path / "w")
        trained.save(tmp_path / "m", NEW)
    np.testing.assert_array_equal(mg.load(tmp_path / "w")["w"], np.ones(3))
    assert trained.loaded(tmp_path / "m") == NEW and names(tmp_path) == [*FILES, "w"]


def test_a_file_that_was_read_may_complain_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, real = Trained(), os.close
    trained.save(tmp_path / "m", OLD)

    def close(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        real(descriptor)
        if is_file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", close)
    assert trained.loaded(tmp_path / "m") == OLD
    assert "Input/output" in (error_of(lambda: trained.save(tmp_path / "m", NEW)) or "")  # bytes may be lost
    assert trained.loaded(tmp_path / "m") == OLD


@pytest.mark.parametrize(
    "before",
    graded([saved, former, committed, without_states], now=lambda before: before in (saved, without_states)),
    ids=lambda f: f.__name__,
)
def test_a_loss_of_power_between_any_two_calls(tmp_path: Path, before: Callable[[Path], None]) -> None:
    """What was not synced may be there or not, each name for itself: the state is the old or the new one."""
    trained, images = Trained(), 0
    count = calls_of_a_save(before, tmp_path / "counted")
    for at in [*range(count), 10**9]:
        folder = tmp_path / str(at)
        folder.mkdir()
        before(folder)
        disk = ForgetfulDisk(folder, at)
        with_disk(disk, lambda path=folder / "m": trained.save(path, NEW))
        for image in disk.images():
            images += 1
            shutil.rmtree(folder)
            folder.mkdir()
            for name, content in image.items():
                (folder / name).write_bytes(content)
            reader = Trained(optimizer=False) if before is without_states else trained
            if before is without_states and (folder / "m.manifest").read_bytes().count(b"pdopt"):
                reader = trained
            found = reader.loaded(folder / "m")
            assert found == NEW if at > count else found in (OLD, NEW), f"call {at}: {found}, {sorted(image)}"
    assert images > count


def test_a_state_without_an_optimizer_after_one_with(tmp_path: Path) -> None:
    plain, trained, path = Trained(optimizer=False), Trained(), tmp_path / "m"
    trained.save(path, OLD)
    disk = FailingDisk()
    with_disk(disk, lambda: plain.save(path, OLD))
    assert names(tmp_path) == ["m.manifest", "m.pdmodel", "m.pdparams"]
    for at in range(disk.count):
        trained.save(path, OLD)
        with_disk(FailingDisk(at), lambda: plain.save(path, NEW))
        state = static.load_program_state(path)
        assert (set(state), state["a"][0]) in [({"a", "b"}, NEW), ({"a", "b", "learning_rate_0", *momenta()}, OLD)]
    trained.save(path, NEXT)
    assert trained.loaded(path) == NEXT
    assert names(tmp_path) == FILES


def momenta() -> set[str]:
    return {v.name for v in Trained().main.list_vars() if v.persistable} - {"a", "b", "learning_rate_0"}


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The system's own EFBIG, with a part of the file written."""
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, OLD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 1, 100, 300):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(ProgramError, match=r"cannot write .*: File too large"):
                trained.save(path, NEW)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert names(tmp_path) == FILES
        assert trained.loaded(path) == OLD


def test_a_folder_that_is_renamed_between_any_two_calls(tmp_path: Path) -> None:
    """Another one has its name then: the save goes on in the folder that it holds."""

    class Renaming(FailingDisk):
        def __getattr__(self, name: str) -> Any:
            if name in self.COUNTED and self.count == at:
                here.rename(tmp_path / "there")
                here.mkdir()
            return super().__getattr__(name)

    trained, here, counted = Trained(), tmp_path / "here", FailingDisk()
    trained.save(here / "m", OLD)
    with_disk(counted, lambda: trained.save(here / "m", NEW))
    for at in range(counted.count):
        shutil.rmtree(tmp_path / "there", ignore_errors=True)
        trained.save(here / "m", OLD)
        with_disk(Renaming(), lambda: trained.save(here / "m", NEW))
        assert trained.loaded(tmp_path / ("there" if at else "here") / "m") == NEW, at


class Changing(FailingDisk):
    """Changes something right before the call number `at`."""

    def __init__(self, at: int, change: Callable[[], Any]) -> None:
        super().__init__()
        self.moment, self.change = at, change

    def __getattr__(self, name: str) -> Any:
        if name in self.COUNTED and self.count == self.moment:
            self.moment = -1
            self.change()
        return super().__getattr__(name)


@pytest.mark.parametrize("how", ["working directory", "link", "renamed"])
def test_another_folder_that_the_path_leads_to_meanwhile_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It holds a file of a kind that the state which is saved has not: its own must stay."""
    small, large = Trained(optimizer=False), Trained()
    here, other, link = tmp_path / "here", tmp_path / "other", tmp_path / "link"

    def renamed() -> None:
        here.rename(tmp_path / "there")
        other.rename(here)

    def relinked() -> None:
        link.unlink()
        link.symlink_to(other)

    path, change = {
        "working directory": ("m", lambda: os.chdir(other)),
        "link": (link / "m", relinked),
        "renamed": (here / "m", renamed),
    }[how]
    counted = Changing(-1, lambda: None)
    small.save(here / "m", OLD)
    with_disk(counted, lambda: small.save(here / "m", OLD))
    for at in range(1, counted.count):  # before the first call the path leads to the other one
        for folder in (here, other, tmp_path / "there"):
            shutil.rmtree(folder, ignore_errors=True)
        small.save(here / "m", OLD)
        large.save(other / "m", NEXT)
        link.unlink(missing_ok=True)
        link.symlink_to(here)
        monkeypatch.chdir(here)
        with_disk(Changing(at, change), lambda: small.save(path, NEW))
        saved_in, left = (tmp_path / "there", here) if how == "renamed" else (here, other)
        assert small.loaded(saved_in / "m") == NEW and names(saved_in) == [n for n in FILES if n != "m.pdopt"], at
        assert large.loaded(left / "m") == NEXT, at


def test_a_file_that_names_others_leaves_those_of_another_folder(tmp_path: Path) -> None:
    here, other, link = tmp_path / "here", tmp_path / "other", tmp_path / "link"

    def relinked() -> None:
        link.unlink()
        link.symlink_to(other)

    def write(folder: Path, digit: str) -> None:
        write_file(str(folder / "m.onnx"), [digit.encode()], {f".{digit * 16}.data": [b"weights"]})

    write(other, "b")
    link.symlink_to(here)
    counted = Changing(-1, lambda: None)
    with_disk(counted, lambda: write(here, "a"))
    for at in range(1, counted.count):  # before the first call the link leads to the other one
        shutil.rmtree(here)
        here.mkdir()
        link.unlink()
        link.symlink_to(here)
        with_disk(Changing(at, relinked), lambda: write(link, "a"))
        assert names(here) == ["m.onnx", "m.onnx.aaaaaaaaaaaaaaaa.data"], at
        assert names(other) == ["m.onnx", "m.onnx.bbbbbbbbbbbbbbbb.data"], at


def texts(path: Path, words: str) -> dict[str, Callable[[], Any]]:
    """What writes a text of these words into the folder at a path."""
    main = static.Program(words)
    with static.program_guard(main, static.Program()):
        out = mg.mean(static.data("x", [2]) * 2.0)
    feed, exe = {"x": np.ones(2, "float32")}, static.Executor()

    def trace() -> None:
        with mg.profiler.Profiler() as profiler:
            exe.run(main, feed, [out])
        profiler.write_trace(path / "trace.json")

    def compiled(**flags: Any) -> None:
        exe.run(static.CompiledProgram(main, static.BuildStrategy.all(**flags)), feed, [out])

    return {
        "report": lambda: static.CompiledProgram(main).report(path / "report.html", feed, [out]), "trace": trace,
        "dump": lambda: compiled(dump_dir=str(path)), "dot": lambda: compiled(debug_graphviz_path=str(path / "g.dot")),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["report", "trace", "dump", "dot"])
def test_a_text_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, kind: str) -> None:
    texts(tmp_path, "old")[kind]()
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    write = texts(tmp_path, "new")[kind]
    for limit in (0, 1, 100):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(ProgramError, match="cannot be written: File too large"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == old
    write()
    assert {p.name for p in tmp_path.iterdir()} == old.keys()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} != old


def test_a_text_goes_where_a_link_leads_and_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "r.html").symlink_to("far.html")
    (tmp_path / "far.html").write_text("before")
    write = static.CompiledProgram(static.Program()).report
    write(tmp_path / "r.html")
    assert (tmp_path / "r.html").is_symlink() and b"<html" in (tmp_path / "far.html").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["dd", f"if={tmp_path}/pipe", f"of={tmp_path}/copy", "status=none"]):
        write(tmp_path / "pipe")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "far.html").read_bytes()


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, path = Trained(), tmp_path / "m"
    trained.save(path, OLD)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained.save(path, NEW)
    assert names(tmp_path) == FILES
    assert trained.loaded(path) == OLD


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Only what has a name that a save of this very path gives is swept."""
    others = [
        "m.pdparams.0123456789abcde", "m.pdparams.0123456789abcdefg", "m.pdparams.0123456789ABCDEF", "m.txt",
        "m.best.pdparams.0123456789abcdef", "mm.pdparams.0123456789abcdef", "m.pdparams.backup", "xm.manifest",
        "m.pdparams.0123456789abcdef.pdparams", f"m.pdopt.{os.getpid()}.partial", "m.0123456789abcdef",
    ]  # fmt: skip
    for name in [*others, "m.pdopt.0123456789abcdef", "m.manifest.fedcba9876543210", "m.pdmodel.999999999.partial"]:
        (tmp_path / name).write_text("x")
    Trained().save(tmp_path / "m", NEW)
    assert names(tmp_path) == sorted([*FILES, *others])


def test_what_a_crash_left_of_a_single_file_goes_with_the_next_save(tmp_path: Path) -> None:
    """A fork of this process ends in the middle of each save, as one that is killed does."""
    path = tmp_path / "x"
    mg.save({"a": np.zeros(3, "float32")}, path)
    for number in range(3):
        child = os.fork()
        if not child:
            storage.rename = lambda *_: os._exit(9)  # the bytes are there, the name is not yet
            mg.save({"a": np.full(3, number, "float32")}, path)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert not mg.load(path)["a"].any()
        assert len(names(tmp_path)) == 3  # the file, a part of one, and a lock that nobody holds
    mg.save({"a": np.ones(3, "float32")}, path)
    assert mg.load(path)["a"].all()
    assert names(tmp_path) == ["x"]


def test_a_lock_with_bytes_in_it_is_a_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "m.lock").write_text("kept")
    Trained().save(tmp_path / "m", NEW)
    assert (tmp_path / "m.lock").read_text() == "kept"


def test_a_lock_that_is_gone_each_time_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that does not show what was made on it."""
    saved(tmp_path)
    monkeypatch.setattr(storage, "LOCK_TRIES", 50)
    with monkeypatch.context() as patched:
        patched.setattr(storage, "_is_at", lambda *_: False)
        trained, mine = Trained(), tmp_path / "x"
        for action in (lambda: trained.save(tmp_path / "m", NEW), lambda: mg.save({"a": np.ones(2)}, mine)):
            with pytest.raises(ProgramError, match=r"cannot (lock|write) .*: it is gone each time that it was made"):
                action()
    assert Trained().loaded(tmp_path / "m") == OLD
    assert not storage._locks and not mine.exists()
    trained.save(tmp_path / "m", NEW)


def test_a_lock_that_cannot_be_freed_is_no_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network disk: an error of `save` says that the state before is still there."""
    trained, lock = Trained(), fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(errno.EIO, "Input/output error")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    for state in (OLD, NEW):
        trained.save(tmp_path / "m", state)
        assert trained.loaded(tmp_path / "m") == state


def test_a_child_that_is_forked_in_the_middle_of_a_save_does_not_keep_the_lock(tmp_path: Path) -> None:
    """It may outlive its parent; then a new process would wait for a lock that nobody gives back."""
    inside, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with storage.held(str(tmp_path)) as folder, storage.locked(str(tmp_path / "m.lock"), folder):
            inside.set()
            forked.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    target = f"{(tmp_path / 'm.lock').resolve()}"
    child = os.fork()
    if not child:
        links = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        os._exit(target in links)
    forked.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    trained, path = Trained(), tmp_path / "m"
    for name in FILES:
        (tmp_path / name).mkdir()
        with pytest.raises(ProgramError, match=f"cannot write .*{name}: it is a folder"):
            trained.save(path, NEW)
        (tmp_path / name).rmdir()
        assert names(tmp_path) == []


def test_savers_in_threads_take_turns(tmp_path: Path) -> None:
    """All savers of one path write; whatever is loaded meanwhile is the state of one of them."""
    trained, path, problems = Trained(), tmp_path / "m", []
    trained.save(path, 0)

    def saves() -> None:
        try:
            for _ in range(5):
                static.save(trained.main, path)
        except BaseException as problem:
            problems.append(problem)

    with static.scope_guard(trained.scope):
        threads = [threading.Thread(target=copy_context().run, args=(saves,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            static.load_program_state(path)
        for thread in threads:
            thread.join()
    assert problems == []
    assert trained.loaded(path) == 0
    assert names(tmp_path) == FILES


def test_a_reader_meets_a_save_between_any_two_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another state is committed, and its files get their names, while a load opens its own."""
    trained, path, real = Trained(), tmp_path / "m", storage.open_file
    trained.save(path, OLD)
    for at in range(4):
        count = 0

        def open_file(name: str, *folder: int, at: int = at) -> int:
            nonlocal count
            count += 1
            if count == at + 1:
                monkeypatch.setattr(storage, "open_file", real)
                trained.save(path, NEW)
                monkeypatch.setattr(storage, "open_file", open_file)
            return real(name, *folder)

        trained.save(path, OLD)
        monkeypatch.setattr(storage, "open_file", open_file)
        state = static.load_program_state(path)
        monkeypatch.setattr(storage, "open_file", real)
        assert {float(v) for array in state.values() for v in array.reshape(-1)} in ({OLD}, {NEW})


@pytest.mark.parametrize("savers", [1, 2])
def test_killed_children_lose_nothing(savers: int) -> None:
    """`python -m tests.support.killed_saves 1000` does it a thousand times."""
    script = Path(__file__).parents[1] / "support" / "killed_saves.py"
    result = subprocess.run(
        [sys.executable, str(script), "20", str(savers)], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": str(script.parents[2])},
    )  # fmt: skip
    assert "20 kills, 0 states lost" in result.stdout, result.stderr
