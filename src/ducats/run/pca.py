"""Principal component analysis, exact and deterministic."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MAX_COMPONENTS = 50
MIN_VARIANCE_RATIO = 1e-12  # fraction of the variance below which a component is rounding error


class PcaResult(NamedTuple):
    """Coordinates along the principal components, strongest first."""

    scores: Tensor  # (F, D) float64, centred
    explained_variance_ratio: Tensor  # (D,) float64, fraction of the variance


def pca(features: Tensor, max_components: int = MAX_COMPONENTS) -> PcaResult:
    """Compute the strongest principal components, exactly and deterministically, including signs.

    Each component is oriented such that its largest absolute score is positive.

    Args:
        max_components: maximum number of components; fewer if the others are rounding error.
    """
    # Imported here because it is slow, and `ducats --help` does not need it.
    from scipy.linalg import eigh

    x = features.double()
    x = x - x.mean(0) if len(x) else x
    total = float(x.square().sum())
    if not 0 < total < float("inf"):
        return PcaResult(x.new_zeros(len(x), 0), x.new_zeros(0))
    # Use the smaller of the two Gram matrices: both have the same non-zero eigenvalues.
    more_rows = x.shape[0] >= x.shape[1]
    gram = (x.T @ x if more_rows else x @ x.T).numpy()
    last = len(gram)
    values, vectors = eigh(gram, subset_by_index=[max(0, last - max_components), last - 1])
    kept = np.flatnonzero(values > MIN_VARIANCE_RATIO * total)[::-1].copy()
    variances, axes = torch.from_numpy(values[kept]), torch.from_numpy(vectors[:, kept])
    scores = x @ axes if more_rows else axes * variances.sqrt()
    farthest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    return PcaResult(scores * torch.where(farthest < 0, -1.0, 1.0), variances / total)
