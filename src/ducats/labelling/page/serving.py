"""Starting the page: its address, its token, and the browser."""

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

PORTS = range(20000, 32000)  # below those that systems give away themselves
SHORTEST = 16  # letters of a token


def is_loopback(host: str) -> bool:
    """Whether an address is reached from its own machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_run(run: Path) -> None:
    """Refuse a folder that is no run's."""
    if not (run / "config.yaml").exists() and not (run / "questions").is_dir():
        raise UserError(
            f"{run} is no run folder (it has neither config.yaml nor questions/): name the folder that "
            "`ducats run` printed"
        )


def check_installed() -> None:
    """Refuse to begin without what the server is made of."""
    for name in ("starlette", "uvicorn"):
        try:
            import_module(name)
        except ImportError:
            raise UserError(f"the page needs {name}: pip install 'ducats[label]'") from None


def listen(host: str, port: int, run: Path) -> socket.socket:
    """A socket that listens.

    Args:
        host: name or address.
        port: 0 for the run's own, which is the same each time, so that a page that is still open finds the
            server again; or any that is free if another has it.
        run: the run's folder.
    """
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port {port} is no port: leave it out, or name one from 1024 to 65535")
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
    raise UserError(f"--port {port} of {host} cannot be used ({why}): leave it out, or name another")


def _not_ours(host: str, error: Exception) -> UserError:
    return UserError(f"--host {host} cannot be used ({error}): name an address of this machine")


def token_from(path: Path | None) -> str:
    """A new token; or the one in a file that nobody else can read, made with the first use."""
    if path is None:
        return secrets.token_urlsafe(24)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not path.is_file():
            raise UserError(f"--token-file {path} is no file: name one, or a new one") from None
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise UserError(f"--token-file {path} can be read by others: `chmod 600 {path}`") from None
        token = path.read_text(encoding="utf-8", errors="replace").strip()
        if len(token) < SHORTEST or not all(
            sign.isascii() and (sign.isalnum() or sign in "-_") for sign in token
        ):
            raise UserError(
                f"--token-file {path} needs at least {SHORTEST} letters, digits, - or _: remove the file to "
                "have one made"
            ) from None
        return token
    token = secrets.token_urlsafe(24)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(token + "\n")
    return token


def address(listening: socket.socket, host: str, token: str) -> str:
    """What to open in a browser."""
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
    """Serve the page until the process is told to stop.

    Args:
        run: the run's folder.
        listening: from ``listen``.
        host: where that is.
        token: without it nothing is answered.
        who: everybody's name; each browser asks for one if it is empty.
        blind: do not tell what the model thinks.
        opened: whether to open it in a browser.
    """
    import uvicorn

    from ducats.labelling.page.app import Page, make_app

    cookie = f"ducats-{listening.getsockname()[1]}"
    # Who else works on this machine sees with which address a browser was started: it lets in one time only.
    once = secrets.token_urlsafe(24) if opened else ""
    app = make_app(Page(run, who=who, blind=blind), token=token, host=host, cookie=cookie, once=once)
    if opened:
        _in_background(lambda: webbrowser.open(address(listening, host, once)))
    # No access log: it would have the token.
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
