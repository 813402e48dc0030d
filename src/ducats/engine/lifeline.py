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

LOST = 75  # exit code after the death of another rank: EX_TEMPFAIL, try again
PATIENCE = 20.0  # seconds to connect, and for the main thread to end after another rank announced its exit
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # detects hosts that lose power
Peers = Mapping[int, socket.socket]


class Ended(NamedTuple):
    """Exit of another rank, which ends the run."""

    rank: int
    code: int | None  # exit code; None: it was killed, or its host is down
    said: str  # its final message, or empty


class Lifeline:
    """Connections of this rank: from rank 0 to all others, from the others to rank 0.

    Args:
        world: number of ranks.
        peers: connections by rank.
        lost: called from another thread when the run cannot continue and the main thread has not ended. It
            should end the process.
        patience: seconds left to the main thread after another rank announced its exit.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        peers: Peers,
        lost: Callable[[Ended], object],
        patience: float = PATIENCE,
    ) -> None:
        self.rank, self.world = rank, world
        self._peers, self._lost, self._patience = peers, lost, patience
        self._found: Ended | None = None
        self._known, self._lock, self._leaving = threading.Event(), threading.Lock(), False
        threading.Thread(target=self._watch, daemon=True, name="lifeline").start()

    def missing(self, seconds: float = 0.0) -> Ended | None:
        """Return the exit that ends the run; None if none is known after ``seconds``."""
        self._known.wait(seconds)
        return self._found

    def leave(self, code: int, said: str = "") -> None:
        """Announce the exit of this rank to the others, once. From then on, `lost` is not called."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
        word = json.dumps({"code": code, "said": said}).encode() + b"\n"
        for peer in self._peers.values():
            with suppress(OSError):  # it may be dead
                peer.sendall(word)

    def _watch(self) -> None:
        words, until = dict.fromkeys(self._peers, b""), float("inf")
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while selector.get_map() and time.monotonic() < until:
                left = None if until == float("inf") else until - time.monotonic()
                for key, _ in selector.select(left):
                    heard = _receive(self._peers[key.data])
                    words[key.data] += heard
                    if heard and b"\n" not in heard:
                        continue
                    selector.unregister(key.fileobj)
                    ended = _understood(key.data, words[key.data])
                    if ended.code != 0:
                        self._find(ended)
                        patience = 0.0 if ended.code in (None, LOST) else self._patience
                        until = min(until, time.monotonic() + patience)
            # Without connections left, the main thread still has its remaining time.
            if until < float("inf"):
                time.sleep(max(0.0, until - time.monotonic()))
                self._give_up()

    def _find(self, ended: Ended) -> None:
        # A death is the cause of errors on other ranks, so it takes precedence.
        if self._found is None or (self._found.code is not None and ended.code is None):
            self._found = ended
        self._known.set()

    def _give_up(self) -> None:
        with self._lock:
            leaving = self._leaving
        if not leaving and self._found is not None:
            self._lost(self._found)


def open_door(address: str) -> socket.socket:
    """Open a listening socket for the other ranks on a free port.

    Args:
        address: of this host, as seen by the others.
    """
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(("", 0), family=family, backlog=128)


def let_in(door: socket.socket, world: int, token: str, patience: float = PATIENCE) -> Peers:
    """Accept the connections of all other ranks; connections without the token are closed.

    Args:
        door: see `open_door`; closed at the end.
        world: number of ranks.
        token: shared secret of the ranks.
        patience: seconds until all must be connected.
    """
    peers, until = dict[int, socket.socket](), time.monotonic() + patience
    with door:
        while len(peers) < world - 1:
            door.settimeout(max(0.001, until - time.monotonic()))
            peer, _ = door.accept()
            peer.settimeout(max(0.001, until - time.monotonic()))
            said = b""
            with suppress(OSError):
                while not said.endswith(b"\n") and len(said) < 100 and (more := peer.recv(100)):
                    said += more
            known, _, rank = said.decode(errors="replace").strip().partition(" ")
            if secrets.compare_digest(known.encode(), token.encode()) and rank.isdigit():
                peers[int(rank)] = _kept_alive(peer)
            else:
                peer.close()
    return peers


def knock(address: str, port: int, token: str, rank: int, patience: float = PATIENCE) -> Peers:
    """Connect to rank 0.

    Args:
        address: of the host of rank 0.
        port: of its listening socket.
        token: shared secret of the ranks.
        rank: of this process.
        patience: seconds until the connection must be open.
    """
    first = socket.create_connection((address, port), timeout=patience)
    first.sendall(f"{token} {rank}\n".encode())
    return {0: _kept_alive(first)}


def _kept_alive(peer: socket.socket) -> socket.socket:
    """Remove the timeout of a connection and enable keep-alive probes."""
    peer.settimeout(None)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # not every system has them
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return peer


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(4096)
    except OSError:
        return b""


def _understood(rank: int, words: bytes) -> Ended:
    """Parse a rank's exit message; without one, the rank was killed."""
    said, whole, _ = words.partition(b"\n")
    if not whole:
        return Ended(rank, None, "")
    word = json.loads(said)
    return Ended(rank, word["code"], word["said"])
