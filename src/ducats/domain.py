"""What data is to the rest of the library: images, and labels only where they may be seen.

A pool is an ``Images``: it has no label field, so nothing that is handed a pool can leak its truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ducats.errors import UserError

UNLABELLED = -1  # never asked
VOID = -2  # asked; the annotator says that no class applies. Never ask again, never train on it.


class Held(Protocol):
    """What is looked at by index: a tensor, or what gives tensors when it is looked at."""

    @property
    def shape(self) -> torch.Size:
        """Of all of it."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what it gives."""

    @property
    def ndim(self) -> int:
        """How many sides its shape has."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Tensor: ...  # by number, slice, or tensor of numbers


class Pixels(Held, Protocol):
    """Decoded images: uint8 ``(N, channels, height, width)``."""


class Maps(Held, Protocol):
    """Label maps ``(N, height, width)``, as the images are stored: int8, int16 for more than 127 classes."""


Labels = Tensor | Maps  # of images, int64 (N,); or of their pixels. Below zero does not count.


def original_map(labels: Labels, index: int) -> Tensor:
    """One image's label map in the size that it had before it was stored: ``(height, width)``."""
    original = getattr(labels, "original", None)  # maps of files know; a tensor is its own original
    found: Tensor = labels[index] if original is None else original(index)
    return found


@dataclass(frozen=True)
class Images:
    """Decoded images and their stable names, without labels."""

    keys: tuple[str, ...]  # unique and stable: a relative path, or an id from the manifest
    pixels: Pixels  # uint8 (N, channels, height, width); a tensor wherever there is room for one
    files: tuple[Path, ...] | None = None  # where each came from, if from a file
    aspect: Tensor | None = None  # float32 (N,), width over height before they were squashed, if known
    sizes: Tensor | None = None  # int64 (N, 2), height and width before they were stored, if known
    void: Maps | None = None  # not zero where a pixel is known beforehand to have no class, as a bonnet

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            found = f"{self.pixels.dtype} {tuple(self.pixels.shape)}"
            raise UserError(f"pixels must be uint8 (N, channels, height, width), not {found}")
        if len(self.keys) != len(self.pixels):
            raise ValueError(f"{len(self.keys)} keys for {len(self.pixels)} images")
        if self.aspect is not None and self.aspect.shape != (len(self.pixels),):
            raise ValueError(f"aspects of shape {tuple(self.aspect.shape)} for {len(self.pixels)} images")
        if self.sizes is not None and self.sizes.shape != (len(self.pixels), 2):
            raise ValueError(f"sizes of shape {tuple(self.sizes.shape)} for {len(self.pixels)} images")
        if len(set(self.keys)) != len(self.keys):
            doubled = next(k for k in self.keys if self.keys.count(k) > 1)
            raise UserError(f"the key {doubled!r} names two images; keys must be unique")

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {tuple(self.pixels.shape[1:])})"


@dataclass(frozen=True)
class Domain:
    """Images with their labels: a source, or a held-out test set. Never a pool."""

    images: Images
    labels: Labels  # an index into classes, of each image or of each of its pixels
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images):
            raise ValueError(f"{len(self.labels)} labels for {len(self.images)} images")
        if self.of_pixels and self.labels.shape[1:] != self.images.pixels.shape[2:]:
            maps, images = tuple(self.labels.shape[1:]), tuple(self.images.pixels.shape[2:])
            raise ValueError(f"label maps of {maps} for images of {images}")

    @property
    def of_pixels(self) -> bool:
        """Whether each pixel has a label, rather than each image."""
        return self.labels.ndim == 3

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Domain({self.images!r}, {len(self.classes)} classes)"


@dataclass(frozen=True)
class Shift:
    """One adaptation problem: what is labelled, what is not, and who may know better."""

    source: Domain
    pool: Images
    truth: Labels | None = None  # of the pool, for a simulated oracle and nobody else
    test: Domain | None = None  # held out; touched by evaluation alone

    def __repr__(self) -> str:
        truth = "unknown" if self.truth is None else "known to an oracle"
        return f"Shift(source={self.source!r}, pool={self.pool!r}, truth {truth}, test={self.test!r})"

    @property
    def classes(self) -> Sequence[str]:
        """Class names; the source's order is everyone's order."""
        return self.source.classes
