"""Synthetic pool that resembles real features: multi-modal classes, near-duplicates, outliers, domain shift.

The model is a linear classifier fitted to a source that lacks some modes of each class, so it is uncertain
where the domains differ. The noise lies in a low-dimensional subspace, as in the features of a trained
network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.criteria import compute_columns
from ducats.randomness import make_generator
from ducats.samples import SampleTable

FEATURES, CLASSES, MODES, KNOWN = 256, 65, 8, 5  # modes per class, and how many of them the source has
DIRECTIONS = 32  # dimension of the noise subspace
SOURCE = 10_000
TWINS, BURST = 0.3, 10  # fraction of near-duplicate samples, and copies per original
OUTLIERS = 0.005
SHARP = 30.0  # scale of the logits; sets the confidence of the classifier


@dataclass(frozen=True)
class Pool:
    """Features, logits and classes of the pool, and the source that the model was fitted to."""

    features: Tensor
    z: Tensor
    label: Tensor
    source: Tensor
    source_label: Tensor

    def rows(self, needs: tuple[str, ...]) -> SampleTable:
        """Return the pool as the sample table that a query receives."""
        where = torch.arange(len(self.z))
        return SampleTable(where, torch.zeros_like(where), compute_columns(self.z, self.features, needs))


def drawn_pool(count: int, seed: int) -> Pool:
    """Generate a pool of ``count`` samples and its source."""
    generator = make_generator(seed, "pool")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    classes = normal(CLASSES, 1, FEATURES) * 0.15
    modes = classes + normal(CLASSES, MODES, FEATURES) * 0.5
    basis = normal(DIRECTIONS, FEATURES) / DIRECTIONS**0.5

    def rows(label: Tensor, mode: Tensor, wide: Tensor) -> Tensor:
        noise = normal(len(label), DIRECTIONS) @ basis + 0.1 * normal(len(label), FEATURES)
        found: Tensor = (modes[label, mode] + 0.4 * wide[:, None] * noise).relu_()
        return found

    rare = 1 / torch.arange(1.0, CLASSES + 1) ** 0.7  # the first class is 19 times as common as the last
    label = torch.multinomial(rare, count, replacement=True, generator=generator)
    mode = torch.multinomial(1 / torch.arange(1.0, MODES + 1), count, replacement=True, generator=generator)
    mode = (mode + label) % MODES  # the most common mode differs between classes
    wide = torch.ones(count)
    wide[torch.rand(count, generator=generator) < OUTLIERS] = 3.0
    features = rows(label, mode, wide)
    _make_twins(features, label, generator)

    even = torch.arange(SOURCE) % CLASSES
    known = torch.randint(0, KNOWN, (SOURCE,), generator=generator)
    source = rows(even, known, torch.ones(SOURCE))
    z = SHARP * scores(fitted(source, even), features)
    mixed = torch.randperm(count, generator=generator)
    return Pool(features[mixed], z[mixed], label[mixed], source, even)


def _make_twins(features: Tensor, label: Tensor, generator: torch.Generator) -> None:
    """Overwrite the last samples with near-duplicates of others, like frames of one video."""
    twins = int(TWINS * len(features))
    first = torch.randint(0, len(features) - twins, (-(-twins // BURST),), generator=generator)
    of = first.repeat_interleave(BURST)[:twins]
    near = 0.02 * torch.randn(twins, features.shape[1], generator=generator)
    features[-twins:] = (features[of] + near).relu_()
    label[-twins:] = label[of]


def fitted(features: Tensor, label: Tensor, weight: Tensor | None = None, ridge: float = 1e-3) -> Tensor:
    """Fit a linear classifier by ridge regression on one-hot labels; return weights ``(D + 1, C)``."""
    x, y = _with_one(features).double(), F.one_hot(label, CLASSES).double()
    heavy = (torch.ones(len(x)) if weight is None else weight).double()[:, None]
    gram = x.T @ (heavy * x)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(gram, x.T @ (heavy * y)).float()
    return weights


def scores(weights: Tensor, features: Tensor) -> Tensor:
    """Return the scores ``(n, C)`` of a linear classifier."""
    return _with_one(features) @ weights


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)
