"""The benchmark answers. The only part of a run that may hold the pool's true labels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.errors import UserError
from ducats.ledger import Request


class Truth:
    """Answers with labels that are known beforehand.

    Args:
        labels: ``(len(pool),)``.
    """

    def __init__(self, labels: Tensor | Sequence[int] | None) -> None:
        if labels is None:
            raise UserError(
                "this data has no true labels: read it with truth=True if its target folders are classes, or "
                "ask people, ducats.People(folder, shift.pool, shift.classes)"
            )
        self._labels = torch.as_tensor(labels).long()

    def __len__(self) -> int:
        return len(self._labels)

    def __call__(self, request: Request) -> Tensor:
        """Look the answers up."""
        return self._labels[request.image]
