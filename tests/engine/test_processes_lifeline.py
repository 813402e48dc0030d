"""Ranks detect each other's exit."""

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
    """Return a function that connects ``world`` ranks; the connections are closed at the end."""
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
    """Return a function that builds monitors, their reported exits and their connections."""

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
    """Close a connection like the system does for a killed process."""
    with suppress(OSError):  # already closed by the other end
        connection.shutdown(socket.SHUT_RDWR)


def test_rank_0_detects_a_death_and_informs_the_others(tied: Tie) -> None:
    lines, told, peers = tied(3)
    assert lines[0].missing() is None
    dies(peers[2][0])
    assert told[0].get(timeout=10) == Ended(2, None, "")
    assert lines[0].missing() == Ended(2, None, "")
    assert quiet(told[1])
    lines[0].leave(LOST, "process 3 is gone")
    assert told[1].get(timeout=10) == Ended(0, LOST, "process 3 is gone")


def test_the_others_detect_the_death_of_rank_0(tied: Tie) -> None:
    _, told, peers = tied(2)
    dies(peers[0][1])
    assert told[1].get(timeout=10) == Ended(0, None, "")


def test_a_finished_rank_is_not_reported(tied: Tie) -> None:
    lines, told, peers = tied(3)
    lines[1].leave(0)
    dies(peers[1][0])
    assert quiet(told[0])
    assert lines[0].missing() is None
    dies(peers[2][0])  # the others are still monitored
    assert told[0].get(timeout=10).rank == 2


def test_an_announced_failure_leaves_the_others_time_to_end(tied: Tie) -> None:
    lines, told, _ = tied(2)
    lines[1].leave(2, "no such file")
    lines[1].leave(0)  # only the first announcement counts
    assert lines[0].missing(10) == Ended(1, 2, "no such file")
    assert quiet(told[0])
    lines[0].leave(2)  # in time


def test_the_time_to_end_is_bounded(tied: Tie) -> None:
    lines, told, _ = tied(2, patience=0.1)
    lines[1].leave(2, "no such file")
    assert told[0].get(timeout=10) == Ended(1, 2, "no such file")


def test_no_callback_after_announcing_an_exit(tied: Tie) -> None:
    lines, told, _ = tied(2, patience=0.1)
    lines[0].leave(0)
    lines[1].leave(2, "too late")
    assert lines[0].missing(10) is not None
    assert quiet(told[0], 0.5)


def test_a_death_takes_precedence_over_failures(tied: Tie) -> None:
    lines, told, peers = tied(3)
    lines[1].leave(1, "connection closed by peer")
    assert lines[0].missing(10) == Ended(1, 1, "connection closed by peer")
    dies(peers[2][0])
    assert told[0].get(timeout=10) == Ended(2, None, "")


def test_connections_without_the_token_are_closed() -> None:
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


def test_accepting_peers_times_out() -> None:
    with pytest.raises(TimeoutError):
        let_in(open_door(HERE), 2, "token", patience=0.05)


def test_connections_use_keep_alive(connect: Callable[[int], list[Peers]]) -> None:
    first, other = connect(2)
    for connection in (first[1], other[0]):
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.gettimeout() is None
