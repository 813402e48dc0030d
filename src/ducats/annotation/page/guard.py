"""Access checks for every request, and security headers for every reply."""

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ducats.utils.network import is_loopback

PERSON = "ducats.person"  # in the scope of a request: the name that its token belongs to, or empty
MAX_REQUEST_BYTES = 1_000_000
MAX_PATH_LENGTH = 200  # longer numbers in it could not be parsed
MAX_LENGTH_DIGITS = 20  # of Content-Length, likewise
WRONG_TOKEN = (403, "the token is missing or wrong; open the address that `ducats label` printed")
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class RequestGuard:
    """ASGI middleware that accepts only requests from our own page.

    Another site can make a browser send requests here, and can point its own host name at this address. It
    does not have the token, and it cannot forge the browser's headers about the origin of a request.

    Args:
        names: the person that each token belongs to; empty if the page asks for a name. The name of a
            request is added to its scope as ``PERSON``.
        cookie_name: browsers send cookies to all ports of a host, so each server needs its own name.
        single_use_token: opens the page once, in place of the first token; empty for none.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Mapping[str, str],
        host: str,
        cookie_name: str,
        single_use_token: str = "",
    ) -> None:
        self._app = app
        if not all(names):
            raise ValueError("an empty token would let everybody in")
        self._names = dict(names)
        self._single_use_token = single_use_token
        self._cookie_name = cookie_name
        self._loopback = is_loopback(host)
        self._host_names = {host.lower(), "localhost"}
        if not self._loopback:
            self._host_names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets
        request = Request(scope, receive)
        refusal, token = self._foreign_refusal(request), ""
        if refusal is None:  # only then may a token be used up
            token = self._find_token(request)
            refusal = self._refusal(request) if token else WRONG_TOKEN
        if refusal is not None:
            status, message_text = refusal
            await PlainTextResponse(message_text + "\n", status)(scope, receive, self._with_headers(send))
            return
        scope[PERSON] = self._names[token]
        sets_cookie = request.url.path == "/" and "token" in request.query_params
        new_cookie = token if sets_cookie else ""
        await self._app(scope, _limit_body(receive), self._with_headers(send, new_cookie))

    def _foreign_refusal(self, request: Request) -> tuple[int, str] | None:
        """Refuse requests that other sites may have caused."""
        if len(request.url.path) > MAX_PATH_LENGTH:
            return 414, f"the path is longer than {MAX_PATH_LENGTH} characters"
        if not self._is_own_host(request.headers.get("host", "")):
            return 421, "the Host header does not name this server"
        is_foreign = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if is_foreign and not _is_start_page(request):
            return 403, "requests from other sites are not allowed"
        return None

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """Refuse posts that our page would not send."""
        headers = request.headers
        host = headers.get("host", "")
        if request.method in ("GET", "HEAD"):
            return None
        if headers.get("origin") not in (f"http://{host}", f"https://{host}"):
            return 403, "answers from other sites are not allowed"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "Content-Type must be application/json"
        length = headers.get("content-length", "")
        if not length.isdecimal() or len(length) > MAX_LENGTH_DIGITS:
            return 411, "Content-Length is missing or invalid"
        if int(length) > MAX_REQUEST_BYTES:
            return 413, f"the request is larger than {MAX_REQUEST_BYTES} bytes"
        return None

    def _is_own_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name.lower() in self._host_names:
            return True
        try:
            # Unlike a name, an IP address cannot be rebound to another server.
            return ipaddress.ip_address(name).is_loopback or not self._loopback
        except ValueError:
            return False

    def _find_token(self, request: Request) -> str:
        """Return the token of a request, or an empty string; a single-use token is used up."""
        parameter = request.query_params.get("token", "") if _is_start_page(request) else ""
        given = [parameter, request.cookies.get(self._cookie_name, "")]
        if parameter and any(self._names.values()):
            del given[1]  # a wrong link must not open the page of the person who used this browser before
        for one in given:
            if found := [token for token in self._names if _equal_tokens(one, token)]:
                return found[0]
        if self._single_use_token and _equal_tokens(parameter, self._single_use_token):
            self._single_use_token = ""
            return next(iter(self._names))
        return ""

    def _with_headers(self, send: Send, new_cookie: str = "") -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if new_cookie:
                    value = f"{self._cookie_name}={new_cookie}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("Set-Cookie", value)
            await send(message)

        return sending


def _is_start_page(request: Request) -> bool:
    return request.url.path == "/" and request.method == "GET"


def _equal_tokens(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(), wanted.encode())


def _limit_body(receive: Receive) -> Receive:
    """Disconnect once the body exceeds the limit, regardless of its Content-Length."""
    received_bytes = 0

    async def receiving() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > MAX_REQUEST_BYTES:
            return {"type": "http.disconnect"}
        return message

    return receiving
