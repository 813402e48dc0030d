"""Tiny synthetic data for tests and first steps: coloured blobs, made in milliseconds."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ducats.domain import Domain, Images, Shift
from ducats.errors import UserError


def toy(
    *,
    classes: int = 4,
    per_class: int = 24,
    pool: int = 80,
    test: int = 80,
    size: int = 8,
    shift: float = 1.0,
    seed: int = 0,
) -> Shift:
    """Make blobs on a ring: a class is a position and a hue.

    The target has shifted hues, dimmer images and more noise. Position transfers from source to target but
    hue misleads, so a model trained on the source alone works only partly, and a few target labels help.

    Args:
        classes: Number of classes, at least 2.
        per_class: Number of source images per class.
        pool: Number of unlabelled target images (ground truth in ``Shift.truth``).
        test: Number of held-out target images; 0 for none.
        size: Height and width in pixels, at least 4.
        shift: Strength of the domain shift. 0: none; 1: a source model is often wrong; more: worse.

    >>> problem = toy(pool=10, test=4)
    >>> len(problem.source), problem.source.split.per_pixel.shape[1:], len(problem.pool), len(problem.test)
    (96, torch.Size([3, 8, 8]), 10, 4)
    """
    _check(classes=classes, per_class=per_class, pool=pool, test=test, size=size)
    # Separate random streams: a larger source does not change the target.
    of_source, of_pool, of_test = np.random.default_rng(seed).spawn(3)
    source = _domain("source", classes, classes * per_class, size, 0.0, of_source)
    unlabelled = _domain("pool", classes, pool, size, shift, of_pool)
    held_out = _domain("test", classes, test, size, shift, of_test) if test else None
    return Shift(source=source, pool=unlabelled.images, truth=unlabelled.labels, test=held_out)


def _check(*, classes: int, per_class: int, pool: int, test: int, size: int) -> None:
    """Raise if a number is too small."""
    least = {"classes": 2, "per_class": 1, "pool": 1, "test": 0, "size": 4}
    given = {"classes": classes, "per_class": per_class, "pool": pool, "test": test, "size": size}
    for name, value in given.items():
        if value < least[name]:
            raise UserError(f"toy: {name} must be at least {least[name]}, got {value}")


def _domain(
    name: str, classes: int, count: int, size: int, shift: float, generator: np.random.Generator
) -> Domain:
    """Make ``count`` images of balanced classes in random order."""
    labels = generator.permutation(np.arange(count) % classes)
    pixels = _blobs(labels, classes, size, shift, generator)
    width = len(str(max(count - 1, 0)))
    keys = tuple(f"{name}/{i:0{width}d}" for i in range(count))
    names = tuple(f"blob-{i}" for i in range(classes))
    return Domain(Images(keys, pixels), torch.from_numpy(labels.astype(np.int64)), names)


def _blobs(
    labels: NDArray[np.int64], classes: int, size: int, shift: float, generator: np.random.Generator
) -> Tensor:
    """Draw one blob per label: uint8 (N, 3, size, size)."""
    count = len(labels)
    place = 2 * np.pi * (labels + generator.normal(0, 0.22, count)) / classes
    # With a shift of half a class, a rule based on hue alone is wrong as often as right.
    hue = 2 * np.pi * (labels + 0.6 * shift + generator.normal(0, 0.15, count)) / classes
    centre = 0.5 + 0.22 * np.stack([np.sin(place), np.cos(place)])  # (2, N), as fractions of the image height
    grid = (np.arange(size) + 0.5) / size
    distance = (grid[None, :, None] - centre[0, :, None, None]) ** 2
    distance = distance + (grid[None, None, :] - centre[1, :, None, None]) ** 2
    blob = np.exp(-distance / (2 * 0.16**2))  # (N, size, size)
    phase = 2 * np.pi * np.arange(3) / 3
    colour = 0.5 + 0.5 * np.cos(hue[:, None] - phase[None])  # (N, 3)
    image = 0.15 + 0.75 * blob[:, None] * colour[:, :, None, None]
    image = image * (1 - 0.3 * np.tanh(shift)) + 0.12 * np.tanh(shift)
    image = image + generator.normal(0, 0.05 + 0.07 * abs(shift), image.shape)
    return torch.from_numpy((image.clip(0, 1) * 255).round().astype(np.uint8))
