"""What figures ask of runs: snapshots, names of classes; what is missing is said with the remedy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ducats import snapshots
from ducats.errors import UserError
from ducats.records import Record
from ducats.snapshots import Snapshot

VOID = -2  # asked; no class applies


class KindLike(Protocol):
    """What a run is about, images or pixels, in words."""

    @property
    def headline(self) -> str:
        """Key of the measure that it is ranked by."""

    @property
    def score(self) -> str:
        """Name of that measure."""

    @property
    def axis(self) -> str:
        """What is bought, on an axis."""


class RunLike(Protocol):
    """A run as figures see it."""

    @property
    def folder(self) -> Path:
        """Where it lives."""

    @property
    def name(self) -> str:
        """The folder's own name."""

    @property
    def method(self) -> str:
        """Its method's name."""

    @property
    def seed(self) -> int:
        """Its seed."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config that made it."""

    @property
    def data(self) -> Mapping[str, Any]:
        """Classes and sizes of its data."""

    @property
    def stages(self) -> Sequence[Record]:
        """One record per measured stage, oldest first."""

    @property
    def finished(self) -> bool:
        """Whether its last model was written."""

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, if they were written down."""

    @property
    def kind(self) -> KindLike:
        """Whether it is about images or about pixels."""


Runs = Sequence[RunLike]


def only(runs: Runs, figure: str) -> RunLike:
    """The one run of a figure that shows one."""
    if len(runs) != 1:
        raise UserError(f"`ducats figure {figure}` shows one run, not {len(runs)}: name one run folder")
    return runs[0]


def snapshots_of(run: RunLike) -> list[Snapshot]:
    """All snapshots of a run that can be read; at least one."""
    found, damaged = snapshots.read_sound(run.folder)
    if damaged and not found:
        raise UserError(damaged[0])
    if not found and not run.finished and not run.stages:
        raise UserError(
            f"{run.folder} has come neither to a question nor to its end, so that there is nothing to draw "
            "yet: let it go on with the command that began it"
        )
    if not found:
        raise UserError(
            f"{run.folder} holds no snapshots of what its model thought: it was made with engine.snapshot=0 "
            "or before there were any; run it again in a new folder (--out) to draw this"
        )
    return found


def questions_of(run: RunLike, number: int | None = None) -> list[Snapshot]:
    """The snapshots of a run's questions, or that of one question; at least one."""
    found = [snapshot for snapshot in snapshots_of(run) if snapshot.round]
    if not found:
        raise UserError(f"{run.folder} asked no question, so that nothing was picked: show a run with labels")
    return found if number is None else [_of_round(found, number, run)]


def first_or(run: RunLike, number: int | None) -> Snapshot:
    """The snapshot of a question, or the first of all."""
    found = snapshots_of(run)
    return found[0] if number is None else _of_round(found, number, run)


def _of_round(found: Sequence[Snapshot], number: int, run: RunLike) -> Snapshot:
    for snapshot in found:
        if snapshot.round == number and number:
            return snapshot
    there = ", ".join(str(snapshot.round) for snapshot in found if snapshot.round) or "none"
    raise UserError(f"--round {number} has no snapshot in {run.folder}: there are {there}")


def when(snapshot: Snapshot) -> str:
    """The moment of a snapshot, in words."""
    return f"round {snapshot.round}" if snapshot.round else "at the end"


def class_name(run: RunLike, label: int) -> str:
    """A class's name, or its number where nobody wrote names down.

    Args:
        run: whose class it is.
        label: its number; VOID is a label, too.
    """
    if label == VOID:
        return "void"
    return run.classes[label] if 0 <= label < len(run.classes) else f"class {label}"


def of_pixels(run: RunLike) -> bool:
    """Whether labels are of pixels."""
    return run.kind.headline == "mean_iou"


def many(count: int, run: RunLike) -> str:
    """A number of samples in words."""
    return plural(count, "pixel" if of_pixels(run) else "image")


def plural(count: int, what: str) -> str:
    """A number of things in words.

    >>> plural(1, "round"), plural(1200, "pixel")
    ('1 round', '1,200 pixels')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tail(text: str, length: int = 24) -> str:
    """A name, or its end where it is too long: the end of a path says more.

    >>> tail("target/0001"), tail("a/very/long/path/to/some/image/0001.png", 12)
    ('target/0001', '…ge/0001.png')
    """
    text = " ".join(text.split())
    return text if len(text) <= length else f"…{text[1 - length :]}"
