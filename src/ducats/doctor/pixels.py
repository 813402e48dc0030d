"""What a plan asks where pixels are bought: how many, through which views, with what."""

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from ducats.budget import split_pixels
from ducats.config import Config
from ducats.doctor.finding import Finding, images
from ducats.doctor.found import Survey
from ducats.queries.clusters import CLUSTERS, REMEDY


def check_pixels(config: Config, found: Survey) -> Iterator[Finding]:
    """Whether settings fit data whose pixels have labels."""
    if not found.of_pixels and config.task.name != "segmentation":
        return
    for name in ("scoring", "test"):
        view = getattr(config.views, name)
        if view.crop != "none" or view.size is not None or view.flip:
            yield Finding(
                "error",
                f"views.{name} must show whole images where pixels are bought: set "
                f"views.{name}={{crop: none}} (evaluation.flip averages with the mirror image)",
            )
    if config.task.bought == "superpixel" and find_spec("skimage") is None:
        yield Finding(
            "error",
            "task.unit=superpixel needs scikit-image, which is not installed: pip install "
            "'ducats[superpixels]', or set task.unit=region",
        )
    strange = [name for name in config.evaluation.star_without if found.classes and name not in found.classes]
    if strange:
        yield Finding(
            "error",
            f"evaluation.star_without names {strange[0]!r}, but the classes are {', '.join(found.classes)}; "
            "name some of these",
        )


def asked_pixels(config: Config, found: Survey, pool: int, after: Sequence[int]) -> Iterator[Finding]:
    """How many pixels are asked for, of each image and in each round, and of whom.

    Args:
        config: the plan.
        found: the data.
        pool: images that can be asked about.
        after: epochs after which questions are asked.
    """
    areas = _areas(config, found)[:pool]
    if not areas:
        return  # no image can be read, which was said
    each = split_pixels(config.ask.budget, areas, len(after), config.ask.rounding)
    rounds = [sum(parts) for parts in zip(*each, strict=True)]
    epochs = ", ".join(map(str, after))
    share = 100 * sum(rounds) / sum(areas)
    of_one, at_once = (
        _range([sum(parts) for parts in each]),
        _range([part for parts in each for part in parts]),
    )
    yield Finding(
        "note",
        f"of {images(pool)} of the target, {sum(rounds)} pixels are asked for ({share:.3g} %): {of_one} of "
        f"each image, {at_once} in a round; {' + '.join(map(str, rounds))} in all after epoch {epochs} of "
        f"{config.train.epochs}, counted "
        f"{'as the network sees images' if config.task.resolution == 'network' else 'in their own size'} "
        f"(task.resolution={config.task.resolution})",
    )
    yield from _check_clusters(config, max(part for parts in each for part in parts))
    oracle = config.oracle.name
    if oracle == "people" or (oracle == "auto" and found.truth is False):
        yield Finding(
            "note",
            f"people answer: a person will be asked for {_range(rounds)} pixels in each of {len(rounds)} "
            f"{'round' if len(rounds) == 1 else 'rounds'}, in masks to be answered with label PNGs; the run "
            "pauses each time",
        )


CLUSTERING = ("clue", "las", "spread")  # queries that make as many clusters as they buy labels


def _check_clusters(config: Config, at_once: int) -> Iterator[Finding]:
    """Whether a query that clusters can do so with what is asked for.

    Args:
        config: the plan.
        at_once: pixels of one image in one round, at most.
    """
    query = config.query.name
    if query not in CLUSTERING:
        return
    task = config.task
    of_unit = {"region": math.ceil(at_once / task.side**2), "superpixel": min(at_once, task.superpixels)}
    clusters = of_unit.get(task.bought, at_once)
    if clusters > CLUSTERS:
        yield Finding(
            "error",
            f"the query {query!r} would have to make {clusters} clusters of one image in one round, and "
            f"{CLUSTERS} are the most: {REMEDY}",
        )


def _areas(config: Config, found: Survey) -> list[int]:
    """Pixels of each image of the target, in the grid in which they are bought."""
    part = found.parts["target"]
    if config.task.resolution == "network":
        _, height, width = found.shapes["target"]
        return [height * width] * len(part)
    return [size[0] * size[1] for size in part.sizes if size is not None]


def _range(numbers: Sequence[int]) -> str:
    """Numbers for a sentence.

    >>> _range([3, 3]), _range([3, 5, 4])
    ('3', '3 to 5')
    """
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
