"""Plans of one executor on a CPU share one range of addresses, of which only what is written takes memory."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.kernels.cores import text_of
from minigraph.kernels.one_piece import ALIGNMENT
from minigraph.runtime.cpu import memory
from minigraph.runtime.cpu.memory import LARGE, PAGE, AddressRange
from minigraph.runtime.memory import Life

linux = pytest.mark.skipif(sys.platform != "linux", reason="a range is reserved on Linux only")
SIZES = (100, LARGE, 7, 0, 3 * LARGE + 1)


def place(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def net():
    """A program of a few layers, and what runs it on so many rows."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 64])
        h = x
        for _ in range(3):
            h = mg.tanh(mg.nn.Linear(64, 64)(h)) + h
        loss = mg.mean(h)
        mg.optimizer.SGD(0.1).minimize(loss)
    scope = static.Scope()
    static.Executor().run(startup, scope=scope)

    def run(exe: static.Executor, rows: int) -> np.ndarray:
        own = static.Scope()
        for name, array in scope.arrays.items():
            own.take(name, np.array(array))
        feed = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        return exe.run(main, {"x": feed}, [h, loss], scope=own)

    return run


def together(sizes):
    """Lives at one time."""
    return [Life(size, 0, 1) for size in sizes]


@linux
def test_buffers_lie_apart_and_large_ones_at_a_page():
    made, nbytes = AddressRange().buffers(together(SIZES))
    assert [b.nbytes for b in made] == list(SIZES)
    for n, b in enumerate(made):
        b[...] = n
        assert place(b) % (PAGE if b.nbytes >= LARGE else ALIGNMENT) == 0 or not b.nbytes
    for n, b in enumerate(made):
        assert (b == n).all()
    assert sum(SIZES) <= nbytes < sum(SIZES) + len(SIZES) * PAGE


def test_buffers_that_never_live_together_share_parts_of_their_memory():
    """One large buffer is the place of two small ones, which is more than sharing whole ones gives."""
    (whole, one, other), nbytes = AddressRange().buffers(
        [Life(4 * LARGE, 0, 1), Life(2 * LARGE, 2, 4), Life(2 * LARGE, 3, 5)]
    )
    assert nbytes == 4 * LARGE
    one[...], other[...] = 1, 2
    assert (np.sort(whole) == whole).all() or (np.sort(whole)[::-1] == whole).all()
    assert (one == 1).all()


@linux
def test_plans_lie_in_the_same_memory():
    arena = AddressRange()
    (first, *_), _ = arena.buffers(together([LARGE] * 4))
    (second, *_), _ = arena.buffers(together([2 * LARGE] * 9))
    (other,), _ = AddressRange().buffers(together([LARGE]))
    assert place(first) == place(second) != place(other)


@pytest.mark.parametrize("why", ["another system", "strict", "limited", "refused", "too small"])
def test_without_a_range_each_plan_has_memory_of_its_own(why, monkeypatch, net):
    wanted = net(static.Executor(), 300)
    if why == "another system":
        monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="darwin"))
    elif why == "refused":
        monkeypatch.setattr(memory.os, "sysconf", lambda name: 1 << 31)
    elif why == "too small":
        monkeypatch.setattr(memory.os, "sysconf", lambda name: 8)
    else:
        said = {memory.OVERCOMMIT: "2\n"} if why == "strict" else {memory.LIMITS: "Max address space  99  99  bytes\n"}
        monkeypatch.setattr(memory, "text_of", lambda path: said.get(Path(path)) or text_of(path))
    arena = AddressRange()
    (first, _), (second, _) = arena.buffers(together(SIZES)), arena.buffers(together(SIZES))
    assert all(place(a) != place(b) for a, b in zip(first, second, strict=True) if a.nbytes >= LARGE)
    for got, expected in zip(net(static.Executor(), 300), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_shapes_in_turn_give_what_each_gives_alone(net):
    exe, rows = static.Executor(), [3, 500, 40, 1]
    alone = {n: net(static.Executor(), n) for n in rows}
    for _ in range(3):
        for n in rows:
            for got, expected in zip(net(exe, n), alone[n], strict=True):
                np.testing.assert_array_equal(got, expected)


@linux
def test_all_shapes_take_the_memory_of_the_largest(net):
    exe = static.Executor()
    for n in range(1000, 40_000, 3000):
        net(exe, n)
    plans = [plan for plan in exe._plans.values() if plan.buffers]
    ends = {place(b) + b.nbytes for plan in plans for b in plan.buffers}
    start = place(exe.backend.arena.bytes)
    assert {min(map(place, plan.buffers)) for plan in plans} == {start} and len(plans) == 13
    assert max(ends) - start < 1.05 * plans[-1].nbytes
