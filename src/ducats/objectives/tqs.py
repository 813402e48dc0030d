"""Objective of TQS (Fu et al., CVPR 2021): cross-entropy, with a committee and a discriminator as probes."""

from collections.abc import Mapping

from torch import Tensor

from ducats.objectives.batch import Batch, Losses
from ducats.objectives.companion import Beside, Companion, Remembered
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import Committee, Discriminator
from ducats.rows import Output


class Observers(Companion):
    """A committee and a linear discriminator, trained on the model's features without affecting the model."""

    tells = ("committee", "domain")

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self.committee = Committee(beside)
        self.discriminator = Discriminator(beside, hidden=0)

    def losses(self, model: Remembered, batch: Batch) -> Losses:
        """Return the losses of both probes."""
        return self.committee.losses(model, batch) | self.discriminator.losses(model, batch)

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """Return the columns of both probes."""
        return {**self.committee.tell(output), **self.discriminator.tell(output)}


def tqs(
    model: Remembered, batch: Batch, observers: Observers, *, source: float = 1.0, target: float = 1.0
) -> Losses:
    """Cross-entropy on the source and the labelled target, and the losses of the probes.

    Args:
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
    """
    return softmax(model, batch, source=source, target=target) | observers.losses(model, batch)
