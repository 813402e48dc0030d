"""Embed images once with a frozen backbone, in fixed views; a cache on disk keeps the embeddings."""

import math
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ducats.data.domain import Images, pixel_digest
from ducats.data.embedding_cache import EmbeddingCache, EmbeddingSpace, image_key
from ducats.data.views import apply_view, sample_view_params
from ducats.models.classifier import Classifier
from ducats.models.freezing import (
    EmbeddingNetwork,
    backbone_digest,
    backbone_name,
    embedding_dtype,
    embedding_width,
)
from ducats.settings import StreamViews, View
from ducats.training import placement
from ducats.training.distributed import precision_name
from ducats.utils.errors import UserError
from ducats.utils.progress import activity
from ducats.utils.randomness import make_generator
from ducats.utils.resources import free_memory_gb

CROP_SCALE = (0.35, 1.0)  # range of the area fraction of a fixed crop
BATCH_IMAGES = 32  # images per forward pass
BATCH_PIXELS = 2**19  # in segmentation: pixels per forward pass, at least one image
STORE_EVERY_IMAGES = 256  # images per write to the cache
STORE_EVERY_BYTES = 2**26  # in segmentation
MAX_MEMORY_SHARE = 0.5  # share of the free memory for embeddings; beyond it they go to a temporary file


@dataclass(frozen=True)
class FixedView:
    """A view without randomness: a deterministic view, or one draw of a random view for all images."""

    name: str
    view: View
    mirrored: bool = False
    draw: int = 0  # number of the draw of a random view

    def describe(self) -> dict[str, Any]:
        """Return all that the view's pixels depend on, as JSON values."""
        settings = {name: value for name, value in asdict(self.view).items() if value is not None}
        return {"view_name": self.name, "view": settings, "mirrored": self.mirrored, "draw": self.draw}

    def apply(self, stored: Tensor, aspect: Tensor | None) -> Tensor:
        """Apply the view to stored images, on their device."""
        height, width = stored.shape[-2:]

        def params(count: int, aspect: Tensor | None) -> Tensor:
            generator = make_generator(self.draw, "fixed view")
            return sample_view_params(self.view, count, height, width, generator, aspect)

        if not self.view.is_random:
            aug_params = params(len(stored), aspect)
        elif aspect is None:
            aug_params = params(1, None).repeat(len(stored), 1)
        else:  # the same draw for each aspect ratio
            aug_params = torch.cat([params(1, one) for one in aspect.split(1)])
        augmented = apply_view(stored, self.view, aug_params.to(stored.device))
        return augmented.flip(-1) if self.mirrored else augmented


def fixed_views(views: StreamViews, *, per_pixel: bool = False) -> list[FixedView]:
    """Return the fixed views of a frozen backbone: the test view, its mirror image, crops.

    Args:
        per_pixel: whether label maps must follow the views; then there are two, see `count_pixel_views`.
    """
    centre, mirror = FixedView("centre", views.test), FixedView("mirror", views.test, mirrored=True)
    if per_pixel:
        return [centre, mirror]
    crop = View(
        interpolation=views.test.interpolation,
        crop="random_resized",
        size=views.test.size,
        scale=CROP_SCALE,
        flip=0.5,
    )
    crops = [FixedView(f"crop {n}", crop, draw=n) for n in range(1, views.embedded - 1)]
    return [centre, mirror, *crops][: views.embedded]


