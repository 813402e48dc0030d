"""Check the plan of a segmentation run: views, pixel budget and clustering."""

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from ducats.acquisition.budget import split_pixels
from ducats.acquisition.queries import resolve_query
from ducats.acquisition.queries.kmeans import KMEANS_REMEDY, MAX_CLUSTERS
from ducats.config import Config
from ducats.doctor.finding import Finding, count_images
from ducats.doctor.survey_result import DataSurvey


def check_segmentation_settings(config: Config, survey: DataSurvey) -> Iterator[Finding]:
    """Check settings that concern segmentation only."""
    if not survey.per_pixel and config.task.name != "segmentation":
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
    unknown = [
        name for name in config.evaluation.miou_star_exclude if survey.classes and name not in survey.classes
    ]
    if unknown:
        yield Finding(
            "error",
            f"evaluation.miou_star_exclude contains {unknown[0]!r}, which is not a class; use some of "
            f"{', '.join(survey.classes)}",
        )


def describe_pixel_budget(
    config: Config, survey: DataSurvey, pool_size: int, query_epochs: Sequence[int]
) -> Iterator[Finding]:
    """Describe the pixel budget per image and per round, and who labels it.

    Args:
        pool_size: Number of images that can be queried.
        query_epochs: Epochs after which the run queries.
    """
    areas = _image_areas(config, survey)[:pool_size]
    if not areas:
        return  # no image can be read, which is reported elsewhere
    per_image_and_round = split_pixels(
        config.acquisition.budget, areas, len(query_epochs), config.acquisition.rounding
    )
    per_round = [sum(image_counts) for image_counts in zip(*per_image_and_round, strict=True)]
    epochs = ", ".join(map(str, query_epochs))
    percent = 100 * sum(per_round) / sum(areas)
    per_image_text = _format_range([sum(counts) for counts in per_image_and_round])
    per_image_and_round_text = _format_range([count for counts in per_image_and_round for count in counts])
    yield Finding(
        "note",
        f"the budget is {sum(per_round)} pixels ({percent:.3g} %) of {count_images(pool_size)} of the "
        f"target: {per_image_text} per image, {per_image_and_round_text} per image and round; "
        f"{' + '.join(map(str, per_round))} in total after epoch {epochs} of {config.train.epochs}, "
        f"counted at the "
        f"{'size of the network input' if config.task.resolution == 'network' else 'original image size'} "
        f"(task.resolution={config.task.resolution})",
    )
    yield from _check_clusters(config, max(count for counts in per_image_and_round for count in counts))
    oracle = config.oracle.name
    if oracle == "human" or (oracle == "auto" and survey.has_ground_truth is False):
        yield Finding(
            "note",
            f"human annotators label {_format_range(per_round)} pixels in each of {len(per_round)} "
            f"{'round' if len(per_round) == 1 else 'rounds'}: masks mark the pixels, and label PNGs are the "
            "answers; the run pauses each time",
        )


def _check_clusters(config: Config, max_pixels: int) -> Iterator[Finding]:
    """Check that a clustering query does not need too many clusters.

    Args:
        max_pixels: Maximum number of pixels per image and round.
    """
    query = config.query.name
    if not resolve_query(query).clusters:
        return
    task = config.task
    clusters_by_unit = {
        "region": math.ceil(max_pixels / task.region_side**2),
        "superpixel": min(max_pixels, task.n_superpixels),
    }
    n_clusters = clusters_by_unit.get(task.resolved_unit, max_pixels)
    if n_clusters > MAX_CLUSTERS:
        yield Finding(
            "error",
            f"the query {query!r} would need {n_clusters} clusters for one image in one round, but the "
            f"maximum is {MAX_CLUSTERS}: {KMEANS_REMEDY}",
        )


def _image_areas(config: Config, survey: DataSurvey) -> list[int]:
    """Return the number of pixels of each target image, at the resolution of the budget."""
    split = survey.splits["target"]
    if config.task.resolution == "network":
        _, height, width = survey.stored_shapes["target"]
        return [height * width] * len(split)
    return [size[0] * size[1] for size in split.original_sizes if size is not None]


def _format_range(numbers: Sequence[int]) -> str:
    """Format a range of numbers.

    >>> _format_range([3, 3]), _format_range([3, 5, 4])
    ('3', '3 to 5')
    """
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"
