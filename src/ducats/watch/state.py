"""Where a run stands."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ducats.records import Record, headline_of

Phase = Literal["nothing", "training", "measuring", "asking", "waiting", "finished"]
SHOWN = {"accuracy": "accuracy", "mean_iou": "mIoU"}


@dataclass(frozen=True)
class Round:
    """What people have done of the questions that wait for them."""

    number: int
    asked: int | None  # None: so many that only label PNGs answer them
    settled: int
    open: int
    disputed: int
    files: int  # answers that lie there as files: the run reads them when it looks

    def __str__(self) -> str:
        said = [f"round {self.number}"]
        if self.asked is not None:
            said.append(f"{self.settled} of {self.asked} questions settled")
            said += [f"{self.disputed} disputed"] if self.disputed else []
        said += [f"{self.files} answer file{'' if self.files == 1 else 's'} there"] if self.files else []
        return ", ".join(said)


@dataclass(frozen=True)
class State:
    """One run at one moment, as its files say.

    Args:
        folder: the run's.
        method: its method's name; empty if it is not known.
        phase: what it does, or would do if it went on.
        epoch: epochs that are done.
        epochs: in all; None if it is not known.
        rounds: of questions, in all; None if it is not known.
        bought: rounds that were answered.
        stages: records of measured stages, oldest first; only what a table can show.
        losses: mean losses of each epoch, oldest first.
        seconds: of computing, up to the last measurement.
        people_seconds: of people; None where nobody's are known.
        round: questions that wait for people, if any do.
        left: seconds until the end, if it goes on as before and nobody has to be waited for; None if unknown.
        at_work: whether a process of this machine works on it; None if that is not known.
        silent: seconds since it last wrote something; None if it never did.
        wrong: what is missing or cannot be read, a sentence each.
    """

    folder: Path
    method: str = ""
    phase: Phase = "nothing"
    epoch: int = 0
    epochs: int | None = None
    rounds: int | None = None
    bought: int = 0
    stages: tuple[Record, ...] = ()
    losses: tuple[Mapping[str, float], ...] = ()
    seconds: float | None = None
    people_seconds: float | None = None
    round: Round | None = None
    left: float | None = None
    at_work: bool | None = None
    silent: float | None = None
    wrong: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def headline(self) -> str:
        """The measure that the run is ranked by."""
        found = headline_of(self.stages[-1]) if self.stages else "accuracy"
        return found if found in SHOWN else "accuracy"

    @property
    def labels(self) -> int | None:
        """Spent when it was last measured."""
        return int(self.stages[-1]["labels"]) if self.stages else None

    def curve(self, measure: str | None = None) -> list[tuple[float, float]]:
        """Labels and a measure, the headline by default, of each stage that has it."""
        name = measure or self.headline
        return [(float(one["labels"]), float(one[name])) for one in self.stages if name in one]

    def words(self) -> str:
        """What it does, in a few words."""
        of = f" of {self.epochs}" if self.epochs is not None else ""
        if self.phase == "nothing":
            return "no run here yet"
        if self.phase == "finished":
            return f"finished, {self.epoch} epochs"
        if self.phase == "waiting":
            paused = "" if self.at_work is not False else "paused, "
            return f"{paused}waiting for people: {self.round}"
        done = f"{self.phase}, {self.epoch}{of} epochs"
        return f"stopped while {done}" if self.at_work is False else done


def numbers(record: Mapping[str, Any]) -> Record:
    """A record without what should be a number and is none (a measure that a test set does not give)."""
    texts = ("kind", "headline", "measured_on", "resolution")
    return {
        name: value
        for name, value in record.items()
        if (isinstance(value, str) if name in texts else _is_number(value))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
