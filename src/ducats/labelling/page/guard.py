"""Access checks for every request, and security headers for every reply."""

import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ducats.labelling.page.serving import is_loopback

LARGEST = 1_000_000  # bytes per request
HEADERS = {
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


class Guard:
    """ASGI middleware that accepts only requests from our own page.

    Another site can make a browser send requests here, and can point its own host name at this address. It
    does not have the token, and it cannot forge the browser's headers about the origin of a request.

    Args:
        app: the protected application.
        token: required for every request.
        host: address on which the server listens.
        cookie: name of the cookie. Browsers send cookies to all ports of a host: each server needs its own.
        once: a second token that opens the page a single time. Empty: none.
    """

    def __init__(self, app: ASGIApp, token: str, host: str, cookie: str, once: str = "") -> None:
        self._app = app
        self._token = token
        self._once = once
        self._cookie = cookie
        self._loopback = is_loopback(host)
        self._names = {host.lower(), "localhost"}
        if not self._loopback:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is not None:
            status, why = refusal
            await PlainTextResponse(why + "\n", status)(scope, receive, self._with_headers(send))
            return
        fresh = request.url.path == "/" and "token" in request.query_params
        await self._app(scope, _bounded(receive), self._with_headers(send, set_cookie=fresh))

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        headers = request.headers
        host = headers.get("host", "")
        if not self._is_ours(host):
            return 421, "the Host header does not name this server"
        opening = request.url.path == "/" and request.method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opening:
            return 403, "requests from other sites are not allowed"
        if not self._is_known(request, opening):
            return 403, "the token is missing or wrong; open the address that `ducats label` printed"
        if request.method in ("GET", "HEAD"):
            return None
        if headers.get("origin") not in (f"http://{host}", f"https://{host}"):
            return 403, "answers from other sites are not allowed"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "Content-Type must be application/json"
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return 411, "Content-Length is missing or invalid"
        if int(length) > LARGEST:
            return 413, f"the request is larger than {LARGEST} bytes"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name.lower() in self._names:
            return True
        try:
            # Unlike a name, an IP address cannot be rebound to another server.
            return ipaddress.ip_address(name).is_loopback or not self._loopback
        except ValueError:
            return False

    def _is_known(self, request: Request, opening: bool) -> bool:
        at_the_door = request.query_params.get("token", "") if opening else ""
        given = (request.cookies.get(self._cookie, ""), at_the_door)
        if any(_same(one, self._token) for one in given):
            return True
        if self._once and _same(at_the_door, self._once):
            self._once = ""
            return True
        return False

    def _with_headers(self, send: Send, *, set_cookie: bool = False) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if set_cookie:
                    value = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append("Set-Cookie", value)
            await send(message)

        return sending


def _same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(), wanted.encode())


def _bounded(receive: Receive) -> Receive:
    """Disconnect once the body exceeds the limit, regardless of its Content-Length."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST:
            return {"type": "http.disconnect"}
        return message

    return receiving
