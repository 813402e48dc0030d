"""Snapshots of the model's outputs, and thumbnails of the selected images."""

from dataclasses import replace
from functools import partial

import torch

from ducats.annotation.oracles.display_image import load_display_image
from ducats.data.domain import UNLABELLED, Images
from ducats.ledger import Ledger, Request, load_request
from ducats.run.context import RunContext
from ducats.run.snapshot_sample import (
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
from ducats.runfolder import checksums, snapshot_files
from ducats.runfolder.run_folder import RunFolder
from ducats.training.task import label_grid_sizes
from ducats.utils.errors import UserError
from ducats.utils.randomness import global_seed

MAX_POOL_IMAGES, MAX_SOURCE_IMAGES = 100, 30  # images whose pixels are sampled
MAX_THUMBNAILS, MAX_SEGMENTATION_THUMBNAILS = 100, 6  # thumbnails per round
THUMBNAIL_SIDE = 160  # longest side of a thumbnail
MIN_JPEG_SIDE = 64  # shorter side below which PNG replaces JPEG
_IMAGE_CHANNELS = (1, 3, 4)  # numbers of channels that can be saved as an image


def save_snapshot(context: RunContext, round_number: int, epoch: int, rounds: int) -> None:
    """Save the model's outputs on a sample, unless the file exists; training and selection are unaffected.

    Args:
        round_number: the current round, 0 at the end of the run.
        rounds: number of rounds labelled before.
    """
    run_folder, max_samples = context.run_folder, context.plan.snapshot_samples
    path = snapshot_files.snapshot_path(run_folder.path, round_number)
    if not max_samples or context.on_rank_zero(path.exists):
        return
    request = context.on_rank_zero(lambda: load_request(run_folder, round_number)) if round_number else None
    if request is not None and not context.per_pixel:
        request = request.picks
    sample = _sample_pixels if context.per_pixel else _sample_images
    pool, source = context.from_ledger(lambda ledger: sample(context, ledger, request, rounds, max_samples))
    # A custom network may use random numbers even in evaluation mode.
    with global_seed(0, "snapshot", round_number):
        outputs = _predict_samples(context, round_number, pool, source)

    def save() -> None:
        save_thumbnails(run_folder, context.components.pool, images_with_thumbnails(context, request, pool))
        snapshot_files.write_snapshot_file(
            run_folder.path, make_snapshot(round_number, epoch, (pool, outputs[0]), (source, outputs[1]))
        )

    context.on_rank_zero(save)


def _sample_images(
    context: RunContext, ledger: Ledger, request: Request | None, rounds: int, max_samples: int
) -> tuple[SnapshotSample, SnapshotSample]:
    picked = None if request is None else request.image
    pool = sample_images("pool", ledger.targets(rounds), max_samples, picked)
    labels = context.components.source.labels[:].cpu()
    return pool, sample_images("source", labels, source_samples(max_samples))


def _sample_pixels(
    context: RunContext, _: Ledger, request: Request | None, rounds: int, max_samples: int
) -> tuple[SnapshotSample, SnapshotSample]:
    before, now = context.label_maps(0), context.label_maps(rounds)
    source = context.components.source
    pool_sample = sample_pixels(
        "pool",
        context.label_sizes,
        lambda image: before.at_label_resolution(image) == UNLABELLED,
        now.at_label_resolution,
        max_samples,
        MAX_POOL_IMAGES,
        request,
    )
    source_sample = sample_pixels(
        "source",
        label_grid_sizes(source.images, "network"),
        lambda image: source.labels[image] >= 0,
        lambda image: source.labels[image],
        source_samples(max_samples),
        MAX_SOURCE_IMAGES,
    )
    return pool_sample, source_sample


def source_samples(max_samples: int) -> int:
    """Return the number of source samples: a third of the pool's.

    >>> source_samples(3000), source_samples(1)
    (1000, 1)
    """
    return -(-max_samples // 3)


def _predict_samples(
    context: RunContext, round_number: int, pool: SnapshotSample, source: SnapshotSample
) -> tuple[SampleOutputs, SampleOutputs]:
    components, was_training = context.components, context.wrapped_model.training
    images, source_view = components.source.images, context.source_view()
    pool_sizes = source_sizes = None
    if context.per_pixel:
        pool_sizes, source_sizes = context.label_sizes, label_grid_sizes(images, "network")
    elif images.pixels.shape[1:] != components.pool.pixels.shape[1:]:
        source_view = components.views.source  # the network is known to accept images of that size
    predict = partial(
        predict_sample, classes=len(components.source.classes), n_features=context.auxiliaries.n_features
    )
    try:
        return (
            predict(context.round_predictor(round_number), components.pool, pool, sizes=pool_sizes),
            predict(replace(context.predictor(), view=source_view), images, source, sizes=source_sizes),
        )
    finally:
        context.wrapped_model.train(was_training)


# ---- thumbnails


def images_with_thumbnails(context: RunContext, request: Request | None, pool: SnapshotSample) -> list[int]:
    """Return the pool images that get a thumbnail."""
    components = context.components
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
        checksums.write(path, partial(thumbnail.save, **options))
