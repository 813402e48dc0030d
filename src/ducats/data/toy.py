"""Tiny synthetic data for tests and first steps: coloured blobs, made in milliseconds."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.domain import AdaptationData, Domain, Images
from ducats.utils.errors import UserError


def toy(
    *,
    n_classes: int = 4,
    n_source_per_class: int = 24,
    n_pool: int = 80,
    n_test: int = 80,
    size: int = 8,
    domain_shift: float = 1.0,
    seed: int = 0,
) -> AdaptationData:
    """Make blobs on a ring: a class is a position and a hue.

    The target has shifted hues, dimmer images and more noise. Position transfers from source to target but
    hue misleads, so a model trained on the source alone works only partly, and a few target labels help.

    Args:
        n_pool: Number of unlabelled target images (ground truth in ``AdaptationData.ground_truth``).
        n_test: Number of held-out target images; 0 for none.
        domain_shift: Strength of the domain shift. 0: none; 1: a source model is often wrong; more: worse.

    >>> data = toy(n_pool=10, n_test=4)
    >>> len(data.source), data.source.images.pixels.shape[1:], len(data.pool), len(data.test)
    (96, torch.Size([3, 8, 8]), 10, 4)
    """
    _check(
        n_classes=n_classes, n_source_per_class=n_source_per_class, n_pool=n_pool, n_test=n_test, size=size
    )
    # Separate random streams: a larger source does not change the target.
    source_rng, pool_rng, test_rng = np.random.default_rng(seed).spawn(3)
    source = _make_domain("source", n_classes, n_classes * n_source_per_class, size, 0.0, source_rng)
    pool_domain = _make_domain("pool", n_classes, n_pool, size, domain_shift, pool_rng)
    test_domain = _make_domain("test", n_classes, n_test, size, domain_shift, test_rng) if n_test else None
    return AdaptationData(
        source=source, pool=pool_domain.images, ground_truth=pool_domain.labels, test=test_domain
    )


def _check(**given: int) -> None:
    """Raise if a number is too small."""
    minimum = {"n_classes": 2, "n_source_per_class": 1, "n_pool": 1, "n_test": 0, "size": 4}
    for name, value in given.items():
        if value < minimum[name]:
            raise UserError(f"toy: {name} must be at least {minimum[name]}, got {value}")


def _make_domain(
    name: str, n_classes: int, count: int, size: int, domain_shift: float, generator: np.random.Generator
) -> Domain:
    """Make ``count`` images of balanced classes in random order."""
    labels = generator.permutation(np.arange(count) % n_classes)
    pixels = _draw_blobs(labels, n_classes, size, domain_shift, generator)
    width = len(str(max(count - 1, 0)))
    keys = tuple(f"{name}/{i:0{width}d}" for i in range(count))
    names = tuple(f"blob-{i}" for i in range(n_classes))
    return Domain(Images(keys, pixels), torch.from_numpy(labels.astype(np.int64)), names)


def _draw_blobs(
    labels: NDArray[np.int64], n_classes: int, size: int, domain_shift: float, generator: np.random.Generator
) -> Tensor:
    """Draw one blob per label: uint8 (N, 3, size, size)."""
    count = len(labels)
    angle = 2 * np.pi * (labels + generator.normal(0, 0.22, count)) / n_classes
    # With a shift of half a class, a rule based on hue alone is wrong as often as right.
    hue = 2 * np.pi * (labels + 0.6 * domain_shift + generator.normal(0, 0.15, count)) / n_classes
    centre = 0.5 + 0.22 * np.stack([np.sin(angle), np.cos(angle)])  # (2, N), as fractions of the image height
    grid = (np.arange(size) + 0.5) / size
    distance = (grid[None, :, None] - centre[0, :, None, None]) ** 2
    distance = distance + (grid[None, None, :] - centre[1, :, None, None]) ** 2
    blob = np.exp(-distance / (2 * 0.16**2))  # (N, size, size)
    phase = 2 * np.pi * np.arange(3) / 3
    colour = 0.5 + 0.5 * np.cos(hue[:, None] - phase[None])  # (N, 3)
    image = 0.15 + 0.75 * blob[:, None] * colour[:, :, None, None]
    image = image * (1 - 0.3 * np.tanh(domain_shift)) + 0.12 * np.tanh(domain_shift)
    image = image + generator.normal(0, 0.05 + 0.07 * abs(domain_shift), image.shape)
    return torch.from_numpy((image.clip(0, 1) * 255).round().astype(np.uint8))
