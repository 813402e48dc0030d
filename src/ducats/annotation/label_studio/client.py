"""HTTP client for Label Studio: JSON, tokens kept out of messages, retries while the server is down."""

import http.client
import json
import os
import random
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ducats.utils.errors import UserError
from ducats.utils.network import is_loopback

ACCESS_TOKEN_REFRESH_SECONDS = 240.0  # an access token is valid for 300 seconds
MAX_RETRY_PAUSE_SECONDS = 30.0
TOKEN_VARIABLE = "LABEL_STUDIO_API_KEY"
TOKEN_INSTRUCTIONS = f"set {TOKEN_VARIABLE}, or save the token in a file with mode 600 and give --token-file"
_T = TypeVar("_T")


class ApiToken:
    """A token that is not shown by ``repr``."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return "ApiToken(…)"

    def reveal(self) -> str:
        """Return the token in plain text."""
        return self._secret

    @property
    def is_personal(self) -> bool:
        """Whether this is a personal access token (exchanged for short-lived ones), not a legacy token."""
        return self._secret.count(".") == 2 and self._secret.startswith("ey")


def load_token(token_file: Path | None) -> ApiToken:
    """Load the token from a file that only its owner can read, or from the environment."""
    if token_file is None:
        text, source = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not text:
            raise UserError(f"Label Studio needs a token; {TOKEN_INSTRUCTIONS}")
    else:
        source = str(token_file)
        try:
            mode = stat.S_IMODE(token_file.stat().st_mode)
            if os.name == "posix" and mode & 0o077:
                raise UserError(
                    f"{token_file} is readable by other users (mode {mode:o}); run chmod 600 {token_file}"
                )
            text = token_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--token-file {token_file} cannot be read ({type(error).__name__}); {TOKEN_INSTRUCTIONS}"
            ) from None
    fields = text.split()
    if len(fields) != 1 or not fields[0].isascii() or not fields[0].isprintable():
        raise UserError(f"{source} must contain a single token; copy it again from Label Studio")
    return ApiToken(fields[0])


class HTTPStatusError(UserError):
    """The server rejected a request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnknownOutcomeError(Exception):
    """A request that must not be repeated was sent, and its outcome is unknown."""


class ServerUnavailableError(UserError):
    """The server did not respond within the retry time."""


