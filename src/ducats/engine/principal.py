"""Principal components of features: what is left of them where only their lie is looked at."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COMPONENTS = 50
NOTHING = 1e-12  # share of the variance below which a component is rounding


class Principal(NamedTuple):
    """Rows in the coordinates of their principal components, the strongest first."""

    scores: Tensor  # (F, D) float64, centred
    explained: Tensor  # (D,) float64, share of the variance


def principal(features: Tensor, most: int = COMPONENTS) -> Principal:
    """The strongest components of some rows, exact; the same each time, signs included.

    In each component the row that is farthest out is on the positive side.

    Args:
        features: ``(F, D)``.
        most: components to keep; fewer where the rest would be rounding.
    """
    # Imported here: it takes a while, and `ducats --help` has no use for it.
    from scipy.linalg import eigh

    x = features.double()
    x = x - x.mean(0) if len(x) else x
    total = float(x.square().sum())
    if not 0 < total < float("inf"):
        return Principal(x.new_zeros(len(x), 0), x.new_zeros(0))
    # Of products over rows or over columns, the smaller matrix: both have the same eigenvalues.
    tall = x.shape[0] >= x.shape[1]
    products = (x.T @ x if tall else x @ x.T).numpy()
    last = len(products)
    values, vectors = eigh(products, subset_by_index=[max(0, last - most), last - 1])
    kept = np.flatnonzero(values > NOTHING * total)[::-1].copy()
    spread, axes = torch.from_numpy(values[kept]), torch.from_numpy(vectors[:, kept])
    scores = x @ axes if tall else axes * spread.sqrt()
    farthest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    return Principal(scores * torch.where(farthest < 0, -1.0, 1.0), spread / total)
