"""Objective of MADA (Ning et al., ICCV 2021): pseudo-labels, and target images pulled to target anchors."""

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

LITTLE = 1e-12  # lower bound of squared errors, which are divided by


class TargetAnchors(Companion):
    """Target anchors, and a frozen copy of the model that gives the pseudo-labels in stage 2.

    Args:
        warmup: fraction of the training before stage 2.
        count: number of anchors.
    """

    anchors: Tensor  # (count, C * D)
    stage: Tensor  # 0 in stage 1, 1 in stage 2

    def __init__(self, beside: Beside, *, warmup: float = 0.5, count: int = 10) -> None:
        super().__init__()
        check_pixels(beside, "mada")
        check_rounds(warmup, 1)
        if count < 1:
            raise ValueError(
                f"objective.params.count must be at least 1, not {count}; it is the number of anchors"
            )
        self.warmup = warmup
        width = width_of(beside, "the objective 'mada'")
        self.still = Still(beside.model, beside.autocast)
        self.register_buffer("anchors", torch.zeros(count, beside.classes * width))
        self.register_buffer("stage", torch.zeros(()))

    def due(self, moment: Moment) -> bool:
        """Return True when stage 2 starts."""
        return begins(moment, self.warmup, 1) > 0

    def refresh(self, moment: Moment, look: Look) -> None:  # noqa: ARG002
        """Copy the model and cluster the class descriptors of the pool."""
        self.still.follow()
        seed = int(torch.randint(2**31, ()))  # the caller has seeded torch
        found = anchors_of(
            torch.cat([_described(output).cpu() for _, output in look.pool()]), self.count, seed
        )
        self.anchors.copy_(found[torch.arange(self.count) % len(found)])
        self.stage.fill_(1.0)

    @property
    def count(self) -> int:
        """Number of anchors; a small pool has duplicates."""
        return len(self.anchors)

    def pull(self, described: Tensor, pace: float) -> Tensor:
        """Return the harmonic mean of each image's squared errors to all anchors, and move the anchors.

        Args:
            described: class descriptors, ``(N, C * D)``.
            pace: step size of an anchor towards the images that it is nearest to.
        """
        anchors = self.anchors.clone()  # they move before the backward pass
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
    """Cross-entropy on labelled data; in stage 2 also on pseudo-labels, and the distance to anchors.

    Args:
        pseudo: weight of the cross-entropy on pseudo-labels in stage 2.
        anchor: weight of the distance to the anchors in stage 2.
        pace: step size of the nearest anchor towards an image.
        source: weight of the cross-entropy on the source.
        target: weight of the cross-entropy on the labelled target.
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
