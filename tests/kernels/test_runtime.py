"""The GPU's Runtime on models of CuPy and cuBLASLt: what calls are bound with, and what it gives to the driver."""
# ruff: noqa: F811, F401 - `library` is a fixture of another file

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from minigraph.errors import PlaceError
from minigraph.kernels.cuda.record.binder import Binder
from minigraph.kernels.cuda.record.buffer import Buffer
from minigraph.kernels.cuda.record.calls import Choice
from minigraph.types import float32
from tests.kernels.test_cublaslt import gemm, library, named

DEVICE = "minigraph.kernels.cuda.device"
STREAM = 99


@pytest.fixture
def driver():
    """A model of CuPy that notes what the driver is asked for."""
    made = MagicMock()
    made.asked = []
    runtime = made.cuda.runtime
    runtime.driverGetVersion.return_value = 12040
    runtime.getDeviceProperties.return_value = {"multiProcessorCount": 7, "sharedMemPerBlockOptin": 1 << 17}
    runtime.memcpyAsync = lambda to, at, nbytes, kind, stream: made.asked.append(("copy", to, at, nbytes, stream))
    runtime.memsetAsync = lambda to, value, nbytes, stream: made.asked.append(("fill", to, value, nbytes, stream))
    made.cuda.Device.return_value.compute_capability = "90"
    made.cuda.memory.MemoryAsync = type("MemoryAsync", (), {})

    def launched(grid, block, args, shared_mem, stream):
        made.asked.append(("launch", grid, block, args, shared_mem, stream.ptr))

    function = MagicMock(side_effect=launched, max_dynamic_shared_size_bytes=0)
    made.RawModule.return_value.get_function.return_value = function
    return made


