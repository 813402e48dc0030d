"""What a run says while it works; who listens decides how to show it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One sign of life."""

    phase: str  # "train", "measure", "ask" or "done"
    stage: int  # how many questions were answered so far
    stages: int  # questions in all
    epoch: int  # epochs that are complete
    epochs: int
    step: int  # optimiser steps so far, over the whole run
    steps: int  # optimiser steps in all
    labels: int  # labels spent so far
    values: Callable[
        [], Mapping[str, float]
    ]  # mean losses while training, metrics after; waits for the device


Listener = Callable[[Event], None]


def silence(_event: Event) -> None:
    """Listen to nothing."""


def together(*listeners: Listener) -> Listener:
    """Several who listen as one, each told in turn.

    >>> heard = []
    >>> together(heard.append, heard.append)(Event("done", 0, 0, 1, 1, 6, 6, 0, dict))
    >>> [event.phase for event in heard]
    ['done', 'done']
    """

    def tell(event: Event) -> None:
        for listen in listeners:
            listen(event)

    return tell
