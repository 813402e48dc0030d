"""Check segmentation data: readability, sizes, ids, classes and void pixels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ducats.data.decoding import displayed_size, find_unreadable
from ducats.data.maps import Codes, UnknownIdError
from ducats.data.maps.raw import read_ids, read_mask
from ducats.data.store import ReadFailure, try_files
from ducats.doctor.data import NAMED, check_copies
from ducats.doctor.finding import Finding, gather, images, quoted, some
from ducats.doctor.found import Part, Survey
from ducats.domain import VOID

MANY = 1000  # up to this many files of a kind are all read in full; of more, only a sample:
SAMPLE = 400  # files, evenly spaced
UNKNOWN = 8  # maximum number of unknown ids in a message

Array = NDArray[Any]


@dataclass
class Seen:
    """Pixel counts and problems of the label maps that were checked."""

    pixels: Array  # per class
    void: int = 0
    looked: int = 0  # label maps that were checked
    broken: list[tuple[Path, str]] = field(default_factory=list)
    unknown: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # files and pixel counts by id
    beyond: set[int] = field(default_factory=set)  # invalid class indices in built label maps

    @property
    def total(self) -> int:
        """Number of pixels that were checked."""
        return int(self.pixels.sum()) + self.void


def check_maps(found: Survey) -> list[Finding]:
    """Run all checks of images and label maps; large sets are sampled."""
    findings: list[Finding] = []
    broken: set[Path] = set()
    for part in found.parts.values():
        if not len(part):
            continue  # reported when the files were listed
        findings += gather(_check_readable(part, broken))
        findings += gather(_check_sizes(part, part.label_files, "label files"))
        findings += gather(_check_sizes(part, part.mask_files, "masks"))
        findings += gather(_check_labels(found, part))
    return findings + gather(check_copies(found, broken))


def _check_readable(part: Part, broken: set[Path]) -> Iterator[Finding]:
    """Decode a sample of images, and all whose header is unreadable; add those that fail to ``broken``."""
    chosen = {part.paths[place] for place in sampled(len(part.paths))}
    chosen |= {path for path, size in zip(part.paths, part.sizes, strict=False) if size is None}
    unreadable = find_unreadable([(str(path), path) for path in part.paths if path in chosen])
    broken |= {path for path, _ in unreadable}
    if unreadable:
        named = some([f"{path} ({reason})" for path, reason in unreadable], NAMED)
        yield Finding(
            "error",
            f"{len(unreadable)} of {images(len(part))} of the {part.role}{_seen(len(part))} cannot be read: "
            f"{named}; remove or replace them, with their label files",
        )


def _check_sizes(part: Part, files: Sequence[Path], what: str) -> Iterator[Finding]:
    """Compare the sizes of files with those of their images, from their headers."""
    wrong = []
    for path, other, name, own in zip(
        files, try_files(displayed_size, files), part.names, part.sizes, strict=False
    ):
        if own is not None and not isinstance(other, ReadFailure) and other != own:
            wrong.append(f"{path} is {_by(other)}, but {name} is {_by(own)}")
    if wrong:
        yield Finding(
            "error",
            f"{len(wrong)} of {len(files)} {what} of the {part.role} differ in size from their images: "
            f"{some(wrong, 5)} (height x width); make both the same size, or remove both",
        )


def _check_labels(found: Survey, part: Part) -> Iterator[Finding]:
    """Report unknown ids, the share of void pixels, and classes that never occur."""
    seen = _look(found, part)
    if seen is None:
        yield Finding("note", f"{part.role}: {images(len(part))} without labels{_masked(part)}")
        return
    yield from _spoilt(part, seen)
    if not seen.total:
        return
    yield Finding(
        "note",
        f"{part.role}: {images(len(part))} with label maps{_seen(len(part))}, "
        f"{_share(seen.void, seen.total)} of their pixels void{_masked(part)}",
    )
    occurring = [name for name, count in zip(found.classes, seen.pixels, strict=True) if count]
    absent = [name for name in found.classes if name not in occurring]
    everything = seen.looked == len(part)
    if part.role == "source" and len(occurring) < 2 and everything:
        only = f"only one class, {occurring[0]!r}" if occurring else "only void pixels"
        yield Finding("error", f"the source has {only}; check the class list, or give other label files")
    elif absent and part.role != "target":
        consequence = {
            "source": "they can only be learnt from labelled target pixels: add source images that show "
            "them, or drop these classes (data.params.keep)",
            "test": "these classes cannot be evaluated: add images that show them, or check the class list",
        }[part.role]
        looked = "" if everything else f" in the {seen.looked} label maps that were checked"
        yield Finding(
            "warning" if everything else "note",
            f"the {part.role} has no pixels of {quoted(absent)}{looked}; {consequence}",
        )


def _spoilt(part: Part, seen: Seen) -> Iterator[Finding]:
    """Report unreadable label files, unknown ids and invalid class indices."""
    remedy = "replace them" if part.codes is None else part.codes.remedy
    if seen.broken:
        named = some([f"{path} ({reason})" for path, reason in seen.broken], NAMED)
        yield Finding(
            "error",
            f"{len(seen.broken)} of {len(part)} label files of the {part.role}{_seen(len(part))} cannot be "
            f"read: {named}; replace them",
        )
    if seen.unknown:
        named = some([_stranger(shown, places) for shown, places in seen.unknown.items()], UNKNOWN)
        yield Finding(
            "error",
            f"label files of the {part.role}{_seen(len(part))} contain unknown values: {named}; {remedy}",
        )
    if seen.beyond:
        numbers = some([str(number) for number in sorted(seen.beyond)], UNKNOWN)
        yield Finding(
            "error",
            f"label maps of the {part.role} contain {numbers}, which is not a class index; use 0 to "
            f"{len(seen.pixels) - 1}, or {VOID} for void",
        )


def _stranger(shown: str, places: Sequence[tuple[str, int]]) -> str:
    """Describe an unknown id."""
    pixels = sum(count for _, count in places)
    files = "1 file" if len(places) == 1 else f"{len(places)} files"
    return f"{shown} ({pixels} pixel{'' if pixels == 1 else 's'} in {files}, first {places[0][0]})"


def _look(found: Survey, part: Part) -> Seen | None:
    """Count classes and problems of label maps, one by one; None if there are no label maps."""
    classes = len(found.classes)
    chosen, seen = sampled(len(part)), Seen(np.zeros(classes, np.int64))
    if part.label_files and part.codes is not None:
        paths = [part.label_files[place] for place in chosen]
        for path, outcome in zip(paths, try_files(_reader(part.codes), paths), strict=True):
            seen.looked += 1
            if isinstance(outcome, ReadFailure):
                seen.broken.append((path, outcome.reason))
            elif isinstance(outcome, UnknownIdError):
                for shown, count in outcome.pixels.items():
                    seen.unknown.setdefault(shown, []).append((str(path), count))
            else:
                seen.pixels += outcome[:-1]
                seen.void += int(outcome[-1])
    elif part.maps is not None:
        for place in chosen:
            numbers = part.maps[place].numpy()
            seen.looked += 1
            seen.beyond |= {number for number in np.unique(numbers).tolist() if not VOID <= number < classes}
            counts = _counts(np.where(numbers < classes, numbers, VOID), classes)
            seen.pixels += counts[:-1]
            seen.void += int(counts[-1])
    else:
        return None
    return seen


def _reader(codes: Codes) -> Callable[[Path], "Array | UnknownIdError"]:
    def read(path: Path) -> "Array | UnknownIdError":
        try:
            return _counts(codes.encode(read_ids(path, codes.coded)), len(codes.classes))
        except UnknownIdError as unknown:
            return unknown

    return read


def _counts(numbers: Array, classes: int) -> Array:
    """Return the number of pixels per class, followed by the number of void pixels."""
    known = numbers[numbers >= 0]
    return np.append(np.bincount(known.ravel(), minlength=classes), numbers.size - known.size)


def _masked(part: Part) -> str:
    """Describe the share of masked pixels. Unreadable masks are skipped here; the run reports them."""
    if not part.mask_files:
        return ""
    paths = [part.mask_files[place] for place in sampled(len(part.mask_files))]
    masks = [shown for shown in try_files(_hidden, paths) if not isinstance(shown, ReadFailure)]
    hidden, total = (sum(numbers) for numbers in zip(*masks, strict=True)) if masks else (0, 0)
    return f"; masks exclude {_share(hidden, total)} of the pixels" if total else ""


def _hidden(path: Path) -> tuple[int, int]:
    mask = read_mask(path)
    return int(np.count_nonzero(mask)), int(mask.size)


def sampled(count: int) -> list[int]:
    """Return the indices of the files to read: all, or ``SAMPLE`` evenly spaced ones.

    >>> sampled(3), len(sampled(10**6)), sampled(10**6)[:3]
    ([0, 1, 2], 400, [0, 2500, 5000])
    """
    return list(range(count)) if count <= MANY else [place * count // SAMPLE for place in range(SAMPLE)]


def _seen(count: int) -> str:
    """Describe in parentheses how many files were checked, if not all."""
    return "" if count <= MANY else f" ({SAMPLE} of {count} checked, evenly spaced)"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
