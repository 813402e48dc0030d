"""Progress events of a run."""

from collections.abc import Callable, Mapping
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
