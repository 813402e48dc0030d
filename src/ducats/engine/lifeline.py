"""Whether all processes of a run are alive. Each holds a connection to the first one, and hears it break.

A process that waits for a dead one in an exchange may wait for half an hour, and one that scores its share of
a pool would not hear of it for longer. But the system closes the connections of whoever dies, at once. Needs
no torch, and works alike for any launcher and any backend.
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

LOST = 75  # the exit code of a run that another process's death ended: EX_TEMPFAIL, try again
PATIENCE = 20.0  # seconds to meet; and to come to an end by oneself after another process has said its own
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a host without power says nothing
Peers = Mapping[int, socket.socket]


class Ended(NamedTuple):
    """Why a run cannot go on: another process is not there any more."""

    rank: int
    code: int | None  # that it ended with; None: it was killed, or its host is gone
    said: str  # its last sentence, if it had one


class Lifeline:
    """This process's connections: of the first process to all others, of the others to the first.

    Args:
        rank: of this process.
        world: how many there are.
        peers: connections by rank.
        lost: called, in a thread of its own, when the run cannot go on and the main thread has not found out
            by itself. It should end the process.
        patience: how many seconds the main thread has, once another process has said why it ends.
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
        """Who is not there any more; None if nobody is known to be missing after some seconds."""
        self._known.wait(seconds)
        return self._found

    def leave(self, code: int, said: str = "") -> None:
        """Tell the others, once, that this process ends, and why; from now on `lost` is not called."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
        word = json.dumps({"code": code, "said": said}).encode() + b"\n"
        for peer in self._peers.values():
            with suppress(OSError):  # it may be gone
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
            # Once nobody is left to listen to, there is still the time that the main thread was given.
            if until < float("inf"):
                time.sleep(max(0.0, until - time.monotonic()))
                self._give_up()

    def _find(self, ended: Ended) -> None:
        # A death explains the errors that it caused elsewhere.
        if self._found is None or (self._found.code is not None and ended.code is None):
            self._found = ended
        self._known.set()

    def _give_up(self) -> None:
        with self._lock:
            leaving = self._leaving
        if not leaving and self._found is not None:
            self._lost(self._found)


def open_door(address: str) -> socket.socket:
    """Where the other processes may knock, on any port that is free.

    Args:
        address: of this host, as the others know it.
    """
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(("", 0), family=family, backlog=128)


def let_in(door: socket.socket, world: int, token: str, patience: float = PATIENCE) -> Peers:
    """Everyone's connection, by rank; whoever does not know the token is turned away.

    Args:
        door: see `open_door`; it is closed.
        world: how many processes there are.
        token: what they know each other by.
        patience: seconds for all of them.
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
    """The connection to the first process.

    Args:
        address: of its host.
        port: where its door is.
        token: what the processes know each other by.
        rank: of this process.
        patience: seconds to be let in.
    """
    first = socket.create_connection((address, port), timeout=patience)
    first.sendall(f"{token} {rank}\n".encode())
    return {0: _kept_alive(first)}


def _kept_alive(peer: socket.socket) -> socket.socket:
    """A connection that may be silent for ever, as long as its other end is there."""
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
    """A process's last words; it was killed if it had none."""
    said, whole, _ = words.partition(b"\n")
    if not whole:
        return Ended(rank, None, "")
    word = json.loads(said)
    return Ended(rank, word["code"], word["said"])
