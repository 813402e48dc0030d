"""Who may come in: checks that stand before every request, and the headers of every reply."""

import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ducats.labelling.page.serving import is_loopback

LARGEST = 1_000_000  # bytes of a request
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
    """Lets a request through if it comes from our own page.

    A page of a stranger may make a browser send requests, and may make a name of its own lead here; it knows
    neither the token, nor can it forge what the browser says of where a request comes from.

    Args:
        app: what is guarded.
        token: without it nothing is answered.
        host: where the server listens.
        cookie: its name; browsers send cookies to all ports of a host, so servers need different ones.
        once: another token that opens the page, one time; none if it is empty.
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
        """Answer, or refuse."""
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
            return 421, "this server has another name"
        opening = request.url.path == "/" and request.method == "GET"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opening:
            return 403, "only this server's own page may ask"
        if not self._is_known(request, opening):
            return 403, "open the address that `ducats label` printed: the token in it is missing or another"
        if request.method in ("GET", "HEAD"):
            return None
        if headers.get("origin") not in (f"http://{host}", f"https://{host}"):
            return 403, "only this server's own page may answer"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "answers are JSON"
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return 411, "say how long it is"
        if int(length) > LARGEST:
            return 413, f"at most {LARGEST} bytes at once"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name.lower() in self._names:
            return True
        try:
            # An address cannot be made to lead elsewhere, as a name can.
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
    """A body that ends where it may be no longer, whatever its header said."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST:
            return {"type": "http.disconnect"}
        return message

    return receiving
