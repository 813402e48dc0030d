"""Oracle that returns the labels of rounds that were closed before the run started."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.annotation import VOID_WORD, AnnotationStore
from ducats.annotation.store import ClosedRound
from ducats.data.domain import VOID
from ducats.ledger import Request


class ClosedRoundOracle:
    """Return the labels of closed rounds of images; nobody is asked.

    Args:
        keys: of the pool; the ids of questions are keys.
        classes: the words of the answers are classes or void.
    """

    def __init__(self, store: AnnotationStore, keys: Sequence[str], classes: Sequence[str]) -> None:
        self._store, self._keys = store, keys
        self._labels = {VOID_WORD: VOID, **{name: index for index, name in enumerate(classes)}}

    def __call__(self, request: Request) -> Tensor:
        """Return the label of each requested image."""
        words = self._closed(request).words
        return torch.tensor([self._labels[words[self._keys[image]]] for image in request.image.tolist()])

    def annotation_seconds(self, request: Request) -> Tensor | None:
        """Return the annotation time of each image in seconds; None if no time was recorded."""
        seconds = self._closed(request).seconds
        found = torch.tensor([seconds.get(self._keys[image], 0.0) for image in request.image.tolist()])
        return found if bool(found.any()) else None

    def _closed(self, request: Request) -> ClosedRound:
        closed = self._store.closed_round(request.round)
        assert closed is not None, f"round {request.round} is still open"
        return closed
