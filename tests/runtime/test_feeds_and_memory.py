"""Feeds of other producers, memory of plans that went, and memory that runs out, on the stub's GPU."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minigraph as mg
from minigraph import static
from minigraph.errors import (
    DTypeError,
    FeedError,
    KernelError,
    OutOfMemoryError,
    ProgramError,
    ShapeError,
)
from minigraph.program.builder import Builder
from minigraph.runtime import executor
from minigraph.runtime.cuda import plan as plan_cuda
from minigraph.types import bfloat16
from tests.support import gpu_stub
from tests.support.cuda_host import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


DEVICE_ARRAY = mg.cuda.device_array


class Producer:
    """What knows DLPack and nothing of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Tensor:
    """A tensor of bfloat16 of a library that tells NumPy of its other types only: by DLPack, or as an array."""

    dtype = "library.bfloat16"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def float(self) -> Any:
        return self.array.astype(np.float32)


class DLPackTensor(Producer):
    dtype = "library.bfloat16"

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("there is no such type")

    def float(self) -> Any:
        return Producer(self.array.astype(np.float32))


class Elsewhere:
    """An array whose library refuses to copy it to the host."""

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")


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


def sixteen_bits() -> np.ndarray:
    """Numbers of bfloat16: all but the first two."""
    every = np.arange(2**16, dtype=np.uint16).view(bfloat16)
    return every[~np.isnan(every.astype(np.float32))][2:].reshape(-1, 4)


def echo() -> tuple[static.Program, Any]:
    main = static.Program()
    with static.program_guard(main, static.Program()):
        return main, mg.assign(static.data("x", [None, 4], "bfloat16"))


@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
@pytest.mark.parametrize("kind", [Tensor, DLPackTensor])
def test_a_tensor_of_bfloat16_is_fed_bit_by_bit(stub, kind, place):
    main, out = echo()
    for x in (sixteen_bits(), sixteen_bits()[::-7], sixteen_bits()[:0]):
        (found,) = static.Executor(place).run(main, {"x": kind(x)}, [out])
        assert found.dtype == bfloat16
        assert found.tobytes() == x.tobytes()


def test_tensors_of_pytorch_of_bfloat16_are_fed():
    torch = pytest.importorskip("torch")
    main, out = echo()
    x = sixteen_bits()
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    exe = static.Executor()
    for given, wanted in ((tensor, x), (tensor.reshape(4, -1).T, x.reshape(4, -1).T), (tensor[3:, :], x[3:])):
        (found,) = exe.run(main, {"x": given}, [out])
        assert found.tobytes() == wanted.tobytes()
    with pytest.raises(FeedError, match=r"feed x is no array: .*requires.grad"):
        exe.run(main, {"x": torch.ones(2, 4, dtype=torch.bfloat16, requires_grad=True)}, [out])
    wrong, _ = doubled()
    with pytest.raises(FeedError, match="feed x must be float32, is bfloat16"):
        exe.run(wrong, {"x": tensor}, [])


