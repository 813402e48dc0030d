"""Detection of dead ranks. Each rank holds a connection to rank 0, which breaks when either end dies.

A rank that waits for a dead one in a collective may wait for half an hour, and a rank that scores its share
of the pool would notice even later. The operating system, however, closes the connections of a dead process
at once. Needs no torch, and works with any launcher and backend.
"""

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

PEER_LOST_EXIT_CODE = 75  # exit code after the death of another rank: EX_TEMPFAIL, try again
# Seconds to connect, and for the main thread to end after another rank announced its exit.
PEER_TIMEOUT_SECONDS = 20.0
# Keep-alive probes detect hosts that lose power.
KEEP_ALIVE_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
PeerSockets = Mapping[int, socket.socket]


class PeerExit(NamedTuple):
    """Exit of another rank, which ends the run."""

    rank: int
    code: int | None  # exit code; None: it was killed, or its host is down
    message: str  # its final message, or empty


class PeerMonitor:
    """Connections of this rank: from rank 0 to all others, from the others to rank 0.

    Args:
        on_lost: called from another thread when the run cannot continue and the main thread has not ended. It
            should end the process.
        timeout: seconds left to the main thread after another rank announced its exit.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        peers: PeerSockets,
        on_lost: Callable[[PeerExit], object],
        timeout: float = PEER_TIMEOUT_SECONDS,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._peers, self._on_lost, self._timeout = peers, on_lost, timeout
        self._peer_exit: PeerExit | None = None
        self._exit_known, self._lock, self._leaving = threading.Event(), threading.Lock(), False
        threading.Thread(target=self._watch, daemon=True, name="peer-monitor").start()

    def peer_exit(self, timeout: float = 0.0) -> PeerExit | None:
        """Return the exit that ends the run; None if none is known after ``timeout``."""
        self._exit_known.wait(timeout)
        return self._peer_exit

    def announce_exit(self, code: int, message: str = "") -> None:
        """Announce the exit of this rank to the others, once. From then on, `on_lost` is not called."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
        payload = json.dumps({"code": code, "message": message}).encode() + b"\n"
        for peer in self._peers.values():
            with suppress(OSError):  # it may be dead
                peer.sendall(payload)

    def _watch(self) -> None:
        received, deadline = dict.fromkeys(self._peers, b""), float("inf")
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map() and time.monotonic() < deadline:
                remaining = None if deadline == float("inf") else deadline - time.monotonic()
                for key, _ in selector.select(remaining):
                    data = _receive(self._peers[key.data])
                    received[key.data] += data
                    if data and b"\n" not in data:
                        continue
                    selector.unregister(key.fileobj)
                    peer_exit = _parse_exit(key.data, received[key.data])
                    if peer_exit.code != 0:
                        self._record_exit(peer_exit)
                        timeout = 0.0 if peer_exit.code in (None, PEER_LOST_EXIT_CODE) else self._timeout
                        deadline = min(deadline, time.monotonic() + timeout)
            # Without connections left, the main thread still has its remaining time.
            if deadline < float("inf"):
                time.sleep(max(0.0, deadline - time.monotonic()))
                self._report_loss()

    def _record_exit(self, peer_exit: PeerExit) -> None:
        # A death is the cause of errors on other ranks, so it takes precedence.
        if self._peer_exit is None or (self._peer_exit.code is not None and peer_exit.code is None):
            self._peer_exit = peer_exit
        self._exit_known.set()

    def _report_loss(self) -> None:
        with self._lock:
            leaving = self._leaving
        if not leaving and self._peer_exit is not None:
            self._on_lost(self._peer_exit)


def listen(address: str) -> socket.socket:
    """Open a listening socket on a free port; ``address`` is that of this host, as seen by the others."""
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(("", 0), family=family, backlog=128)


def accept_peers(
    listener: socket.socket, world_size: int, token: str, timeout: float = PEER_TIMEOUT_SECONDS
) -> PeerSockets:
    """Accept the connections of all other ranks and close the listener.

    Connections without the token, a secret that the ranks share, are closed.
    """
    peers, deadline = dict[int, socket.socket](), time.monotonic() + timeout
    with listener:
        while len(peers) < world_size - 1:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            peer, _ = listener.accept()
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            line = b""
            with suppress(OSError):
                while not line.endswith(b"\n") and len(line) < 100 and (more := peer.recv(100)):
                    line += more
            received_token, _, rank = line.decode(errors="replace").strip().partition(" ")
            if secrets.compare_digest(received_token.encode(), token.encode()) and rank.isdigit():
                peers[int(rank)] = _enable_keep_alive(peer)
            else:
                peer.close()
    return peers


def connect(
    address: str, port: int, token: str, rank: int, timeout: float = PEER_TIMEOUT_SECONDS
) -> PeerSockets:
    """Connect to rank 0, which listens at ``address`` and ``port``."""
    first = socket.create_connection((address, port), timeout=timeout)
    first.sendall(f"{token} {rank}\n".encode())
    return {0: _enable_keep_alive(first)}


def _enable_keep_alive(peer: socket.socket) -> socket.socket:
    """Remove the timeout of a connection and enable keep-alive probes."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE_OPTIONS.items():
        if hasattr(socket, name):  # not every system has them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(4096)
    except OSError:
        return b""


def _parse_exit(rank: int, received: bytes) -> PeerExit:
    """Parse a rank's exit message; without one, the rank was killed."""
    line, newline, _ = received.partition(b"\n")
    if not newline:
        return PeerExit(rank, None, "")
    payload = json.loads(line)
    return PeerExit(rank, payload["code"], payload["message"])
