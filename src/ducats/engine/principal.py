"""Principal component analysis, exact and deterministic."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COMPONENTS = 50
NOTHING = 1e-12  # fraction of the variance below which a component is rounding error


class Principal(NamedTuple):
    """Coordinates along the principal components, strongest first."""

    scores: Tensor  # (F, D) float64, centred
    explained: Tensor  # (D,) float64, fraction of the variance


def principal(features: Tensor, most: int = COMPONENTS) -> Principal:
    """Compute the strongest principal components, exactly and deterministically, including signs.

    Each component is oriented such that its largest absolute score is positive.

    Args:
        features: ``(F, D)``.
        most: maximum number of components; fewer if the others are rounding error.
    """
    # Imported here because it is slow, and `ducats --help` does not need it.
    from scipy.linalg import eigh

    x = features.double()
    x = x - x.mean(0) if len(x) else x
    total = float(x.square().sum())
    if not 0 < total < float("inf"):
        return Principal(x.new_zeros(len(x), 0), x.new_zeros(0))
    # Use the smaller of the two Gram matrices: both have the same non-zero eigenvalues.
    tall = x.shape[0] >= x.shape[1]
    products = (x.T @ x if tall else x @ x.T).numpy()
    last = len(products)
    values, vectors = eigh(products, subset_by_index=[max(0, last - most), last - 1])
    kept = np.flatnonzero(values > NOTHING * total)[::-1].copy()
    spread, axes = torch.from_numpy(values[kept]), torch.from_numpy(vectors[:, kept])
    scores = x @ axes if tall else axes * spread.sqrt()
    farthest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    return Principal(scores * torch.where(farthest < 0, -1.0, 1.0), spread / total)