def count_pixel_views(trained_with: Iterable[View], *, is_evaluated: bool, average_flipped: bool) -> int:
    """Return how many fixed views of an image set are used in segmentation.

    Feature maps are large, so mirror images are embedded only if they are trained on or evaluated.

    Args:
        trained_with: views of the image set in training.
        is_evaluated: whether the images have test or audit labels.
    """
    is_mirrored = any(view.is_random for view in trained_with) or (is_evaluated and average_flipped)
    return 2 if is_mirrored else 1


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A frozen backbone with its fixed views and a cache."""

    network: EmbeddingNetwork  # on the device, in evaluation mode
    views: Sequence[FixedView]
    fabric: Fabric
    cache: EmbeddingCache
    backbone: dict[str, str]  # all that embeddings depend on besides image and view
    _opened: dict[tuple[FixedView, int], EmbeddingSpace] = field(default_factory=dict)

    @classmethod
    def build(
        cls, network: EmbeddingNetwork, views: Sequence[FixedView], fabric: Fabric, cache: EmbeddingCache
    ) -> "Embedder":
        """Move the network to the device."""
        backbone = {
            "backbone": backbone_name(network),
            "weights": backbone_digest(network),
            "precision": precision_name(fabric),
        }
        network = network.to(fabric.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        return cls(network=network, views=views, fabric=fabric, cache=cache, backbone=backbone)

    def find_missing(self, images: Images) -> list[Tensor]:
        """Return the indices of the images that are not in the cache, for each view."""
        keys = image_keys(images, self.views[0].view)
        known = [torch.from_numpy(space.lookup(keys, None)) for space in self._open_spaces(images)]
        return [(~of_view).nonzero().squeeze(1) for of_view in known]

    def image_bytes(self, images: Images) -> int:
        """Return the bytes of an embedding of one view."""
        return embedding_dtype(self.network).itemsize * embedding_width(
            self.network, self._input_size(images)
        )

    def embed(self, images: Images) -> Tensor:
        """Return the embeddings of all fixed views, ``(N, views, D)`` on the CPU; maps are flattened."""
        spaces, image_bytes = self._open_spaces(images), self.image_bytes(images)
        dtype = embedding_dtype(self.network)
        result = _allocate((len(images), len(self.views), image_bytes // dtype.itemsize), dtype)
        keys = image_keys(images, self.views[0].view)
        missing = []
        for number, space in enumerate(spaces):
            known = space.lookup(keys, result[:, number].numpy())
            missing.append(torch.from_numpy(~known).nonzero().squeeze(1))
        total = sum(map(len, missing))
        if not total:
            return result
        in_use = list(self._opened.values())
        stores = self.cache.make_room(image_bytes * total, in_use)
        if not stores and self.cache.max_bytes:
            needed = image_bytes * total + sum(space.size_bytes for space in in_use)
            warnings.warn(
                f"the embeddings need a cache of {needed / 2**30:.1f} GB, but it may have "
                f"{self.cache.max_bytes / 2**30:.1f} GB, so the next start computes {total} of them again; "
                f"raise the limit: --set engine.embedding_cache_gb={math.ceil(needed / 2**30) + 1}",
                stacklevel=2,
            )
        name, n_views = backbone_name(self.network), len(self.views)
        what = f"{len(images)} images" + (f" in {n_views} views" if n_views > 1 else "")
        batch_size = self.batch_size(images)
        store_every = max(batch_size, min(STORE_EVERY_IMAGES, STORE_EVERY_BYTES // image_bytes))
        store_every -= store_every % batch_size  # only the last batch of a view is filled with copies
        with activity(f"embedding {what} with {name}", total=total) as embedding:
            for number, (view, space, index) in enumerate(zip(self.views, spaces, missing, strict=True)):
                for block in index.split(store_every) if len(index) else ():
                    for batch in block.split(batch_size):
                        result[batch, number] = self.forward(images, batch, view)
                        embedding.advance(len(batch))
                    if stores:
                        space.append([keys[i] for i in block.tolist()], result[block, number].numpy())
        return result

    def embed_first_view(self, pixels: Tensor, aspect: Tensor | None) -> Tensor:
        """Return the embeddings of the first view for a batch of stored images, ``(N, D)`` on the CPU.

        Args:
            pixels: resized with the filter of the view.
        """
        names = tuple(map(str, range(len(pixels))))
        images = Images(names, pixels, bilinear_pixels=pixels, aspect=aspect)
        return replace(self, views=self.views[:1]).embed(images)[:, 0]

    def batch_size(self, images: Images) -> int:
        """Return the number of images per forward pass."""
        if isinstance(self.network, Classifier):
            return BATCH_IMAGES
        return max(1, BATCH_PIXELS // math.prod(self._input_size(images)))

    @torch.inference_mode()
    def forward(self, images: Images, index: Tensor, view: FixedView) -> Tensor:
        """Return the embeddings of at most `batch_size` images, ``(N, D)`` on the CPU."""
        # Rounding may depend on the shape of a batch, so all have the same: an embedding depends only on its
        # image, not on which others were in the cache.
        size = self.batch_size(images)
        count, index = len(index), index.repeat(-(-size // len(index)))[:size]
        stored = placement.index_to_device(images.pixels_for(view.view), index, self.fabric.device)
        pixels = view.apply(stored, None if images.aspect is None else images.aspect[index])
        with self.fabric.autocast():
            embeddings = self.network.embed(pixels.contiguous(memory_format=torch.channels_last))
        embeddings, dtype = embeddings[:count].float(), embedding_dtype(self.network)
        if dtype != torch.float32:
            largest = torch.finfo(dtype).max
            embeddings = embeddings.clamp(-largest, largest).to(dtype)
        return embeddings.cpu()

    def _input_size(self, images: Images) -> tuple[int, int]:
        """Return height and width of the network's input."""
        height, width = images.pixels.shape[-2:]
        return self.views[0].view.output_size(height, width)

    def prepare(self, images: Images) -> int:
        """Open the space of each view, so that others do not displace it; return the bytes of all embeddings.

        Raises if the embeddings could not be told from those of images of another size.
        """
        self._open_spaces(images)
        return len(images) * len(self.views) * self.image_bytes(images)

    def _open_spaces(self, images: Images) -> list[EmbeddingSpace]:
        """Return the space of each view in the cache."""
        width = embedding_width(self.network, self._input_size(images))
        half = embedding_dtype(self.network) == torch.float16
        for view in self.views:
            if (view, width) not in self._opened:
                description = {**self.backbone, **view.describe()}
                self._opened[view, width] = self.cache.open(description, width, "<f2" if half else "<f4")
        return [self._opened[view, width] for view in self.views]


