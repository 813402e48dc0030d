"""Network addresses and ports."""

import ipaddress
import secrets
import socket
from contextlib import suppress

from ducats.utils.errors import UserError

# Below the ranges from which operating systems assign ports to connections, so that a free port stays free.
PORT_RANGE = range(20_000, 32_000)
MAX_ATTEMPTS = 100


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    for port in secrets.SystemRandom().sample(PORT_RANGE, MAX_ATTEMPTS):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise UserError(f"none of {MAX_ATTEMPTS} ports is free on 127.0.0.1; set MASTER_PORT to a free port")


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