@pytest.fixture
def runtime(driver, library, monkeypatch):
    """A Runtime whose work goes to the stream STREAM."""
    library.create = lambda: 7
    before = {name for name in sys.modules if name.startswith(DEVICE)}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    for name, module in (("cupy", driver), ("cupy.cuda", driver.cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    module = importlib.import_module(f"{DEVICE}.runtime")
    source = SimpleNamespace(path="cubin", waits_first=True)
    modules = importlib.import_module(f"{DEVICE}.modules")
    monkeypatch.setattr(modules, "compile_source", lambda *_: source)
    monkeypatch.setattr(modules, "SideBySide", lambda arch: SimpleNamespace(begin=list, end=lambda sources: 0))
    made = module.Runtime(0)
    made.target.ptr = STREAM
    yield made
    for name in [name for name in sys.modules if name.startswith(DEVICE)]:
        del sys.modules[name]


def buffer(number, *shape):
    return Buffer(shape or (8,), float32, ptr=number << 20)


def begun():
    binder = Binder()
    binder.begin(0)
    return binder


def test_calls_are_given_to_the_driver_in_order_each_with_its_position(runtime, driver, library):
    binder, x, y = begun(), buffer(1), buffer(2)
    binder.copy(y, x)
    binder.zero(y)
    binder.launch_source("source", "f", 3, 64, x, np.int64(5), shared=1000)
    binder.calls.append(gemm(5, 7, 3))
    calls = runtime.runnable(binder, False)
    assert not driver.asked and not library.calls, "nothing runs before it is called"
    assert [one.position for one in calls] == [0, 1, 2, 3]
    assert [one.call for one in calls] == binder.calls
    for one in calls:
        one()
    assert driver.asked == [
        ("copy", 2 << 20, 1 << 20, 32, STREAM), ("fill", 2 << 20, 0, 32, STREAM),
        ("launch", (3, 1, 1), (64, 1, 1), (1 << 20, 5), 1000, STREAM),
    ]  # fmt: skip
    assert [arguments[-1] for arguments in library.calls] == [STREAM]


def test_the_stream_is_the_one_of_the_moment_when_a_call_runs(runtime, driver):
    binder = begun()
    binder.zero(buffer(1))
    (call,) = runtime.runnable(binder, False)
    runtime.target.ptr = 5
    call()
    assert driver.asked == [("fill", 1 << 20, 0, 32, 5)]


def test_a_function_of_the_host_sees_what_the_gpu_has_computed(runtime, monkeypatch):
    binder, seen = begun(), []
    result, made = buffer(2), np.zeros(8, np.float32)

    def function(runs, *arrays):
        seen.append((runs, *arrays))
        return (made,)

    binder.host([buffer(1)], function, [result])
    values = {id(binder.counter): np.array([4]), id(binder.calls[0].inputs[0]): "x"}
    monkeypatch.setattr(runtime, "fetch", lambda b, as_numpy: values[id(b)])
    put = []
    monkeypatch.setattr(runtime, "upload", lambda array, b: put.append((array, b)))
    (call,) = runtime.runnable(binder, False)
    call()
    assert seen == [(4, "x")]
    ((array, where),) = put
    assert array is made
    assert where is result


def test_the_first_variant_that_the_library_has_runs_and_is_said(runtime, library, driver):
    binder, c = begun(), buffer(3)
    lacking = gemm(5, 7, 3)
    library.algorithms = {None: []}
    binder.calls.append(Choice({"product": [lacking], "kernel": list(filled(c))}, step=4))
    binder.calls.append(Choice({"kernel": list(filled(c)), "product": [lacking]}, step=5))
    for _ in range(2):  # what was said is not said again
        calls = runtime.runnable(binder, False)
    for one in calls:
        one()
    assert [name for name, *_ in driver.asked] == ["fill", "fill"]
    assert binder.notes == [(4, "kernel: cuBLASLt has no DEFAULT for 5 x 7 x 3")]
    binder.calls.append(lacking)
    with pytest.raises(PlaceError, match="cuBLASLt cannot compute this product: cuBLASLt has no DEFAULT"):
        runtime.runnable(binder, False)


def filled(destination):
    binder = begun()
    binder.zero(destination)
    return binder.calls


def test_kernels_are_loaded_once_and_may_have_more_shared_memory(runtime, driver):
    binder = begun()
    for shared in (0, 60_000, 50_000):
        binder.launch_source("source", "f", 1, 32, shared=shared)
    runtime.runnable(binder, False)
    assert driver.RawModule.call_count == 1
    assert driver.RawModule.return_value.get_function.return_value.max_dynamic_shared_size_bytes == 60_000
    assert runtime.modules.shared == {("source", "f"): 60_000}
    assert len(runtime.modules.waiting) == 1


def test_the_library_is_asked_once_for_products_that_lie_alike(runtime, library):
    chosen = runtime.products.chosen(False)
    library.workspaces = {b"first": 700}
    found = chosen(gemm(5, 7, 3))
    assert (found.nbytes, found.form, found.others) == (700, named(b"first"), ())
    asked = len(library.objects)
    assert chosen(gemm(5, 7, 3)) is found
    assert len(library.objects) == asked
    library.algorithms = {None: []}
    assert chosen(gemm(7, 5, 3)) is None


def test_of_a_relu_the_first_algorithm_that_keeps_a_nan_runs(runtime, library, monkeypatch):
    library.algorithms = {None: [b"first", b"second"]}
    kept = []

    def keeps(plan):
        kept.append(plan.algorithm)
        return plan.algorithm == named(b"second")

    monkeypatch.setattr(runtime.products, "_keeps_nan", keeps)
    call = gemm(5, 7, 3, epilogue="RELU_BIAS", bias=buffer(9, 7))
    assert runtime.products.plan(call, False).algorithm == named(b"second")
    assert kept == [named(b"first"), named(b"second")]
    assert runtime.products.plan(gemm(6, 7, 3, epilogue="RELU_BIAS", bias=buffer(9, 7)), False)
    assert len(kept) == 2, "another number of rows is no other question"
    assert runtime.products.plan(gemm(5, 8, 3, epilogue="RELU_BIAS", bias=buffer(9, 8)), False)
    assert len(kept) == 4


def test_memory_of_zeros_is_filled_in_the_order_of_the_stream(runtime, driver):
    driver.ndarray.return_value.nbytes, driver.ndarray.return_value.data.ptr = 700, 4096
    assert runtime.zeros(700) is driver.ndarray.return_value
    assert driver.asked[-1] == ("fill", 4096, 0, 700, runtime.stream.ptr)


def test_a_runtime_is_idle_when_its_stream_is_done(runtime):
    for done in (True, False):
        runtime.stream.done = done
        assert runtime.idle() == done
