"""Progress below a notebook cell: one bar, updated in place."""

import html
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from ducats.utils.progress import Activity, Event, listen_to_activities
from ducats.utils.progress_display import format_values, progress_title

REFRESH_SECONDS = 0.5  # between updates, which the notebook keeps until the cell ends


def in_notebook() -> bool:
    """Return whether the code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


@dataclass(frozen=True)
class Bar:
    """A bar with text, for notebooks and, as plain text, for tools that do not show HTML."""

    text: str
    done: int
    total: int | None

    def _repr_html_(self) -> str:
        if not self.text:
            return ""
        value = "" if self.total is None else f' value="{self.done}" max="{self.total}"'
        return f'<progress{value} style="width:20em"></progress> {html.escape(self.text)}'

    def __repr__(self) -> str:
        return f"{self.text} {self.done}/{self.total}" if self.text and self.total else self.text


class NotebookDisplay:
    """Shows events and activities of this thread as one bar, which disappears at the end.

    Args:
        delay: seconds before the bar appears, so that short work shows none.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self._next_update = time.monotonic() + delay
        self._handle: Any = None
        self._lock = threading.Lock()  # worker threads may advance an activity
        self._activities = listen_to_activities(self.on_activity)

    def __enter__(self) -> "NotebookDisplay":
        self._activities.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._activities.__exit__(None, None, None)
        if self._handle is not None:
            self._handle.update(Bar("", 0, None))

    def __call__(self, event: Event) -> None:
        """Show one event of a run."""
        if self._is_due():
            losses = format_values(event.values())
            text = "; ".join(filter(None, (progress_title(event), losses)))
            self._show(Bar(text, event.step, event.steps))

    def on_activity(self, activity: Activity) -> None:
        """Show an activity while it lasts."""
        if not activity.ended and self._is_due():
            self._show(Bar(activity.text, activity.done, activity.total))

    def _is_due(self) -> bool:
        now = time.monotonic()
        with self._lock:
            if now < self._next_update:
                return False
            self._next_update = now + REFRESH_SECONDS
            return True

    def _show(self, bar: Bar) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bar, display_id=True)
        else:
            self._handle.update(bar)
