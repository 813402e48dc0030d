"""Take a snapshot of an untrained model on several processes. Run by test_snapshot_sample.py."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ducats.data import toy
from ducats.data.domain import UNLABELLED, VOID, AdaptationData
from ducats.data.streets import streets
from ducats.ledger import Request
from ducats.models import EvidentialModel, small_cnn, small_fcn
from ducats.run.snapshot_sample import (
    SnapshotSample,
    make_snapshot,
    predict_sample,
    sample_images,
    sample_pixels,
)
from ducats.runfolder import snapshot_files
from ducats.settings import View
from ducats.training.distributed import make_fabric
from ducats.training.predictor import Predictor
from ducats.training.task import label_grid_sizes
from ducats.utils.randomness import global_seed

HEIGHT, WIDTH = 16, 32
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
    return streets(n_source=3, n_pool=count, n_test=1, height=HEIGHT, width=WIDTH)


def image_samples(data: AdaptationData, max_count: int) -> tuple[SnapshotSample, SnapshotSample]:
    """Return samples of the pool, with two picks and two known labels, and of the source."""
    known_labels = torch.full((len(data.pool),), UNLABELLED)
    known_labels[[1, 2]] = torch.tensor([3, VOID])
    return (
        sample_images("pool", known_labels, max_count, torch.tensor([len(data.pool) - 1, 0])),
        sample_images("source", torch.as_tensor(data.source.labels[:]), 5),
    )


def pixel_samples(
    data: AdaptationData, max_count: int, max_images: int = 100
) -> tuple[SnapshotSample, SnapshotSample]:
    """Likewise for pixels: two picks and three known labels in each image; the first row is void."""
    pool_size = len(data.pool)
    requested = torch.arange(pool_size).repeat_interleave(2), torch.tensor([40, 300]).repeat(pool_size)

    def known_labels_of(_: int) -> torch.Tensor:
        found = torch.full((HEIGHT, WIDTH), UNLABELLED)
        found[5, 7:10] = torch.tensor([0, 2, VOID])
        return found

    def valid_mask_of(_: int) -> torch.Tensor:
        return torch.arange(HEIGHT)[:, None].expand(HEIGHT, WIDTH) > 0

    labels = data.source.labels
    return (
        sample_pixels(
            "pool",
            label_grid_sizes(data.pool, "network"),
            valid_mask_of,
            known_labels_of,
            max_count,
            max_images,
            Request(1, *requested),
        ),
        sample_pixels(
            "source",
            label_grid_sizes(data.source.images, "network"),
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
    data = toy(n_pool=count)
    pool, source = image_samples(data, 4)
    predictor = Predictor(model=fabric.setup(image_model()), view=RANDOM_VIEW, batch_size=2, fabric=fabric)
    outputs = (
        predict_sample(predictor, data.pool, pool, classes=4, n_features=8),
        predict_sample(predictor, data.source.images, source, classes=4, n_features=8),
    )
    first = make_snapshot(1, 3, (pool, outputs[0]), (source, outputs[1]))
    data = make_streets(count)
    pool, source = pixel_samples(data, 9)
    maps = replace(predictor, model=fabric.setup(map_model(len(data.classes))), view=View())
    kwargs: dict[str, Any] = {"classes": len(data.classes), "n_features": n_features_of(data)}
    sizes = [label_grid_sizes(images, "network") for images in (data.pool, data.source.images)]
    outputs = (
        predict_sample(maps, data.pool, pool, sizes=sizes[0], **kwargs),
        predict_sample(maps, data.source.images, source, sizes=sizes[1], **kwargs),
    )
    second = make_snapshot(2, 4, (pool, outputs[0]), (source, outputs[1]))
    if fabric.is_global_zero:
        for one in (first, second):
            snapshot_files.write_snapshot_file(out, one)


def n_features_of(data: AdaptationData) -> int:
    """Return the number of features of the segmentation model."""
    with torch.no_grad():
        features = map_model(len(data.classes))(torch.zeros(1, 3, HEIGHT, WIDTH)).features
    assert features is not None
    return int(features.shape[1])
