"""Take a snapshot of an untrained model on several processes. Run by test_snapshot.py."""

from pathlib import Path
from typing import Any

import torch

from ducats import snapshot_files
from ducats.data import toy
from ducats.data.streets import streets
from ducats.data.views import View
from ducats.domain import UNLABELLED, VOID, AdaptationData
from ducats.ledger import Request
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.randomness import global_seed
from ducats.training.distributed import make_fabric
from ducats.training.model_snapshot import (
    SnapshotSample,
    make_snapshot,
    predict_sample,
    sample_images,
    sample_pixels,
)
from ducats.training.task import label_grid_sizes

TALL, WIDE = 16, 32
RANDOM_VIEW = View(crop="random", pad=1)  # random augmentation, the harder case


def image_model() -> EvidentialModel:
    """Untrained model with four classes."""
    with global_seed(0, "model"):
        return EvidentialModel(small_cnn(classes=4, channels=3, width=4, features=8))


def map_model(classes: int) -> EvidentialModel:
    """Untrained segmentation model."""
    with global_seed(0, "model"):
        return EvidentialModel(small_fcn(classes=classes, channels=3, width=8))


def make_streets(count: int) -> AdaptationData:
    """Make synthetic streets: ``count`` pool images and three source images."""
    return streets(n_source=3, n_pool=count, n_test=1, height=TALL, width=WIDE)


def image_samples(shift: AdaptationData, most: int) -> tuple[SnapshotSample, SnapshotSample]:
    """Return samples of the pool, with two picks and two known labels, and of the source."""
    known = torch.full((len(shift.pool),), UNLABELLED)
    known[[1, 2]] = torch.tensor([3, VOID])
    return (
        sample_images("pool", known, most, torch.tensor([len(shift.pool) - 1, 0])),
        sample_images("source", torch.as_tensor(shift.source.labels[:]), 5),
    )


def pixel_samples(
    shift: AdaptationData, most: int, images: int = 100
) -> tuple[SnapshotSample, SnapshotSample]:
    """Likewise for pixels: two picks and three known labels in each image; the first row is void."""
    pool = len(shift.pool)
    asked = torch.arange(pool).repeat_interleave(2), torch.tensor([40, 300]).repeat(pool)

    def known(_: int) -> torch.Tensor:
        found = torch.full((TALL, WIDE), UNLABELLED)
        found[5, 7:10] = torch.tensor([0, 2, VOID])
        return found

    def open_(_: int) -> torch.Tensor:
        return torch.arange(TALL)[:, None].expand(TALL, WIDE) > 0

    labels = shift.source.labels
    return (
        sample_pixels(
            "pool", label_grid_sizes(shift.pool, "network"), open_, known, most, images, Request(1, *asked)
        ),
        sample_pixels(
            "source",
            label_grid_sizes(shift.source.images, "network"),
            lambda image: labels[image] >= 0,
            lambda image: labels[image],
            6,
            2,
        ),
    )


def main(processes: int, count: int, out: Path) -> None:
    torch.set_num_threads(1)
    fabric = make_fabric("cpu", processes)
    fabric.launch()
    how: dict[str, Any] = {"batch_size": 2, "fabric": fabric}
    shift = toy(n_pool=count)
    pool, source = image_samples(shift, 4)
    model = fabric.setup(image_model())
    how |= {"view": RANDOM_VIEW, "classes": 4, "width": 8}
    sights = (
        predict_sample(model, shift.pool, pool, **how),
        predict_sample(model, shift.source.images, source, **how),
    )
    first = make_snapshot(1, 3, (pool, sights[0]), (source, sights[1]))
    shift = make_streets(count)
    pool, source = pixel_samples(shift, 9)
    maps = fabric.setup(map_model(len(shift.classes)))
    how |= {"view": View(), "classes": len(shift.classes), "width": width_of(shift)}
    sizes = [label_grid_sizes(images, "network") for images in (shift.pool, shift.source.images)]
    sights = (
        predict_sample(maps, shift.pool, pool, sizes=sizes[0], **how),
        predict_sample(maps, shift.source.images, source, sizes=sizes[1], **how),
    )
    second = make_snapshot(2, 4, (pool, sights[0]), (source, sights[1]))
    if fabric.is_global_zero:
        for one in (first, second):
            snapshot_files.write_snapshot_file(out, one)


def width_of(shift: AdaptationData) -> int:
    """Return the number of features of the segmentation model."""
    with torch.no_grad():
        features = map_model(len(shift.classes))(torch.zeros(1, 3, TALL, WIDE)).features
    assert features is not None
    return int(features.shape[1])
