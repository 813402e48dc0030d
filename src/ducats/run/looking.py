"""Snapshots of the model's outputs, thumbnails of the selected images, and the fitted temperature."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import snapshot_files
from ducats.domain import UNLABELLED, Images
from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.ledger import Request
from ducats.metrics import Tally, compute_metrics, reliability_bins
from ducats.oracles.picture import picture
from ducats.randomness import global_seed, seed_of
from ducats.run.asking import Asking
from ducats.rundir import RunDir
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
from ducats.training.temperature_scaling import optimal_temperature

POOL_MAPS, SOURCE_MAPS = 100, 30  # images whose pixels are sampled
PICTURES, MAP_PICTURES = 100, 6  # thumbnails per round: of selected images; of images in segmentation
SIDE, SMALL = 160, 64  # longest side of a thumbnail; shorter side below which PNG replaces JPEG
SHOWABLE = (1, 3, 4)  # numbers of channels that can be saved as an image


def keep_snapshot(asking: Asking, number: int, epoch: int, rounds: int) -> None:
    """Save the model's outputs on a sample, unless the file exists; training and selection are unaffected.

    Args:
        asking: holds model, data and run folder.
        number: the current round, 0 at the end of the run.
        epoch: number of completed epochs.
        rounds: number of rounds labelled before.
    """
    plan, home, fabric = asking.plan, asking.home, asking.fabric
    path = snapshot_files.snapshot_path(home.folder, number)
    if not plan.snapshot or on_rank_zero(fabric, path.exists):
        return
    request = on_rank_zero(fabric, lambda: home.request(number)) if number else None
    of_pixels = asking.parts.source.of_pixels
    pool, source = on_rank_zero(
        fabric, lambda: (_maps if of_pixels else _images)(asking, request, rounds, plan.snapshot)
    )
    # A custom network may use random numbers even in evaluation mode.
    with global_seed(0, "snapshot", number):
        sights = _look(asking, number, pool, source)

    def keep() -> None:
        keep_pictures(home, asking.parts.pool, pictured(asking, request, pool))
        snapshot_files.write_snapshot_file(
            home.folder, make_snapshot(number, epoch, (pool, sights[0]), (source, sights[1]))
        )

    on_rank_zero(fabric, keep)


def _images(
    asking: Asking, request: Request | None, rounds: int, most: int
) -> tuple[SnapshotSample, SnapshotSample]:
    known = asking.ledger().targets(rounds)
    pool = sample_images("pool", known, most, None if request is None else request.image)
    labels = asking.parts.source.labels[:].cpu()
    return pool, sample_images("source", labels, of_source(most))


def _maps(
    asking: Asking, request: Request | None, rounds: int, most: int
) -> tuple[SnapshotSample, SnapshotSample]:
    parts = asking.parts
    before, now, labels = asking.maps(0), asking.maps(rounds), parts.source.labels
    pool = sample_pixels(
        "pool",
        label_grid_sizes(parts.pool, parts.task.resolution),
        lambda image: before.at(image) == UNLABELLED,
        now.at,
        most,
        POOL_MAPS,
        request,
    )
    source = sample_pixels(
        "source",
        label_grid_sizes(parts.source.images, "network"),
        lambda image: labels[image] >= 0,
        lambda image: labels[image],
        of_source(most),
        SOURCE_MAPS,
    )
    return pool, source


def of_source(most: int) -> int:
    """Return the number of source samples: a third of the pool's.

    >>> reads_source_and_head(3000), reads_source_and_head(1)
    (1000, 1)
    """
    return -(-most // 3)


def _look(
    asking: Asking, number: int, pool: SnapshotSample, source: SnapshotSample
) -> tuple[SampleOutputs, SampleOutputs]:
    parts, training = asking.parts, asking.model.training
    use = "query" if parts.source.of_pixels else "scoring"
    # With the same seed, a random view augments the pool as it did when the request was selected.
    seed = seed_of(asking.plan.seed, use, number) if number else 0
    how: dict[str, Any] = {
        "batch_size": asking.plan.scoring_batch,
        "classes": len(parts.source.classes),
        "n_features": asking.beside.n_features,
        "fabric": asking.fabric,
    }
    images, view = parts.source.images, parts.views.scoring
    of_source = compatible_view(images, view)
    pool_sizes = source_sizes = None
    if parts.source.of_pixels:
        how |= {"two_step_upsampling": parts.task.two_step_upsampling}
        pool_sizes = label_grid_sizes(parts.pool, parts.task.resolution)
        source_sizes = label_grid_sizes(images, "network")
    elif images.pixels.shape[1:] != parts.pool.pixels.shape[1:]:
        of_source = parts.views.source  # the network is known to accept images of that size
    try:
        return (
            predict_sample(asking.model, parts.pool, pool, view=view, seed=seed, sizes=pool_sizes, **how),
            predict_sample(asking.model, images, source, view=of_source, sizes=source_sizes, **how),
        )
    finally:
        asking.model.train(training)


# ---- thumbnails


def pictured(asking: Asking, request: Request | None, pool: SnapshotSample) -> list[int]:
    """Return the pool images that get a thumbnail."""
    parts = asking.parts
    if parts.buys_pixels:
        looked: list[int] = pool.image.unique().tolist()
        return [looked[place] for place in random_indices(len(looked), MAP_PICTURES, "pictures")]
    if request is None:
        return []
    most = MAP_PICTURES if parts.source.of_pixels else PICTURES
    kept: list[int] = evenly_spaced(
        evenly_spaced(torch.from_numpy(request.addresses.image), MAX_PICKS), most
    ).tolist()
    return kept


def keep_pictures(home: RunDir, pool: Images, images: list[int]) -> None:
    """Save thumbnails of images that have none yet and can be shown."""
    if pool.files is None and pool.pixels.shape[1] not in SHOWABLE:
        return
    for image in images:
        if snapshot_files.find_thumbnail(home.folder, image) is not None:
            continue
        try:
            shown = picture(pool, image)
        except UserError:  # the file is missing; the thumbnail is optional
            continue
        shown.thumbnail((SIDE, SIDE))
        small = min(shown.size) < SMALL
        path = snapshot_files.thumbnail_path(home.folder, image, "png" if small else "jpg")
        options = {"format": "PNG"} if small else {"format": "JPEG", "quality": 85}
        write_atomically(path, partial(shown.save, **options))


# ---- temperature


def calibration(tally: Tally) -> dict[str, Any]:
    """Return the metrics that temperature scaling changes, for the record."""
    numbers = compute_metrics(tally)
    return {
        **{name: numbers[name] for name in ("ece", "nll", "brier")},
        "reliability": reliability_bins(tally),
    }


class Fitted(NamedTuple):
    """A temperature and the number of labels it was fitted on."""

    temperature: float
    labels: int


def fitted(home: RunDir, rounds: int) -> Fitted | None:
    """Fit a temperature on the labels of the first rounds.

    The logits are those of the snapshot before each round, when the model had not been trained on the labels.
    Returns None if there are too few labels or no snapshots.
    """
    z, labels = list[Tensor](), list[Tensor]()
    for number in range(1, rounds + 1):
        path, bought = (
            snapshot_files.snapshot_path(home.folder, number),
            snapshot_files.load_round_labels(home.folder, number),
        )
        if bought is None or not len(bought.label) or not path.exists():
            continue
        then = snapshot_files.load_snapshot(path)
        asked = then.image[then.z_rows].astype(np.int64) << 32 | then.position[then.z_rows]
        address = bought.image << 32 | bought.position
        order = np.argsort(address)
        place = order[np.searchsorted(address, asked, sorter=order).clip(max=len(order) - 1)]
        there = address[place] == asked
        z.append(torch.from_numpy(then.z[there]))
        labels.append(torch.from_numpy(bought.label[place[there]].astype(np.int64)))
    if not z:
        return None
    known = torch.cat(labels)
    found = optimal_temperature(torch.cat(z), known)
    return None if found is None else Fitted(found, int((known >= 0).sum()))
