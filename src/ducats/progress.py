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
    values: Callable[
        [], Mapping[str, float]
    ]  # mean losses during training, metrics after evaluation; synchronises with the device


EventListener = Callable[[Event], None]


def no_op(_event: Event) -> None:
    """Ignore the event."""


def combine_listeners(*listeners: EventListener) -> EventListener:
    """Combine listeners into one that calls each in turn.

    >>> heard = []
    >>> combine_listeners(heard.append, heard.append)(Event("done", 0, 0, 1, 1, 6, 6, 0, dict))
    >>> [event.phase for event in heard]
    ['done', 'done']
    """

    def notify(event: Event) -> None:
        for listen in listeners:
            listen(event)

    return notify