def parameter(dtype: str, value: Any = None) -> tuple[static.Program, static.Scope]:
    """A program with a parameter `w` of the shape [2, 4] of `dtype`, and a Scope where it has a value."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        first = mg.nn.initializer.Constant(3.0) if value is None else mg.nn.initializer.Assign(value)
        static.create_parameter([2, 4], dtype, name="w", default_initializer=first)
    static.Executor().run(startup, scope=scope)
    return main, scope


def written(tensor: Any, dtype: str) -> list[np.ndarray]:
    """What a Scope holds after each way to put the value of a tensor there."""
    main, scope = parameter(dtype)
    scope.find_var("w").get_tensor().set(tensor)
    found = [scope.read("w"), parameter(dtype, tensor)[1].read("w")]
    if dtype == "bfloat16":  # a state of another type is refused
        other = static.Scope()
        main.set_state_dict({"w": tensor}, other)
        found.append(other.read("w"))
    return found


@pytest.mark.parametrize("kind", [Tensor, DLPackTensor, "torch"])
def test_a_parameter_takes_tensors_of_bfloat16_as_feeds_do(kind):
    x = sixteen_bits()[[7, -9]]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = kind(x)
    for dtype in ("bfloat16", "float32"):
        for found in written(tensor, dtype):
            assert found.dtype == dtype
            assert found.tobytes() == x.astype(found.dtype).tobytes()


def test_a_parameter_takes_a_producer_of_dlpack_and_keeps_a_copy():
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    _, scope = parameter("float32")
    scope.find_var("w").get_tensor().set(Producer(x))
    expected, x[...] = x.copy(), 0
    np.testing.assert_array_equal(scope.read("w"), expected)


@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
def test_what_cannot_be_written_is_copied_into_the_scope(stub, place):
    given, program, scope = np.broadcast_to(np.float32(1), (4,)), static.Program(), static.Scope()
    w = program.global_block().create_var("w", [4], "float32", persistable=True)
    Builder(program.global_block()).scale(w, scale=3.0, out={"Out": w})
    number = program.global_block().create_var("number", [], "float32", persistable=True)
    Builder(program.global_block()).scale(number, scale=2.0, out={"Out": number})
    scope.write("w", given)
    scope.write("number", np.float32(1))  # what NumPy makes of an array without axes
    exe = static.Executor(place)
    for _ in range(3):
        exe.run(program, scope=scope)
    assert (scope.read("w") == 27).all()
    assert scope.read("number") == 8
    assert (given == 1).all()


def test_what_a_parameter_cannot_take_says_why():
    main, scope = parameter("float32")
    why = "w is no array: Elsewhere: implicit conversion"
    with pytest.raises(DTypeError, match=why):
        scope.find_var("w").get_tensor().set(Elsewhere())
    with pytest.raises(DTypeError, match=why):
        main.set_state_dict({"w": Elsewhere()}, scope)
    with pytest.raises(DTypeError, match="w is no array: lists in it differ in length"):
        scope.find_var("w").get_tensor().set([[1.0] * 4, [1.0]])
    with pytest.raises(ProgramError, match="value is no array: Elsewhere: implicit conversion"):
        mg.nn.initializer.Assign(Elsewhere())
    assert (scope.read("w") == 3).all()


def test_an_array_that_numpy_cannot_take_says_why():
    main, out = doubled()
    with pytest.raises(FeedError, match="feed x is no array: Elsewhere: implicit conversion") as refused:
        static.Executor().run(main, {"x": Elsewhere()}, [out])
    assert "hint: " in str(refused.value)
    with pytest.raises(FeedError, match="feed x is no array: lists in it differ in length"):
        static.Executor().run(main, {"x": [[1.0] * 4, [1.0]]}, [out])


@pytest.mark.parametrize("rows", [(1000, 2000, 5000), (5000, 2000, 1000), (3000, 5000, 1000)])
def test_plans_of_all_shapes_take_one_arena_that_suffices_for_the_largest(stub, rows):
    main, out = doubled()
    exe, alone = static.Executor(mg.CUDAPlace(0)), static.Executor(mg.CUDAPlace(0))
    feeds = [{"x": np.random.default_rng(n).normal(size=(n, 4)).astype("f4")} for n in rows]
    for _ in range(4):
        for feed in feeds:
            np.testing.assert_array_equal(exe.run(main, feed, [out])[0], 2 * feed["x"])
    alone.run(main, feeds[rows.index(5000)], [out])
    (largest,) = alone._plans.values()
    assert {plan.arena.nbytes for plan in exe._plans.values()} == {largest.bound.arena_bytes}
    assert all(plan.binding.launch is not None for plan in exe._plans.values())


def test_temporaries_go_with_the_plans_that_used_them(stub):
    main, out = doubled()
    exe = static.Executor(mg.CUDAPlace(0))
    for n in (1000, 3000):
        exe.run(main, {"x": np.ones((n, 4), np.float32)}, [out])
    arena = weakref.ref(next(iter(exe._plans.values())).memory.arena)
    exe._plans.popitem()
    exe._latest = None
    assert arena() is not None
    exe._plans.clear()
    assert arena() is None


def test_plans_go_on_where_there_is_no_room_for_a_larger_one(stub, monkeypatch):
    main, out = doubled()
    exe, x = static.Executor(mg.CUDAPlace(0)), np.ones((3000, 4), np.float32)
    np.testing.assert_array_equal(exe.run(main, {"x": x[:2000]}, [out])[0], 2 * x[:2000])
    allocate = stub.allocate

    def scarce(nbytes: int) -> Any:
        if nbytes > 70_000:
            raise MemoryError("the rest is taken")
        return allocate(nbytes)

    monkeypatch.setattr(stub, "allocate", scarce)
    with pytest.raises(KernelError, match="no room for temporaries"):
        exe.run(main, {"x": x}, [out])
    for n in (2000, 30, 2000):
        np.testing.assert_array_equal(exe.run(main, {"x": x[:n]}, [out])[0], 2 * x[:n])


@pytest.mark.parametrize(("runs", "cost"), [(1, "1.54 s"), (3, "1.79 s")])
def test_the_warning_about_turns_names_what_binding_and_capturing_cost(stub, monkeypatch, runs, cost):
    now = 0.0

    def taking(seconds: float, function: Any) -> Any:
        def slow(*args: Any, **options: Any) -> Any:
            nonlocal now
            now += seconds
            return function(*args, **options)

        return slow

    monkeypatch.setattr(stub, "settling", taking(0.04, stub.settling))
    monkeypatch.setattr(stub, "runnable", taking(1.5, stub.runnable))
    monkeypatch.setattr(stub, "captured", taking(0.25, stub.captured))
    for module in (executor, plan_cuda):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    exe, programs = static.Executor(mg.CUDAPlace(0)), [doubled() for _ in range(17)]

    def turn() -> None:
        for main, out in programs:
            for _ in range(runs):
                exe.run(main, {"x": np.ones((2, 4), np.float32)}, [out])

    turn()
    with pytest.warns(UserWarning, match=f"8 plans were made again, {cost} on average and {cost} at the most"):
        turn()


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


def test_values_that_stay_on_the_gpu_are_not_copied_to_the_host(stub, monkeypatch):
    main, out = doubled()
    exe, x, received = static.Executor(mg.CUDAPlace(0)), np.ones((3, 4), np.float32), []
    receive = stub.receive

    def counted(host: int, address: int, nbytes: int) -> None:
        received.append(nbytes)
        receive(host, address, nbytes)

    monkeypatch.setattr(stub, "receive", counted)
    monkeypatch.setattr(stub, "download", lambda buffer, host: pytest.fail("copied to the host"))
    monkeypatch.setattr(stub, "fetch", lambda b, as_numpy: b if not as_numpy else pytest.fail("copied to the host"))
    for _ in range(3):
        exe.run(main, {"x": x}, [out], return_numpy=False)
    assert received == [56] * 3, "the record of faults"


def test_an_index_out_of_range_is_named_with_the_sizes_of_the_run(stub):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        out = mg.gather(static.data("x", [None, 4]), static.data("i", [None], "int64"))
    feed = {"x": np.ones((3, 4), np.float32), "i": np.array([0, 7])}
    said = r"gather\(X=x: f32\[3,4\], Index=i: i64\[2\]\): value 7 at row 1 is out of range \[-3, 3\)"
    with pytest.raises(KernelError, match=said):
        static.Executor(mg.CUDAPlace(0)).run(main, feed, [out])


class Classifier:
    """A table of 7 rows, 5 classes, SGD; with feeds that fit and those with a number that does not."""

    def __init__(self) -> None:
        self.main, self.startup, self.scope = static.Program("net"), static.Program(), static.Scope()
        with mg.base.unique_name.guard(), static.program_guard(self.main, self.startup):
            ids, label = static.data("ids", [None], "int64"), static.data("label", [None, 1], "int64")
            scores = mg.nn.Linear(8, 5)(mg.nn.Embedding(7, 8)(ids))
            self.loss = mg.nn.functional.cross_entropy(scores, label)
            self.test = self.main.clone(for_test=True)
            mg.optimizer.SGD(0.1).minimize(self.loss)
        self.exe = static.Executor(mg.CUDAPlace(0))
        self.exe.run(self.startup, scope=self.scope)
        self.right = {"ids": np.array([0, 6, 3]), "label": np.array([[4], [0], [2]])}

    def wrong(self, name: str, value: int) -> dict[str, np.ndarray]:
        feed = {n: a.copy() for n, a in self.right.items()}
        feed[name].reshape(-1)[1] = value
        return feed

    def run(self, feed: dict[str, np.ndarray], fetches: Any = (), program: Any = None) -> Any:
        return self.exe.run(program or self.main, feed, list(fetches), scope=self.scope)


FAULTS = [("ids", -1, r"embedding\(.*\): value -1 at row 1 is out of range \[0, 7\)"),
          ("label", 5, r"softmax_with_cross_entropy\(.*\): value 5 at row 1 is not a class in \[0, 5\) and not ignor")]


@pytest.mark.parametrize(("name", "value", "said"), FAULTS)
def test_a_number_out_of_range_is_named_with_what_would_fit(stub, name, value, said):
    net = Classifier()
    with pytest.raises(KernelError, match=said):
        net.run(net.wrong(name, value), [net.loss])
    net.run(net.right, [net.loss])


LOOKS: dict[str, Any] = {
    "the same program": lambda net: net.run(net.right, [net.loss]),
    "another program": lambda net: net.run(net.right, [net.loss], net.test),
    "the scope": lambda net: net.scope.read("linear_0.w_0"),
    "a tensor": lambda net: np.array(net.scope.find_var("linear_0.w_0").get_tensor()),
    "the states of a program": lambda net: net.main.state_dict(scope=net.scope),
    "a CPU": lambda net: static.Executor().run(net.test, net.right, [net.loss], scope=net.scope),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_fault_of_a_run_without_fetches_is_said_before_anything_that_comes_of_it_is_read(stub, look, captured, gone):
    net = Classifier()
    for _ in range(3 * captured):
        net.run(net.right)
    net.run(net.wrong("label", 77))
    net.run(net.right)
    if gone:
        net.exe.close()
        net.exe = static.Executor(mg.CUDAPlace(0))
    with pytest.raises(KernelError, match=r"value 77 at row 1 is not a class in \[0, 5\)(.|\n)*hint: a run before"):
        LOOKS[look](net)
    LOOKS[look](net)
    net.run(net.wrong("ids", 7))
    with pytest.raises(KernelError, match=r"value 7 at row 1 is out of range \[0, 7\)"):
        LOOKS[look](net)


def test_faults_of_few_plans_are_kept(stub):
    net = Classifier()
    net.run(net.wrong("label", 5))

    def grow() -> None:
        for rows in range(4, 40):
            net.run({name: np.repeat(a[:1], rows, axis=0) for name, a in net.right.items()})
            assert len(net.scope.faults) <= 16

    with pytest.raises(KernelError, match="value 5 at row 1"):
        grow()



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


class OnGpu:
    """A tensor of a GPU that its library does not share, as PyTorch's with a gradient."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return mg.cuda.DLPACK_CUDA, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


