"""Whether more labels still change the predictions: stabilising predictions."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOW_LABELS = 10  # labels between two compared models
N_WINDOWS = 3  # consecutive windows that must agree
MIN_KAPPA = 0.99


def cohen_kappa(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return Cohen's kappa of two predictions for the same samples; 1 if both are the same constant.

    >>> round(cohen_kappa(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])), 3)
    0.5
    """
    observed = float((one == other).mean())
    classes = max(int(one.max()), int(other.max())) + 1
    shares = [np.bincount(values, minlength=classes) / len(values) for values in (one, other)]
    expected = float(shares[0] @ shares[1])
    return 1.0 if expected == 1.0 else (observed - expected) / (1.0 - expected)


class PredictionStability:
    """Compare the predictions before and after each window of labels.

    If several windows in a row change almost nothing, more labels bring little (Bloodgood and Vijay-Shanker,
    2009). That needs neither a test set nor further labels.
    """

    def __init__(self) -> None:
        self._n_labels = 0
        self._predictions: NDArray[np.int64] | None = None
        self._kappas: deque[float] = deque(maxlen=N_WINDOWS)
        self._unchanged: deque[float] = deque(maxlen=N_WINDOWS)

    def update(self, n_labels: int, predictions: NDArray[np.int64], is_open: NDArray[np.bool_]) -> None:
        """Add the predictions of a model.

        Args:
            n_labels: number of labels that it was trained on.
            predictions: class of each image of the pool.
            is_open: images without a label, which are compared.
        """
        if self._predictions is None or n_labels < self._n_labels:  # the first, or after an undo
            self._n_labels, self._predictions = n_labels, predictions
        if n_labels < self._n_labels + WINDOW_LABELS or not is_open.any():
            return
        before, after = self._predictions[is_open], predictions[is_open]
        self._kappas.append(cohen_kappa(before, after))
        self._unchanged.append(float((before == after).mean()))
        self._n_labels, self._predictions = n_labels, predictions

    @property
    def is_stable(self) -> bool:
        """Whether the last windows hardly changed the predictions."""
        return len(self._kappas) == N_WINDOWS and min(self._kappas) >= MIN_KAPPA

    @property
    def unchanged(self) -> float:
        """Smallest share of predictions that one of the last windows left unchanged."""
        return min(self._unchanged, default=0.0)
