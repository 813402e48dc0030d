"""Check the plan of a segmentation run: views, pixel budget and clustering."""

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from ducats.budget import split_pixels
from ducats.config import Config
from ducats.doctor.finding import Finding, images
from ducats.doctor.found import Survey
from ducats.queries.clusters import CLUSTERS, REMEDY


def check_pixels(config: Config, found: Survey) -> Iterator[Finding]:
    """Check settings that concern segmentation only."""
    if not found.of_pixels and config.task.name != "segmentation":
        return
    for name in ("scoring", "test"):
        view = getattr(config.views, name)
        if view.crop != "none" or view.size is not None or view.flip:
            yield Finding(
                "error",
                f"views.{name} must show whole images in segmentation: set views.{name}="
                "{crop: none} (evaluation.average_flipped averages with the prediction for the mirror image)",
            )
    if config.task.resolved_unit == "superpixel" and find_spec("skimage") is None:
        yield Finding(
            "error",
            "task.unit=superpixel needs scikit-image, which is not installed: pip install "
            "'ducats[superpixels]', or set task.unit=region",
        )
    strange = [
        name for name in config.evaluation.miou_star_exclude if found.classes and name not in found.classes
    ]
    if strange:
        yield Finding(
            "error",
            f"evaluation.miou_star_exclude contains {strange[0]!r}, which is not a class; use some of "
            f"{', '.join(found.classes)}",
        )


def asked_pixels(config: Config, found: Survey, pool: int, after: Sequence[int]) -> Iterator[Finding]:
    """Describe the pixel budget per image and per round, and who labels it.

    Args:
        pool: number of images that can be queried.
        after: epochs after which the run queries.
    """
    areas = _areas(config, found)[:pool]
    if not areas:
        return  # no image can be read, which is reported elsewhere
    each = split_pixels(config.acquisition.budget, areas, len(after), config.acquisition.rounding)
    rounds = [sum(parts) for parts in zip(*each, strict=True)]
    epochs = ", ".join(map(str, after))
    share = 100 * sum(rounds) / sum(areas)
    of_one, at_once = (
        _range([sum(parts) for parts in each]),
        _range([part for parts in each for part in parts]),
    )
    yield Finding(
        "note",
        f"the budget is {sum(rounds)} pixels ({share:.3g} %) of {images(pool)} of the target: {of_one} per "
        f"image, {at_once} per image and round; {' + '.join(map(str, rounds))} in total after epoch {epochs} "
        f"of {config.train.epochs}, counted at the "
        f"{'size of the network input' if config.task.resolution == 'network' else 'original image size'} "
        f"(task.resolution={config.task.resolution})",
    )
    yield from _check_clusters(config, max(part for parts in each for part in parts))
    oracle = config.oracle.name
    if oracle == "human" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"human annotators label {_range(rounds)} pixels in each of {len(rounds)} "
            f"{'round' if len(rounds) == 1 else 'rounds'}: masks mark the pixels, and label PNGs are the "
            "answers; the run pauses each time",
        )


CLUSTERING = ("clue", "las", "spread")  # queries that make one cluster per label


def _check_clusters(config: Config, at_once: int) -> Iterator[Finding]:
    """Check that a clustering query does not need too many clusters.

    Args:
        at_once: maximum number of pixels per image and round.
    """
    query = config.query.name
    if query not in CLUSTERING:
        return
    task = config.task
    of_unit = {
        "region": math.ceil(at_once / task.region_side**2),
        "superpixel": min(at_once, task.n_superpixels),
    }
    clusters = of_unit.get(task.resolved_unit, at_once)
    if clusters > CLUSTERS:
        yield Finding(
            "error",
            f"the query {query!r} would need {clusters} clusters for one image in one round, but the maximum "
            f"is {CLUSTERS}: {REMEDY}",
        )


def _areas(config: Config, found: Survey) -> list[int]:
    """Return the number of pixels of each target image, at the resolution of the budget."""
    part = found.parts["target"]
    if config.task.resolution == "network":
        _, height, width = found.shapes["target"]
        return [height * width] * len(part)
    return [size[0] * size[1] for size in part.sizes if size is not None]


def _range(numbers: Sequence[int]) -> str:
    """Format a range of numbers.

    >>> _range([3, 3]), _range([3, 5, 4])
    ('3', '3 to 5')
    """
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
