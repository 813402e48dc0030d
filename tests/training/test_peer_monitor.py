"""Ranks detect each other's exit."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue

import pytest

from ducats.training.peer_monitor import (
    PEER_LOST_EXIT_CODE,
    PeerExit,
    PeerMonitor,
    PeerSockets,
    accept_peers,
    connect,
    listen,
)

Exits = SimpleQueue[PeerExit]
LOCALHOST = "127.0.0.1"


MakeMonitors = Callable[..., tuple[list[PeerMonitor], list[Exits], list[PeerSockets]]]


@pytest.fixture
def make_monitors() -> Iterator[MakeMonitors]:
    """Return a function that connects ranks: monitors, their reported exits and their connections."""
    with ExitStack() as stack:

        def make(
            world: int, timeout: float = 60.0
        ) -> tuple[list[PeerMonitor], list[Exits], list[PeerSockets]]:
            listener = listen(LOCALHOST)
            port = listener.getsockname()[1]
            others = [connect(LOCALHOST, port, "token", rank) for rank in range(1, world)]
            peers = [accept_peers(listener, world, "token"), *others]
            for connection in (one for connections in peers for one in connections.values()):
                stack.callback(connection.close)
                stack.callback(close_connection, connection)
            exits: list[Exits] = [SimpleQueue() for _ in range(world)]
            monitors = [
                PeerMonitor(rank, world, peers[rank], exits[rank].put, timeout) for rank in range(world)
            ]
            return monitors, exits, peers

        yield make


def stays_empty(exits: Exits, seconds: float = 0.2) -> bool:
    try:
        exits.get(timeout=seconds)
    except Empty:
        return True
    return False


def close_connection(connection: socket.socket) -> None:
    """Close a connection like the system does for a killed process."""
    with suppress(OSError):  # already closed by the other end
        connection.shutdown(socket.SHUT_RDWR)


def test_rank_0_detects_a_death_and_informs_the_others(make_monitors: MakeMonitors) -> None:
    monitors, exits, peers = make_monitors(3)
    assert monitors[0].peer_exit() is None
    close_connection(peers[2][0])
    assert exits[0].get(timeout=10) == PeerExit(2, None, "")
    assert monitors[0].peer_exit() == PeerExit(2, None, "")
    assert stays_empty(exits[1])
    monitors[0].announce_exit(PEER_LOST_EXIT_CODE, "process 3 is gone")
    assert exits[1].get(timeout=10) == PeerExit(0, PEER_LOST_EXIT_CODE, "process 3 is gone")


def test_the_others_detect_the_death_of_rank_0(make_monitors: MakeMonitors) -> None:
    _, exits, peers = make_monitors(2)
    close_connection(peers[0][1])
    assert exits[1].get(timeout=10) == PeerExit(0, None, "")


def test_a_finished_rank_is_not_reported(make_monitors: MakeMonitors) -> None:
    monitors, exits, peers = make_monitors(3)
    monitors[1].announce_exit(0)
    close_connection(peers[1][0])
    assert stays_empty(exits[0])
    assert monitors[0].peer_exit() is None
    close_connection(peers[2][0])  # the others are still monitored
    assert exits[0].get(timeout=10).rank == 2


def test_an_announced_failure_leaves_the_others_time_to_end(make_monitors: MakeMonitors) -> None:
    monitors, exits, _ = make_monitors(2)
    monitors[1].announce_exit(2, "no such file")
    monitors[1].announce_exit(0)  # only the first announcement counts
    assert monitors[0].peer_exit(10) == PeerExit(1, 2, "no such file")
    assert stays_empty(exits[0])
    monitors[0].announce_exit(2)  # in time


def test_the_time_to_end_is_bounded(make_monitors: MakeMonitors) -> None:
    monitors, exits, _ = make_monitors(2, timeout=0.1)
    monitors[1].announce_exit(2, "no such file")
    assert exits[0].get(timeout=10) == PeerExit(1, 2, "no such file")


def test_no_callback_after_announcing_an_exit(make_monitors: MakeMonitors) -> None:
    monitors, exits, _ = make_monitors(2, timeout=0.1)
    monitors[0].announce_exit(0)
    monitors[1].announce_exit(2, "too late")
    assert monitors[0].peer_exit(10) is not None
    assert stays_empty(exits[0], 0.5)


def test_a_death_takes_precedence_over_failures(make_monitors: MakeMonitors) -> None:
    monitors, exits, peers = make_monitors(3)
    monitors[1].announce_exit(1, "connection closed by peer")
    assert monitors[0].peer_exit(10) == PeerExit(1, 1, "connection closed by peer")
    close_connection(peers[2][0])
    assert exits[0].get(timeout=10) == PeerExit(2, None, "")


def test_connections_without_the_token_are_closed_and_others_kept_alive() -> None:
    with listen(LOCALHOST) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        stranger = stack.enter_context(socket.create_connection((LOCALHOST, port)))
        stranger.sendall(b"another 1\n")
        socket.create_connection((LOCALHOST, port)).close()
        friend = connect(LOCALHOST, port, "token", 1)[0]
        stack.callback(friend.close)
        inside = accept_peers(listener, 2, "token")
        stack.callback(inside[1].close)
        assert list(inside) == [1]
        assert stranger.recv(1) == b""
        for connection in (inside[1], friend):
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.gettimeout() is None


def test_accepting_peers_times_out() -> None:
    with pytest.raises(TimeoutError):
        accept_peers(listen(LOCALHOST), 2, "token", timeout=0.05)
