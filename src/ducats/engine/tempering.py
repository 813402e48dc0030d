"""A temperature for a model's probabilities: the usual remedy for miscalibration, to compare with.

Guo et al., ICML 2017: softmax(z / T), with T chosen on labels that the model did not learn.
"""

import math

from torch import Tensor

LEAST, CLASSES = 5, 2  # labels, and classes among them, below which no temperature is fitted
BOUNDS = (0.05, 20.0)
HALVINGS = 60


def temperature(z: Tensor, labels: Tensor) -> float | None:
    """The T within ``BOUNDS`` that makes these labels likeliest under softmax(z / T); None if they are few.

    Args:
        z: ``(N, C)`` log alpha, or logits.
        labels: ``(N,)`` classes; below zero does not count.

    >>> import torch
    >>> z = torch.tensor([[math.log(9.0), 0.0]]).repeat(8, 1)  # 90 % of the first class, which 6 of 8 are
    >>> t = temperature(z, torch.tensor([0, 0, 1, 0, 0, 0, 1, 0]))
    >>> (z[0] / t).softmax(0)
    tensor([0.7500, 0.2500])
    """
    z, labels = z[labels >= 0].double(), labels[labels >= 0].long()
    if len(labels) < LEAST or len(labels.unique()) < CLASSES:
        return None
    own = z.gather(1, labels[:, None]).squeeze(1)

    def slope(log_t: float) -> float:
        """Of the mean negative log-likelihood over 1 / T: it rises with 1 / T, as that is convex in it."""
        p = (z / math.exp(log_t)).softmax(1)
        return float(((p * z).sum(1) - own).mean())

    low, high = math.log(BOUNDS[0]), math.log(BOUNDS[1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)
