"""Objective of SDM (Xie et al., CVPR 2022): cross-entropy, and a margin between normalised logits."""

import torch
from torch import Tensor

from ducats.dirichlet import negative_log_likelihood
from ducats.objectives.auxiliary import ObjectiveSpec
from ducats.objectives.batch import Batch, ForwardFn, Losses
from ducats.objectives.reduction import labelled_losses


def sdm(
    model: ForwardFn,
    batch: Batch,
    *,
    margin: float = 1.0,
    logit: float = 1.0,
    source: float = 1.0,
    target: float = 1.0,
) -> Losses:
    """Cross-entropy, hinge and true logit of ``z / ||z||``, on the source and the labelled target.

    Args:
        margin: weight of ``(1 / C) sum_{c != y} max(0, 1 - (u_y - u_c))``, where u are the normalised logits.
        logit: weight of ``-u_y``.
    """
    weights = {"nll": 1.0, "margin": margin, "logit": logit}
    return labelled_losses(model, batch, _terms, weights, source=source, target=target)


def _terms(z: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    """Cross-entropy, hinge and negative true logit of each position."""
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    unit = z / torch.where(length > 0, length, 1.0)
    label_index = label.clamp(min=0).unsqueeze(1)
    true = unit.gather(1, label_index)
    margin_violations = (1 - true + unit).clamp(min=0)  # 1 for the true class itself
    hinge = (margin_violations.sum(1) - 1) / z.shape[1]
    return negative_log_likelihood(z, label), hinge, -true.squeeze(1)


SDM_SPEC = ObjectiveSpec(sdm)
