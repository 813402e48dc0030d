"""Objective of TQS (Fu et al., CVPR 2021): cross-entropy, with a committee and a discriminator as probes."""

from collections.abc import Mapping

from torch import Tensor

from ducats.models.output import Output
from ducats.objectives.auxiliary import AuxiliaryContext, AuxiliaryModule, CachedForward, ObjectiveSpec
from ducats.objectives.batch import Batch, Losses
from ducats.objectives.probes import Committee, Discriminator
from ducats.objectives.softmax import softmax


class TqsProbes(AuxiliaryModule):
    """A committee and a linear discriminator, trained on the model's features without affecting the model."""

    provides = ("committee", "domain")
    reads_stored_images = True

    def __init__(self, context: AuxiliaryContext) -> None:
        super().__init__()
        self.committee = Committee(context)
        self.discriminator = Discriminator(context, hidden=0)

    def losses(self, model: CachedForward, batch: Batch) -> Losses:
        """Return the losses of both probes."""
        return self.committee.losses(model, batch) | self.discriminator.losses(model, batch)

    def extra_columns(self, output: Output) -> Mapping[str, Tensor]:
        """Return the columns of both probes."""
        return {**self.committee.extra_columns(output), **self.discriminator.extra_columns(output)}


def tqs(
    model: CachedForward, batch: Batch, probes: TqsProbes, *, source: float = 1.0, target: float = 1.0
) -> Losses:
    """Cross-entropy on the source and the labelled target, and the losses of the probes."""
    return softmax(model, batch, source=source, target=target) | probes.losses(model, batch)


TQS_SPEC = ObjectiveSpec(tqs, TqsProbes)
