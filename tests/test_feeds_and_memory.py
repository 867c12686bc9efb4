"""Feeds of other producers, memory of plans that went, and memory that runs out, on the stub's GPU."""

from __future__ import annotations

import weakref
from typing import Any

import gpu_stub
import numpy as np
import pytest
from cuda_host import COMPILER

import minigraph as mg
from minigraph import static
from minigraph.errors import FeedError, KernelError, OutOfMemoryError

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


class Producer:
    """What knows DLPack and nothing of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Elsewhere:
    """An array whose library refuses to copy it to the host."""

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")


@pytest.fixture
def stub(monkeypatch):
    for name in ("why_not", "device_count", "runtime", "device_array"):
        monkeypatch.setattr(f"minigraph.cuda.{name}", getattr(mg.cuda, name))
    return gpu_stub.install()


def doubled() -> tuple[static.Program, Any]:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        return main, static.data("x", [None, 4]) * 2.0


@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
def test_a_producer_of_dlpack_on_the_host_is_fed(stub, place):
    main, out = doubled()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = static.Executor(place).run(main, {"x": Producer(x)}, [out])
    np.testing.assert_array_equal(found, 2 * x)


def test_an_array_that_numpy_cannot_take_says_why():
    main, out = doubled()
    with pytest.raises(FeedError, match="feed x is no array: Elsewhere: implicit conversion") as refused:
        static.Executor().run(main, {"x": Elsewhere()}, [out])
    assert "hint: " in str(refused.value)
    with pytest.raises(FeedError, match="feed x is no array: lists in it differ in length"):
        static.Executor().run(main, {"x": [[1.0] * 4, [1.0]]}, [out])


def test_temporaries_go_with_the_plans_that_used_them(stub):
    main, out = doubled()
    exe = static.Executor(mg.CUDAPlace(0))
    for rows in range(1000, 9000, 1000):
        exe.run(main, {"x": np.ones((rows, 4), np.float32)}, [out])
    with pytest.warns(UserWarning, match="change their shapes"):
        exe.run(main, {"x": np.ones((9000, 4), np.float32)}, [out])
    plans = {id(plan.arena): plan.arena.nbytes for plan in exe._plans.values()}
    kept = list(exe._arenas.arrays.values())
    assert {id(a): a.nbytes for a in kept} == plans


def test_memory_that_runs_out_after_a_plan_is_made_is_the_same_clear_error(stub, monkeypatch):
    main, out = doubled()
    exe, x = static.Executor(mg.CUDAPlace(0)), np.ones((3, 4), np.float32)
    exe.run(main, {"x": x}, [out])

    def full(shape: Any, dtype: Any) -> Any:
        raise MemoryError("nothing is free")

    with monkeypatch.context() as patched:
        patched.setattr(stub, "empty", full)
        with pytest.raises(KernelError, match=r"out of memory on GPU 0: no room for a fetched value(.|\n)*hint"):
            exe.run(main, {"x": x}, [out], return_numpy=False)
        with pytest.raises(KernelError, match=r"out of memory on GPU 0: no room for (temporaries|small feeds)"):
            exe.run(main, {"x": x[:2]}, [out])
    np.testing.assert_array_equal(exe.run(main, {"x": x}, [out])[0], 2 * x)


def test_an_index_out_of_range_is_named_with_the_sizes_of_the_run(stub):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        out = mg.gather(static.data("x", [None, 4]), static.data("i", [None], "int64"))
    feed = {"x": np.ones((3, 4), np.float32), "i": np.array([0, 7])}
    with pytest.raises(KernelError, match=r"gather\(X=x: f32\[3,4\], Index=i: i64\[2\]\): value 7 at row 1"):
        static.Executor(mg.CUDAPlace(0)).run(main, feed, [out])


def test_plans_that_are_kept_make_room(stub, monkeypatch):
    main, out = doubled()
    exe, alive, allocate = static.Executor(mg.CUDAPlace(0)), weakref.WeakSet(), stub.allocate

    def scarce(nbytes: int) -> Any:
        if sum(a.nbytes for a in alive) + nbytes > 1 << 20:
            raise MemoryError("the rest is taken")
        made = allocate(nbytes)
        alive.add(made)
        return made

    monkeypatch.setattr(stub, "allocate", scarce)
    for rows in (20_000, 30_000, 32_000, 20_000):  # 32 bytes for each row
        x = np.ones((rows, 4), np.float32)
        np.testing.assert_array_equal(exe.run(main, {"x": x}, [out])[0], 2 * x)
    with pytest.raises(OutOfMemoryError, match="out of memory on GPU 0"):
        exe.run(main, {"x": np.ones((80_000, 4), np.float32)}, [out])
    assert exe.run(main, {"x": np.ones((20_000, 4), np.float32)}, [out])[0].sum() == 160_000
