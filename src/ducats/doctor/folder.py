"""Check any folder of images, without a config: readable, sizes, colours, classes, duplicates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ducats.data.folders import check_class_folders, describe_folder, existing_folder, list_images
from ducats.data.segmentation.file_pairs import find_pairs
from ducats.data.segmentation.folders import FOLDER_LAYOUT
from ducats.data.store import KeyedPaths, ReadFailure, try_files
from ducats.doctor.images import (
    MAX_FILES_NAMED,
    UNREADABLE_ADVICE,
    check_copies,
    report_counts,
    report_missing_range,
)
from ducats.doctor.survey import DataSurvey, SplitSurvey
from ducats.utils.errors import UserError
from ducats.utils.findings import Check, Finding, collect_findings, count_images, join_names
from ducats.utils.image_files import (
    PixelFormat,
    displayed_size,
    load_image,
    open_image,
    read_pixel_format,
    value_limits,
)

PIXEL_FORMATS = {  # by Pillow's mode
    "1": "black and white",
    "L": "grey",
    "LA": "grey with alpha",
    "P": "palette",
    "RGB": "RGB",
    "RGBA": "RGB with alpha",
    "CMYK": "CMYK",
}


class ImageInfo(NamedTuple):
    """What is known about one readable image."""

    size: tuple[int, int]  # height and width, as displayed
    description: str  # of its pixels
    pixel_format: PixelFormat
    value_limits: (
        tuple[float, float] | None
    )  # smallest and largest value, if it has more than 8 bits per value


def diagnose_folder(folder: Path, *, strict: bool = False) -> list[Finding]:
    """Return errors, warnings and notes about the images of a folder; every image is decoded once.

    Subfolders are reported as classes. Of a folder with ``images/`` and ``labels/``, the images are checked,
    and whether each has a label file.

    Args:
        strict: report unreadable images as an error, because a strict run refuses them.
    """
    try:
        folder = existing_folder("image", folder)
        has_label_files = FOLDER_LAYOUT.exists_in(folder)
        images = list_images(folder / FOLDER_LAYOUT.images if has_label_files else folder)
    except UserError as error:
        return [Finding("error", str(error))]
    survey, unreadable_paths = DataSurvey(), set[Path]()
    has_classes = not has_label_files and all("/" in key for key, _ in images)
    labels = [key.partition("/")[0] if has_classes else "" for key, _ in images]
    survey.add_files("folder", describe_folder("image", folder), images, labels)
    split = survey.splits["folder"]
    checks: list[Check] = [partial(report_counts, split)]
    if has_classes and images:
        checks.append(partial(_check_class_folders, folder, images))
    if has_label_files:
        checks.append(partial(_check_pairs, folder))
    checks.append(partial(_check_files, split, unreadable_paths, strict))
    return collect_findings(*checks, partial(check_copies, survey, unreadable_paths))


def _check_class_folders(folder: Path, images: KeyedPaths) -> Iterator[Finding]:
    """Report subfolders without images; they are an error only for a source."""
    for finding in check_class_folders("image", folder, images):
        yield replace(finding, severity="warning")


def _check_pairs(folder: Path) -> Iterator[Finding]:
    """Check that every image has a label file."""
    pairs = find_pairs(folder, FOLDER_LAYOUT)
    yield from (Finding("error", problem) for problem in pairs.problems)
    if not pairs.problems:
        yield Finding(
            "note",
            f"every image has a label file in {folder / FOLDER_LAYOUT.labels}; their values are checked by "
            "`ducats doctor -c segmentation --source DIR --target DIR --classes FILE`",
        )


def _check_files(split: SplitSurvey, unreadable_paths: set[Path], strict: bool) -> Iterator[Finding]:
    """Decode all images; report unreadable ones, those that need a range, sizes and colours."""
    paths = split.paths
    outcomes = list(zip(paths, try_files(_inspect, paths), strict=True))
    failures = [(path, outcome.reason) for path, outcome in outcomes if isinstance(outcome, ReadFailure)]
    unreadable_paths |= {path for path, _ in failures}
    if failures:
        is_error = strict or len(failures) == len(paths)
        names = join_names([f"{path} ({reason})" for path, reason in failures], MAX_FILES_NAMED)
        yield Finding(
            "error" if is_error else "warning",
            f"{len(failures)} of {count_images(len(paths))} cannot be read: {names}; "
            f"{UNREADABLE_ADVICE[is_error]}",
        )
    infos = {path: outcome for path, outcome in outcomes if isinstance(outcome, ImageInfo)}
    limits = {path: info.value_limits for path, info in infos.items() if info.value_limits is not None}
    # A warning, because the folder is fine with a range, which a run of it can set.
    for finding in report_missing_range(split, limits, {path: infos[path].pixel_format for path in limits}):
        yield replace(finding, severity="warning")
    if infos:
        sizes_text = _describe_sizes([info.size for info in infos.values()])
        yield Finding("note", f"sizes (height x width): {sizes_text}")
        formats = Counter(info.description for info in infos.values()).most_common()
        yield Finding("note", f"pixels: {', '.join(f'{count} {name}' for name, count in formats)}")


def _inspect(path: Path) -> ImageInfo:
    """Decode an image in full, as a run does."""
    pixel_format, limits = read_pixel_format(path), None
    if pixel_format.needs_range:
        limits = value_limits(path)
    else:
        load_image(path)
    with open_image(path) as opened:
        mode, frames = opened.mode, getattr(opened, "n_frames", 1)
    description = f"with {pixel_format}" if limits else PIXEL_FORMATS.get(mode, mode)
    if frames > 1:
        description += " with several frames, of which the first is read"
    return ImageInfo(displayed_size(path), description, pixel_format, limits)


def _describe_sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """Describe the sizes of images.

    >>> _describe_sizes([(2, 3), (2, 3)]), _describe_sizes([(2, 3), (8, 4), (4, 9)])
    ('all 2 x 3', 'from 2 x 3 to 4 x 9, shorter side 2 to 4')
    """
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    smallest, largest = (f"{height} x {width}" for height, width in (ordered[0], ordered[-1]))
    if len(set(sizes)) == 1:
        return f"all {smallest}"
    sides = [min(size) for size in sizes]
    return f"from {smallest} to {largest}, shorter side {min(sides)} to {max(sides)}"
