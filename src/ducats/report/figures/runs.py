"""Read-only view of a run for figures: snapshots, class names, text helpers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ducats.runfolder import snapshot_files
from ducats.runfolder.records import Record
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError

VOID_LABEL = -2  # annotated as void: no class applies


class KindLike(Protocol):
    """Task-specific names: classification or segmentation."""

    @property
    def headline_metric(self) -> str:
        """Record key of the main metric."""

    @property
    def score_name(self) -> str:
        """Name of the main metric."""

    @property
    def labels_axis(self) -> str:
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


RunSequence = Sequence[RunLike]


def require_one_run(runs: RunSequence, figure: str) -> RunLike:
    """Return the only run.

    Raises:
        UserError: there is not exactly one.
    """
    if len(runs) != 1:
        raise UserError(f"`ducats figure {figure}` shows one run, not {len(runs)}; give one run folder")
    return runs[0]


def require_snapshots(run: RunLike) -> list[Snapshot]:
    """Load all readable snapshots of a run.

    Raises:
        UserError: there are none.
    """
    readable, problems = snapshot_files.load_readable_snapshots(run.folder)
    if problems and not readable:
        raise UserError(problems[0])
    if not readable and not run.finished and not run.stages:
        raise UserError(
            f"{run.folder} has not reached its first round yet, so there is nothing to draw; run the same "
            "command again to resume it"
        )
    if not readable:
        raise UserError(
            f"{run.folder} has no snapshots: it ran with engine.snapshot_samples=0 or an older version; run "
            "it again in a new folder (--out) to draw this figure"
        )
    return readable


def require_round_snapshots(run: RunLike, round_number: int | None = None) -> list[Snapshot]:
    """Load the snapshots of all rounds, or of one round.

    Raises:
        UserError: there are none.
    """
    round_snapshots = [snapshot for snapshot in require_snapshots(run) if snapshot.round]
    if not round_snapshots:
        raise UserError(f"{run.folder} has no round, so nothing was selected; use a run with a label budget")
    return round_snapshots if round_number is None else [_find_round(round_snapshots, round_number, run)]


def snapshot_of_round_or_first(run: RunLike, round_number: int | None) -> Snapshot:
    """Load the snapshot of a round, or the first snapshot."""
    all_snapshots = require_snapshots(run)
    return all_snapshots[0] if round_number is None else _find_round(all_snapshots, round_number, run)


def _find_round(candidates: Sequence[Snapshot], round_number: int, run: RunLike) -> Snapshot:
    for snapshot in candidates:
        if snapshot.round == round_number and round_number:
            return snapshot
    available = ", ".join(str(snapshot.round) for snapshot in candidates if snapshot.round) or "none"
    raise UserError(f"{run.folder} has no snapshot of --round {round_number}; available rounds: {available}")


def describe_time(snapshot: Snapshot) -> str:
    """Describe the time of a snapshot."""
    return f"round {snapshot.round}" if snapshot.round else "at the end"


def class_name(run: RunLike, label: int) -> str:
    """Return the name of a class or of VOID; the number if the name is unknown."""
    if label == VOID_LABEL:
        return "void"
    return run.classes[label] if 0 <= label < len(run.classes) else f"class {label}"


def is_segmentation(run: RunLike) -> bool:
    """Return whether the run labels pixels (segmentation)."""
    return run.kind.headline_metric == "mean_iou"


def format_sample_count(count: int, run: RunLike) -> str:
    """Format a number of images or pixels."""
    return format_count(count, "pixel" if is_segmentation(run) else "image")


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> format_count(1, "round"), format_count(1200, "pixel")
    ('1 round', '1,200 pixels')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shorten_start(text: str, max_length: int = 24) -> str:
    """Shorten a name at its start; the end of a path is more informative.

    >>> shorten_start("target/0001"), shorten_start("a/very/long/path/to/some/image/0001.png", 12)
    ('target/0001', '…ge/0001.png')
    """
    text = " ".join(text.split())
    return text if len(text) <= max_length else f"…{text[1 - max_length :]}"
