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
from ducats.doctor.images import MAX_FILES_NAMED, UNREADABLE_ADVICE, check_copies, report_counts
from ducats.doctor.survey import DataSurvey
from ducats.utils.errors import UserError
from ducats.utils.findings import Check, Finding, collect_findings, count_images, join_names
from ducats.utils.image_files import displayed_size, load_image, open_image

PIXEL_FORMATS = {  # by Pillow's mode
    "1": "black and white",
    "L": "grey",
    "LA": "grey with alpha",
    "P": "palette",
    "RGB": "RGB",
    "RGBA": "RGB with alpha",
    "CMYK": "CMYK",
    "I": "32-bit integer",
    "F": "floating point",
}


class ImageInfo(NamedTuple):
    """What is known about one readable image."""

    size: tuple[int, int]  # height and width, as displayed
    pixel_format: str


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
    checks: list[Check] = [partial(report_counts, survey.splits["folder"])]
    if has_classes and images:
        checks.append(partial(_check_class_folders, folder, images))
    if has_label_files:
        checks.append(partial(_check_pairs, folder))
    checks.append(partial(_check_files, images, unreadable_paths, strict))
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


def _check_files(images: KeyedPaths, unreadable_paths: set[Path], strict: bool) -> Iterator[Finding]:
    """Decode all images; report unreadable ones, sizes and colours."""
    paths = [path for _, path in images]
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
    infos = [outcome for _, outcome in outcomes if isinstance(outcome, ImageInfo)]
    if infos:
        yield Finding("note", f"sizes (height x width): {_describe_sizes([info.size for info in infos])}")
        formats = Counter(info.pixel_format for info in infos).most_common()
        yield Finding("note", f"pixels: {', '.join(f'{count} {name}' for name, count in formats)}")


def _inspect(path: Path) -> ImageInfo:
    """Decode an image in full, as a run does."""
    load_image(path)
    with open_image(path) as opened:
        mode, frames = opened.mode, getattr(opened, "n_frames", 1)
    pixel_format = PIXEL_FORMATS.get(mode, "16-bit grey" if mode.startswith("I;16") else mode)
    if frames > 1:
        pixel_format += " with several frames, of which the first is read"
    return ImageInfo(displayed_size(path), pixel_format)


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
