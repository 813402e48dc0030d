"""A drawn pool with the structure of real features: classes of several modes, near-twins, outliers, a shift.

The model is a linear classifier fitted to a source without some of each class's modes, so what it is
unsure of is where the domains differ. Few directions carry the noise, as in what a trained network sees.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ducats.criteria import columns_of
from ducats.randomness import fork
from ducats.rows import Rows

FEATURES, CLASSES, MODES, KNOWN = 256, 65, 8, 5  # modes of each class, and of these in the source
DIRECTIONS = 32  # that carry the noise
SOURCE = 10_000
TWINS, BURST = 0.3, 10  # share of rows that are near-twins of another, and how many of these come together
OUTLIERS = 0.005
SHARP = 30.0  # what the classifier's scores are multiplied by; it sets how sure it is


@dataclass(frozen=True)
class Pool:
    """Rows with features, what the model says of them, and their classes; and the source it learned from."""

    features: Tensor
    z: Tensor
    label: Tensor
    source: Tensor
    source_label: Tensor

    def rows(self, needs: tuple[str, ...]) -> Rows:
        """The pool as a query gets it."""
        where = torch.arange(len(self.z))
        return Rows(where, torch.zeros_like(where), columns_of(self.z, self.features, needs))


def drawn_pool(count: int, seed: int) -> Pool:
    """Draw a pool of ``count`` rows and its source."""
    generator = fork(seed, "pool")

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
    mode = (mode + label) % MODES  # which mode is common differs from class to class
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
    """Overwrite the last rows by near-twins of some others, as frames of one film are."""
    twins = int(TWINS * len(features))
    first = torch.randint(0, len(features) - twins, (-(-twins // BURST),), generator=generator)
    of = first.repeat_interleave(BURST)[:twins]
    near = 0.02 * torch.randn(twins, features.shape[1], generator=generator)
    features[-twins:] = (features[of] + near).relu_()
    label[-twins:] = label[of]


def fitted(features: Tensor, label: Tensor, weight: Tensor | None = None, ridge: float = 1e-3) -> Tensor:
    """Weights of a linear classifier, ``(D + 1, C)``: ridge regression of the classes' indicators."""
    x, y = _with_one(features).double(), F.one_hot(label, CLASSES).double()
    heavy = (torch.ones(len(x)) if weight is None else weight).double()[:, None]
    gram = x.T @ (heavy * x)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(gram, x.T @ (heavy * y)).float()
    return weights


def scores(weights: Tensor, features: Tensor) -> Tensor:
    """What a linear classifier says of some rows, ``(n, C)``."""
    return _with_one(features) @ weights


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)
