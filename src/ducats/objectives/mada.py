"""Objective of MADA (Ning et al., ICCV 2021): pseudo-labels, and target images pulled to target anchors."""

import torch
from torch import Tensor

from ducats.acquisition.class_descriptors import (
    anchor_errors,
    class_descriptors,
    downsample_nearest,
    fit_anchors,
)
from ducats.models.output import Output
from ducats.objectives.auxiliary import (
    AuxiliaryContext,
    AuxiliaryModule,
    FullPass,
    ObjectiveSpec,
    RefreshContext,
    features_of,
    require_feature_width,
)
from ducats.objectives.batch import Batch, ForwardFn, Losses, is_unlabelled
from ducats.objectives.self_training.output_space import require_segmentation
from ducats.objectives.self_training.pseudo_label_ops import coarse_log_alpha
from ducats.objectives.self_training.round_schedule import check_round_schedule, starting_round
from ducats.objectives.softmax import softmax

MIN_SQUARED_ERROR = 1e-12  # lower bound of squared errors, which are divided by


class TargetAnchors(AuxiliaryModule):
    """Target anchors: centres of the pool's class descriptors at the start of stage 2, then moving averages.

    Args:
        warmup: fraction of the training before stage 2.
    """

    anchors: Tensor  # (n_anchors, C * D)
    stage: Tensor  # 0 in stage 1, 1 in stage 2

    def __init__(self, context: AuxiliaryContext, *, warmup: float = 0.5, n_anchors: int = 10) -> None:
        super().__init__()
        require_segmentation(context, "mada")
        check_round_schedule(warmup, 1)
        if n_anchors < 1:
            raise ValueError(
                f"objective.params.n_anchors must be at least 1, not {n_anchors}; it is the number of anchors"
            )
        self.warmup = warmup
        width = require_feature_width(context, "the objective 'mada'")
        self.register_buffer("anchors", torch.zeros(n_anchors, context.classes * width))
        self.register_buffer("stage", torch.zeros(()))

    def is_due(self, context: RefreshContext) -> bool:
        """Return True when stage 2 starts."""
        return starting_round(context, self.warmup, 1) > 0

    def refresh(self, context: RefreshContext, full_pass: FullPass) -> None:  # noqa: ARG002
        """Cluster the class descriptors of the pool."""
        seed = int(torch.randint(2**31, ()))  # the caller has seeded torch
        descriptors = torch.cat([_descriptors_of(output).cpu() for _, output in full_pass.pool()])
        anchors = fit_anchors(descriptors, self.n_anchors, seed)
        self.anchors.copy_(anchors[torch.arange(self.n_anchors) % len(anchors)])
        self.stage.fill_(1.0)

    @property
    def n_anchors(self) -> int:
        """Number of anchors; a small pool has duplicates."""
        return len(self.anchors)

    def pull_anchors(self, descriptors: Tensor, ema_rate: float) -> Tensor:
        """Return the harmonic mean of each image's squared errors to all anchors, and move the anchors.

        Args:
            descriptors: class descriptors, ``(N, C * D)``.
            ema_rate: step size of an anchor towards the images that it is nearest to.
        """
        anchors = self.anchors.clone()  # they move before the backward pass
        errors = anchor_errors(descriptors, anchors).clamp(min=MIN_SQUARED_ERROR)
        number = torch.arange(self.n_anchors, device=anchors.device)
        is_nearest = (errors.detach().argmin(1)[:, None] == number).to(anchors.dtype)
        step = is_nearest.T @ descriptors.detach() - is_nearest.sum(0)[:, None] * anchors
        self.anchors.add_(ema_rate * self.stage * step)
        return self.n_anchors / (1 / errors).sum(1)


def mada(
    model: ForwardFn,
    batch: Batch,
    auxiliary: TargetAnchors,
    *,
    pseudo: float = 1.0,
    anchor: float = 0.7,
    ema_rate: float = 0.001,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy on labelled data; in stage 2 also on pseudo-labels, and the distance to anchors.

    Args:
        pseudo: weight of the cross-entropy on pseudo-labels, the model's current predictions, in stage 2.
        anchor: weight of the distance to the anchors in stage 2.
        ema_rate: step size of the nearest anchor towards an image.
    """
    losses = softmax(model, batch, source=source, target=target)
    if batch.target is None:
        return losses
    images, label_maps = batch.target
    output, stage = model(images), auxiliary.stage
    losses["pseudo/nll"] = pseudo * stage * _self_training_loss(output, label_maps)
    errors = auxiliary.pull_anchors(_descriptors_of(output), ema_rate)
    losses["target/anchor"] = anchor * stage * errors.mean()
    return losses


def _self_training_loss(output: Output, label_maps: Tensor) -> Tensor:
    """Return the mean cross-entropy to the model's own prediction, over unlabelled positions of its grid."""
    highest = coarse_log_alpha(output).log_softmax(1).max(1).values
    is_open = is_unlabelled(downsample_nearest(label_maps, (output.z.shape[2], output.z.shape[3])))
    return -(highest * is_open).sum() / is_open.sum().clamp(min=1)


def _descriptors_of(output: Output) -> Tensor:
    return class_descriptors(output.z, features_of(output))


MADA_SPEC = ObjectiveSpec(mada, TargetAnchors)
