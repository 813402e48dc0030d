"""What a run leaves to be looked at: snapshots of its model, pictures of what it asked; what they tell."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ducats import snapshots
from ducats.domain import UNLABELLED, Images
from ducats.engine.beside import view_of
from ducats.engine.processes import on_chief
from ducats.engine.snapshot import (
    PICKED,
    Sample,
    Sight,
    sample_images,
    sample_pixels,
    seen,
    snapshot,
    some,
    spaced,
)
from ducats.engine.task import bought_sizes
from ducats.engine.tempering import temperature
from ducats.errors import UserError
from ducats.files import write_atomically
from ducats.ledger import Request
from ducats.metrics import Tally, compute, reliability
from ducats.oracles.picture import picture
from ducats.randomness import global_seed, seed_of
from ducats.run.asking import Asking
from ducats.rundir import RunDir

POOL_MAPS, SOURCE_MAPS = 100, 30  # images whose pixels are looked at
PICTURES, MAP_PICTURES = 100, 6  # kept of a round: images that are asked for; images whose pixels are
SIDE, SMALL = 160, 64  # a picture's longest side; a shorter one below which JPEG would spoil it
SHOWABLE = (1, 3, 4)  # channels of which a picture can be made


def keep_snapshot(asking: Asking, number: int, epoch: int, rounds: int) -> None:
    """Keep what the model thinks now, if it is not there; nothing that trains or chooses is touched.

    Args:
        asking: model, data and folder.
        number: of the question that is asked now, 0 at the end.
        epoch: epochs that are done.
        rounds: that were answered before.
    """
    plan, home, fabric = asking.plan, asking.home, asking.fabric
    path = snapshots.path_of(home.folder, number)
    if not plan.snapshot or on_chief(fabric, path.exists):
        return
    request = on_chief(fabric, lambda: home.request(number)) if number else None
    of_pixels = asking.parts.source.of_pixels
    pool, source = on_chief(
        fabric, lambda: (_maps if of_pixels else _images)(asking, request, rounds, plan.snapshot)
    )
    # A user's own network may draw at random even when it does not train.
    with global_seed(0, "snapshot", number):
        sights = _look(asking, number, pool, source)

    def keep() -> None:
        keep_pictures(home, asking.parts.pool, pictured(asking, request, pool))
        snapshots.write(home.folder, snapshot(number, epoch, (pool, sights[0]), (source, sights[1])))

    on_chief(fabric, keep)


def _images(asking: Asking, request: Request | None, rounds: int, most: int) -> tuple[Sample, Sample]:
    known = asking.ledger().targets(rounds)
    pool = sample_images("pool", known, most, None if request is None else request.image)
    labels = asking.parts.source.labels[:].cpu()
    return pool, sample_images("source", labels, of_source(most))


def _maps(asking: Asking, request: Request | None, rounds: int, most: int) -> tuple[Sample, Sample]:
    parts = asking.parts
    before, now, labels = asking.maps(0), asking.maps(rounds), parts.source.labels
    pool = sample_pixels(
        "pool",
        bought_sizes(parts.pool, parts.task.resolution),
        lambda image: before.at(image) == UNLABELLED,
        now.at,
        most,
        POOL_MAPS,
        request,
    )
    source = sample_pixels(
        "source",
        bought_sizes(parts.source.images, "network"),
        lambda image: labels[image] >= 0,
        lambda image: labels[image],
        of_source(most),
        SOURCE_MAPS,
    )
    return pool, source


def of_source(most: int) -> int:
    """A third as many samples.

    >>> of_source(3000), of_source(1)
    (1000, 1)
    """
    return -(-most // 3)


def _look(asking: Asking, number: int, pool: Sample, source: Sample) -> tuple[Sight, Sight]:
    parts, training = asking.parts, asking.model.training
    use = "query" if parts.source.of_pixels else "scoring"
    # With luck in the view, the pool is seen as it was when the request was chosen.
    seed = seed_of(asking.plan.seed, use, number) if number else 0
    how: dict[str, Any] = {
        "batch_size": asking.plan.scoring_batch,
        "classes": len(parts.source.classes),
        "width": asking.beside.features,
        "fabric": asking.fabric,
    }
    images, view = parts.source.images, parts.views.scoring
    of_source = view_of(images, view)
    pool_sizes = source_sizes = None
    if parts.source.of_pixels:
        how |= {"twice": parts.task.twice}
        pool_sizes = bought_sizes(parts.pool, parts.task.resolution)
        source_sizes = bought_sizes(images, "network")
    elif images.pixels.shape[1:] != parts.pool.pixels.shape[1:]:
        of_source = parts.views.source  # the network is known to take images of that size
    try:
        return (
            seen(asking.model, parts.pool, pool, view=view, seed=seed, sizes=pool_sizes, **how),
            seen(asking.model, images, source, view=of_source, sizes=source_sizes, **how),
        )
    finally:
        asking.model.train(training)


# ---- pictures


def pictured(asking: Asking, request: Request | None, pool: Sample) -> list[int]:
    """Images of the pool of which a picture is kept."""
    parts = asking.parts
    if parts.buys_pixels:
        looked: list[int] = pool.image.unique().tolist()
        return [looked[place] for place in some(len(looked), MAP_PICTURES, "pictures")]
    if request is None:
        return []
    most = MAP_PICTURES if parts.source.of_pixels else PICTURES
    kept: list[int] = spaced(spaced(torch.from_numpy(request.addresses.image), PICKED), most).tolist()
    return kept


def keep_pictures(home: RunDir, pool: Images, images: list[int]) -> None:
    """Keep small pictures of some images, of those that have none yet and can be shown."""
    if pool.files is None and pool.pixels.shape[1] not in SHOWABLE:
        return
    for image in images:
        if snapshots.picture(home.folder, image) is not None:
            continue
        try:
            shown = picture(pool, image)
        except UserError:  # its file is gone: a run can do without the picture
            continue
        shown.thumbnail((SIDE, SIDE))
        small = min(shown.size) < SMALL
        path = snapshots.picture_path(home.folder, image, "png" if small else "jpg")
        options = {"format": "PNG"} if small else {"format": "JPEG", "quality": 85}
        write_atomically(path, partial(shown.save, **options))


# ---- a temperature


def calibration(tally: Tally) -> dict[str, Any]:
    """What a temperature may change, for the record."""
    numbers = compute(tally)
    return {**{name: numbers[name] for name in ("ece", "nll", "brier")}, "reliability": reliability(tally)}


class Fitted(NamedTuple):
    """A temperature, and how many labels it was fitted on."""

    temperature: float
    labels: int


def fitted(home: RunDir, rounds: int) -> Fitted | None:
    """The temperature that the first rounds' labels tell, each as the model saw it before it learnt it.

    None where there are too few of them, or no snapshots.
    """
    z, labels = list[Tensor](), list[Tensor]()
    for number in range(1, rounds + 1):
        path, bought = snapshots.path_of(home.folder, number), snapshots.picks(home.folder, number)
        if bought is None or not len(bought.label) or not path.exists():
            continue
        then = snapshots.load(path)
        asked = then.image[then.z_of].astype(np.int64) << 32 | then.position[then.z_of]
        address = bought.image << 32 | bought.position
        order = np.argsort(address)
        place = order[np.searchsorted(address, asked, sorter=order).clip(max=len(order) - 1)]
        there = address[place] == asked
        z.append(torch.from_numpy(then.z[there]))
        labels.append(torch.from_numpy(bought.label[place[there]].astype(np.int64)))
    if not z:
        return None
    known = torch.cat(labels)
    found = temperature(torch.cat(z), known)
    return None if found is None else Fitted(found, int((known >= 0).sum()))
