"""Files of requests and acquired labels: one of each per round, as runs of locations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ducats.runfolder import checksums
from ducats.runfolder.pixel_runs import MAPPED_COLUMNS, PixelRuns
from ducats.utils import npz_columns
from ducats.utils.npz_columns import AnyArray, Columns


def _no_indices() -> AnyArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class AuditMarks:
    """Which locations of a round are for the audit: drawn at random, and not trained on."""

    index: AnyArray = field(default_factory=_no_indices)  # of these locations in the round, ascending
    # Audit images and pixels of earlier rounds that the query of this round selected: they are trained on
    # from now on. An image has position 0.
    released_image: AnyArray = field(default_factory=_no_indices)
    released_position: AnyArray = field(default_factory=_no_indices)

    def mask(self, n_locations: int) -> AnyArray:
        """Return whether each location of the round is for the audit."""
        is_audit = np.zeros(n_locations, bool)
        is_audit[self.index] = True
        return is_audit

    def restricted_to(self, keep: AnyArray) -> "AuditMarks":
        """Return the marks of a subset of the locations, given by a mask."""
        index = (np.cumsum(keep) - 1)[self.index[keep[self.index]]]
        return replace(self, index=index)

    def to_columns(self) -> Columns:
        """Return the columns of a file; none if there is no mark."""
        columns: dict[str, tuple[AnyArray, np.typing.DTypeLike]] = {}
        if len(self.index):
            columns["audit"] = (self.index, np.int64)
        if len(self.released_image):
            columns["released"] = (self.released_image, np.int64)
            if self.released_position.any():
                columns["released_position"] = (self.released_position, np.int64)
        return columns

    @classmethod
    def from_columns(cls, columns: Mapping[str, AnyArray], n_locations: int) -> "AuditMarks":
        """Read the marks of a file."""
        index = columns.get("audit", _no_indices()).astype(np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < n_locations:
            raise ValueError(f"audit mark {index.max()} is out of range for {n_locations} locations")
        image = columns.get("released", _no_indices()).astype(np.int64)
        return cls(index, image, columns.get("released_position", np.zeros_like(image)).astype(np.int64))


@dataclass(frozen=True)
class LabelFile:
    """The labels of one round; positions and labels are read from disk on access."""

    pixel_runs: PixelRuns
    labels: AnyArray  # one per location
    clicks: int
    seconds: AnyArray  # annotation time per unit, 0 if unknown; empty if unknown for all units
    unanswered_seconds: float  # seconds spent on questions that were not answered
    n_amendments: int = 0  # amendments that count from this round on, from the first
    marks: AuditMarks = field(default_factory=AuditMarks)


@dataclass(frozen=True)
class RoundLabels:
    """The labels acquired in one round, in the ledger's order."""

    round: int
    image: AnyArray  # int64 (n,): index in the pool
    position: AnyArray  # int64 (n,)
    label: AnyArray  # int16 (n,): class, or -2 for void


class ImageLabelRounds(NamedTuple):
    """The labels of one image, in the order of acquisition."""

    position: AnyArray  # int64 (n,)
    label: AnyArray  # int16 (n,): class, or -2 for void
    round: AnyArray  # int64 (n,): in which the label was acquired


_NO_MARKS = AuditMarks()


def write_label_file(
    path: Path,
    pixel_runs: PixelRuns,
    labels: AnyArray,
    clicks: AnyArray,
    *,
    seconds: AnyArray,
    unanswered_seconds: float,
    n_amendments: int = 0,
    marks: AuditMarks = _NO_MARKS,
) -> None:
    """Write the labels of a round atomically; see ``LabelFile``, but ``clicks`` is one number per run."""
    columns = {**pixel_runs.to_columns(), **marks.to_columns()}
    fits_int8 = labels.max(initial=0) <= np.iinfo(np.int8).max
    columns["label"] = (labels, np.int8 if fits_int8 else np.int16)
    if pixel_runs.units_per_run.any():
        columns["clicks"] = (clicks, np.uint32)
    if seconds.any():
        columns["seconds"] = (seconds, np.float32)
    if unanswered_seconds:
        columns["unanswered_seconds"] = (np.array(unanswered_seconds), np.float64)
    if n_amendments:
        columns["amendments"] = (np.array(n_amendments), np.int64)
    checksums.write(path, lambda file: npz_columns.write_archive(file, columns))


def read_label_file(path: Path) -> LabelFile:
    """Open the labels of a round.

    Raises:
        UserError: the file is corrupt.
    """
    checksums.verify(path)
    try:
        columns = npz_columns.read_columns(path, (*MAPPED_COLUMNS, "label"))
        pixel_runs, labels = PixelRuns.from_columns(columns), columns["label"]
        if len(labels) != pixel_runs.n_locations:
            raise ValueError(f"{len(labels)} labels for {pixel_runs.n_locations} locations")
        seconds = columns.get("seconds", np.zeros(0)).astype(np.float64)
        if len(seconds) not in (0, pixel_runs.n_units):
            raise ValueError(f"{len(seconds)} annotation times for {pixel_runs.n_units} units")
        marks = AuditMarks.from_columns(columns, pixel_runs.n_locations)
    except npz_columns.READ_ERRORS as error:
        raise checksums.corrupt(path, error) from error
    clicks = int(columns.get("clicks", pixel_runs.count).sum())
    unanswered_seconds = float(columns.get("unanswered_seconds", 0.0))
    n_amendments = int(columns.get("amendments", 0))
    return LabelFile(pixel_runs, labels, clicks, seconds, unanswered_seconds, n_amendments, marks)


def write_request_file(
    path: Path, round_number: int, pixel_runs: PixelRuns, marks: AuditMarks = _NO_MARKS
) -> None:
    """Write the requested locations of a round atomically."""
    columns = {
        "round": (np.array(round_number), np.int64),
        **pixel_runs.to_columns(),
        **marks.to_columns(),
    }
    checksums.write(path, lambda file: npz_columns.write_archive(file, columns))


def read_request_file(path: Path) -> tuple[int, PixelRuns, AuditMarks]:
    """Return the round, its requested locations, whose positions are read from disk on access, and the marks.

    Raises:
        UserError: the file is corrupt.
    """
    checksums.verify(path)
    try:
        columns = npz_columns.read_columns(path, MAPPED_COLUMNS)
        pixel_runs = PixelRuns.from_columns(columns)
        return int(columns["round"]), pixel_runs, AuditMarks.from_columns(columns, pixel_runs.n_locations)
    except npz_columns.READ_ERRORS as error:
        raise checksums.corrupt(path, error) from error
