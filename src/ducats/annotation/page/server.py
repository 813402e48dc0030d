"""Start the page's server: address, token and browser."""

import errno
import os
import secrets
import socket
import threading
import webbrowser
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

if TYPE_CHECKING:
    from ducats.annotation.page.live import LiveModel

PORT_RANGE = range(20000, 32000)  # below the ephemeral port ranges of operating systems
MIN_TOKEN_LENGTH = 16


def check_run_folder(run_folder: Path) -> None:
    """Raise if a folder is not a run folder."""
    files = RunFolder(run_folder)
    if not is_run_folder(run_folder):
        raise UserError(
            f"{run_folder} is not a run folder (it has neither {files.config_path.name} nor "
            f"{files.questions_path.name}/); give the folder that `ducats run` printed, or label a folder of "
            f'images with --classes: ducats label {run_folder} --classes "cat, dog"'
        )
    files.check_format()


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder has the files of a run."""
    files = RunFolder(folder)
    return files.config_path.exists() or files.questions_path.is_dir()


def check_installed() -> None:
    """Raise if the server's packages are not installed."""
    for name in ("starlette", "uvicorn"):
        try:
            import_module(name)
        except ImportError:
            raise UserError(f"the labelling page needs {name}; run: pip install 'ducats[label]'") from None


def open_socket(host: str, port: int, run_folder: Path) -> socket.socket:
    """Return a listening socket.

    Args:
        port: 0 for the run's default port, or any free port if that is in use. The default is derived from
            the folder, so a page that is still open finds a restarted server.
    """
    if not 0 <= port < 1 << 16:
        raise UserError(f"--port {port} is not a valid port; omit it, or choose one from 1024 to 65535")
    default_port = PORT_RANGE[
        int(sha256(str(run_folder.resolve()).encode()).hexdigest(), 16) % len(PORT_RANGE)
    ]
    for choice in [port] if port else [default_port, 0]:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, choice, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            sock = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError) as error:
            raise _host_error(host, error) from None
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
            return sock
        except OSError as error:
            sock.close()
            why = error
            if error.errno == errno.EADDRNOTAVAIL:
                raise _host_error(host, error) from None
    raise UserError(f"--port {port} on {host} cannot be used ({why}); omit it, or choose another port")


def _host_error(host: str, error: Exception) -> UserError:
    return UserError(f"--host {host} cannot be used ({error}); give an address of this machine")


def load_or_create_token(path: Path | None) -> str:
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
        if len(token) < MIN_TOKEN_LENGTH or not all(
            sign.isascii() and (sign.isalnum() or sign in "-_") for sign in token
        ):
            raise UserError(
                f"--token-file {path} must hold at least {MIN_TOKEN_LENGTH} letters, digits, - or _; remove "
                "the file to create a new token"
            ) from None
        return token
    token = secrets.token_urlsafe(24)
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        opened.write(token + "\n")
    return token


def page_url(sock: socket.socket, host: str, token: str) -> str:
    """Return the URL to open in a browser."""
    port = sock.getsockname()[1]
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}"


def serve_page(
    run_folder: Path,
    sock: socket.socket,
    *,
    host: str,
    token: str,
    accept_threshold: float,
    annotator: str = "",
    blind: bool = False,
    open_browser: bool = False,
    live: "LiveModel | None" = None,
) -> None:
    """Serve the page on a socket from ``open_socket`` until the process is stopped; see ``LabellingPage``."""
    import uvicorn

    from ducats.annotation.page.app import LabellingPage, make_app
    from ducats.annotation.page.protocol import TimedProtocol

    cookie = f"ducats-{sock.getsockname()[1]}"
    # Other users of this machine can see the browser's command line, so this token works only once.
    single_use_token = secrets.token_urlsafe(24) if open_browser else ""
    app = make_app(
        LabellingPage(
            run_folder, annotator=annotator, blind=blind, accept_threshold=accept_threshold, live=live
        ),
        token=token,
        host=host,
        cookie=cookie,
        single_use_token=single_use_token,
    )
    if open_browser:
        url = page_url(sock, host, single_use_token)
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    # No access log: it would contain the token.
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=75,
        ws="none",
        proxy_headers=False,
    )
    uvicorn.Server(config).run(sockets=[sock])