def test_an_array_of_the_gpu_that_cannot_be_shared_says_why(stub, monkeypatch):
    main, out = doubled()
    exe = static.Executor(mg.CUDAPlace(0))
    cupy = SimpleNamespace(ndarray=gpu_stub.StubArray, from_dlpack=lambda value: value.__dlpack__())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(mg.cuda, "device_array", DEVICE_ARRAY)
    with pytest.raises(FeedError, match=r"feed x is no array: OnGpu: Can't export(.|\n)*hint: (.|\n)*cupy.from_dlpack"):
        exe.run(main, {"x": OnGpu()}, [out])


def test_memory_that_runs_out_while_calls_are_bound_is_the_same_clear_error(stub, monkeypatch):
    main, out = doubled()
    exe, x = static.Executor(mg.CUDAPlace(0)), np.ones((3, 4), np.float32)

    def full(*args: Any) -> Any:
        raise MemoryError("nothing is free")

    with monkeypatch.context() as patched:
        patched.setattr(stub, "runnable", full)
        with pytest.raises(OutOfMemoryError, match=r"GPU 0: no room for what its kernels read; the temporaries"):
            exe.run(main, {"x": x}, [out])
    np.testing.assert_array_equal(exe.run(main, {"x": x}, [out])[0], 2 * x)