def embed_image_sets(image_sets: Sequence[tuple[Embedder, Images]]) -> list[Tensor]:
    """Return the embeddings of several image sets; raise before the first one if they do not fit.

    Args:
        image_sets: images with the embedder of their views; all embedders are of one network.
    """
    n_bytes, free_gb = sum(embedder.prepare(images) for embedder, images in image_sets), free_memory_gb()
    if free_gb is not None:
        _check_disk(n_bytes - MAX_MEMORY_SHARE * free_gb * 2**30)
    return [embedder.embed(images) for embedder, images in image_sets]


def image_keys(images: Images, view: View) -> list[bytes]:
    """Return the digest of each image's pixels and, if the view depends on it, of its aspect ratio."""
    aspects: Sequence[float | None] = [None] * len(images)
    if images.aspect is not None and view.resize == "short_side":
        aspects = images.aspect.tolist()
    pixels = images.pixels_for(view)
    return [image_key(pixel_digest(pixels, i), aspect) for i, aspect in enumerate(aspects)]


def _allocate(shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Return a tensor in memory or, if it is large, in a temporary file that is freed with it."""
    n_bytes, free = dtype.itemsize * math.prod(shape), free_memory_gb()
    if free is None or n_bytes <= MAX_MEMORY_SHARE * free * 2**30:
        return torch.zeros(shape, dtype=dtype)
    with tempfile.TemporaryDirectory(prefix="ducats-", ignore_cleanup_errors=True) as folder:
        _check_disk(n_bytes)
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        array: NDArray[Any] = np.memmap(Path(folder) / "embeddings", numpy_dtype, "w+", shape=shape)
        return torch.from_numpy(array)


def _check_disk(n_bytes: float) -> None:
    """Raise if so much does not fit on the disk: writing to a mapped file there would kill the process."""
    folder = tempfile.gettempdir()
    free_bytes = shutil.disk_usage(folder).free
    if n_bytes > free_bytes:
        raise UserError(
            f"embeddings of {n_bytes / 2**30:.1f} GB do not fit in memory, and {folder} has only "
            f"{free_bytes / 2**30:.1f} GB free; set TMPDIR to a folder with more, use smaller images "
            "(data.params.size) or a larger model.params.output_stride, or set model.freeze=none"
        )
