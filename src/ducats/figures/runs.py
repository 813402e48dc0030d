"""Read-only view of a run for figures: snapshots, class names, text helpers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.records import Record
from ducats.snapshot_files import Snapshot

VOID = -2  # annotated as void: no class applies


class KindLike(Protocol):
    """Task-specific names: classification or segmentation."""

    @property
    def headline(self) -> str:
        """Record key of the main metric."""

    @property
    def score(self) -> str:
        """Name of the main metric."""

    @property
    def axis(self) -> str:
        """Axis label for the number of labels."""


class RunLike(Protocol):
    """The attributes of a run that figures need."""

    @property
    def folder(self) -> Path:
        """Path of the run folder."""

    @property
    def name(self) -> str:
        """Name of the run folder."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def seed(self) -> int:
        """Random seed."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Resolved config."""

    @property
    def data(self) -> Mapping[str, Any]:
        """Classes and sizes of the data."""

    @property
    def stages(self) -> Sequence[Record]:
        """One record per evaluated stage in chronological order."""

    @property
    def finished(self) -> bool:
        """Whether the final model was saved."""

    @property
    def classes(self) -> Sequence[str]:
        """Class names; empty if unknown."""

    @property
    def kind(self) -> KindLike:
        """Classification or segmentation."""


Runs = Sequence[RunLike]


def only(runs: Runs, figure: str) -> RunLike:
    """Return the only run.

    Raises:
        UserError: there is not exactly one.
    """
    if len(runs) != 1:
        raise UserError(f"`ducats figure {figure}` shows one run, not {len(runs)}; give one run folder")
    return runs[0]


def snapshots_of(run: RunLike) -> list[Snapshot]:
    """Load all readable snapshots of a run.

    Raises:
        UserError: there are none.
    """
    found, damaged = snapshot_files.load_readable_snapshots(run.folder)
    if damaged and not found:
        raise UserError(damaged[0])
    if not found and not run.finished and not run.stages:
        raise UserError(
            f"{run.folder} has not reached its first round yet, so there is nothing to draw; run the same "
            "command again to resume it"
        )
    if not found:
        raise UserError(
            f"{run.folder} has no snapshots: it ran with engine.snapshot_samples=0 or an older version; run it again "
            "in a new folder (--out) to draw this figure"
        )
    return found


def questions_of(run: RunLike, number: int | None = None) -> list[Snapshot]:
    """Load the snapshots of all rounds, or of one round.

    Raises:
        UserError: there are none.
    """
    found = [snapshot for snapshot in snapshots_of(run) if snapshot.round]
    if not found:
        raise UserError(f"{run.folder} has no round, so nothing was selected; use a run with a label budget")
    return found if number is None else [_of_round(found, number, run)]


def first_or(run: RunLike, number: int | None) -> Snapshot:
    """Load the snapshot of a round, or the first snapshot."""
    found = snapshots_of(run)
    return found[0] if number is None else _of_round(found, number, run)


def _of_round(found: Sequence[Snapshot], number: int, run: RunLike) -> Snapshot:
    for snapshot in found:
        if snapshot.round == number and number:
            return snapshot
    there = ", ".join(str(snapshot.round) for snapshot in found if snapshot.round) or "none"
    raise UserError(f"{run.folder} has no snapshot of --round {number}; available rounds: {there}")


def when(snapshot: Snapshot) -> str:
    """Describe the time of a snapshot."""
    return f"round {snapshot.round}" if snapshot.round else "at the end"


def class_name(run: RunLike, label: int) -> str:
    """Return the name of a class or of VOID; the number if the name is unknown."""
    if label == VOID:
        return "void"
    return run.classes[label] if 0 <= label < len(run.classes) else f"class {label}"


def of_pixels(run: RunLike) -> bool:
    """Return whether the run labels pixels (segmentation)."""
    return run.kind.headline == "mean_iou"


def many(count: int, run: RunLike) -> str:
    """Format a number of images or pixels."""
    return plural(count, "pixel" if of_pixels(run) else "image")


def plural(count: int, what: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "round"), plural(1200, "pixel")
    ('1 round', '1,200 pixels')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tail(text: str, length: int = 24) -> str:
    """Shorten a name at its start; the end of a path is more informative.

    >>> tail("target/0001"), tail("a/very/long/path/to/some/image/0001.png", 12)
    ('target/0001', '…ge/0001.png')
    """
    text = " ".join(text.split())
    return text if len(text) <= length else f"…{text[1 - length :]}"
