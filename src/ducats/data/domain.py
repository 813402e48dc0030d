"""Data structures: images, labelled domains and the adaptation problem.

A pool is an ``Images``. It has no labels, so code that gets a pool cannot leak its ground truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ducats.data.embedding_cache import digest_pixels
from ducats.settings import View
from ducats.utils.errors import UserError
from ducats.utils.image_files import ValueRange

UNLABELLED = -1  # not labelled yet
VOID = -2  # labelled as "no class applies": never selected again, never trained on


class Indexable(Protocol):
    """A tensor, or an object that returns tensors when it is indexed."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Tensor: ...  # int, slice or index tensor


class Pixels(Indexable, Protocol):
    """Decoded images: uint8 ``(N, channels, height, width)``."""


def pixel_digest(pixels: Pixels, index: int) -> bytes:
    """Return the digest of an image's pixels, without decoding them if it is known."""
    known = getattr(pixels, "digest", None)
    found: bytes = digest_pixels(pixels[index].cpu().numpy()) if known is None else known(index)
    return found


class LabelMaps(Indexable, Protocol):
    """Label maps ``(N, height, width)`` at the stored size: int8, or int16 for more than 127 classes."""


Labels = Tensor | LabelMaps  # per image, int64 (N,), or per pixel; negative: no label


def original_map(labels: Labels, index: int) -> Tensor:
    """Return an image's label map at its original size: ``(height, width)``."""
    original = getattr(labels, "original", None)  # only label maps from files have it
    found: Tensor = labels[index] if original is None else original(index)
    return found


class UnreadableFile(NamedTuple):
    """A file that cannot be read; its image is skipped."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Images:
    """Decoded images and their keys, without labels."""

    keys: tuple[str, ...]  # unique and stable: a relative path, or an id from a manifest
    pixels: Pixels  # uint8 (N, channels, height, width); a tensor if memory allows
    files: tuple[Path, ...] | None = None  # the file of each image, if there is one
    bilinear_pixels: Pixels | None = None  # resized with a bilinear filter, if a view needs them
    aspect: Tensor | None = None  # float32 (N,), original width / height, if known
    # (N, views, D), fixed views as embedded by a frozen backbone; the model reads them, not pixels.
    embeddings: Tensor | None = None
    original_sizes: Tensor | None = None  # int64 (N, 2), original height and width, if known
    # Non-zero where a pixel is known to have no class, such as the car bonnet.
    void_masks: LabelMaps | None = None
    unreadable: tuple[UnreadableFile, ...] = ()  # files that were skipped
    # Values of black and white in files with more than 8 bits per value, if known.
    value_range: ValueRange | None = None

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            found = f"{self.pixels.dtype} {tuple(self.pixels.shape)}"
            raise UserError(f"pixels must be uint8 (N, channels, height, width), not {found}")
        if self.bilinear_pixels is not None and self.bilinear_pixels.shape != self.pixels.shape:
            shapes = tuple(self.bilinear_pixels.shape), tuple(self.pixels.shape)
            raise ValueError(f"bilinear pixels of shape {shapes[0]}, other pixels of shape {shapes[1]}")
        if self.embeddings is not None and (
            self.embeddings.ndim != 3 or len(self.embeddings) != len(self.pixels)
        ):
            raise ValueError(
                f"embeddings of shape {tuple(self.embeddings.shape)} for {len(self.pixels)} images"
            )
        if len(self.keys) != len(self.pixels):
            raise ValueError(f"{len(self.keys)} keys for {len(self.pixels)} images")
        if self.aspect is not None and self.aspect.shape != (len(self.pixels),):
            raise ValueError(f"aspects of shape {tuple(self.aspect.shape)} for {len(self.pixels)} images")
        if self.original_sizes is not None and self.original_sizes.shape != (len(self.pixels), 2):
            raise ValueError(
                f"sizes of shape {tuple(self.original_sizes.shape)} for {len(self.pixels)} images"
            )
        if len(set(self.keys)) != len(self.keys):
            duplicate = next(k for k in self.keys if self.keys.count(k) > 1)
            raise UserError(f"two images have the key {duplicate!r}; keys must be unique")

    def pixels_for(self, view: View) -> Pixels:
        """Return the pixels that the view is applied to."""
        if view.interpolation == "bicubic":
            return self.pixels
        if self.bilinear_pixels is None:
            raise ValueError("the view needs pixels that were resized with a bilinear filter")
        return self.bilinear_pixels

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {tuple(self.pixels.shape[1:])})"


class Subset:
    """Subset of pixels or label maps by index, without copying."""

    def __init__(self, parent: Indexable, index: Tensor) -> None:
        self._parent, self._index = parent, index
        self.shape = torch.Size((len(index), *parent.shape[1:]))
        self.dtype, self.ndim = parent.dtype, parent.ndim

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        found: Tensor = self._parent[self._index[index]]
        return found

    def original(self, index: int) -> Tensor:
        """Return a label map at its original size."""
        return original_map(self._parent, int(self._index[index]))

    def digest(self, index: int) -> bytes:
        """Return the digest of an image's pixels."""
        return pixel_digest(self._parent, int(self._index[index]))


