"""How we come to a Ray cluster and leave it, and how long we may stay."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ducats.errors import UserError

KNOCKING = 10.0  # seconds that a head may take to open the door
# How HTTP/2, and so gRPC, begins: the client's first words and empty settings; a server answers with its own.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4  # kind of the answer, in its fourth byte
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def import_ray() -> Any:
    """Ray, which is an extra, without its reports to its makers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'ducats[ray]'") from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be a driver of a cluster that runs; it is left as it was found, and never stopped.

    Args:
        address: of its head, as host:port; auto: what RAY_ADDRESS says, or the cluster of this machine. Where
            this process is connected already, that connection is used and kept.

    Raises:
        UserError: There is no Ray, or no cluster.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    _check(address)
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: whatever went wrong on the way
        why = " ".join(str(error).split()) or type(error).__name__
        if "ersion mismatch" in why:
            raise UserError(
                f"the Ray cluster at --address {address} is no match for this machine ({why}): install the "
                "same Python and Ray here and there"
            ) from error
        raise UserError(
            f"no Ray cluster answers at --address {address} ({why}): start one with `ray start --head`, or "
            "give the address of one that runs"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _meant(address: str) -> str:
    return os.environ.get("RAY_ADDRESS") or "auto" if address == "auto" else address


def _check(address: str) -> None:
    """Refuse what Ray might take for a wish to start a cluster, or to be a guest of one."""
    meant = _meant(address)
    host, _, port = meant.rpartition(":")
    if meant != "auto" and not (host and port.isdecimal() and "/" not in host):
        whence = " (from RAY_ADDRESS)" if meant != address else ""
        raise UserError(
            f"--address {meant}{whence} is no host:port: give the command on a machine of the cluster, with "
            "the address that `ray start --head` told, such as 10.0.0.1:6379, or leave it out there"
        )


def _knock(address: str) -> None:
    """Raise at once where nobody listens, or somebody else: Ray itself would try for minutes."""
    host, _, port = _meant(address).rpartition(":")
    if not host:
        return
    with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCKING) as line:
        if os.environ.get("RAY_USE_TLS", "0") == "1":
            return
        line.sendall(HELLO)
        answer = line.recv(9)
        if answer[3:4] != bytes([SETTINGS]):
            raise ConnectionError("something else listens there")


def seconds_of(time: str) -> float:
    """A time that somebody typed, in seconds.

    >>> seconds_of("90s"), seconds_of("1.5 h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", time)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--timeout {time} is no time: write it as 90s, 30min, 2h or 1d")
    return float(match[1]) * UNITS[match[2]]
