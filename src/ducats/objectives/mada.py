"""MADA's objective (Ning et al., ICCV 2021): pseudo-labels, and target images drawn to target anchors."""

import torch
from torch import Tensor

from ducats.anchors import anchors_of, descriptor, errors_to
from ducats.objectives.batch import Batch, Forward, Losses
from ducats.objectives.companion import Beside, Companion, Look, Moment, Still, width_of
from ducats.objectives.means import means
from ducats.objectives.selftraining.output_space import check_pixels
from ducats.objectives.selftraining.rounds import begins, check_rounds
from ducats.objectives.selftraining.stacked import at, stacked
from ducats.objectives.softmax import softmax
from ducats.objectives.unlabelled import unlabelled
from ducats.rows import Output

LITTLE = 1e-12  # squared error, so that an image on its anchor divides by something


class TargetAnchors(Companion):
    """Anchors of the target's images, and a copy of the model whose word pseudo-labels are, in stage 2.

    Args:
        beside: what it is made for.
        warmup: share of the training before stage 2.
        count: of anchors.
    """

    anchors: Tensor  # (count, C * D)
    stage: Tensor  # 0 in stage 1, 1 in stage 2

    def __init__(self, beside: Beside, *, warmup: float = 0.5, count: int = 10) -> None:
        super().__init__()
        check_pixels(beside, "mada")
        check_rounds(warmup, 1)
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}: it is of anchors")
        self.warmup = warmup
        width = width_of(beside, "the objective 'mada'")
        self.still = Still(beside.model, beside.autocast)
        self.register_buffer("anchors", torch.zeros(count, beside.classes * width))
        self.register_buffer("stage", torch.zeros(()))

    def due(self, moment: Moment) -> bool:
        """When stage 2 begins."""
        return begins(moment, self.warmup, 1) > 0

    def refresh(self, moment: Moment, look: Look) -> None:  # noqa: ARG002
        """Copy the model, and group the pool's images by what their classes look like."""
        self.still.follow()
        seed = int(torch.randint(2**31, ()))  # the run has seeded torch for this
        found = anchors_of(
            torch.cat([_described(output).cpu() for _, output in look.pool()]), self.count, seed
        )
        self.anchors.copy_(found[torch.arange(self.count) % len(found)])
        self.stage.fill_(1.0)

    @property
    def count(self) -> int:
        """How many anchors there are; of a small pool some are the same."""
        return len(self.anchors)

    def pull(self, described: Tensor, pace: float) -> Tensor:
        """Harmonic mean of the squared errors against all anchors, of each image; the nearest ones follow it.

        Args:
            described: ``(N, C * D)``.
            pace: at which an anchor moves to the images that it is the nearest of.
        """
        anchors = self.anchors.clone()  # they move before gradients come back
        errors = errors_to(described, anchors).clamp(min=LITTLE)
        number = torch.arange(self.count, device=anchors.device)
        mine = (errors.detach().argmin(1)[:, None] == number).to(anchors.dtype)
        step = mine.T @ described.detach() - mine.sum(0)[:, None] * anchors
        self.anchors.add_(pace * self.stage * step)
        return self.count / (1 / errors).sum(1)


def mada(
    model: Forward,
    batch: Batch,
    companion: TargetAnchors,
    *,
    pseudo: float = 1.0,
    anchor: float = 0.7,
    pace: float = 0.001,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy where labels are known; then also on own labels, and target images near their anchors.

    Args:
        model: images to log alpha.
        batch: the step's data.
        companion: anchors and a copy of the model.
        pseudo: weight of the cross-entropy on pseudo-labels in stage 2.
        anchor: weight of the distance to the anchors in stage 2.
        pace: at which the nearest anchor follows an image.
        source: weight of the source's cross-entropy.
        target: weight of the labelled target's cross-entropy.
    """
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, maps = batch.target
    student, stage = model(images), companion.stage

    def formula(z: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        own, others = z.chunk(2, 1)
        return (-at(own.log_softmax(1), others.detach().argmax(1)),)

    (fit,) = means(stacked(student, [companion.still(images).z]), formula, maps, unlabelled)
    losses["pseudo/nll"] = pseudo * stage * fit
    losses["target/anchor"] = anchor * stage * companion.pull(_described(student), pace).mean()
    return losses


def _described(output: Output) -> Tensor:
    assert output.features is not None
    return descriptor(output.z, output.features)
