"""Ranks that are threads: what they say and what they add up, one call after another."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from minigraph.kernels.groups import RankError
from minigraph.runtime.parallel.threads import Meeting
from tests.support.in_threads import in_threads

ROUNDS = 300


@pytest.fixture
def changing_threads():
    """Python changes to another thread as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def on_ranks(size, body):
    """What `body(group)` returns on each rank; one that fails ends all."""
    meeting = Meeting(size)

    def rank(group):
        try:
            return body(group)
        except BaseException as problem:
            meeting.fail(group.rank, problem)
            raise

    return in_threads(rank, meeting.ranks())


@pytest.mark.parametrize("size", [2, 3])
def test_a_fast_rank_overwrites_no_text_that_a_slow_one_reads(size, changing_threads):
    def body(group):
        for number in range(ROUNDS):
            if group.rank == number % size:  # late for what the others may do meanwhile
                sum(range(300))
            assert group.texts(f"{number} of {group.rank}") == [f"{number} of {r}" for r in range(size)]
            if number % 7 == 0:
                np.testing.assert_array_equal(group.all_reduce(np.array([number])), [number * size])

    on_ranks(size, body)


def test_a_text_beside_a_sum_is_refused():
    def body(group):
        try:
            group.texts("a") if group.rank else group.all_reduce(np.ones(2))
        except RankError as problem:
            return str(problem)

    for said in on_ranks(2, body):
        assert "rank 0 calls all_reduce float64[2], rank 1 calls texts" in said
