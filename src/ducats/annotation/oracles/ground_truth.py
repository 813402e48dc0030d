"""Ground-truth oracle: the only part of a run that may access the pool's true labels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ducats.data.domain import VOID, Labels, original_map, renumber
from ducats.ledger import Request
from ducats.runfolder.class_changes import ClassList
from ducats.settings import GridResolution
from ducats.utils.errors import UserError


class GroundTruthOracle:
    """Oracle that answers with the ground truth.

    Args:
        labels: one label per image, ``(len(pool),)``, or label maps.
        resolution: grid of per-pixel positions: that of the stored (network) or of the original images.
        names: class names of the labels, which may include some that the run does not know. Such a class is
            added with its first label. By default, labels have the class numbers of the run.
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
        found = self._look_up(request)
        names = [self.names[n] for n in found.unique().tolist() if 0 <= n < len(self.names)]
        self.classes = self.classes.with_added([name for name in names if self.classes.number(name) is None])
        return self._renumber(found)

    def known_labels(self, request: Request) -> Tensor:
        """Return the labels, VOID for classes that the run does not know."""
        return self._renumber(self._look_up(request))

    def _look_up(self, request: Request) -> Tensor:
        """Return the labels; each label map is read once, one at a time."""
        if self._labels.ndim == 1:
            return self._labels[request.image]
        labels = torch.empty(len(request), dtype=self._labels.dtype)
        for image, position, index in request.by_image():
            is_original = self.resolution == "original"
            label_map = original_map(self._labels, image) if is_original else self._labels[image]
            labels[index] = label_map.flatten()[position]
        labels[labels < 0] = VOID
        return labels

    def _renumber(self, labels: Tensor) -> Tensor:
        """Return labels with the class numbers of the run."""
        numbers = [self.classes.number(name) for name in self.names] or list(self.classes.merged_into)
        if numbers == list(range(len(numbers))):
            return labels
        return renumber(labels, torch.tensor([VOID if number is None else number for number in numbers]))
