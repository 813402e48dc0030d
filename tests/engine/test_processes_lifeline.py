"""Processes hear of each other's end, whatever they are doing."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue

import pytest

from ducats.engine.lifeline import LOST, Ended, Lifeline, Peers, knock, let_in, open_door

Lost = SimpleQueue[Ended]
HERE = "127.0.0.1"


@pytest.fixture
def connect() -> Iterator[Callable[[int], list[Peers]]]:
    """Connections between this many, by rank; closed in the end."""
    with ExitStack() as stack:

        def between(world: int) -> list[Peers]:
            door = open_door(HERE)
            port = door.getsockname()[1]
            inner = [knock(HERE, port, "token", rank) for rank in range(1, world)]
            peers = [let_in(door, world, "token"), *inner]
            for connection in (one for all_of_it in peers for one in all_of_it.values()):
                stack.callback(connection.close)
                stack.callback(dies, connection)
            return peers

        yield between


Tie = Callable[..., tuple[list[Lifeline], list[Lost], list[Peers]]]


@pytest.fixture
def tied(connect: Callable[[int], list[Peers]]) -> Tie:
    """Lines between this many; for each, what it was told, and its connections."""

    def tie(world: int, patience: float = 60.0) -> tuple[list[Lifeline], list[Lost], list[Peers]]:
        peers = connect(world)
        told: list[Lost] = [SimpleQueue() for _ in range(world)]
        lines = [Lifeline(rank, world, peers[rank], told[rank].put, patience) for rank in range(world)]
        return lines, told, peers

    return tie


def quiet(told: Lost, seconds: float = 0.2) -> bool:
    try:
        told.get(timeout=seconds)
    except Empty:
        return True
    return False


def dies(connection: socket.socket) -> None:
    """What the system does for a process that is killed."""
    with suppress(OSError):  # the other end was first
        connection.shutdown(socket.SHUT_RDWR)


def test_the_first_hears_who_died_and_the_others_hear_it_from_the_first(tied: Tie) -> None:
    lines, told, peers = tied(3)
    assert lines[0].missing() is None
    dies(peers[2][0])
    assert told[0].get(timeout=10) == Ended(2, None, "")
    assert lines[0].missing() == Ended(2, None, "")
    assert quiet(told[1])
    lines[0].leave(LOST, "process 3 is gone")
    assert told[1].get(timeout=10) == Ended(0, LOST, "process 3 is gone")


def test_the_others_hear_that_the_first_died(tied: Tie) -> None:
    _, told, peers = tied(2)
    dies(peers[0][1])
    assert told[1].get(timeout=10) == Ended(0, None, "")


def test_one_that_is_done_is_not_missed(tied: Tie) -> None:
    lines, told, peers = tied(3)
    lines[1].leave(0)
    dies(peers[1][0])
    assert quiet(told[0])
    assert lines[0].missing() is None
    dies(peers[2][0])  # the rest is still watched
    assert told[0].get(timeout=10).rank == 2


def test_one_that_fails_with_a_reason_leaves_the_others_time_to_fail_alike(tied: Tie) -> None:
    lines, told, _ = tied(2)
    lines[1].leave(2, "no such file")
    lines[1].leave(0)  # the first word counts
    assert lines[0].missing(10) == Ended(1, 2, "no such file")
    assert quiet(told[0])
    lines[0].leave(2)  # in time


def test_the_time_is_bounded(tied: Tie) -> None:
    lines, told, _ = tied(2, patience=0.1)
    lines[1].leave(2, "no such file")
    assert told[0].get(timeout=10) == Ended(1, 2, "no such file")


def test_who_leaves_is_not_called_any_more(tied: Tie) -> None:
    lines, told, _ = tied(2, patience=0.1)
    lines[0].leave(0)
    lines[1].leave(2, "too late")
    assert lines[0].missing(10) is not None
    assert quiet(told[0], 0.5)


def test_a_death_explains_the_failures_that_it_caused(tied: Tie) -> None:
    lines, told, peers = tied(3)
    lines[1].leave(1, "connection closed by peer")
    assert lines[0].missing(10) == Ended(1, 1, "connection closed by peer")
    dies(peers[2][0])
    assert told[0].get(timeout=10) == Ended(2, None, "")


def test_strangers_are_turned_away() -> None:
    with open_door(HERE) as door, ExitStack() as stack:
        port = door.getsockname()[1]
        stranger = stack.enter_context(socket.create_connection((HERE, port)))
        stranger.sendall(b"another 1\n")
        socket.create_connection((HERE, port)).close()
        friend = knock(HERE, port, "token", 1)[0]
        stack.callback(friend.close)
        inside = let_in(door, 2, "token")
        stack.callback(inside[1].close)
        assert list(inside) == [1]
        assert stranger.recv(1) == b""


def test_whoever_does_not_come_is_not_awaited_for_ever() -> None:
    with pytest.raises(TimeoutError):
        let_in(open_door(HERE), 2, "token", patience=0.05)


def test_a_host_that_goes_silent_is_asked_whether_it_is_there(connect: Callable[[int], list[Peers]]) -> None:
    first, other = connect(2)
    for connection in (first[1], other[0]):
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.gettimeout() is None
