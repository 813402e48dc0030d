"""Pull repeatedly until a round is closed: by polling, and at once on a webhook call."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ducats.annotation import AnnotationStore
from ducats.errors import UserError
from ducats.labelling.studio.api import Studio
from ducats.labelling.studio.client import Away, Refused, until_clear
from ducats.labelling.studio.pull import Pulled, pull

HEADER = "X-Ducats-Secret"
LONGEST_WAIT = 60.0  # seconds of retries before checking whether the round was closed without the server


def watch(
    desk: AnnotationStore,
    studio: Studio,
    project: int | None,
    *,
    every: float,
    say: Callable[[Pulled], None],
    called: threading.Event,
) -> None:
    """Pull until the open round is closed.

    Args:
        project: project number; None for the project of the last push.
        every: seconds between pulls.
        say: called with the result of each pull.
        called: set by another thread to pull at once.
    """
    sheet = desk.open_round()
    studio.client.patience = min(studio.client.patience, LONGEST_WAIT)
    while True:
        called.clear()
        try:
            say(pull(desk, studio, project))
        except Away:  # already reported by the client
            if sheet is None:
                raise
        if sheet is None or desk.closed_round(sheet.rules.round) is not None:
            return
        called.wait(every)


@contextmanager
def hook(
    studio: Studio, project: int, address: str, called: threading.Event, say: Callable[[str], None]
) -> Iterator[None]:
    """Listen to a webhook for new answers. If the server rejects the webhook, polling still works.

    Args:
        address: HOST:PORT to listen on, reachable from the server.
        called: set by each webhook call.
        say: called with a message if the webhook cannot be created or deleted.
    """
    host, port = parse_address(address)
    secret = secrets.token_urlsafe(32)
    try:
        listener = ThreadingHTTPServer((host, port), _handler(secret, called))
    except OSError as error:
        raise UserError(
            f"cannot listen on --webhook {address} ({error.strerror or error}); give another HOST:PORT"
        ) from None
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    number: int | None = None
    try:
        url = f"http://{host}:{listener.server_address[1]}/"
        try:
            number = until_clear(lambda: studio.make_hook(project, url, {HEADER: secret}))
        except Refused as refused:
            say(f"warning: no webhook, falling back to polling ({refused})")
        yield
    finally:
        listener.shutdown()
        listener.server_close()
        if number is not None:
            patience, studio.client.patience = studio.client.patience, 5.0  # exit soon
            try:
                studio.remove_hook(number)
            except (Away, Refused) as error:
                say(f"warning: the webhook could not be deleted ({error})")
            studio.client.patience = patience


def parse_address(address: str) -> tuple[str, int]:
    """Parse HOST:PORT.

    >>> parse_address("127.0.0.1:9000")
    ('127.0.0.1', 9000)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--webhook must have the form HOST:PORT, e.g. 127.0.0.1:9000, not {address!r}")
    return host.strip("[]"), int(port)


def _handler(secret: str, called: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_POST(self) -> None:
            """Signal a change. The payload is not read."""
            known = hmac.compare_digest(self.headers.get(HEADER, "").encode(), secret.encode())
            self.send_response(204 if known else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if known:
                called.set()

        def log_message(self, *_: Any) -> None:
            """Log nothing: headers contain the secret."""

    return Handler
