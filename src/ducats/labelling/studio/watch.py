"""Staying beside Label Studio until a round is taken: asking now and then, sooner if the server calls."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ducats.answers import Desk
from ducats.errors import UserError
from ducats.labelling.studio.api import Studio
from ducats.labelling.studio.client import Away, Refused, until_clear
from ducats.labelling.studio.pull import Pulled, pull

HEADER = "X-Ducats-Secret"
LONGEST_WAIT = 60.0  # seconds for a server that is away; then a look whether the round was taken without it


def watch(
    desk: Desk,
    studio: Studio,
    project: int | None,
    *,
    every: float,
    say: Callable[[Pulled], None],
    called: threading.Event,
) -> None:
    """Pull until the round that is asked now was taken.

    Args:
        desk: with the questions.
        studio: the server.
        project: where the tasks are.
        every: seconds between two looks.
        say: told what each pull came to.
        called: set when there may be something new.
    """
    sheet = desk.current()
    studio.client.patience = min(studio.client.patience, LONGEST_WAIT)
    while True:
        called.clear()
        try:
            say(pull(desk, studio, project))
        except Away:  # the client said so
            if sheet is None:
                raise
        if sheet is None or desk.taken(sheet.terms.round) is not None:
            return
        called.wait(every)


@contextmanager
def hook(
    studio: Studio, project: int, address: str, called: threading.Event, say: Callable[[str], None]
) -> Iterator[None]:
    """Have the server call us meanwhile; where it will not, say so: looking now and then is enough.

    Args:
        studio: the server.
        project: whose answers to hear of.
        address: HOST:PORT to listen on, as the server reaches it.
        called: set by each call.
        say: told what does not work.
    """
    host, port = parse_address(address)
    secret = secrets.token_urlsafe(32)
    try:
        listener = ThreadingHTTPServer((host, port), _handler(secret, called))
    except OSError as error:
        raise UserError(
            f"--webhook {address} cannot be listened on ({error.strerror or error}): give another HOST:PORT"
        ) from None
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    number: int | None = None
    try:
        url = f"http://{host}:{listener.server_address[1]}/"
        try:
            number = until_clear(lambda: studio.make_hook(project, url, {HEADER: secret}))
        except Refused as refused:
            say(f"no webhook, so we only look now and then: {refused}")
        yield
    finally:
        listener.shutdown()
        listener.server_close()
        if number is not None:
            patience, studio.client.patience = studio.client.patience, 5.0  # do not hold up the end
            try:
                studio.remove_hook(number)
            except (Away, Refused) as error:
                say(f"the webhook stays behind: {error}")
            studio.client.patience = patience


def parse_address(address: str) -> tuple[str, int]:
    """HOST:PORT.

    >>> parse_address("127.0.0.1:9000")
    ('127.0.0.1', 9000)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--webhook {address!r} has to be HOST:PORT, e.g. 127.0.0.1:9000")
    return host.strip("[]"), int(port)


def _handler(secret: str, called: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_POST(self) -> None:
            """A hint, and no more: what it says is not read."""
            known = hmac.compare_digest(self.headers.get(HEADER, "").encode(), secret.encode())
            self.send_response(204 if known else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if known:
                called.set()

        def log_message(self, *_: Any) -> None:
            """Nothing: headers hold the secret."""

    return Handler
