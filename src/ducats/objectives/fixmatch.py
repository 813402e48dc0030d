"""FixMatch with a Dirichlet (DUC, appendix D): confident weak-view predictions label the strong view."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ducats.data.domain import UNLABELLED
from ducats.dirichlet import expected_probability, negative_log_likelihood
from ducats.objectives.batch import ForwardFn, is_labelled


def fixmatch_loss(weak: Tensor, strong: Tensor, tau: float) -> Tensor:
    """Mean of ``ln alpha_0 - ln alpha_y`` of the strong views, over images with a confident weak view.

    The pseudo-label y is the most probable class of the weak view, used if its probability is above tau. The
    loss is zero if there is none. There is no gradient through the weak view.

    Args:
        weak: log alpha of weak views, ``(N, C)``.
        strong: log alpha of strong views of the same images, ``(N, C)``.
        tau: confidence threshold (exclusive).

    >>> sure, unsure = [3.0, 0.0], [0.1, 0.0]
    >>> fixmatch_loss(torch.tensor([sure, unsure]), torch.tensor([[0.0, 0.0], [5.0, 0.0]]), 0.8)
    tensor(0.6931)
    """
    probability, predicted = expected_probability(weak.detach()).max(1)
    label = torch.where(probability > tau, predicted, UNLABELLED)
    return negative_log_likelihood(strong, label).sum() / is_labelled(label).sum().clamp(min=1)


@contextmanager
def frozen_running_stats(model: ForwardFn) -> Iterator[None]:
    """Freeze the running batch-norm statistics; batches are normalised by their own statistics.

    For strong views, which only occur in training and must not affect the normalisation at inference.
    """
    modules = model.modules() if hasattr(model, "modules") else ()
    tracking = [
        m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
