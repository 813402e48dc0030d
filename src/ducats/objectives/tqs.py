"""TQS's training (Fu et al., CVPR 2021): cross-entropy, a committee and a discriminator beside it."""

from collections.abc import Mapping

from torch import Tensor

from ducats.objectives.batch import Batch, Losses
from ducats.objectives.companion import Beside, Companion, Remembered
from ducats.objectives.softmax import softmax
from ducats.objectives.witnesses import Committee, Discriminator
from ducats.rows import Output


class Observers(Companion):
    """A committee and a linear discriminator, which learn from the model and leave it alone.

    Args:
        beside: what they are made for.
    """

    tells = ("committee", "domain")

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self.committee = Committee(beside)
        self.discriminator = Discriminator(beside, hidden=0)

    def losses(self, model: Remembered, batch: Batch) -> Losses:
        """Those of both."""
        return self.committee.losses(model, batch) | self.discriminator.losses(model, batch)

    def tell(self, output: Output) -> Mapping[str, Tensor]:
        """What both say."""
        return {**self.committee.tell(output), **self.discriminator.tell(output)}


def tqs(
    model: Remembered, batch: Batch, observers: Observers, *, source: float = 1.0, target: float = 1.0
) -> Losses:
    """Cross-entropy on source and on labelled target; observers learn beside it.

    Args:
        model: images to log alpha.
        batch: the step's data.
        observers: the companion.
        source: weight of the source's cross-entropy.
        target: weight of the labelled target's cross-entropy.
    """
    return softmax(model, batch, source=source, target=target) | observers.losses(model, batch)
