"""A device that the package does not know runs programs: one class and one row of a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph.errors import FeedError, PlaceError, ProgramError
from minigraph.runtime.cpu.backend import CPUBackend
from minigraph.runtime.devices import BACKENDS

PACKAGE = Path(mg.__file__).parent
MAY_NAME_A_PLACE = {
    "types.py", "cuda.py", "device/place.py", "command/machine.py", "command/subject.py", "__init__.py",
    "base/__init__.py", "base/compiled.py", "base/framework.py", "runtime/devices.py", "runtime/cuda/backend.py",
    "static/places.py",
}  # fmt: skip


@dataclass(frozen=True)
class MoonPlace:
    """Where there is no GPU."""

    crater: int = 0


@dataclass(frozen=True)
class MoonArray:
    """An array that does not lie in memory of the host."""

    far: np.ndarray


class Dark:
    """No array."""

    def __array__(self, *args, **kwargs):
        raise TypeError("nothing to see")


class MoonBackend(CPUBackend):
    """Its plans are those of a CPU; its arrays come down when they are fed."""

    takes = "a MoonArray"
    dust = 0

    def __init__(self, place: MoonPlace) -> None:
        super().__init__(place)
        self.place = place
        self.planned = 0

    def require_available(self) -> None:
        if self.place.crater > 3:
            raise PlaceError(f"{self.place} has no power")

    def settings(self) -> int:
        return MoonBackend.dust

    def accept_feed(self, value):
        return value.far if isinstance(value, MoonArray) else None

    def plan(self, *args):
        self.planned += 1
        return super().plan(*args)


@pytest.fixture
def moon(monkeypatch):
    monkeypatch.setitem(BACKENDS, MoonPlace, MoonBackend)
    monkeypatch.setattr(MoonBackend, "dust", 0)


def net():
    main, startup = mg.static.Program(), mg.static.Program()
    with mg.static.program_guard(main, startup), mg.base.unique_name.guard():
        x = mg.static.data("x", [None, 5])
        loss = mg.mean(mg.nn.functional.relu(mg.nn.Linear(5, 3)(x)))
        mg.optimizer.AdamW(0.1).minimize(loss)
    main.random_seed = startup.random_seed = 4
    return main, startup, loss


def trained(place, feed):
    main, startup, loss = net()
    exe, scope = mg.static.Executor(place), mg.static.Scope()
    exe.run(startup, scope=scope)
    values = [exe.run(main, feed=feed, fetch_list=[loss], scope=scope)[0] for _ in range(3)]
    return exe, values


@pytest.mark.usefixtures("moon")
def test_it_trains_as_a_cpu_does():
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    exe, values = trained(MoonPlace(), {"x": MoonArray(x)})
    assert values == trained(mg.CPUPlace(), {"x": x})[1]
    assert exe.backend.planned == 2


@pytest.mark.usefixtures("moon")
def test_what_is_set_for_it_makes_another_plan():
    exe, program, x = mg.static.Executor(MoonPlace()), mg.static.Program(), np.ones((2, 2), np.float32)
    with mg.static.program_guard(program):
        out = mg.mean(mg.static.data("a", [2, 2]))
    for dust, plans in ((0, 1), (0, 1), (1, 2), (0, 2)):
        MoonBackend.dust = dust
        exe.run(program, feed={"a": x}, fetch_list=[out])
        assert exe.backend.planned == plans


@pytest.mark.usefixtures("moon")
def test_its_memory_is_told():
    main, _, loss = net()
    compiled = mg.static.CompiledProgram(main)
    here, there = (compiled.memory_report({"x": [8, 5]}, [loss], place=p) for p in (mg.CPUPlace(), MoonPlace(2)))
    assert here.planned == there.planned > 0
    assert "on MoonPlace(crater=2)" in str(there)


@pytest.mark.usefixtures("moon")
def test_it_refuses():
    with pytest.raises(PlaceError, match=re.escape("MoonPlace(crater=4) has no power")):
        mg.static.Executor(MoonPlace(4))
    with pytest.raises(FeedError, match="or a MoonArray"):
        trained(MoonPlace(), {"x": Dark()})


def test_a_place_that_is_in_no_table_is_refused():
    main, _, loss = net()
    for attempt in (
        lambda: mg.static.Executor(MoonPlace()),
        lambda: mg.static.CompiledProgram(main).memory_report({"x": [8, 5]}, [loss], place="moon"),
    ):
        with pytest.raises(ProgramError, match=r"a place is CPUPlace\(\) or CUDAPlace\(n\), not"):
            attempt()


def test_nobody_else_asks_what_a_place_is():
    found = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
        if re.search(r"import[^\n]*\b(CPU|CUDA)?Place\b|^    (CPU|CUDA)?Place,$", path.read_text("utf-8"), re.MULTILINE)
    }  # fmt: skip
    assert found <= MAY_NAME_A_PLACE
