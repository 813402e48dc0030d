"""Corrections of acquired labels: one file per amendment, beside the labels of the rounds.

The labels of a round are never rewritten. The file of each round records how many amendments existed when it
was written, so training after a round sees the same labels however often the run is killed and resumed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ducats.runfolder import checksums
from ducats.utils.errors import UserError
from ducats.utils.files import lock_beside
from ducats.utils.npz_columns import AnyArray

AMENDMENT_FILES = "amendment-*.json"
MERGE_CHANNEL = "merged classes"  # of the labels of a class that became part of another


@dataclass(frozen=True)
class Correction:
    """The corrected labels of one question, or of several pixels of one image.

    Without runs, it confirms a label: someone has looked at the question again.
    """

    question: str  # its id, or the key of the image
    round: int  # in which the label was acquired; the newest if there are several
    old: str  # class names, or void
    new: str
    image: int  # index in the pool
    runs: tuple[tuple[int, int, int, int], ...]  # first position, length, old and new label

    @property
    def n_labels(self) -> int:
        """Number of labels that it changes."""
        return sum(length for _, length, _, _ in self.runs)


@dataclass(frozen=True)
class Amendment:
    """Corrections made together."""

    annotator: str
    made_at: str  # UTC, ISO 8601
    channel: str  # name of the CSV or PNG file, page, MERGE_CHANNEL, or empty
    corrections: tuple[Correction, ...]


@dataclass(frozen=True)
class CorrectedLabels:
    """The newest label of every amended location, by image."""

    # Positions, ascending, with the labels acquired and the newest ones.
    by_image: Mapping[int, tuple[AnyArray, AnyArray, AnyArray]]

    @classmethod
    def from_amendments(cls, amendments: Iterable[Amendment]) -> "CorrectedLabels":
        """Apply amendments in order."""
        runs: dict[int, list[tuple[int, int, int, int]]] = {}
        for amendment in amendments:
            for correction in amendment.corrections:
                runs.setdefault(correction.image, []).extend(correction.runs)
        return cls({image: _resolve(image_runs) for image, image_runs in runs.items() if image_runs})

    def apply(self, image: int, position: AnyArray, label: AnyArray) -> AnyArray:
        """Return labels of one image with the corrected ones replaced, wider if a class needs it."""
        if image not in self.by_image or not len(position):
            return label
        corrected_position, _, corrected_label = self.by_image[image]
        index = np.searchsorted(corrected_position, position).clip(max=len(corrected_position) - 1)
        found: AnyArray = np.where(corrected_position[index] == position, corrected_label[index], label)
        return found if found.max() > np.iinfo(label.dtype).max else found.astype(label.dtype)

    def apply_to_images(self, image: AnyArray, position: AnyArray, label: AnyArray) -> AnyArray:
        """Return labels of several images with the corrected ones replaced."""
        amended = np.intersect1d(image, list(self.by_image))
        if not len(amended):
            return label
        found: AnyArray = label.astype(np.int16)
        for one in amended.tolist():
            rows = np.flatnonzero(image == one)
            found[rows] = self.apply(one, position[rows], found[rows])
        return found

    @cached_property
    def n_corrected(self) -> int:
        """Number of labels that differ from those acquired."""
        return sum(int(np.count_nonzero(old != new)) for _, old, new in self.by_image.values())

    @cached_property
    def max_label(self) -> int:
        """Highest corrected label; 0 if there is none."""
        return max((int(new.max(initial=0)) for _, _, new in self.by_image.values()), default=0)


def _resolve(runs: Sequence[tuple[int, int, int, int]]) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return all positions, ascending, with the old label in the first run and the new one in the last."""
    first, length, old, new = np.array(runs, np.int64).T
    positions = np.concatenate(
        [np.arange(low, low + count) for low, count in zip(first, length, strict=True)]
    )
    old_labels, new_labels = np.repeat(old, length).astype(np.int16), np.repeat(new, length).astype(np.int16)
    unique, first_index = np.unique(positions, return_index=True)
    last_index = len(positions) - 1 - np.unique(positions[::-1], return_index=True)[1]
    return unique, old_labels[first_index], new_labels[last_index]


def load_amendments(folder: Path) -> list[Amendment]:
    """Load the amendments in a run's folder of labels, oldest first.

    Raises:
        UserError: a file is corrupt or missing.
    """
    paths = sorted(folder.glob(AMENDMENT_FILES))
    for number, path in enumerate(paths, start=1):
        if path != (expected := amendment_path(folder, number)):
            raise UserError(
                f"{folder} has {path.name} but {expected.name} is missing; restore it from a backup"
            )
    checksums.verify(amendment_path(folder, len(paths) + 1))  # raises if the file existed
    return [_read(path) for path in paths]


def amendment_path(folder: Path, number: int) -> Path:
    """Return the path of an amendment, numbered from 1."""
    return folder / f"amendment-{number:05d}.json"


def append_amendment(folder: Path, amendment: Amendment) -> None:
    """Add an amendment; it is on disk when this returns."""
    with lock_beside(folder / "amendments"):
        number = len(load_amendments(folder)) + 1
        text = json.dumps(asdict(amendment), ensure_ascii=False)
        checksums.write_text(amendment_path(folder, number), text + "\n")


def _read(path: Path) -> Amendment:
    checksums.verify(path)
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        amendment = Amendment(**{**raw, "corrections": tuple(map(_parse_correction, raw["corrections"]))})
        texts = (amendment.annotator, amendment.made_at, amendment.channel)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("annotator, made_at and channel must be text")
        return amendment
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise checksums.corrupt(path, f"{type(error).__name__}: {error}") from error


def _parse_correction(raw: Mapping[str, Any]) -> Correction:
    correction = Correction(**{**raw, "runs": tuple(_parse_run(*run) for run in raw["runs"])})
    if not all(isinstance(text, str) for text in (correction.question, correction.old, correction.new)):
        raise TypeError("question, old and new must be text")
    if not (
        isinstance(correction.image, int) and isinstance(correction.round, int) and correction.image >= 0
    ):
        raise TypeError("image and round must be numbers")
    return correction


def _parse_run(first: int, length: int, old: int, new: int) -> tuple[int, int, int, int]:
    run = (int(first), int(length), int(old), int(new))
    if run[0] < 0 or run[1] < 1 or min(run[2:]) < -2 or max(run[2:]) > np.iinfo(np.int16).max:
        raise ValueError(f"{list(run)} is not a run of labels")
    return run


def label_runs(position: AnyArray, old: AnyArray, new: AnyArray) -> tuple[tuple[int, int, int, int], ...]:
    """Group positions into runs of consecutive ones with the same labels: first, length, old, new.

    >>> label_runs(np.array([7, 3, 4]), np.array([0, 1, 1]), np.array([2, 2, 2]))
    ((3, 2, 1, 2), (7, 1, 0, 2))
    """
    order = np.argsort(position)
    position, old, new = position[order], old[order], new[order]
    is_first = np.ones(len(position), bool)
    is_first[1:] = (np.diff(position) != 1) | (np.diff(old) != 0) | (np.diff(new) != 0)
    first = np.flatnonzero(is_first)
    length = np.diff(first, append=len(position))
    columns = (position[first], length, old[first], new[first])
    return tuple(zip(*(column.tolist() for column in columns), strict=True))