def test_the_largest_values_of_an_error_are_different_memory(stub, monkeypatch):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        y = x = static.data("x", [None, 4])
        for _ in range(3):
            y = mg.reshape(mg.nn.functional.relu(mg.reshape(y, [-1])), [-1, 4])
        out = mg.matmul(x, y, transpose_y=True)
    monkeypatch.setattr(stub, "allocate", lambda nbytes: (_ for _ in ()).throw(MemoryError("nothing is free")))
    with pytest.raises(OutOfMemoryError) as refused:
        static.Executor(mg.CUDAPlace(0)).run(main, {"x": np.ones((1024, 4), np.float32)}, [out])
    named = str(refused.value).partition("largest values: ")[2].partition("\n")[0].split(", ")
    assert [v.split()[0] for v in named] == [out.name, "x", "relu_0.tmp_0"], named


def test_a_capture_that_is_refused_is_still_told_when_calls_are_bound_anew(stub, monkeypatch):
    main, out = doubled()
    compiled, exe = static.CompiledProgram(main), static.Executor(mg.CUDAPlace(0))
    monkeypatch.setattr(stub, "captured", lambda parts, loosened: "this library refuses")
    for scope in (static.Scope(), static.Scope()):
        for _ in range(3):
            exe.run(compiled, {"x": np.ones((3, 4), np.float32)}, [out], scope=scope)
        assert "no CUDA graph of this program: this library refuses" in compiled.explain()


