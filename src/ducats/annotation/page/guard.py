"""Access checks for every request, and security headers for every reply."""

import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ducats.utils.network import is_loopback

MAX_REQUEST_BYTES = 1_000_000
MAX_PATH_LENGTH = 200  # longer numbers in it could not be parsed
MAX_LENGTH_DIGITS = 20  # of Content-Length, likewise
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
        cookie_name: browsers send cookies to all ports of a host, so each server needs its own name.
        single_use_token: a second token that opens the page once; empty for none.
    """

    def __init__(
        self, app: ASGIApp, token: str, host: str, cookie_name: str, single_use_token: str = ""
    ) -> None:
        self._app = app
        self._token = token
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
        refusal = self._refusal(request)
        if refusal is not None:
            status, message_text = refusal
            await PlainTextResponse(message_text + "\n", status)(scope, receive, self._with_headers(send))
            return
        sets_cookie = request.url.path == "/" and "token" in request.query_params
        await self._app(scope, _limit_body(receive), self._with_headers(send, set_cookie=sets_cookie))

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        headers = request.headers
        host = headers.get("host", "")
        if len(request.url.path) > MAX_PATH_LENGTH:
            return 414, f"the path is longer than {MAX_PATH_LENGTH} characters"
        if not self._is_own_host(host):
            return 421, "the Host header does not name this server"
        is_start_page = request.url.path == "/" and request.method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_start_page:
            return 403, "requests from other sites are not allowed"
        if not self._has_token(request, is_start_page):
            return 403, "the token is missing or wrong; open the address that `ducats label` printed"
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

    def _has_token(self, request: Request, is_start_page: bool) -> bool:
        token_parameter = request.query_params.get("token", "") if is_start_page else ""
        tokens = (request.cookies.get(self._cookie_name, ""), token_parameter)
        if any(_equal_tokens(one, self._token) for one in tokens):
            return True
        if self._single_use_token and _equal_tokens(token_parameter, self._single_use_token):
            self._single_use_token = ""
            return True
        return False

    def _with_headers(self, send: Send, *, set_cookie: bool = False) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if set_cookie:
                    value = f"{self._cookie_name}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("Set-Cookie", value)
            await send(message)

        return sending


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
