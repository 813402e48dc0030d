"""Start the page's server: address, token and browser."""

import errno
import ipaddress
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from ducats.errors import UserError

PORTS = range(20000, 32000)  # below the ephemeral port ranges of operating systems
SHORTEST = 16  # minimum length of a token


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_run(run: Path) -> None:
    """Raise if a folder is not a run folder."""
    if not (run / "config.yaml").exists() and not (run / "questions").is_dir():
        raise UserError(
            f"{run} is not a run folder (it has neither config.yaml nor questions/); give the folder that "
            "`ducats run` printed"
        )


def check_installed() -> None:
    """Raise if the server's packages are not installed."""
    for name in ("starlette", "uvicorn"):
        try:
            import_module(name)
        except ImportError:
            raise UserError(f"the labelling page needs {name}; run: pip install 'ducats[label]'") from None


def listen(host: str, port: int, run: Path) -> socket.socket:
    """Return a listening socket.

    Args:
        host: host name or address.
        port: 0 for the run's default port, or any free port if that is in use. The default is derived from
            the folder, so a page that is still open finds a restarted server.
        run: the run folder.
    """
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port {port} is not a valid port; omit it, or choose one from 1024 to 65535")
    own = PORTS[int(sha256(str(run.resolve()).encode()).hexdigest(), 16) % len(PORTS)]
    for choice in [port] if port else [own, 0]:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, choice, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError) as error:
            raise _not_ours(host, error) from None
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            why = error
            if error.errno == errno.EADDRNOTAVAIL:
                raise _not_ours(host, error) from None
    raise UserError(f"--port {port} on {host} cannot be used ({why}); omit it, or choose another port")


def _not_ours(host: str, error: Exception) -> UserError:
    return UserError(f"--host {host} cannot be used ({error}); give an address of this machine")


def token_from(path: Path | None) -> str:
    """Return a new token, or the one in a private file, which is created on first use."""
    if path is None:
        return secrets.token_urlsafe(24)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not path.is_file():
            raise UserError(f"--token-file {path} is not a file; give a file or an unused path") from None
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise UserError(f"--token-file {path} is readable by others; run: chmod 600 {path}") from None
        token = path.read_text(encoding="utf-8", errors="replace").strip()
        if len(token) < SHORTEST or not all(
            sign.isascii() and (sign.isalnum() or sign in "-_") for sign in token
        ):
            raise UserError(
                f"--token-file {path} must hold at least {SHORTEST} letters, digits, - or _; remove the file "
                "to create a new token"
            ) from None
        return token
    token = secrets.token_urlsafe(24)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(token + "\n")
    return token


def address(listening: socket.socket, host: str, token: str) -> str:
    """Return the URL to open in a browser."""
    port = listening.getsockname()[1]
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}"


def serve(
    run: Path,
    listening: socket.socket,
    *,
    host: str,
    token: str,
    who: str = "",
    blind: bool = False,
    opened: bool = False,
) -> None:
    """Serve the page until the process is stopped.

    Args:
        run: the run folder.
        listening: socket returned by ``listen``.
        host: host of that socket.
        token: required for every request.
        who: annotator name used for every browser. If empty, each browser asks for a name.
        blind: hide the model's guess and its uncertainties.
        opened: whether to open the page in a browser.
    """
    import uvicorn

    from ducats.labelling.page.app import Page, make_app

    cookie = f"ducats-{listening.getsockname()[1]}"
    # Other users of this machine can see the browser's command line, so this token works only once.
    once = secrets.token_urlsafe(24) if opened else ""
    app = make_app(Page(run, who=who, blind=blind), token=token, host=host, cookie=cookie, once=once)
    if opened:
        _in_background(lambda: webbrowser.open(address(listening, host, once)))
    # No access log: it would contain the token.
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=75,
        ws="none",
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _in_background(act: Callable[[], object]) -> None:
    threading.Thread(target=act, daemon=True).start()
