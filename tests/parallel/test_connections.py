"""Ranks that torchrun or Paddle's launcher has started meet at an address, and do what ranks under MPI do."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from multiprocessing import connection

import numpy as np
import pytest

from minigraph.errors import MinigraphError, ProgramError
from minigraph.kernels.groups import RankError
from minigraph.runtime.parallel import connections
from minigraph.runtime.parallel.connections import ConnectedGroup
from minigraph.runtime.parallel.meeting import MeetingPoint
from tests.support.connected import ended, free_port, started
from tests.support.in_threads import in_threads
from tests.support.parallel_training import trained

LATE = 2.0  # seconds for who does not come: those who do are there by then on a busy machine, too


@pytest.fixture
def meeting(monkeypatch):
    monkeypatch.setattr(connections, "LOOK", 0.05)
    return MeetingPoint("127.0.0.1", free_port(), b"key")


def together(work, meeting, ranks=3, timeout=20.0, size=None):
    """What `work` gives on each rank: each is a thread with connections of its own; errors are results."""

    def run(rank):
        try:
            return work(ConnectedGroup(meeting, rank, size or ranks, timeout))
        except Exception as problem:
            return problem

    return in_threads(run, range(ranks))


def test_collectives_are_those_of_a_group(meeting):
    def work(group):
        x = np.arange(6.0).reshape(3, 2) * (group.rank + 1)
        large = np.full(5000, group.rank + 1, np.float32)
        group.barrier()
        return [
            group.all_reduce(x), group.all_reduce(large), group.broadcast(x, root=2), group.all_gather(x),
            group.reduce_scatter(x), group.reduce(x, root=1), group.all_reduce(np.zeros((0, 2))),
            *map(np.array, group.texts(f"rank {group.rank}")),
        ]  # fmt: skip

    found, x = together(work, meeting), np.arange(6.0).reshape(3, 2)
    for rank, values in enumerate(found):
        total, large, sent, joined, part, one, none, *texts = values
        assert np.array_equal(total, 6 * x) and (large == 6).all() and np.array_equal(sent, 3 * x)
        assert np.array_equal(joined, np.concatenate([x, 2 * x, 3 * x]))
        assert np.array_equal(part, 6 * x[rank : rank + 1])
        assert np.array_equal(one, 6 * x * (rank == 1)) and none.shape == (0, 2)
        assert [str(t) for t in texts] == ["rank 0", "rank 1", "rank 2"]


def test_no_message_is_held_back(meeting):
    """By TCP, which waits 40 ms for a word about the message before: an exchange is several."""

    def sends_at_once(end):
        with socket.socket(fileno=os.dup(end.fileno())) as same:
            return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    found = together(lambda group: [*map(sends_at_once, group.ends.values())], meeting)
    assert found == [[True, True], [True], [True]]


def failing(group, rank, act):
    group.barrier()
    if group.rank == rank:
        return act(group)
    return group.all_reduce(np.ones(3))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_goes_is_named_by_all(rank, meeting):
    found = together(lambda group: failing(group, rank, lambda g: g.leave()), meeting)
    others = [found[r] for r in range(3) if r != rank]
    assert all(isinstance(e, RankError) and e.ranks == (rank,) for e in others), others
    assert all(f"rank {rank} ended" in str(e) for e in others)


def test_a_rank_that_hangs_is_named_by_all(meeting):
    over = threading.Barrier(3, timeout=60)

    def work(group):
        try:
            return failing(group, 2, lambda g: None)
        finally:
            over.wait()  # until then rank 2 is there and does nothing

    found = together(work, meeting, timeout=LATE)
    assert all("rank 2 did not come to all_reduce float64[3] within 2 s" in str(e) for e in found[:2]), found


def test_ranks_that_differ_in_their_calls_are_named(meeting):
    found = together(lambda group: failing(group, 1, lambda g: g.all_gather(np.ones(3))), meeting)
    assert all("rank 0 calls all_reduce float64[3], rank 1 calls all_gather float64[3]" in str(e) for e in found)


def test_an_error_stays(meeting):
    def work(group):
        for _ in range(2):
            with pytest.raises(RankError, match="rank 1 ended"):
                failing(group, 1, lambda g: g.leave()) if group.problem is None else group.barrier()

    assert together(lambda g: work(g) if g.rank == 0 else (g.barrier(), g.leave()), meeting, ranks=2)[0] is None


# the meeting


def test_who_does_not_come_is_named(meeting):
    found = together(lambda group: group, meeting, ranks=2, size=4, timeout=LATE)
    assert all("rank 2, rank 3 did not come to 127.0.0.1" in str(e) for e in found), found


def test_a_master_that_is_not_there_is_an_error_within_the_timeout(meeting):
    with pytest.raises(RankError, match=r"rank 1 cannot reach rank 0 at 127.0.0.1:\d+ within 0.3 s.*refused"):
        ConnectedGroup(meeting, 1, 2, 0.3)
    with pytest.raises(RankError, match=r"no\.such\.host\.invalid:1 within 0.3 s"):
        ConnectedGroup(MeetingPoint("no.such.host.invalid", 1, b"key"), 1, 2, 0.3)


def test_a_master_that_says_nothing_is_an_error_within_the_timeout(meeting, monkeypatch):
    monkeypatch.setattr(connections, "GRACE", 0.5)
    with socket.socket() as silent:
        silent.bind((meeting.host, meeting.port))
        silent.listen()
        with pytest.raises(RankError, match=r"nothing came for 0.8 s"):
            ConnectedGroup(meeting, 1, 2, 0.3)


def test_an_occupied_port_is_an_error(meeting):
    with socket.socket() as other:
        other.bind((meeting.host, meeting.port))
        other.listen()
        with pytest.raises(ProgramError, match=r"(?s)cannot wait for the others at .*in use.*MASTER_PORT"):
            ConnectedGroup(meeting, 0, 2, 0.3)


def test_two_processes_of_one_number_are_an_error(meeting):
    def run(rank):
        try:
            return ConnectedGroup(meeting, rank, 3, 5.0)
        except MinigraphError as problem:
            return problem

    found = in_threads(run, (0, 1, 1))
    assert all("two processes say that they are rank 1" in str(e) for e in found), found


def test_strangers_are_left_outside(meeting):
    """Another key, no key at all, and a message that is none: the ranks meet all the same."""
    found = []
    ranks = [threading.Thread(target=lambda: found.append(ConnectedGroup(meeting, 0, 2, 20.0)))]
    ranks[0].start()
    said = None
    while said is None:
        try:
            connection.Client((meeting.host, meeting.port), authkey=b"other")
        except connection.AuthenticationError as problem:
            said = problem
        except ConnectionRefusedError:
            time.sleep(0.01)
    with socket.create_connection((meeting.host, meeting.port)) as s:
        s.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with connection.Client((meeting.host, meeting.port), authkey=b"key") as end:
        end.send_bytes(b"[1, 2]")
    group = ConnectedGroup(meeting, 1, 2, 20.0)
    ranks[0].join()
    assert group.rank == 1 and len(found) == 1


# processes


@pytest.mark.parametrize("paddle", [False, True], ids=["torchrun", "paddle"])
def test_processes_are_threads_bit_by_bit(paddle, tmp_path):
    what = "fleet" if paddle else "pieces"
    for code, said in ended(started(2, what, tmp_path, paddle)):
        assert code == 0, said
    _, values = trained(2, steps=3, rows=6, every=not paddle)
    with np.load(tmp_path / f"{what}.npz") as found:
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raise", "rank 1 ended before"),
        ("uneven", "feeds of rank 0 and rank 1 differ"),
        ("kill 1 1", "rank 1 ended"),
        ("kill 0 0", "rank 0 ended"),
    ],
)
def test_nobody_waits_for_a_process_that_is_gone(what, said, tmp_path):
    found = ended(started(2, what, tmp_path))
    assert all(code for code, _ in found), found
    left = [text for code, text in found if code != -signal.SIGKILL]
    assert any(said in text for text in left), left
