"""Ground-truth oracle: the only part of a run that may access the pool's true labels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.data.domain import VOID, Labels, original_map
from ducats.ledger import Request
from ducats.settings import GridResolution
from ducats.utils.errors import UserError


class GroundTruthOracle:
    """Oracle that answers with the ground truth.

    Args:
        labels: one label per image, ``(len(pool),)``, or label maps.
        resolution: grid of per-pixel positions: that of the stored (network) or of the original images.
    """

    def __init__(self, labels: Labels | Sequence[int] | None, resolution: GridResolution = "network") -> None:
        if labels is None:
            raise UserError(
                "this data has no ground truth; load it with ground_truth=True if its target folders are "
                "classes, or use human annotators: ducats.HumanOracle(folder, data.pool, data.classes)"
            )
        # Label maps are not converted: they may be on disk.
        self._labels: Labels = (
            torch.as_tensor(labels).long() if isinstance(labels, Sequence) or labels.ndim == 1 else labels
        )
        self.resolution = resolution

    def __len__(self) -> int:
        return len(self._labels)

    def __call__(self, request: Request) -> Tensor:
        """Look up the labels; each label map is read once, one at a time."""
        if self._labels.ndim == 1:
            return self._labels[request.image]
        labels = torch.empty(len(request), dtype=self._labels.dtype)
        for image, position, index in request.by_image():
            is_original = self.resolution == "original"
            label_map = original_map(self._labels, image) if is_original else self._labels[image]
            labels[index] = label_map.flatten()[position]
        labels[labels < 0] = VOID
        return labels
