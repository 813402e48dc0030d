"""State of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ducats.records import Record, headline_metric

Phase = Literal["nothing", "training", "measuring", "asking", "waiting", "finished"]
SHOWN = {"accuracy": "accuracy", "mean_iou": "mIoU"}


@dataclass(frozen=True)
class Round:
    """Progress of annotation in the open round."""

    number: int
    asked: int | None  # None: too many for single answers, only label PNGs
    settled: int
    open: int
    disputed: int
    files: int  # answer files, which the run reads at its next check

    def __str__(self) -> str:
        said = [f"round {self.number}"]
        if self.asked is not None:
            said.append(f"{self.settled} of {self.asked} questions settled")
            said += [f"{self.disputed} disputed"] if self.disputed else []
        said += [f"{self.files} answer file{'' if self.files == 1 else 's'}"] if self.files else []
        return ", ".join(said)


@dataclass(frozen=True)
class State:
    """One run at one moment, read from its files. None means unknown.

    Args:
        folder: run folder.
        method: name of the method; empty if unknown.
        phase: current phase, or the phase in which the run would resume.
        epoch: number of finished epochs.
        epochs: total number of epochs.
        rounds: total number of rounds.
        bought: number of labelled rounds.
        stages: records of evaluated stages, oldest first, with valid values only.
        losses: mean losses of each epoch, oldest first.
        seconds: computing time up to the last evaluation.
        people_seconds: annotation time.
        round: round that waits for annotators; None if there is none.
        left: estimated seconds until the end, without waiting for annotators.
        at_work: whether a process on this machine works on the run.
        silent: seconds since the last write; None if there was none.
        wrong: messages about missing or unreadable files.
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
        """Name of the run folder."""
        return self.folder.resolve().name

    @property
    def headline(self) -> str:
        """Main metric of the run."""
        found = headline_metric(self.stages[-1]) if self.stages else "accuracy"
        return found if found in SHOWN else "accuracy"

    @property
    def labels(self) -> int | None:
        """Labels spent at the last evaluation."""
        return int(self.stages[-1]["labels"]) if self.stages else None

    def curve(self, measure: str | None = None) -> list[tuple[float, float]]:
        """Return labels and a metric, the headline by default, for each stage that has it."""
        name = measure or self.headline
        return [(float(one["labels"]), float(one[name])) for one in self.stages if name in one]

    def words(self) -> str:
        """Describe the current phase in a few words."""
        of = f" of {self.epochs}" if self.epochs is not None else ""
        if self.phase == "nothing":
            return "no run here yet"
        if self.phase == "finished":
            return f"finished, {self.epoch} epochs"
        if self.phase == "waiting":
            paused = "" if self.at_work is not False else "paused, "
            return f"{paused}waiting for annotators: {self.round}"
        done = f"{self.phase}, {self.epoch}{of} epochs"
        return f"stopped while {done}" if self.at_work is False else done


def numbers(record: Mapping[str, Any]) -> Record:
    """Return a record without values that are not numbers (metrics undefined on a test set)."""
    texts = ("kind", "headline", "evaluated_on", "resolution")
    return {
        name: value
        for name, value in record.items()
        if (isinstance(value, str) if name in texts else _is_number(value))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
