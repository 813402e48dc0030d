"""Ground-truth oracle: the only part of a run that may access the pool's true labels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.data.domain import VOID, Labels, original_map
from ducats.ledger import Request
from ducats.runfolder.class_changes import ClassList
from ducats.settings import GridResolution
from ducats.utils.errors import UserError


class GroundTruthOracle:
    """Oracle that answers with the ground truth.

    Args:
        labels: one label per image, ``(len(pool),)``, or label maps.
        resolution: grid of per-pixel positions: that of the stored (network) or of the original images.
        names: names of all classes of the labels, of which the run may know only some. A class becomes known
            with its first label.
    """

    def __init__(
        self,
        labels: Labels | Sequence[int] | None,
        resolution: GridResolution = "network",
        names: Sequence[str] = (),
    ) -> None:
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
        self.names = tuple(names)
        self.classes = ClassList(self.names)  # of the run, which sets it

    def __len__(self) -> int:
        return len(self._labels)

    def __call__(self, request: Request) -> Tensor:
        """Return the labels; classes that the run does not know are added to ``classes``."""
        if self._labels.ndim == 1:
            found = self._labels[request.image]
            new = [self.names[n] for n in found.unique().tolist() if n < len(self.names)]
            self.classes = self.classes.with_added([n for n in new if self.classes.number(n) is None])
        return self.look_up(request)

    def look_up(self, request: Request) -> Tensor:
        """Return the labels, VOID for classes that the run does not know; each map is read once."""
        if self._labels.ndim == 1:
            found = self._labels[request.image]
            if not self.names:
                return found
            numbers = [self.classes.number(name) for name in self.names]
            table = torch.tensor([VOID if number is None else number for number in numbers])
            return torch.where(found >= 0, table[found.clamp(min=0)], found)
        labels = torch.empty(len(request), dtype=self._labels.dtype)
        for image, position, index in request.by_image():
            is_original = self.resolution == "original"
            label_map = original_map(self._labels, image) if is_original else self._labels[image]
            labels[index] = label_map.flatten()[position]
        labels[labels < 0] = VOID
        return labels
