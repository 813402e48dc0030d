"""Connection to a Ray cluster, and parsing of timeouts."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ducats.utils.errors import UserError

CONNECT_TIMEOUT_SECONDS = 10.0  # seconds to connect to the head node
SECONDS_PER_UNIT = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def import_ray() -> Any:
    """Import Ray, an optional dependency, with its usage reports disabled."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--backend ray needs Ray; run pip install 'ducats[ray]'") from None
    return ray


@contextmanager
def ray_session(address: str) -> Iterator[None]:
    """Connect to a running cluster; disconnect at the end without stopping it.

    Args:
        address: of its head, as host:port; auto: RAY_ADDRESS, or the cluster of this machine. An existing
            connection of this process is used and kept.

    Raises:
        UserError: Ray is not installed, or no cluster is reachable.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    _check_address(address)
    try:
        _check_server(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # ConnectionError, RuntimeError, ValueError and others
        reason = " ".join(str(error).split()) or type(error).__name__
        if "ersion mismatch" in reason:
            raise UserError(
                f"the Ray cluster at --ray-address {address} has other versions than this machine "
                f"({reason}); install the same Python and Ray on both"
            ) from error
        raise UserError(
            f"no Ray cluster answers at --ray-address {address} ({reason}); start one with `ray start "
            "--head`, or give the address of a running one"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def cluster_device(option: str, device: str) -> str:
    """Return cuda or cpu: all tasks use the same type of device, so that their results are comparable.

    Args:
        option: command-line option of the device, for the message.
        device: auto, cpu or cuda.
    """
    has_gpu = any(node["Resources"].get("GPU") for node in import_ray().nodes() if node["Alive"])
    if device == "cuda" and not has_gpu:
        raise UserError(f"{option} cuda: no node of the Ray cluster has a GPU; use {option} cpu")
    return "cuda" if has_gpu and device in ("auto", "cuda") else "cpu"


def _resolve_address(address: str) -> str:
    return os.environ.get("RAY_ADDRESS") or "auto" if address == "auto" else address


def _check_address(address: str) -> None:
    """Raise on addresses that would make Ray start a cluster or use Ray Client."""
    resolved = _resolve_address(address)
    host, _, port = resolved.rpartition(":")
    if resolved != "auto" and not (host and port.isdecimal() and "/" not in host):
        origin = " (from RAY_ADDRESS)" if resolved != address else ""
        raise UserError(
            f"--ray-address {resolved}{origin} is not a host:port; run the command on a machine of the "
            "cluster, without --ray-address or with the one printed by `ray start --head`, such as "
            "10.0.0.1:6379"
        )


def _check_server(address: str) -> None:
    """Raise if no gRPC server listens at the address: Ray itself would retry for ten minutes."""
    host, _, port = _resolve_address(address).rpartition(":")
    if not host:
        return
    with socket.create_connection(
        (host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_SECONDS
    ) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "1":
            return
        try:
            frame = connection.recv(9)
        except TimeoutError:
            frame = b""
        if frame[3:4] != b"\x04":  # gRPC servers open a connection with a frame of type SETTINGS
            raise ConnectionError("the server there is not Ray")


def parse_duration(time: str) -> float:
    """Convert a duration with unit to seconds.

    >>> parse_duration("90s"), parse_duration("1.5 h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", time)
    if match is None or float(match[1]) == 0:
        raise UserError(f"--timeout {time} is not a duration; write it as 90s, 30min, 2h or 1d")
    return float(match[1]) * SECONDS_PER_UNIT[match[2]]
