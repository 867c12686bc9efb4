"""Loaders and samplers: threads give the batches of one thread, errors come where batches are asked for."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from minigraph import io, reader, static
from minigraph.base import DataFeeder
from minigraph.compiler.strategy import BuildStrategy
from minigraph.errors import AttrError, FeedError, ProgramError, ShapeError
from tests.support.interrupts import interrupts


class Numbers(io.Dataset):
    def __getitem__(self, i: int):
        if i == 7:
            raise OSError("sample 7 is gone")
        return np.float32(i), {"square": i * i, "text": str(i)}

    def __len__(self) -> int:
        return 6


class Stream(io.IterableDataset):
    def __iter__(self):
        return iter(np.arange(5, dtype="float32"))


@pytest.mark.parametrize("settings", [{}, {"num_workers": 3}, {"use_buffer_reader": False}])
def test_batches_come_in_order(settings):
    loader = io.DataLoader(Numbers(), batch_size=4, **settings)
    batches = list(loader)
    assert len(loader) == len(batches) == 2
    assert batches[0][0].tolist() == [0, 1, 2, 3]
    assert batches[1][1]["square"].tolist() == [16, 25]
    assert batches[1][1]["text"] == ["4", "5"]
    assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"use_buffer_reader": False}])
def test_an_error_of_a_sample_is_raised(settings):
    loader = io.DataLoader(Numbers(), batch_sampler=[[0], [7]], **settings)
    batches = iter(loader)
    assert next(batches)[0].tolist() == [0]
    with pytest.raises(OSError, match="sample 7 is gone"):
        next(batches)


def test_streams():
    assert [b[0].tolist() for b in io.DataLoader(Stream(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [b[0].tolist() for b in io.DataLoader(Stream(), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
    assert [float(b) for b in io.DataLoader(Stream(), batch_size=None)] == [0, 1, 2, 3, 4]
    assert [float(v) for v in io.ChainDataset([Stream(), Stream()])] == [0, 1, 2, 3, 4] * 2


def test_threads_know_who_they_are():
    seen, begun = set(), []

    class Asking(Numbers):
        def __getitem__(self, i: int):
            info = io.get_worker_info()
            assert info is not None
            seen.add((info.num_workers, info.dataset is data))
            return i

    data = Asking()
    list(io.DataLoader(data, num_workers=2, worker_init_fn=begun.append))
    assert seen == {(2, True)}
    assert set(begun) <= {0, 1}
    assert io.get_worker_info() is None


def test_a_batch_that_takes_too_long():
    never = threading.Event()

    class Slow(Numbers):
        def __getitem__(self, i: int):
            never.wait(60)
            return i

    with pytest.raises(TimeoutError):
        next(iter(io.DataLoader(Slow(), num_workers=1, timeout=0.01)))
    never.set()


@pytest.mark.parametrize(
    "settings",
    [
        {"return_list": False}, {"num_workers": -1}, {"prefetch_factor": 0}, {"batch_size": 0}, {"batch_size": 1.5},
        {"batch_sampler": [[0]], "shuffle": True}, {"timeout": -1},
    ],
)  # fmt: skip
def test_settings_that_are_refused(settings):
    with pytest.raises(AttrError):
        io.DataLoader(Numbers(), **settings)


def test_samplers_that_are_refused():
    for make in (
        lambda: io.BatchSampler(), lambda: io.BatchSampler(Numbers(), io.SequenceSampler(Numbers())),
        lambda: io.RandomSampler(Numbers(), num_samples=7), lambda: io.WeightedRandomSampler([0, 0], 1),
        lambda: io.WeightedRandomSampler([0, 1], 2, replacement=False), lambda: io.SubsetRandomSampler([]),
        lambda: io.WeightedRandomSampler([1, -1], 1), lambda: io.random_split(Numbers(), [0.5, 0.6]),
        lambda: io.ConcatDataset([]), lambda: io.DataLoader(Stream(), shuffle=True),
    ):  # fmt: skip
        with pytest.raises(AttrError):
            make()
    with pytest.raises(ShapeError, match="one first size"):
        io.TensorDataset([np.zeros(2), np.zeros(3)])
    assert [len(p) for p in io.random_split(Numbers(), [0.5, 0.5])] == [3, 3]
    assert len(list(io.RandomSampler(Numbers(), replacement=True, num_samples=9))) == 9


def test_a_feeder_refuses_what_does_not_fit():
    x = static.data("x", [None, 2])
    feeder = DataFeeder([x])
    assert feeder.feed([([1, 2],)])["x"].dtype == np.float32
    with pytest.raises(FeedError, match="2 parts"):
        feeder.feed([([1, 2], 3)])
    with pytest.raises(FeedError, match="have the shape"):
        feeder.feed([([1, 2, 3],)])


def test_execution_strategy():
    chosen = static.ExecutionStrategy()
    chosen.num_threads, chosen.use_thread_barrier = 4, 1
    assert (chosen.num_threads, chosen.use_thread_barrier) == (4, True)
    for name, value in (("num_iteration_per_run", 2), ("num_threads", -1), ("use_cuda", "no"), ("threads", 1)):
        with pytest.raises(AttrError):
            setattr(chosen, name, value)
    strategy = BuildStrategy()
    strategy.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
    strategy.gradient_scale_strategy = BuildStrategy.GradientScaleStrategy.One
    strategy.gradient_scale_strategy = BuildStrategy.GradientScaleStrategy.Customized
    with pytest.raises(AttrError, match="must be a ReduceStrategy"):
        strategy.reduce_strategy = 1
    with pytest.raises(ProgramError, match="target_gradients"):
        static.CompiledProgram(static.Program(), strategy).program_for()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_anywhere_in_an_iteration_leaves_none_that_hangs(workers: int) -> None:
    loader = io.DataLoader(io.TensorDataset([np.arange(6.0)]), batch_size=2, num_workers=workers)
    inside = ("minigraph/io/prefetch", "kernels/workers", "concurrent/futures", "threading.py")
    for where in interrupts(lambda: list(loader), inside):
        assert [float(batch[0][0]) for batch in loader] == [0.0, 2.0, 4.0], where


class Refilled(io.IterableDataset):
    """Whole batches in one array that is filled anew for each."""

    def __init__(self) -> None:
        self.read = threading.Event()

    def __iter__(self):
        array = np.zeros(2, "float32")
        for i in range(3):
            array[...] = i
            yield array
        array[...] = -1
        self.read.set()


@pytest.mark.parametrize("collate", [None, lambda part: part, lambda part: {"x": [part]}])
def test_an_array_that_is_filled_anew_does_not_change_batches_that_wait(collate):
    data, seen = Refilled(), []
    for batch in io.DataLoader(data, batch_size=None, prefetch_factor=4, collate_fn=collate):
        assert data.read.wait(20)
        seen.append(batch["x"][0].tolist() if isinstance(batch, dict) else batch.tolist())
    assert seen == [[i, i] for i in range(3)]


def test_readers_ahead_copy_what_they_read():
    data = Refilled()
    samples = reader.buffered(lambda: iter(data), 4)()
    first = next(samples)
    assert data.read.wait(20)
    assert [first.tolist(), *(s.tolist() for s in samples)] == [[i, i] for i in range(3)]
    mapped = reader.xmap_readers(lambda s: (s * 2).tolist(), lambda: iter(Refilled()), 1, 4)
    assert list(mapped()) == [[2 * i, 2 * i] for i in range(3)]


@pytest.mark.parametrize(("dtype", "value"), [("int64", 0.7), ("uint8", 300), ("int8", np.int64(200)), ("bool", 2)])
def test_a_feeder_refuses_what_a_variable_cannot_hold(dtype, value):
    v = static.data("v", [None, 1], dtype)
    with pytest.raises(FeedError, match=f"samples of v.*have values that {dtype} cannot hold"):
        DataFeeder([v]).feed([([value],)])
    with pytest.raises(FeedError, match=r"samples of v.*lists in it differ in length"):
        DataFeeder([v]).feed([([1],), ([1, 1],)])
