"""Synthetic pool that resembles real features: multi-modal classes, near-duplicates, outliers, domain shift.

The model is a linear classifier fitted to a source that lacks some modes of each class, so it is uncertain
where the domains differ. The noise lies in a low-dimensional subspace, as in the features of a trained
network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.acquisition.criteria import compute_columns
from ducats.acquisition.samples import SampleTable
from ducats.utils.randomness import make_generator

FEATURES, CLASSES, MODES, SOURCE_MODES = 256, 65, 8, 5  # modes per class, and how many of them the source has
NOISE_DIM = 32  # dimension of the noise subspace
N_SOURCE = 10_000
DUPLICATE_FRACTION, DUPLICATES_PER_SAMPLE = 0.3, 10  # near-duplicate samples, and copies per original
OUTLIER_FRACTION = 0.005
LOGIT_SCALE = 30.0  # scale of the logits; sets the confidence of the classifier


@dataclass(frozen=True)
class ClusteredPool:
    """Features, logits and classes of the pool, and the source that the model was fitted to."""

    features: Tensor
    z: Tensor
    label: Tensor
    source: Tensor
    source_label: Tensor

    def sample_table(self, needs: tuple[str, ...]) -> SampleTable:
        """Return the pool as the sample table that a query receives."""
        indices = torch.arange(len(self.z))
        return SampleTable(indices, torch.zeros_like(indices), compute_columns(self.z, self.features, needs))


def make_pool(count: int, seed: int) -> ClusteredPool:
    """Generate a pool of ``count`` samples and its source."""
    generator = make_generator(seed, "pool")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    classes = normal(CLASSES, 1, FEATURES) * 0.15
    modes = classes + normal(CLASSES, MODES, FEATURES) * 0.5
    basis = normal(NOISE_DIM, FEATURES) / NOISE_DIM**0.5

    def make_features(label: Tensor, mode: Tensor, noise_scale: Tensor) -> Tensor:
        noise = normal(len(label), NOISE_DIM) @ basis + 0.1 * normal(len(label), FEATURES)
        features: Tensor = (modes[label, mode] + 0.4 * noise_scale[:, None] * noise).relu_()
        return features

    # The first class is 19 times as common as the last.
    class_weights = 1 / torch.arange(1.0, CLASSES + 1) ** 0.7
    label = torch.multinomial(class_weights, count, replacement=True, generator=generator)
    mode = torch.multinomial(1 / torch.arange(1.0, MODES + 1), count, replacement=True, generator=generator)
    mode = (mode + label) % MODES  # the most common mode differs between classes
    noise_scale = torch.ones(count)
    noise_scale[torch.rand(count, generator=generator) < OUTLIER_FRACTION] = 3.0
    features = make_features(label, mode, noise_scale)
    _make_near_duplicates(features, label, generator)

    source_label = torch.arange(N_SOURCE) % CLASSES
    source_mode = torch.randint(0, SOURCE_MODES, (N_SOURCE,), generator=generator)
    source = make_features(source_label, source_mode, torch.ones(N_SOURCE))
    z = LOGIT_SCALE * linear_scores(fit_linear(source, source_label), features)
    order = torch.randperm(count, generator=generator)
    return ClusteredPool(features[order], z[order], label[order], source, source_label)


def _make_near_duplicates(features: Tensor, label: Tensor, generator: torch.Generator) -> None:
    """Overwrite the last samples with near-duplicates of others, like frames of one video."""
    n_duplicates = int(DUPLICATE_FRACTION * len(features))
    first = torch.randint(
        0, len(features) - n_duplicates, (-(-n_duplicates // DUPLICATES_PER_SAMPLE),), generator=generator
    )
    originals = first.repeat_interleave(DUPLICATES_PER_SAMPLE)[:n_duplicates]
    near = 0.02 * torch.randn(n_duplicates, features.shape[1], generator=generator)
    features[-n_duplicates:] = (features[originals] + near).relu_()
    label[-n_duplicates:] = label[originals]


def fit_linear(features: Tensor, label: Tensor, weight: Tensor | None = None, ridge: float = 1e-3) -> Tensor:
    """Fit a linear classifier by ridge regression on one-hot labels; return weights ``(D + 1, C)``."""
    x, y = _with_bias(features).double(), F.one_hot(label, CLASSES).double()
    sample_weight = (torch.ones(len(x)) if weight is None else weight).double()[:, None]
    gram = x.T @ (sample_weight * x)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(gram, x.T @ (sample_weight * y)).float()
    return weights


def linear_scores(weights: Tensor, features: Tensor) -> Tensor:
    """Return the scores ``(n, C)`` of a linear classifier."""
    return _with_bias(features) @ weights


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)
