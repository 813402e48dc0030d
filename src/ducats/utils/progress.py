"""Progress: events of a run, and activities such as reading images."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """Progress of a run at one moment."""

    phase: str  # "train", "evaluate", "query" or "done"
    stage: int  # rounds labelled so far
    stages: int  # rounds in total
    epoch: int  # completed epochs
    epochs: int
    step: int  # optimiser steps so far
    steps: int  # optimiser steps in total
    labels: int  # labels acquired so far
    # Mean losses during training, metrics after evaluation. A call synchronises with the device.
    values: Callable[[], Mapping[str, float]]


EventListener = Callable[[Event], None]


def no_op(_event: Event) -> None:
    """Ignore the event."""


def combine_listeners(*listeners: EventListener) -> EventListener:
    """Combine listeners into one that calls each in turn.

    >>> received = []
    >>> combine_listeners(received.append, received.append)(Event("done", 0, 0, 1, 1, 6, 6, 0, dict))
    >>> [event.phase for event in received]
    ['done', 'done']
    """

    def notify(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return notify


class Activity:
    """A part of the work that takes time, such as reading 581 images; worker threads may advance it."""

    def __init__(self, text: str, total: int | None, listener: "ActivityListener") -> None:
        self.text = text
        self.total = total  # None if its length is unknown
        self.done = 0
        self.ended = False
        self.started = time.monotonic()
        self._listener, self._lock = listener, threading.Lock()

    def advance(self, count: int = 1) -> None:
        """Report that more of it is done."""
        with self._lock:
            self.done += count
            if not self.ended:
                self._listener(self)

    def end(self) -> None:
        """Report its end; later calls of ``advance`` are ignored."""
        with self._lock:
            self.ended = True
            self._listener(self)


ActivityListener = Callable[[Activity], None]
_listener: ContextVar[ActivityListener | None] = ContextVar("activity listener", default=None)


@contextmanager
def listen_to_activities(listener: ActivityListener) -> Iterator[None]:
    """Call a listener at the start, at each advance and at the end of every activity in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def is_listening() -> bool:
    """Return whether activities of this thread are listened to."""
    return _listener.get() is not None


@contextmanager
def activity(text: str, total: int | None = None) -> Iterator[Activity]:
    """Report an activity to the listener, if there is one.

    >>> with listen_to_activities(lambda now: print(now.text, now.done, now.total)):
    ...     with activity("reading 2 images", total=2) as reading:
    ...         reading.advance(2)
    reading 2 images 0 2
    reading 2 images 2 2
    reading 2 images 2 2
    """
    current = Activity(text, total, _listener.get() or (lambda _: None))
    current.advance(0)
    try:
        yield current
    finally:
        current.end()
