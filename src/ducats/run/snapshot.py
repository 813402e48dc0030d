"""Snapshots of the model's outputs, thumbnails of the selected images, and the fitted temperature."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats.annotation.oracles.display_image import load_display_image
from ducats.data.domain import UNLABELLED, Images
from ducats.evaluation.metrics import Tally, compute_metrics, reliability_bins
from ducats.evaluation.temperature_scaling import optimal_temperature
from ducats.ledger import Request, load_request
from ducats.run.select import RequestSelector
from ducats.runfolder import snapshot_files
from ducats.runfolder.run_folder import RunFolder
from ducats.training.auxiliary import compatible_view
from ducats.training.distributed import on_rank_zero
from ducats.training.model_snapshot import (
    MAX_PICKS,
    SampleOutputs,
    SnapshotSample,
    evenly_spaced,
    make_snapshot,
    predict_sample,
    random_indices,
    sample_images,
    sample_pixels,
)
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.files import write_atomically
from ducats.utils.randomness import derive_seed, global_seed

MAX_POOL_IMAGES, MAX_SOURCE_IMAGES = 100, 30  # images whose pixels are sampled
MAX_THUMBNAILS, MAX_SEGMENTATION_THUMBNAILS = 100, 6  # thumbnails per round
THUMBNAIL_SIDE = 160  # longest side of a thumbnail
MIN_JPEG_SIDE = 64  # shorter side below which PNG replaces JPEG
_IMAGE_CHANNELS = (1, 3, 4)  # numbers of channels that can be saved as an image


def save_snapshot(selector: RequestSelector, round_number: int, epoch: int, rounds: int) -> None:
    """Save the model's outputs on a sample, unless the file exists; training and selection are unaffected.

    Args:
        selector: holds model, data and run folder.
        round_number: the current round, 0 at the end of the run.
        epoch: number of completed epochs.
        rounds: number of rounds labelled before.
    """
    plan, run_folder, fabric = selector.plan, selector.run_folder, selector.fabric
    path = snapshot_files.snapshot_path(run_folder.path, round_number)
    if not plan.snapshot_samples or on_rank_zero(fabric, path.exists):
        return
    request = on_rank_zero(fabric, lambda: load_request(run_folder, round_number)) if round_number else None
    per_pixel = selector.components.source.per_pixel
    pool, source = on_rank_zero(
        fabric,
        lambda: (_sample_pixels if per_pixel else _sample_images)(
            selector, request, rounds, plan.snapshot_samples
        ),
    )
    # A custom network may use random numbers even in evaluation mode.
    with global_seed(0, "snapshot", round_number):
        outputs = _predict_samples(selector, round_number, pool, source)

    def save() -> None:
        save_thumbnails(run_folder, selector.components.pool, images_with_thumbnails(selector, request, pool))
        snapshot_files.write_snapshot_file(
            run_folder.path, make_snapshot(round_number, epoch, (pool, outputs[0]), (source, outputs[1]))
        )

    on_rank_zero(fabric, save)


def _sample_images(
    selector: RequestSelector, request: Request | None, rounds: int, max_samples: int
) -> tuple[SnapshotSample, SnapshotSample]:
    known = selector.get_ledger().targets(rounds)
    pool = sample_images("pool", known, max_samples, None if request is None else request.image)
    labels = selector.components.source.labels[:].cpu()
    return pool, sample_images("source", labels, source_samples(max_samples))


def _sample_pixels(
    selector: RequestSelector, request: Request | None, rounds: int, max_samples: int
) -> tuple[SnapshotSample, SnapshotSample]:
    components = selector.components
    before, now = selector.label_maps_after(0), selector.label_maps_after(rounds)
    labels = components.source.labels
    pool = sample_pixels(
        "pool",
        label_grid_sizes(components.pool, components.task.resolution),
        lambda image: before.at_label_resolution(image) == UNLABELLED,
        now.at_label_resolution,
        max_samples,
        MAX_POOL_IMAGES,
        request,
    )
    source = sample_pixels(
        "source",
        label_grid_sizes(components.source.images, "network"),
        lambda image: labels[image] >= 0,
        lambda image: labels[image],
        source_samples(max_samples),
        MAX_SOURCE_IMAGES,
    )
    return pool, source


def source_samples(max_samples: int) -> int:
    """Return the number of source samples: a third of the pool's.

    >>> source_samples(3000), source_samples(1)
    (1000, 1)
    """
    return -(-max_samples // 3)


def _predict_samples(
    selector: RequestSelector, round_number: int, pool: SnapshotSample, source: SnapshotSample
) -> tuple[SampleOutputs, SampleOutputs]:
    components, was_training = selector.components, selector.model.training
    stream = "query" if components.source.per_pixel else "scoring"
    # With the same seed, a random view augments the pool as it did when the request was selected.
    seed = derive_seed(selector.plan.seed, stream, round_number) if round_number else 0
    predict_kwargs: dict[str, Any] = {
        "batch_size": selector.plan.scoring_batch_size,
        "classes": len(components.source.classes),
        "n_features": selector.auxiliaries.n_features,
        "fabric": selector.fabric,
    }
    images, view = components.source.images, components.views.scoring
    source_view = compatible_view(images, view)
    pool_sizes = source_sizes = None
    if components.source.per_pixel:
        predict_kwargs |= {"two_step_upsampling": components.task.two_step_upsampling}
        pool_sizes = label_grid_sizes(components.pool, components.task.resolution)
        source_sizes = label_grid_sizes(images, "network")
    elif images.pixels.shape[1:] != components.pool.pixels.shape[1:]:
        source_view = components.views.source  # the network is known to accept images of that size
    try:
        return (
            predict_sample(
                selector.model,
                components.pool,
                pool,
                view=view,
                seed=seed,
                sizes=pool_sizes,
                **predict_kwargs,
            ),
            predict_sample(
                selector.model, images, source, view=source_view, sizes=source_sizes, **predict_kwargs
            ),
        )
    finally:
        selector.model.train(was_training)


# ---- thumbnails


def images_with_thumbnails(
    selector: RequestSelector, request: Request | None, pool: SnapshotSample
) -> list[int]:
    """Return the pool images that get a thumbnail."""
    components = selector.components
    if components.selects_pixels:
        sampled_images: list[int] = pool.image.unique().tolist()
        return [
            sampled_images[index]
            for index in random_indices(len(sampled_images), MAX_SEGMENTATION_THUMBNAILS, "pictures")
        ]
    if request is None:
        return []
    max_thumbnails = MAX_SEGMENTATION_THUMBNAILS if components.source.per_pixel else MAX_THUMBNAILS
    selected: list[int] = evenly_spaced(
        evenly_spaced(torch.from_numpy(request.pixel_runs.image), MAX_PICKS), max_thumbnails
    ).tolist()
    return selected


def save_thumbnails(run_folder: RunFolder, pool: Images, images: list[int]) -> None:
    """Save thumbnails of images that have none yet and can be shown."""
    if pool.files is None and pool.pixels.shape[1] not in _IMAGE_CHANNELS:
        return
    for image in images:
        if snapshot_files.find_thumbnail(run_folder.path, image) is not None:
            continue
        try:
            thumbnail = load_display_image(pool, image)
        except UserError:  # the file is missing; the thumbnail is optional
            continue
        thumbnail.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        is_small = min(thumbnail.size) < MIN_JPEG_SIDE
        path = snapshot_files.thumbnail_path(run_folder.path, image, "png" if is_small else "jpg")
        options = {"format": "PNG"} if is_small else {"format": "JPEG", "quality": 85}
        write_atomically(path, partial(thumbnail.save, **options))


# ---- temperature


def calibration_record(tally: Tally) -> dict[str, Any]:
    """Return the metrics that temperature scaling changes, for the record."""
    metrics = compute_metrics(tally)
    return {
        **{name: metrics[name] for name in ("ece", "nll", "brier")},
        "reliability": reliability_bins(tally),
    }


class FittedTemperature(NamedTuple):
    """A temperature and the number of labels it was fitted on."""

    temperature: float
    labels: int


def fit_temperature(run_folder: RunFolder, rounds: int) -> FittedTemperature | None:
    """Fit a temperature on the labels of the first rounds.

    The logits are those of the snapshot before each round, when the model had not been trained on the labels.
    Returns None if there are too few labels or no snapshots.
    """
    z, labels = list[Tensor](), list[Tensor]()
    for round_number in range(1, rounds + 1):
        path, labelled = (
            snapshot_files.snapshot_path(run_folder.path, round_number),
            run_folder.load_round_labels(round_number),
        )
        if labelled is None or not len(labelled.label) or not path.exists():
            continue
        saved = snapshot_files.load_snapshot(path)
        saved_locations = saved.image[saved.z_rows].astype(np.int64) << 32 | saved.position[saved.z_rows]
        labelled_locations = labelled.image << 32 | labelled.position
        order = np.argsort(labelled_locations)
        index = order[
            np.searchsorted(labelled_locations, saved_locations, sorter=order).clip(max=len(order) - 1)
        ]
        is_match = labelled_locations[index] == saved_locations
        z.append(torch.from_numpy(saved.z[is_match]))
        labels.append(torch.from_numpy(labelled.label[index[is_match]].astype(np.int64)))
    if not z:
        return None
    all_labels = torch.cat(labels)
    temperature = optimal_temperature(torch.cat(z), all_labels)
    return None if temperature is None else FittedTemperature(temperature, int((all_labels >= 0).sum()))
