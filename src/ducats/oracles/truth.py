"""The benchmark answers. The only part of a run that may hold the pool's true labels."""

from torch import Tensor

from ducats.ledger import Request


class Truth:
    """Answers with labels that are known beforehand.

    Args:
        labels: ``(len(pool),)``.
    """

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __call__(self, request: Request) -> Tensor:
        """Look the answers up."""
        return self._labels[request.image]