class RenumberedMaps:
    """Label maps with other class numbers, without copying.

    Args:
        numbers: new number of each class.
    """

    def __init__(self, parent: LabelMaps, numbers: Tensor) -> None:
        self._parent, self._numbers = parent, numbers
        self.shape, self.ndim = parent.shape, parent.ndim
        self.dtype = torch.int8 if int(numbers.max()) <= torch.iinfo(torch.int8).max else torch.int16

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        return self._renumber(self._parent[index])

    def original(self, index: int) -> Tensor:
        """Return a label map at its original size."""
        return self._renumber(original_map(self._parent, index))

    def _renumber(self, labels: Tensor) -> Tensor:
        return renumber(labels, self._numbers.to(labels.device)).to(self.dtype)


def renumber(labels: Tensor, numbers: Tensor) -> Tensor:
    """Return labels with other class numbers; negative labels stay.

    >>> renumber(torch.tensor([1, 0, UNLABELLED]), torch.tensor([5, 7]))
    tensor([ 7,  5, -1])
    """
    return torch.where(labels >= 0, numbers[labels.clamp(min=0).long()], labels)


def subset_images(images: Images, index: Tensor) -> Images:
    """Return the images at these indices, without copying pixels, and without the list of skipped files."""
    indices = index.tolist()
    return replace(
        images,
        keys=tuple(images.keys[i] for i in indices),
        pixels=Subset(images.pixels, index),
        files=None if images.files is None else tuple(images.files[i] for i in indices),
        bilinear_pixels=None if images.bilinear_pixels is None else Subset(images.bilinear_pixels, index),
        aspect=None if images.aspect is None else images.aspect[index],
        embeddings=None if images.embeddings is None else images.embeddings[index],
        original_sizes=None if images.original_sizes is None else images.original_sizes[index],
        void_masks=None if images.void_masks is None else Subset(images.void_masks, index),
        unreadable=(),
    )


def no_images(images: Images) -> Images:
    """Return an empty set of images with the stored shape of others."""
    return subset_images(images, torch.zeros(0, dtype=torch.long))


def labelled_subset(images: Images, labels: Tensor, classes: Sequence[str]) -> "Domain":
    """Return the images of a pool that have a label (N,), without copying pixels; others are negative."""
    labelled = (labels >= 0).nonzero().squeeze(1)
    return Domain(subset_images(images, labelled), labels[labelled], tuple(classes))


def subset_labels(labels: Labels, index: Tensor) -> Labels:
    """Return the labels at these indices, without copying label maps."""
    return labels[index] if labels.ndim == 1 else Subset(labels, index)


def rows_of(images: Images, keys: Sequence[str], rows: Tensor) -> Tensor:
    """Return the rows of images from those of all ``keys`` (N, ...); images may have been skipped."""
    if len(images) == len(keys):
        return rows
    kept = frozenset(images.keys)
    return rows[torch.tensor([key in kept for key in keys])]


@dataclass(frozen=True)
class Domain:
    """Images with labels: a source or a test set, never a pool. A source may be empty, see `fit_streams`."""

    images: Images
    labels: Labels  # index into classes, per image or per pixel
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.images):
            raise ValueError(f"{len(self.labels)} labels for {len(self.images)} images")
        if self.per_pixel and self.labels.shape[1:] != self.images.pixels.shape[2:]:
            maps, images = tuple(self.labels.shape[1:]), tuple(self.images.pixels.shape[2:])
            raise ValueError(f"label maps of {maps} for images of {images}")

    @property
    def per_pixel(self) -> bool:
        """Whether labels are per pixel rather than per image."""
        return self.labels.ndim == 3

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Domain({self.images!r}, {len(self.classes)} classes)"


@dataclass(frozen=True)
class AdaptationData:
    """Data of an adaptation problem: labelled source, unlabelled pool, ground truth and test set."""

    source: Domain
    pool: Images
    ground_truth: Labels | None = None  # the pool's labels, only for a simulated oracle
    test: Domain | None = None  # held out, for evaluation only
    target_only_classes: tuple[str, ...] = ()  # of ground truth and test set, after those of the source

    def __repr__(self) -> str:
        known = "unknown" if self.ground_truth is None else "known to an oracle"
        return (
            f"AdaptationData(source={self.source!r}, pool={self.pool!r}, ground truth {known}, "
            f"test={self.test!r})"
        )

    @property
    def image_sets(self) -> dict[str, Images]:
        """Images of source, target and, if there is one, test set."""
        test = {} if self.test is None else {"test": self.test.images}
        return {"source": self.source.images, "target": self.pool, **test}

    @property
    def classes(self) -> Sequence[str]:
        """Class names, in the order of the source."""
        return self.source.classes

    @property
    def all_classes(self) -> tuple[str, ...]:
        """Class names with those that the source lacks, in the order of ground truth and test set."""
        return (*self.source.classes, *self.target_only_classes)
