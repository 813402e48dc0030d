"""HTTP client for Label Studio: JSON, token refresh, retries while the server is down."""

import http.client
import ipaddress
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from ducats.errors import UserError
from ducats.labelling.studio.token import Token

FRESH = 240.0  # seconds until an access token is renewed; it is valid for 300
LONGEST_PAUSE = 30.0
T = TypeVar("T")


class Refused(UserError):  # noqa: N818 - named like the other kinds of UserError
    """The server rejected a request."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Unclear(Exception):  # noqa: N818 - not an error yet: the caller checks the server and continues
    """A request that must not be repeated was sent, and its outcome is unknown."""


class Away(UserError):  # noqa: N818 - see Refused
    """The server did not respond within the retry time."""


class _Lost(Exception):  # noqa: N818
    """One failed attempt; ``done`` is None if the server may have processed the request."""

    def __init__(self, why: str, *, done: bool | None, after: float = 0.0) -> None:
        super().__init__(why)
        self.done = done
        self.after = after  # seconds to wait, as requested by the server


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never follow a redirect: the token would be sent to another address."""


class Client:
    """JSON client for one server that retries while the server is down.

    Args:
        patience: seconds to keep retrying; ``inf`` for no limit.
        timeout: seconds to wait for one response.
        say: called with a message when the server stops responding and when it is back.
        sleep: replaced by tests.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        patience: float = 60.0,
        timeout: float = 60.0,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = clean_url(url)
        self.patience = patience
        self._token = token
        self._timeout = timeout
        self._say = say
        self._sleep = sleep
        self._told = False  # whether the outage was reported
        self._access: tuple[str, float] | None = None  # token and when it was issued
        self._jitter = random.Random(0)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if is_loopback(self.url):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: Any) -> Any:
        """Send a GET request."""
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        once: bool = False,
    ) -> Any:
        """Send a request and return the decoded JSON. Retry while the server is down.

        Args:
            path: path below the server's URL.
            body: value to send as JSON.
            query: query parameters.
            once: do not repeat a request that the server may have processed; raise ``Unclear`` instead.
        """
        address = self.url + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        began, tries, renewed = time.monotonic(), 0, False
        while True:
            try:
                answer = self._authorised(method, address, body)
            except _Lost as lost:
                if once and lost.done is None:
                    self._sleep(self._pause(tries))
                    raise Unclear(str(lost)) from None
                pause = max(lost.after, self._pause(tries))
                if time.monotonic() - began + pause > self.patience:
                    raise Away(
                        f"Label Studio at {self.url} does not respond ({lost}); start it or correct --url, "
                        "then run the same command again to resume"
                    ) from None
                if tries == 1 and not self._told:
                    self._say(f"Label Studio at {self.url} does not respond ({lost}); waiting")
                    self._told = True
                self._sleep(pause)
                tries += 1
            except urllib.error.HTTPError as error:
                if error.code == 401 and self._token.personal and not renewed:
                    self._access, renewed = None, True  # expired: get a new one and retry
                    error.close()
                    continue
                with error:
                    self._refuse(error, method, path)
            else:
                if self._told:
                    self._say("Label Studio is back")
                    self._told = False
                return answer

    def _pause(self, tries: int) -> float:
        return float(min(LONGEST_PAUSE, 0.25 * 2 ** min(tries, 10)) * (0.5 + self._jitter.random()))

    def _authorised(self, method: str, address: str, body: Any) -> Any:
        if not self._token.personal:
            return self._once(method, address, body, f"Token {self._token.reveal()}")
        if self._access is None or time.monotonic() - self._access[1] > FRESH:
            try:
                given = self._once(
                    "POST", f"{self.url}/api/token/refresh/", {"refresh": self._token.reveal()}, None
                )
                self._access = (str(given["access"]), time.monotonic())
            except _Lost as lost:
                raise _Lost(str(lost), done=False, after=lost.after) from None
            except (KeyError, TypeError):
                raise UserError(
                    f"{self.url} is not a Label Studio server with personal access tokens; check --url"
                ) from None
        return self._once(method, address, body, f"Bearer {self._access[0]}")

    def _once(self, method: str, address: str, body: Any, authorization: str | None) -> Any:
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode("utf-8")
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(address, data=data, headers=headers, method=method)
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                raw = response.read()
        except urllib.error.HTTPError as error:
            if error.code == 429 or error.code >= 500:
                error.close()
            if error.code in (429, 503):  # not processed: the server is too busy
                raise _Lost(f"HTTP {error.code}", done=False, after=_asked_pause(error)) from None
            if error.code >= 500:
                raise _Lost(f"HTTP {error.code}", done=None) from None
            raise
        except urllib.error.URLError as error:
            why = error.reason
            never = isinstance(why, ConnectionRefusedError)
            raise _Lost(_brief(why), done=False if never else None) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Lost(_brief(error), done=None) from None
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError:
            raise _Lost("the response is not JSON", done=None) from None

    def _refuse(self, error: urllib.error.HTTPError, method: str, path: str) -> NoReturn:
        """Raise an error with the server's status and reason, without headers, which contain the token."""
        code = error.code
        if 300 <= code < 400:
            where = error.headers.get("Location", "another address")
            raise Refused(
                f"{self.url} redirects to {self._harmless(where)}; give the final address as --url", code
            ) from None
        try:
            told = json.loads(error.read())
        except (ValueError, OSError, http.client.HTTPException):
            told = {}
        reasons = []
        if isinstance(told, Mapping):
            reasons = [str(told[name]) for name in ("detail", "validation_errors") if told.get(name)]
        reason = self._harmless("; ".join(reasons)) or "no reason given"
        remedy = ""
        if code == 401:
            remedy = "; create a new token in Label Studio under Account & Settings"
        raise Refused(f"Label Studio rejected {method} {path}: HTTP {code}, {reason}{remedy}", code) from None

    def _harmless(self, told: str) -> str:
        """Remove the token and control characters from a server message."""
        secrets = [self._token.reveal(), *([self._access[0]] if self._access else [])]
        for secret in secrets:
            told = told.replace(secret, "…")
        return "".join(letter if letter.isprintable() else " " for letter in told)[:500]


def until_clear(look_and_act: Callable[[], T], tries: int = 6) -> T:
    """Call ``look_and_act``, which checks the server and does what is missing, until its outcome is known."""
    for _ in range(tries):
        try:
            return look_and_act()
        except Unclear as unclear:
            why = str(unclear)
    raise Away(
        f"Label Studio broke the connection {tries} times ({why}); check its log, then run the same command "
        "again to resume"
    )


def clean_url(url: str) -> str:
    """Return a server's URL without a trailing slash. Credentials are rejected because the URL is saved.

    >>> clean_url("http://127.0.0.1:8080/")
    'http://127.0.0.1:8080'
    """
    if any(mark in url for mark in "@?#"):
        raise UserError("--url must not contain a user, password, ? or #")
    try:
        parts = urllib.parse.urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        fine = False
    if not fine or not parts.path.isascii() or any(not mark.isprintable() or mark == " " for mark in url):
        raise UserError(f"--url {url!r} is not a valid address; use a form like http://127.0.0.1:8080")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Return whether a server runs on this machine and is reached without a proxy."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _brief(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "timeout"
    return str(getattr(why, "strerror", None) or why or type(why).__name__)


def _asked_pause(error: urllib.error.HTTPError) -> float:
    try:
        return min(LONGEST_PAUSE, max(0.0, float(error.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0
