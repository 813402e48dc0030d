"""FixMatch on a Dirichlet (DUC's appendix D): what is sure in a weak view is taught in a strong one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ducats.dirichlet import expected_probability, negative_log_likelihood
from ducats.domain import UNLABELLED
from ducats.objectives.batch import Forward, known


def fixmatch(weak: Tensor, strong: Tensor, tau: float) -> Tensor:
    """Mean of ``ln alpha_0 - ln alpha_y`` of strong views, over images that are sure in the weak one.

    The class y is the weak view's most probable one, kept where its probability is above tau. Zero if none
    is kept. There is no gradient through the weak view.

    Args:
        weak: log alpha of weak views, ``(N, C)``.
        strong: log alpha of strong views of the same images, ``(N, C)``.
        tau: probability that is not enough.

    >>> sure, unsure = [3.0, 0.0], [0.1, 0.0]
    >>> fixmatch(torch.tensor([sure, unsure]), torch.tensor([[0.0, 0.0], [5.0, 0.0]]), 0.8)
    tensor(0.6931)
    """
    probability, guess = expected_probability(weak.detach()).max(1)
    label = torch.where(probability > tau, guess, UNLABELLED)
    return negative_log_likelihood(strong, label).sum() / known(label).sum().clamp(min=1)


@contextmanager
def unnoted(model: Forward) -> Iterator[None]:
    """Inside the block batches are normalised by their own statistics, and the running ones do not move.

    For strong views, which are never met after training: they must not change how others are normalised.
    """
    modules = model.modules() if hasattr(model, "modules") else ()
    noting = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for module in noting:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in noting:
            module.track_running_stats = True
