"""The benchmark answers. The only part of a run that may hold the pool's true labels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.domain import VOID, Labels, original_map
from ducats.errors import UserError
from ducats.ledger import Request, Resolution


class Truth:
    """Answers with labels that are known beforehand.

    Args:
        labels: of each image ``(len(pool),)``, or maps of its pixels.
        resolution: where pixels are bought, the grid in which positions count: that of the images as stored,
            or as they were before.
    """

    def __init__(self, labels: Labels | Sequence[int] | None, resolution: Resolution = "network") -> None:
        if labels is None:
            raise UserError(
                "this data has no true labels: read it with truth=True if its target folders are classes, or "
                "ask people, ducats.People(folder, shift.pool, shift.classes)"
            )
        # Maps stay as they are: they may lie on disk.
        self._labels: Labels = (
            torch.as_tensor(labels).long() if isinstance(labels, Sequence) or labels.ndim == 1 else labels
        )
        self._resolution = resolution

    @property
    def resolution(self) -> Resolution:
        """The grid in which positions of pixels count."""
        return self._resolution

    def __len__(self) -> int:
        return len(self._labels)

    def __call__(self, request: Request) -> Tensor:
        """Look the answers up; one image's map at a time, and each once."""
        if self._labels.ndim == 1:
            return self._labels[request.image]
        answers = torch.empty(len(request), dtype=self._labels.dtype)
        for image, position, place in request.by_image():
            original = self._resolution == "original"
            truth = original_map(self._labels, image) if original else self._labels[image]
            answers[place] = truth.flatten()[position]
        answers[answers < 0] = VOID
        return answers
