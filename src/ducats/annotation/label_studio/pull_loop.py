"""Pull repeatedly until a round is closed: by polling, and at once on a webhook call."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ducats.annotation import AnnotationStore
from ducats.annotation.label_studio.api import LabelStudio
from ducats.annotation.label_studio.client import HTTPStatusError, ServerUnavailableError, retry_until_known
from ducats.annotation.label_studio.pull import PullResult, pull_answers
from ducats.utils.errors import UserError

SECRET_HEADER = "X-Ducats-Secret"
MAX_RETRY_SECONDS = 60.0  # seconds of retries before checking whether the round was closed without the server


def pull_until_closed(
    store: AnnotationStore,
    studio: LabelStudio,
    project: int | None,
    *,
    poll: float,
    on_pull: Callable[[PullResult], None],
    notified: threading.Event,
) -> None:
    """Pull until the open round is closed.

    Args:
        project: project number; None for the project of the last push.
        poll: seconds between pulls.
        on_pull: called with the result of each pull.
        notified: set by another thread to pull at once.
    """
    question_round = store.open_round()
    studio.client.retry_timeout = min(studio.client.retry_timeout, MAX_RETRY_SECONDS)
    while True:
        notified.clear()
        try:
            on_pull(pull_answers(store, studio, project))
        except ServerUnavailableError:  # already reported by the client
            if question_round is None:
                raise
        if question_round is None or store.closed_round(question_round.rules.round) is not None:
            return
        notified.wait(poll)


@contextmanager
def webhook_listener(
    studio: LabelStudio,
    project_id: int,
    host_port: str,
    notified: threading.Event,
    notify: Callable[[str], None],
) -> Iterator[None]:
    """Listen to a webhook for new answers. If the server rejects the webhook, polling still works.

    Args:
        host_port: HOST:PORT to listen on, reachable from the server.
        notified: set by each webhook call.
        notify: called with a message if the webhook cannot be created or deleted.
    """
    host, port = parse_host_port(host_port)
    secret = secrets.token_urlsafe(32)
    try:
        server = ThreadingHTTPServer((host, port), _make_handler(secret, notified))
    except OSError as error:
        raise UserError(
            f"cannot listen on --webhook {host_port} ({error.strerror or error}); give another HOST:PORT"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    webhook_id: int | None = None
    try:
        url = f"http://{host}:{server.server_address[1]}/"
        try:
            webhook_id = retry_until_known(
                lambda: studio.create_webhook(project_id, url, {SECRET_HEADER: secret})
            )
        except HTTPStatusError as rejection:
            notify(f"warning: no webhook, falling back to polling ({rejection})")
        yield
    finally:
        server.shutdown()
        server.server_close()
        if webhook_id is not None:
            previous_timeout, studio.client.retry_timeout = studio.client.retry_timeout, 5.0  # exit soon
            try:
                studio.delete_webhook(webhook_id)
            except (ServerUnavailableError, HTTPStatusError) as error:
                notify(f"warning: the webhook could not be deleted ({error})")
            studio.client.retry_timeout = previous_timeout


def parse_host_port(host_port: str) -> tuple[str, int]:
    """Parse HOST:PORT.

    >>> parse_host_port("127.0.0.1:9000")
    ('127.0.0.1', 9000)
    """
    host, _, port = host_port.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--webhook must have the form HOST:PORT, e.g. 127.0.0.1:9000, not {host_port!r}")
    return host.strip("[]"), int(port)


def _make_handler(secret: str, notified: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_POST(self) -> None:
            """Signal a change. The payload is not read."""
            is_authorised = hmac.compare_digest(self.headers.get(SECRET_HEADER, "").encode(), secret.encode())
            self.send_response(204 if is_authorised else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if is_authorised:
                notified.set()

        def log_message(self, *_: Any) -> None:
            """Log nothing: headers contain the secret."""

    return Handler
