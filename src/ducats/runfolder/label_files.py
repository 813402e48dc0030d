"""Files of requests and acquired labels: one of each per round, as runs of locations."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ducats.runfolder import checksums
from ducats.runfolder.pixel_runs import MAPPED_COLUMNS, PixelRuns
from ducats.utils import npz_columns
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class LabelFile:
    """The labels of one round; positions and labels are read from disk on access."""

    pixel_runs: PixelRuns
    labels: AnyArray  # one per location
    clicks: int
    seconds: AnyArray  # annotation time per unit, 0 if unknown; empty if unknown for all units
    unanswered_seconds: float  # seconds spent on questions that were not answered
    n_amendments: int = 0  # amendments that count from this round on, from the first


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


def write_label_file(
    path: Path,
    pixel_runs: PixelRuns,
    labels: AnyArray,
    clicks: AnyArray,
    *,
    seconds: AnyArray,
    unanswered_seconds: float,
    n_amendments: int = 0,
) -> None:
    """Write the labels of a round atomically; see ``LabelFile``, but ``clicks`` is one number per run."""
    columns = dict(pixel_runs.to_columns())
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
    except npz_columns.READ_ERRORS as error:
        raise checksums.corrupt(path, error) from error
    clicks = int(columns.get("clicks", pixel_runs.count).sum())
    unanswered_seconds = float(columns.get("unanswered_seconds", 0.0))
    n_amendments = int(columns.get("amendments", 0))
    return LabelFile(pixel_runs, labels, clicks, seconds, unanswered_seconds, n_amendments)


def write_request_file(path: Path, round_number: int, pixel_runs: PixelRuns) -> None:
    """Write the requested locations of a round atomically."""
    columns = {"round": (np.array(round_number), np.int64), **pixel_runs.to_columns()}
    checksums.write(path, lambda file: npz_columns.write_archive(file, columns))


def read_request_file(path: Path) -> tuple[int, PixelRuns]:
    """Return the round and its requested locations, whose positions are read from disk on access.

    Raises:
        UserError: the file is corrupt.
    """
    checksums.verify(path)
    try:
        columns = npz_columns.read_columns(path, MAPPED_COLUMNS)
        return int(columns["round"]), PixelRuns.from_columns(columns)
    except npz_columns.READ_ERRORS as error:
        raise checksums.corrupt(path, error) from error
