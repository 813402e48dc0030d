"""Check segmentation data: readability, sizes, ids, classes and void pixels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.data.domain import VOID
from ducats.data.segmentation.label_encoding import LabelEncoding, UnknownIdError
from ducats.data.segmentation.label_files import read_ids, read_mask
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.images import MAX_FILES_NAMED, UNREADABLE_ADVICE, check_copies, check_readable
from ducats.doctor.survey import DataSurvey, SplitSurvey
from ducats.utils.findings import (
    Check,
    Finding,
    collect_findings,
    count_images,
    join_names,
    join_quoted,
    pluralise,
)
from ducats.utils.image_files import displayed_size

FULL_CHECK_LIMIT = 1000  # up to this many files of a kind are all read in full; of more, only a sample:
N_SAMPLED_FILES = 400  # files, evenly spaced
MAX_IDS_NAMED = 8  # maximum number of unknown ids in a message

_Array = NDArray[Any]


@dataclass
class LabelMapStats:
    """Pixel counts and problems of the label maps that were checked."""

    class_pixels: _Array  # per class
    void_pixels: int = 0
    n_checked: int = 0  # label maps that were checked
    unreadable: list[tuple[Path, str]] = field(default_factory=list)  # damaged: a run skips their images
    invalid: list[tuple[Path, str]] = field(default_factory=list)  # of another format: a run refuses them
    # Files and pixel counts by id.
    unknown_ids: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    invalid_indices: set[int] = field(default_factory=set)  # class indices in built label maps

    @property
    def total_pixels(self) -> int:
        """Number of pixels that were checked."""
        return int(self.class_pixels.sum()) + self.void_pixels


def check_label_maps(survey: DataSurvey) -> list[Finding]:
    """Run all checks of images and label maps; large sets are sampled."""
    checks: list[Check] = []
    unreadable_paths: set[Path] = set()
    for split in survey.splits.values():
        if not len(split):
            continue  # reported when the files were listed
        checks += [
            partial(_check_readable, survey, split, unreadable_paths),
            partial(_check_sizes, split, split.label_files, "label files"),
            partial(_check_sizes, split, split.mask_files, "masks"),
            partial(_check_labels, survey, split),
        ]
    return collect_findings(*checks, partial(check_copies, survey, unreadable_paths))


def _check_readable(survey: DataSurvey, split: SplitSurvey, unreadable_paths: set[Path]) -> Iterator[Finding]:
    """Decode a sample of images, and all with an unreadable header."""
    paths = {split.paths[index] for index in sample_indices(len(split.paths))}
    paths |= {path for path, size in zip(split.paths, split.original_sizes, strict=False) if size is None}
    return check_readable(
        split,
        unreadable_paths,
        survey.value_range,
        paths,
        sample_note=_sample_note(len(split)),
        strict=survey.strict,
    )


def _check_sizes(split: SplitSurvey, files: Sequence[Path], file_kind: str) -> Iterator[Finding]:
    """Compare the sizes of files with those of their images, from their headers."""
    mismatches = []
    for path, file_size, name, image_size in zip(
        files, try_files(displayed_size, files), split.names, split.original_sizes, strict=False
    ):
        if image_size is not None and not isinstance(file_size, ReadFailure) and file_size != image_size:
            mismatches.append(
                f"{path} is {_format_size(file_size)}, but {name} is {_format_size(image_size)}"
            )
    if mismatches:
        yield Finding(
            "error",
            f"{len(mismatches)} of {len(files)} {file_kind} of the {split.role} differ in size from their "
            f"images: {join_names(mismatches, 5)} (height x width); make both the same size, or remove both",
        )


def _check_labels(survey: DataSurvey, split: SplitSurvey) -> Iterator[Finding]:
    """Report unknown ids, the share of void pixels, and classes that never occur."""
    stats = _collect_stats(survey, split)
    if stats is None:
        yield Finding(
            "note", f"{split.role}: {count_images(len(split))} without labels{_describe_masks(split)}"
        )
        return
    yield from _report_invalid(split, stats, strict=survey.strict)
    if not stats.total_pixels:
        return
    yield Finding(
        "note",
        f"{split.role}: {count_images(len(split))} with label maps{_sample_note(len(split))}, "
        f"{_format_percent(stats.void_pixels, stats.total_pixels)} of their pixels void"
        f"{_describe_masks(split)}",
    )
    occurring = [name for name, count in zip(survey.classes, stats.class_pixels, strict=True) if count]
    absent = [name for name in survey.classes if name not in occurring]
    all_checked = stats.n_checked == len(split)
    if split.role == "source" and len(occurring) < 2 and all_checked:
        found_text = f"only one class, {occurring[0]!r}" if occurring else "only void pixels"
        yield Finding(
            "error", f"the source has {found_text}; check the class list, or give other label files"
        )
    elif absent and split.role != "target":
        consequence = {
            "source": "they can only be learnt from labelled target pixels: add source images that show "
            "them, or drop these classes (data.params.keep_classes)",
            "test": "these classes cannot be evaluated: add images that show them, or check the class list",
        }[split.role]
        sample_text = "" if all_checked else f" in the {stats.n_checked} label maps that were checked"
        yield Finding(
            "warning" if all_checked else "note",
            f"the {split.role} has no pixels of {join_quoted(absent)}{sample_text}; {consequence}",
        )


def _report_invalid(split: SplitSurvey, stats: LabelMapStats, *, strict: bool) -> Iterator[Finding]:
    """Report unreadable label files, unknown ids and invalid class indices."""
    remedy = "replace them" if split.encoding is None else split.encoding.advice
    for failures, is_invalid in ((stats.unreadable, False), (stats.invalid, True)):
        if not failures:
            continue
        names_text = join_names([f"{path} ({reason})" for path, reason in failures], MAX_FILES_NAMED)
        is_error = is_invalid or strict or len(failures) == stats.n_checked
        yield Finding(
            "error" if is_error else "warning",
            f"{len(failures)} of {len(split)} label files of the {split.role}"
            f"{_sample_note(len(split))} cannot be {'used' if is_invalid else 'read'}: {names_text}; "
            f"{UNREADABLE_ADVICE[is_error]}",
        )
    if stats.unknown_ids:
        unknown = [_describe_unknown_id(*item) for item in stats.unknown_ids.items()]
        names_text = join_names(unknown, MAX_IDS_NAMED)
        yield Finding(
            "error",
            f"label files of the {split.role}{_sample_note(len(split))} contain unknown values: "
            f"{names_text}; {remedy}",
        )
    if stats.invalid_indices:
        numbers = join_names([str(number) for number in sorted(stats.invalid_indices)], MAX_IDS_NAMED)
        yield Finding(
            "error",
            f"label maps of the {split.role} contain {numbers}, which is not a class index; use 0 to "
            f"{len(stats.class_pixels) - 1}, or {VOID} for void",
        )


def _describe_unknown_id(id_text: str, occurrences: Sequence[tuple[str, int]]) -> str:
    """Describe an unknown id."""
    pixels = sum(count for _, count in occurrences)
    files = pluralise(len(occurrences), "file")
    return f"{id_text} ({pluralise(pixels, 'pixel')} in {files}, first {occurrences[0][0]})"


def _collect_stats(survey: DataSurvey, split: SplitSurvey) -> LabelMapStats | None:
    """Count classes and problems of label maps, one by one; None if there are no label maps."""
    n_classes = len(survey.classes)
    indices, stats = sample_indices(len(split)), LabelMapStats(np.zeros(n_classes, np.int64))
    if split.label_files and split.encoding is not None:
        paths = [split.label_files[index] for index in indices]
        for path, outcome in zip(paths, try_files(_make_counter(split.encoding), paths), strict=True):
            stats.n_checked += 1
            if isinstance(outcome, ReadFailure):
                failures = stats.invalid if outcome.is_invalid else stats.unreadable
                failures.append((path, outcome.reason))
            elif isinstance(outcome, UnknownIdError):
                for id_text, count in outcome.pixel_counts.items():
                    stats.unknown_ids.setdefault(id_text, []).append((str(path), count))
            else:
                stats.class_pixels += outcome[:-1]
                stats.void_pixels += int(outcome[-1])
    elif split.label_maps is not None:
        for index in indices:
            label_map = split.label_maps[index].numpy()
            stats.n_checked += 1
            stats.invalid_indices |= {
                value for value in np.unique(label_map).tolist() if not VOID <= value < n_classes
            }
            counts = _count_pixels(np.where(label_map < n_classes, label_map, VOID), n_classes)
            stats.class_pixels += counts[:-1]
            stats.void_pixels += int(counts[-1])
    else:
        return None
    return stats


def _make_counter(encoding: LabelEncoding) -> Callable[[Path], "_Array | UnknownIdError"]:
    def read_counts(path: Path) -> "_Array | UnknownIdError":
        try:
            return _count_pixels(
                encoding.encode(read_ids(path, encoding.label_format)), len(encoding.classes)
            )
        except UnknownIdError as unknown:
            return unknown

    return read_counts


def _count_pixels(label_map: _Array, n_classes: int) -> _Array:
    """Return the number of pixels per class, followed by the number of void pixels."""
    class_indices = label_map[label_map >= 0]
    return np.append(
        np.bincount(class_indices.ravel(), minlength=n_classes), label_map.size - class_indices.size
    )


def _describe_masks(split: SplitSurvey) -> str:
    """Describe the share of masked pixels. Unreadable masks are skipped here; the run reports them."""
    if not split.mask_files:
        return ""
    paths = [split.mask_files[index] for index in sample_indices(len(split.mask_files))]
    outcomes = try_files(_count_masked, paths)
    counts = np.array([(0, 0), *(each for each in outcomes if not isinstance(each, ReadFailure))])
    n_masked, n_pixels = counts.sum(0).tolist()
    return f"; masks exclude {_format_percent(n_masked, n_pixels)} of the pixels" if n_pixels else ""


def _count_masked(path: Path) -> tuple[int, int]:
    mask = read_mask(path)
    return int(np.count_nonzero(mask)), int(mask.size)


def sample_indices(count: int) -> list[int]:
    """Return the indices of the files to read: all, or ``N_SAMPLED_FILES`` evenly spaced ones.

    >>> sample_indices(3), len(sample_indices(10**6)), sample_indices(10**6)[:3]
    ([0, 1, 2], 400, [0, 2500, 5000])
    """
    return (
        list(range(count))
        if count <= FULL_CHECK_LIMIT
        else [position * count // N_SAMPLED_FILES for position in range(N_SAMPLED_FILES)]
    )


def _sample_note(count: int) -> str:
    """Describe in parentheses how many files were checked, if not all."""
    return "" if count <= FULL_CHECK_LIMIT else f" ({N_SAMPLED_FILES} of {count} checked, evenly spaced)"


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _format_percent(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %"