class _AttemptError(Exception):
    """One failed attempt; ``processed`` is None if the server may have processed the request."""

    def __init__(self, reason: str, *, processed: bool | None, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.processed = processed
        self.retry_after = retry_after  # seconds to wait, as requested by the server


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never follow a redirect: the token would be sent to another address."""


class JsonClient:
    """JSON client for one server that retries while the server is down.

    Args:
        retry_timeout: seconds to keep retrying; ``inf`` for no limit.
        timeout: seconds to wait for one response.
        notify: called with a message when the server stops responding and when it is back.
        sleep: replaced by tests.
    """

    def __init__(
        self,
        url: str,
        token: ApiToken,
        *,
        retry_timeout: float = 60.0,
        timeout: float = 60.0,
        notify: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = normalise_url(url)
        self.retry_timeout = retry_timeout
        self._token = token
        self._timeout = timeout
        self._notify = notify
        self._sleep = sleep
        self._outage_reported = False
        self._access_token: tuple[str, float] | None = None  # token and when it was issued
        self._jitter = random.Random(0)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if is_loopback_url(self.url):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: Any) -> Any:
        """Send a GET request."""
        return self.request("GET", path, query=query)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        at_most_once: bool = False,
        missing_ok: bool = False,
    ) -> Any:
        """Send a request and return the decoded JSON. Retry while the server is down.

        Args:
            at_most_once: do not repeat a request that the server may have processed; raise
                ``UnknownOutcomeError`` instead.
            missing_ok: return None if the server does not have the object.
        """
        full_url = self.url + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        started, tries, token_renewed = time.monotonic(), 0, False
        while True:
            try:
                reply = self._send_authorised(method, full_url, body)
            except _AttemptError as attempt_error:
                if at_most_once and attempt_error.processed is None:
                    self._sleep(self._backoff_seconds(tries))
                    raise UnknownOutcomeError(str(attempt_error)) from None
                pause = max(attempt_error.retry_after, self._backoff_seconds(tries))
                if time.monotonic() - started + pause > self.retry_timeout:
                    raise ServerUnavailableError(
                        f"Label Studio at {self.url} does not respond ({attempt_error}); start it or correct "
                        "--url, then run the same command again to resume"
                    ) from None
                if tries == 1 and not self._outage_reported:
                    self._notify(f"Label Studio at {self.url} does not respond ({attempt_error}); waiting")
                    self._outage_reported = True
                self._sleep(pause)
                tries += 1
            except urllib.error.HTTPError as error:
                if error.code == 401 and self._token.is_personal and not token_renewed:
                    self._access_token, token_renewed = None, True  # expired: get a new one and retry
                    error.close()
                    continue
                with error:
                    if error.code == 404 and missing_ok:
                        return None
                    self._raise_status_error(error, method, path)
            else:
                if self._outage_reported:
                    self._notify("Label Studio is back")
                    self._outage_reported = False
                return reply

    def _backoff_seconds(self, tries: int) -> float:
        return float(min(MAX_RETRY_PAUSE_SECONDS, 0.25 * 2 ** min(tries, 10)) * (0.5 + self._jitter.random()))

    def _send_authorised(self, method: str, full_url: str, body: Any) -> Any:
        if not self._token.is_personal:
            return self._send(method, full_url, body, f"Token {self._token.reveal()}")
        token, issued_at = self._access_token or ("", -float("inf"))
        if time.monotonic() - issued_at > ACCESS_TOKEN_REFRESH_SECONDS:
            refresh_url, secret = f"{self.url}/api/token/refresh/", {"refresh": self._token.reveal()}
            try:
                token = str(self._send("POST", refresh_url, secret, None)["access"])
                self._access_token = (token, time.monotonic())
            except _AttemptError as attempt_error:
                attempt_error.processed = False  # the request itself was not sent
                raise
            except (KeyError, TypeError):
                raise UserError(
                    f"{self.url} is not a Label Studio server with personal access tokens; check --url"
                ) from None
        return self._send(method, full_url, body, f"Bearer {token}")

    def _send(self, method: str, full_url: str, body: Any, authorization: str | None) -> Any:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(full_url, data=data, headers=headers, method=method)
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                raw = response.read()
        except urllib.error.HTTPError as error:
            if error.code != 429 and error.code < 500:
                raise
            error.close()
            retry_after, processed = 0.0, None
            if error.code in (429, 503):  # not processed: the server is too busy
                retry_after, processed = _retry_after_seconds(error), False
            raise _AttemptError(f"HTTP {error.code}", processed=processed, retry_after=retry_after) from None
        except urllib.error.URLError as error:
            processed = False if isinstance(error.reason, ConnectionRefusedError) else None
            raise _AttemptError(_describe_failure(error.reason), processed=processed) from None
        except (OSError, http.client.HTTPException) as error:
            raise _AttemptError(_describe_failure(error), processed=None) from None
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError:
            raise _AttemptError("the response is not JSON", processed=None) from None

    def _raise_status_error(self, error: urllib.error.HTTPError, method: str, path: str) -> NoReturn:
        """Raise an error with the server's status and reason, without headers, which contain the token."""
        code = error.code
        if 300 <= code < 400:
            location = error.headers.get("Location", "another address")
            raise HTTPStatusError(
                f"{self.url} redirects to {self._sanitise(location)}; give the final address as --url", code
            ) from None
        try:
            reply = json.loads(error.read())
        except (ValueError, OSError, http.client.HTTPException):
            reply = {}
        fields = reply if isinstance(reply, Mapping) else {}
        reasons = [str(fields[name]) for name in ("detail", "validation_errors") if fields.get(name)]
        reason = self._sanitise("; ".join(reasons)) or "no reason given"
        remedy = "; create a new token in Label Studio under Account & Settings" if code == 401 else ""
        raise HTTPStatusError(
            f"Label Studio rejected {method} {path}: HTTP {code}, {reason}{remedy}", code
        ) from None

    def _sanitise(self, text: str) -> str:
        """Remove the token and control characters from a server message."""
        secrets = [self._token.reveal(), *([self._access_token[0]] if self._access_token else [])]
        for secret in secrets:
            text = text.replace(secret, "…")
        return "".join(character if character.isprintable() else " " for character in text)[:500]


def retry_until_known(check_and_act: Callable[[], _T], tries: int = 6) -> _T:
    """Call a function that checks the server and does what is missing until its outcome is known."""
    for _ in range(tries):
        try:
            return check_and_act()
        except UnknownOutcomeError as error:
            reason = str(error)
    raise ServerUnavailableError(
        f"Label Studio broke the connection {tries} times ({reason}); check its log, then run the same "
        "command again to resume"
    )


def normalise_url(url: str) -> str:
    """Return a server's URL without a trailing slash. Credentials are rejected because the URL is saved.

    >>> normalise_url("http://127.0.0.1:8080/")
    'http://127.0.0.1:8080'
    """
    if any(character in url for character in "@?#"):
        raise UserError("--url must not contain a user, password, ? or #")
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        is_valid = False
    if (
        not is_valid
        or not parts.path.isascii()
        or any(not character.isprintable() or character == " " for character in url)
    ):
        raise UserError(f"--url {url!r} is not a valid address; use a form like http://127.0.0.1:8080")
    return url.rstrip("/")


def is_loopback_url(url: str) -> bool:
    """Return whether a server runs on this machine and is reached without a proxy."""
    return is_loopback(urllib.parse.urlsplit(url).hostname or "")


def _describe_failure(cause: object) -> str:
    if isinstance(cause, TimeoutError):
        return "timeout"
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _retry_after_seconds(error: urllib.error.HTTPError) -> float:
    try:
        return min(MAX_RETRY_PAUSE_SECONDS, max(0.0, float(error.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0