@pytest.mark.parametrize("place", [mg.CPUPlace(), mg.CUDAPlace(0)], ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_size_that_contradicts_what_is_declared_is_named(stub, place, rows):
    """A gradient of the wrong size would be read past its end, a state would change its shape."""
    program = static.Program()
    block = program.global_block()
    g = Builder(block)
    x = block.create_var("x", [2, 4], "float64", is_data=True, stop_gradient=False)
    d, y = (block.create_var(name, [-1, 4], "float64", is_data=True) for name in "dy")
    state = block.create_var("state", [2, 4], "float64", persistable=True)
    (dx,) = static.gradients([g.softmax(x)], [x], [d])
    g.assign(y, out={"Out": state})
    scope, exe = static.Scope(), static.Executor(place)
    scope.write("state", np.zeros((2, 4)))
    good, bad = np.ones((2, 4)), np.ones((rows, 4))
    for feed, said in (
        ({"x": good, "d": bad, "y": good}, rf"assign\(X=d(.|\n)*GRAD is f64\[{rows},4\] in this run, and declared"),
        ({"x": good, "d": good, "y": bad}, rf"assign\(X=y(.|\n)*state is f64\[{rows},4\] in this run, and declared"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=said):
            exe.run(program, feed, [dx], scope=scope)
    exe.run(program, {"x": good, "d": good, "y": good}, [dx], scope=scope)
    assert (scope.read("state") == 1).all()
