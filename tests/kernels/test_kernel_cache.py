"""Compiled kernels on disk: found again, also where the folder is missing, read-only or damaged."""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minigraph.kernels.cuda.record import compile, progress

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's Python bindings are not installed")
SOURCE = 'extern "C" __global__ void nothing() {}'


@pytest.fixture(autouse=True)
def own_folder():
    """A folder of the process that nobody has used: kernels are looked for there, too."""
    made = cache(compile._own_folder.__wrapped__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile, "_own_folder", made)
        yield
    made().cleanup()


@pytest.fixture
def compiled(monkeypatch):
    """The sources that NVRTC was asked for."""
    asked, own = [], compile._compiled
    monkeypatch.setattr(compile, "_compiled", lambda source, arch: asked.append(source) or own(source, arch))
    return asked


def test_a_kernel_is_compiled_once(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path / "new" / "kernels")
    first, second = compile.compile_source(SOURCE), compile.compile_source(SOURCE)
    assert first == second and len(compiled) == 1
    assert first.path.parent == compile.CACHE and first.path.stat().st_size and first.spilled_bytes == 0


def test_a_kernel_of_which_a_part_is_missing_is_compiled_again(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    made = compile.compile_source(SOURCE)
    for lost in (made.path, made.path.with_suffix(".log")):
        lost.unlink()
        assert compile.compile_source(SOURCE).path == made.path and lost.exists()
    assert len(compiled) == 3


@pytest.mark.parametrize("damage", [lambda code: b"", lambda code: code[:-1], lambda code: b"?" + code[1:]])
@pytest.mark.parametrize("part", [".cubin", ".log"])
def test_a_kernel_that_was_damaged_is_compiled_again(compiled, monkeypatch, tmp_path, part, damage):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    made = compile.compile_source(SOURCE)
    path, whole = made.path.with_suffix(part), made.path.read_bytes()
    path.write_bytes(damage(path.read_bytes()) if part == ".cubin" else b"\xff")
    for _ in range(2):
        again = compile.compile_source(SOURCE)
        assert again.path.read_bytes() == whole and again.spilled_bytes == 0
    assert again.path == made.path and len(compiled) == 2


def test_where_the_folder_cannot_be_written_kernels_go_with_the_process(compiled, monkeypatch, tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setattr(compile, "CACHE", blocked / "kernels")
    first, second = compile.compile_source(SOURCE), compile.compile_source(SOURCE)
    assert first == second and len(compiled) == 1 and first.path.exists()
    assert str(first.path.parent) == compile._own_folder().name


def test_on_a_full_disk_kernels_go_with_the_process(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    fdopen = os.fdopen

    def full(handle: int, *mode: str) -> Any:
        there = Path(f"/proc/self/fd/{handle}").readlink().parent == tmp_path
        os.close(handle) if there else None
        return open("/dev/full", "wb", buffering=0) if there else fdopen(handle, *mode)

    monkeypatch.setattr(compile.os, "fdopen", full)
    first, second = compile.compile_source(SOURCE), compile.compile_source(SOURCE)
    assert first == second and len(compiled) == 1 and first.path.stat().st_size
    assert str(first.path.parent) == compile._own_folder().name
    assert not list(tmp_path.iterdir()), "nothing is left half written"


def test_kernels_are_compiled_while_the_caller_goes_on(monkeypatch, tmp_path):
    """The longest text first, each once; what is on the disk begins nothing."""
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    monkeypatch.setattr(compile, "physical_cores", lambda: 1)
    goes_on, order = threading.Event(), list[int]()

    def compiled(source: str, arch: str) -> Any:
        goes_on.wait()
        order.append(len(source))
        return b"code", "", ""

    monkeypatch.setattr(compile, "_compiled", compiled)
    work, sources = compile.SideBySide("sm_80"), [SOURCE + " " * i for i in range(4)]
    work.begin(sources[:1])
    while work._left.qsize():  # until the thread has it
        time.sleep(0.001)
    work.begin(sources[1:3])
    work.begin(sources)
    assert not order  # nobody waits
    goes_on.set()
    for one in work.begun.values():
        one.result()
    assert order == [len(SOURCE) + i for i in (0, 3, 2, 1)] and work.end(sources) == 4
    monkeypatch.setattr(compile, "_known", lambda *_: pytest.fail("what is there is looked for once"))
    monkeypatch.setattr(compile, "told", lambda _: pytest.fail("there is nothing to wait for"))
    work.begin(sources)
    assert not work.begun and work.end(sources) == 0
    monkeypatch.undo()
    monkeypatch.setattr(compile, "CACHE", tmp_path)

    def fails(source: str, arch: str) -> Any:
        raise RuntimeError("NVRTC cannot compile")

    monkeypatch.setattr(compile, "_compiled", fails)
    work.begin([*sources, "other"])
    for _ in range(3):  # it may be asked for again
        work.begin(["other"])
        with pytest.raises(RuntimeError, match="NVRTC"):
            work.end(["other"])
    assert work.end(["other"]) == 0


def test_who_waits_for_some_kernels_does_not_wait_for_others(monkeypatch, tmp_path):
    """As a startup program while the kernels of a step are compiled: it compiles its own where no thread is free."""
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    monkeypatch.setattr(compile, "physical_cores", lambda: 1)
    goes_on, order = threading.Event(), list[str]()

    def compiled(source: str, arch: str) -> Any:
        if source == "first":
            goes_on.wait()
        order.append(source)
        return b"code", "", ""

    monkeypatch.setattr(compile, "_compiled", compiled)
    work, short, later = compile.SideBySide("sm_80"), ["one", "three", "fo"], ["much longer", "much longer still"]
    work.begin(["first"])
    while work._left.qsize():  # until the thread has it
        time.sleep(0.001)
    work.begin([*later, *short])
    assert work.end(short) == 3 and set(work.begun) == {"first", *later} and order == ["three", "one", "fo"]
    goes_on.set()
    assert work.end(["first", *later, "one"]) == 3 and not work.begun and work._pool is None
    assert sorted(order) == sorted(["first", *later, *short])  # each once
    work.begin(["another"])
    assert work.end(["another"]) == 1


def test_threads_take_first_what_somebody_waits_for(monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    monkeypatch.setattr(compile, "physical_cores", lambda: 1)
    goes_on, caller_goes_on, order = threading.Event(), threading.Event(), list[str]()

    def compiled(source: str, arch: str) -> Any:
        if threading.current_thread() is threading.main_thread():
            goes_on.set()
            caller_goes_on.wait()
        else:
            goes_on.wait()
            order.append(source)
            if source == "of others":
                caller_goes_on.set()
        return b"code", "", ""

    monkeypatch.setattr(compile, "_compiled", compiled)
    work = compile.SideBySide("sm_80")
    work.begin(["first"])
    while work._left.qsize():
        time.sleep(0.001)
    work.begin(["of others", "own", "mine"])
    assert work.end(["own", "mine"]) == 2 and work.end(["first", "of others"]) == 2
    assert order == ["first", "own", "of others"]  # the caller had "mine"


def test_what_takes_long_is_told_once_and_the_rest_is_not(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    sources, waits = [f"{SOURCE} // {i}" for i in range(3)], threading.Event()
    compile.compile_all(sources, "sm_80")
    assert capsys.readouterr().err == ""
    say, own = progress._say, compile._compiled
    monkeypatch.setattr(progress, "PATIENCE", 0)
    monkeypatch.setattr(progress, "_say", lambda text: (say(text), waits.set()))
    monkeypatch.setattr(compile, "_compiled", lambda *given: (waits.wait(), own(*given))[1])
    compile.compile_all(sources, "sm_90a")
    said = f"minigraph: compiling 3 of 3 kernels for sm_90a; once, they stay in {tmp_path}\n"
    assert capsys.readouterr().err == said


def test_a_folder_that_can_only_be_read_serves_what_it_has(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "CACHE", tmp_path)
    made = compile.compile_source(SOURCE)
    monkeypatch.setattr(compile, "_writable", lambda wanted: pytest.fail("nothing needs to be written"))
    assert compile.compile_source(SOURCE) == made


def test_without_a_home_nothing_is_kept(compiled, monkeypatch):
    def unknown() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compile.Path, "home", unknown)
    monkeypatch.setattr(compile, "CACHE", compile._home() / ".cache")
    assert compile.compile_source(SOURCE).path.parent.name.startswith("minigraph-")


@pytest.fixture
def shipped(compiled, own_folder, monkeypatch, tmp_path):
    """A folder of kernels that were compiled elsewhere; the cache of this machine is empty."""
    monkeypatch.setattr(compile, "CACHE", tmp_path / "there")
    assert compile.ship([SOURCE], "sm_90a", tmp_path / compile.SHIPPED) == 1
    monkeypatch.setattr(compile, "CACHE", tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compile, "_shipped", cache(compile._shipped.__wrapped__))
    compiled.clear()
    return tmp_path / compile.SHIPPED


def test_a_shipped_kernel_is_not_compiled(compiled, shipped, monkeypatch):
    major = compile.nvrtc().nvrtcVersion()[1]
    newer = type("Newer", (), {"nvrtcVersion": staticmethod(lambda: (0, major, 99))})
    monkeypatch.setattr(compile, "nvrtc", lambda: newer)
    found = compile.compile_source(SOURCE)
    assert found.path.parent == shipped and found.waits_first and not compiled
    assert compile.compile_all([SOURCE], "sm_90a") == 0 and not compile.CACHE.exists()


def test_what_was_not_shipped_is_compiled(compiled, shipped, monkeypatch):
    other = f"{SOURCE} // another"
    assert compile.compile_source(other).path.parent == compile.CACHE
    assert compile.compile_source(SOURCE, "sm_80").path.parent == compile.CACHE
    assert len(compiled) == 2
    major = compile.nvrtc().nvrtcVersion()[1]
    own = compile.nvrtc()
    monkeypatch.setattr(own, "nvrtcVersion", lambda: (0, major + 1, 0))
    assert compile.compile_source(SOURCE).path.parent == compile.CACHE, "machine code of another major version of CUDA"


def test_a_shipped_kernel_that_was_damaged_is_compiled(compiled, shipped):
    (path,) = shipped.glob("*.cubin")
    path.write_bytes(path.read_bytes()[:-1])
    assert compile.compile_source(SOURCE).path.parent == compile.CACHE and len(compiled) == 1
