"""How we come to a Ray cluster and leave it, and how long we may stay."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ducats.errors import UserError

KNOCKING = 10.0  # seconds that a head may take to open the door
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
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # ConnectionError, RuntimeError, ValueError: whatever went wrong on the way
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"no Ray cluster answers at --address {address} ({why}): start one with `ray start --head`, or "
            "give the address of one that runs"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise at once where nobody listens: Ray itself would try for minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCKING).close()


def seconds_of(time: str) -> float:
    """A time that somebody typed, in seconds.

    >>> seconds_of("90s"), seconds_of("1.5 h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", time)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--timeout {time} is no time: write it as 90s, 30min, 2h or 1d")
    return float(match[1]) * UNITS[match[2]]
