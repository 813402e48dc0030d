"""Start the page's server: address, token and browser."""

import errno
import json
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError
from ducats.utils.files import explain_errors
from ducats.utils.network import PORT_RANGE

if TYPE_CHECKING:
    from ducats.annotation.page.live import LiveModel

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
    if (text := _read_private(path)) is None:
        token = secrets.token_urlsafe(24)
        _write_private(path, token + "\n")
    elif not _is_token(token := text.strip()):
        raise UserError(
            f"the token file {path} must hold at least {MIN_TOKEN_LENGTH} letters, digits, - or _; remove "
            "the file to create a new token"
        )
    return token


def load_or_create_people(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the names of people by token. Tokens are kept in a private file, so that links stay the same."""
    tokens: dict[str, str] = {}  # by name; also of people who are not named this time
    if (text := _read_private(path)) is not None:
        try:
            tokens = json.loads(text)
            is_valid = all(_is_token(token) for token in tokens.values())
        except (ValueError, AttributeError, TypeError):
            is_valid = False
        if not is_valid or len(set(tokens.values())) < len(tokens):
            raise UserError(
                f"the token file {path} must hold the tokens of people as JSON, each at least "
                f"{MIN_TOKEN_LENGTH} letters, digits, - or _; remove the file to create new links"
            )
    if missing := [name for name in names if name not in tokens]:
        tokens |= {name: secrets.token_urlsafe(24) for name in missing}
        _write_private(path, json.dumps(tokens, ensure_ascii=False, indent=1) + "\n")
    return {tokens[name]: name for name in names}


def _is_token(token: object) -> bool:
    return (
        isinstance(token, str)
        and len(token) >= MIN_TOKEN_LENGTH
        and all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in token)
    )


def _read_private(path: Path) -> str | None:
    """Return the text of a file that only its owner can read; None if there is none."""
    if not path.exists():
        return None
    if not path.is_file():
        raise UserError(f"the token file {path} is not a file; give a file or an unused path")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise UserError(f"the token file {path} is readable by others; run: chmod 600 {path}")
    return path.read_text(encoding="utf-8", errors="replace")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, as a whole or not at all."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with explain_errors(path):
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        draft.replace(path)


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
    accept_threshold: float,
    token: str = "",
    people: Mapping[str, str] = {},
    annotator: str = "",
    blind: bool = False,
    open_browser: bool = False,
    live: "LiveModel | None" = None,
) -> None:
    """Serve the page on a socket from ``open_socket`` until the process is stopped.

    See ``LabellingPage`` and ``make_app``.
    """
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
        people=people,
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
