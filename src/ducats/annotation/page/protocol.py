"""HTTP connections that are closed if a request does not arrive in time."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """Close a connection whose request is not complete, headers and body, after some seconds.

    Uvicorn alone would keep it for ever: its time-out covers only connections between two requests.
    """

    request_seconds = 20.0  # also the time after which the page tries again

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Wait for the first request."""
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request."""
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        is_complete = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if is_complete:
            self._stop_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
