"""The state of a loader: which batch comes next, whatever threads have read ahead; and what a seed decides."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from minigraph import io
from minigraph.errors import AttrError
from tests.support.worker_threads import are_gone, serving

DATA = io.TensorDataset([np.arange(23)])
THREADS: tuple[dict[str, Any], ...] = ({}, {"num_workers": 3}, {"use_buffer_reader": False})


class Stream(io.IterableDataset):
    def __iter__(self):
        return iter(np.arange(11))


def numbers(batches):
    return [batch[0].tolist() for batch in batches]


def loader(**settings) -> io.DataLoader:
    return io.DataLoader(DATA, batch_size=4, **{"shuffle": True, "seed": 5, **settings})


@pytest.mark.parametrize("settings", THREADS)
def test_a_seed_decides_the_orders(settings):
    one, same, other = loader(**settings), loader(), loader(seed=6)
    first, second = numbers(one), numbers(one)
    assert [numbers(same), numbers(same)] == [first, second]
    assert first != second
    assert sorted(n for b in first for n in b) == sorted(n for b in second for n in b) == list(range(23))
    assert numbers(other) != first
    assert len(numbers(loader(drop_last=True))) == 5


@pytest.mark.parametrize("settings", THREADS)
@pytest.mark.parametrize("stop", [0, 1, 5, 6, 8])
def test_a_loader_goes_on_where_another_one_stopped(settings, stop):
    """Six batches are an iteration; the seventh belongs to the next one."""
    whole = loader()
    expected = numbers(whole) + numbers(whole)
    half, found = loader(**settings), []
    while len(found) < stop:
        for batch in half:
            found += numbers([batch])
            if len(found) == stop:
                break
    state = half.state_dict()
    assert state == {"epoch": stop // 6, "batch": stop % 6, "seed": 5} or state == {"epoch": 0, "batch": 6, "seed": 5}
    rest = loader(**settings)
    rest.load_state_dict(state)
    while len(found) < 12:
        found += numbers(rest)
    assert found == expected


def test_samples_before_the_state_are_not_read():
    read = []

    class Watched(io.Dataset):
        def __getitem__(self, i: int):
            read.append(i)
            return i

        def __len__(self) -> int:
            return 10

    rest = io.DataLoader(Watched(), batch_size=2, use_buffer_reader=False)
    rest.load_state_dict({"epoch": 3, "batch": 4})
    assert [b[0].tolist() for b in rest] == [[8, 9]]
    assert read == [8, 9]


def test_streams_and_samplers_of_the_user_have_a_state():
    for make in (lambda: io.DataLoader(Stream(), batch_size=3),
                 lambda: io.DataLoader(DATA, batch_sampler=[[1, 2], [3], [4, 5]])):  # fmt: skip
        first = make()
        expected = numbers(make())
        batches = iter(first)
        found = numbers([next(batches), next(batches)])
        rest = make()
        rest.load_state_dict(first.state_dict())
        assert found + numbers(rest) == expected


@pytest.mark.parametrize("settings", THREADS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_of_ranks_goes_on_in_its_epoch(settings, drop_last):
    def make() -> io.DataLoader:
        sampler = io.DistributedBatchSampler(DATA, 4, 2, 1, shuffle=True, drop_last=drop_last)
        return io.DataLoader(DATA, batch_sampler=sampler, **settings)

    whole = make()
    expected = numbers(whole) + numbers(whole) + numbers(whole)
    each = len(expected) // 3
    for stop in range(2 * each + 1):
        half, found = make(), []
        for epoch in range(1 + stop // each):
            batches = iter(half)
            for _ in range(min(stop - epoch * each, each)):
                found += numbers([next(batches)])
            if epoch < stop // each:
                assert not list(batches)
        rest = make()
        rest.load_state_dict(half.state_dict())
        assert rest.state_dict() == half.state_dict()
        while len(found) < len(expected):
            found += numbers(rest)
        assert found == expected
    fresh = make()
    fresh.batch_sampler.set_epoch(7)
    rest.load_state_dict(fresh.state_dict())
    assert numbers(rest) == numbers(fresh) != expected[:each]


@pytest.mark.parametrize(
    "sampler",
    [
        io.BatchSampler(DATA, shuffle=True, batch_size=4),
        io.BatchSampler(sampler=io.RandomSampler(DATA), batch_size=4),
        io.BatchSampler(sampler=io.SubsetRandomSampler(range(9)), batch_size=4),
        io.BatchSampler(sampler=io.WeightedRandomSampler(np.ones(23), 23), batch_size=4),
    ],
)
def test_an_order_that_a_sampler_of_the_user_draws_has_no_state(sampler):
    drawn = io.DataLoader(DATA, batch_sampler=sampler)
    with pytest.raises(AttrError, match="it has no state"):
        drawn.state_dict()
    with pytest.raises(AttrError, match="it has no state"):
        drawn.load_state_dict({"epoch": 0, "batch": 0})


@pytest.mark.parametrize("seed", [None, 5])
def test_samples_without_batches_are_shuffled(seed):
    samples = [int(s[0]) for s in io.DataLoader(DATA, batch_size=None, shuffle=True, seed=seed)]
    assert samples != sorted(samples) == list(range(23))


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}])
@pytest.mark.parametrize("closed", [True, False])
def test_an_iteration_that_is_left_stops_its_threads(settings, closed):
    """A thread for which there is no room sleeps until it is told that nobody wants its batches."""
    before, taken, ahead = serving(), threading.Event(), threading.Event()

    class Numbers(io.Dataset):
        def __getitem__(self, i: int):
            if i == 3:  # the last one for which there is room, or one behind it
                ahead.set()
            return i if i == 0 or taken.wait(30) else None

        def __len__(self) -> int:
            return 9

    batches = iter(io.DataLoader(Numbers(), **settings))
    next(batches)
    taken.set()
    assert ahead.wait(30)
    threads = serving() - before
    assert threads
    if closed:
        batches.close()
    else:
        del batches
    assert are_gone(threads)


@pytest.mark.parametrize(
    ("state", "fact"),
    [
        ({"epoch": 0, "batch": 7, "seed": 5}, "names batch 7, the loader has 6"),
        ({"epoch": 0, "batch": 0, "seed": 4}, "one of seed 4, the loader's is 5"),
        ({"epoch": 0, "batch": 0}, "this loader has one like"),
        ({"epoch": -1, "batch": 0, "seed": 5}, "this loader has one like"),
        (None, "the state is None"),
    ],
)  # fmt: skip
def test_states_that_are_refused_change_nothing(state, fact):
    whole, own = numbers(loader()), loader()
    with pytest.raises(AttrError, match=fact):
        own.load_state_dict(state)
    assert numbers(own) == whole


def test_settings_that_are_refused():
    with pytest.raises(AttrError, match="it has no state"):
        loader(seed=None).state_dict()
    with pytest.raises(AttrError, match="a seed is for shuffle"):
        loader(shuffle=False)
    with pytest.raises(AttrError, match="seed must be an int"):
        loader(seed=-1)
