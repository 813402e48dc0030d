"""A thin HTTP client for Label Studio: JSON, tokens that expire, servers that are away for a while."""

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

FRESH = 240.0  # seconds; an access token holds for 300
LONGEST_PAUSE = 30.0
T = TypeVar("T")


class Refused(UserError):  # noqa: N818 - as UserError's other kinds: what happened, not a class of errors
    """The server understood and said no."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Unclear(Exception):  # noqa: N818 - not an error yet: look what is there, then go on
    """Something that must not happen twice was sent, and nobody knows whether it happened."""


class Away(UserError):  # noqa: N818 - see Refused
    """The server did not answer for as long as one was ready to wait."""


class _Lost(Exception):  # noqa: N818
    """One try that failed; ``done`` is None if the server may have acted on it."""

    def __init__(self, why: str, *, done: bool | None, after: float = 0.0) -> None:
        super().__init__(why)
        self.done = done
        self.after = after  # seconds that the server asks for


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never: the token would go along, wherever that is."""


class Client:
    """Speaks JSON with one server, and waits where it is away.

    Args:
        url: where it is.
        token: who we are.
        patience: seconds to go on trying; ``inf`` for ever.
        timeout: seconds that one answer may take.
        say: told when the server goes away, and when it is back.
        sleep: waits; given by tests.
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
        self._told = False  # that it is away
        self._access: tuple[str, float] | None = None  # and when it came
        self._jitter = random.Random(0)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if is_loopback(self.url):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: Any) -> Any:
        """What is there."""
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
        """One call, tried again while the server is away.

        Args:
            method: of HTTP.
            path: below the server's address.
            body: to send as JSON.
            query: to put behind the path.
            once: never twice: raise ``Unclear`` where the server may have acted though it did not say so.
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
                        f"Label Studio at {self.url} does not answer ({lost}): start it or mend --url; what "
                        "was done stays, and the same command goes on"
                    ) from None
                if tries == 1 and not self._told:
                    self._say(f"Label Studio at {self.url} does not answer ({lost}): waiting for it")
                    self._told = True
                self._sleep(pause)
                tries += 1
            except urllib.error.HTTPError as error:
                if error.code == 401 and self._token.personal and not renewed:
                    self._access, renewed = None, True  # it expired: another one, and once more
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
                    f"{self.url} is no Label Studio, or none that knows personal access tokens: check --url"
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
            if error.code in (429, 503):  # too busy to begin
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
            raise _Lost("what it says is no JSON", done=None) from None

    def _refuse(self, error: urllib.error.HTTPError, method: str, path: str) -> NoReturn:
        """Say what the server said: its status and its reason, never headers, which hold the token."""
        code = error.code
        if 300 <= code < 400:
            where = error.headers.get("Location", "elsewhere")
            raise Refused(
                f"{self.url} sends us to {self._harmless(where)}: give the address itself as --url", code
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
            remedy = " (make a new token in Label Studio under Account & Settings)"
        raise Refused(f"Label Studio refused {method} {path}: HTTP {code}, {reason}{remedy}", code) from None

    def _harmless(self, told: str) -> str:
        """What a server says, without our token, and without what a terminal would obey."""
        secrets = [self._token.reveal(), *([self._access[0]] if self._access else [])]
        for secret in secrets:
            told = told.replace(secret, "…")
        return "".join(letter if letter.isprintable() else " " for letter in told)[:500]


def until_clear(look_and_act: Callable[[], T], tries: int = 6) -> T:
    """Do something that must not happen twice: ``look_and_act`` looks what is there, does what is missing."""
    for _ in range(tries):
        try:
            return look_and_act()
        except Unclear as unclear:
            why = str(unclear)
    raise Away(
        f"Label Studio broke off {tries} times ({why}): look at its log; what was done stays, and the same "
        "command goes on"
    )


def clean_url(url: str) -> str:
    """A server's address without a slash at its end; it may be written down, so it must hold no password.

    >>> clean_url("http://127.0.0.1:8080/")
    'http://127.0.0.1:8080'
    """
    if any(mark in url for mark in "@?#"):
        raise UserError("--url has to be an address alone: no user, password, ? or # in it")
    try:
        parts = urllib.parse.urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        fine = False
    if not fine or not parts.path.isascii() or any(not mark.isprintable() or mark == " " for mark in url):
        raise UserError(f"--url {url!r} is no address: write it like http://127.0.0.1:8080")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether a server is on this machine, where no proxy leads."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _brief(why: object) -> str:
    if isinstance(why, TimeoutError):
        return "it is too slow"
    return str(getattr(why, "strerror", None) or why or type(why).__name__)


def _asked_pause(error: urllib.error.HTTPError) -> float:
    try:
        return min(LONGEST_PAUSE, max(0.0, float(error.headers.get("Retry-After", ""))))
    except ValueError:
        return 0.0
