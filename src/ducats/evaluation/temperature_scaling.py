"""Temperature scaling, the standard calibration baseline.

Guo et al., ICML 2017: softmax(z / T), with T fitted on labels that were not used for training.
"""

import math

from torch import Tensor

MIN_LABELS, MIN_CLASSES = 5, 2  # minimum number of labels, and of classes among them, for a fit
TEMPERATURE_BOUNDS = (0.05, 20.0)
BISECTION_STEPS = 60


def optimal_temperature(z: Tensor, labels: Tensor) -> float | None:
    """Return the T within ``TEMPERATURE_BOUNDS`` that maximises the likelihood under softmax(z / T).

    Return None if there are too few labels.

    Args:
        z: ``(N, C)`` log alpha, or logits.
        labels: ``(N,)`` classes; negative labels are ignored.

    >>> import torch
    >>> z = torch.tensor([[math.log(9.0), 0.0]]).repeat(8, 1)  # 90 % for class 0, but 6 of 8 labels are 0
    >>> t = optimal_temperature(z, torch.tensor([0, 0, 1, 0, 0, 0, 1, 0]))
    >>> (z[0] / t).softmax(0)
    tensor([0.7500, 0.2500])
    """
    z, labels = z[labels >= 0].double(), labels[labels >= 0].long()
    if len(labels) < MIN_LABELS or len(labels.unique()) < MIN_CLASSES:
        return None
    label_logits = z.gather(1, labels[:, None]).squeeze(1)

    def slope(log_t: float) -> float:
        """Derivative of the mean negative log-likelihood in 1 / T, which is convex in 1 / T."""
        p = (z / math.exp(log_t)).softmax(1)
        return float(((p * z).sum(1) - label_logits).mean())

    low, high = math.log(TEMPERATURE_BOUNDS[0]), math.log(TEMPERATURE_BOUNDS[1])
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)
