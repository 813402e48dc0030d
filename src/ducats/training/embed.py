"""Embed images once with a frozen backbone, in fixed views; a cache on disk keeps the embeddings."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
from ducats.models.freezing import backbone_digest, backbone_name
from ducats.settings import StreamViews, View
from ducats.training import placement
from ducats.training.distributed import precision_name
from ducats.utils.progress import activity
from ducats.utils.randomness import make_generator
from ducats.utils.resources import free_memory_gb

CROP_SCALE = (0.35, 1.0)  # range of the area fraction of a fixed crop
BATCH_IMAGES = 32  # images per forward pass
STORE_EVERY_IMAGES = 256  # images per write to the cache
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


def fixed_views(views: StreamViews) -> list[FixedView]:
    """Return the fixed views of a frozen backbone: the test view, its mirror image, crops."""
    centre, mirror = FixedView("centre", views.test), FixedView("mirror", views.test, mirrored=True)
    crop = View(
        interpolation=views.test.interpolation,
        crop="random_resized",
        size=views.test.size,
        scale=CROP_SCALE,
        flip=0.5,
    )
    crops = [FixedView(f"crop {n}", crop, draw=n) for n in range(1, views.embedded - 1)]
    return [centre, mirror, *crops][: views.embedded]


@dataclass(frozen=True, kw_only=True)
class Embedder:
    """A frozen backbone with its fixed views and a cache."""

    network: Classifier  # on the device, in evaluation mode
    views: Sequence[FixedView]
    fabric: Fabric
    cache: EmbeddingCache
    spaces: Sequence[EmbeddingSpace]  # of the cache, one per view

    @classmethod
    def build(
        cls, network: Classifier, views: Sequence[FixedView], fabric: Fabric, cache: EmbeddingCache
    ) -> "Embedder":
        """Move the network to the device and open a space for each view."""
        common = {
            "backbone": backbone_name(network),
            "weights": backbone_digest(network),
            "precision": precision_name(fabric),
        }
        width = network.embedding_width
        spaces = [cache.open({**common, **view.describe()}, width) for view in views]
        network = network.to(fabric.device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        return cls(network=network, views=views, fabric=fabric, cache=cache, spaces=spaces)

    def find_missing(self, images: Images) -> list[Tensor]:
        """Return the indices of the images that are not in the cache, for each view."""
        keys = image_keys(images, self.views[0].view)
        unused = np.empty((len(keys), self.network.embedding_width), np.float32)
        known = [torch.from_numpy(space.lookup(keys, unused)) for space in self.spaces]
        return [(~of_view).nonzero().squeeze(1) for of_view in known]

    def embed(self, images: Images) -> Tensor:
        """Return the embeddings of all fixed views: float32 ``(N, views, D)`` on the CPU."""
        width = self.network.embedding_width
        result = _allocate((len(images), len(self.views), width))
        keys = image_keys(images, self.views[0].view)
        missing = []
        for number, space in enumerate(self.spaces):
            rows = np.empty((len(keys), width), np.float32)
            known = space.lookup(keys, rows)
            result[:, number] = torch.from_numpy(rows)
            missing.append(torch.from_numpy(~known).nonzero().squeeze(1))
        total = sum(map(len, missing))
        if not total:
            return result
        stores = self.cache.make_room(4 * width * total, self.spaces)
        name, n_views = backbone_name(self.network), len(self.views)
        what = f"{len(images)} images" + (f" in {n_views} views" if n_views > 1 else "")
        with activity(f"embedding {what} with {name}", total=total) as embedding:
            for number, (view, space, index) in enumerate(zip(self.views, self.spaces, missing, strict=True)):
                for block in index.split(STORE_EVERY_IMAGES) if len(index) else ():
                    for batch in block.split(BATCH_IMAGES):
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
        return replace(self, views=self.views[:1], spaces=self.spaces[:1]).embed(images)[:, 0]

    @torch.inference_mode()
    def forward(self, images: Images, index: Tensor, view: FixedView) -> Tensor:
        """Return the embeddings of at most `BATCH_IMAGES` images, ``(N, D)`` on the CPU."""
        # Rounding may depend on the shape of a batch, so all have the same: an embedding depends only on its
        # image, not on which others were in the cache.
        count, index = len(index), index.repeat(-(-BATCH_IMAGES // len(index)))[:BATCH_IMAGES]
        stored = placement.index_to_device(images.pixels_for(view.view), index, self.fabric.device)
        pixels = view.apply(stored, None if images.aspect is None else images.aspect[index])
        with self.fabric.autocast():
            embeddings = self.network.embed(pixels.contiguous(memory_format=torch.channels_last))
        return embeddings[:count].float().cpu()


def image_keys(images: Images, view: View) -> list[bytes]:
    """Return the digest of each image's pixels and, if the view depends on it, of its aspect ratio."""
    aspects: Sequence[float | None] = [None] * len(images)
    if images.aspect is not None and view.resize == "short_side":
        aspects = images.aspect.tolist()
    pixels = images.pixels_for(view)
    return [image_key(pixel_digest(pixels, i), aspect) for i, aspect in enumerate(aspects)]


def _allocate(shape: tuple[int, int, int]) -> Tensor:
    """Return a tensor in memory or, if it is large, in a temporary file that is freed with it."""
    gigabytes, free = 4 * math.prod(shape) / 2**30, free_memory_gb()
    if free is None or gigabytes <= MAX_MEMORY_SHARE * free:
        return torch.zeros(shape)
    with tempfile.TemporaryDirectory(prefix="ducats-", ignore_cleanup_errors=True) as folder:
        array: NDArray[np.float32] = np.memmap(Path(folder) / "embeddings", np.float32, "w+", shape=shape)
        return torch.from_numpy(array)
