"""State of a run."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ducats.runfolder.records import Record, headline_metric
from ducats.utils.findings import pluralise

Phase = Literal["empty", "training", "evaluating", "querying", "waiting", "finished"]
METRIC_NAMES = {"accuracy": "accuracy", "mean_iou": "mIoU"}


@dataclass(frozen=True)
class OpenRound:
    """Progress of annotation in the open round."""

    number: int
    questions: int | None  # None: too many for single answers, only label PNGs
    settled: int
    open: int
    disputed: int
    answer_files: int  # answer files, which the run reads at its next check

    def __str__(self) -> str:
        phrases = [f"round {self.number}"]
        if self.questions is not None:
            phrases.append(f"{self.settled} of {pluralise(self.questions, 'question')} settled")
            phrases += [f"{self.disputed} disputed"] if self.disputed else []
        if self.answer_files:
            phrases.append(pluralise(self.answer_files, "answer file"))
        return ", ".join(phrases)


@dataclass(frozen=True)
class RunState:
    """One run at one moment, read from its files. None means unknown."""

    folder: Path
    method: str = ""  # empty if unknown
    phase: Phase = "empty"  # current phase, or the phase in which the run would resume
    epoch: int = 0  # number of finished epochs, out of `epochs`
    epochs: int | None = None
    n_rounds: int | None = None
    n_labelled_rounds: int = 0
    stages: tuple[Record, ...] = ()  # records of evaluated stages, oldest first, with valid values only
    audit: Record | None = None  # the newest figures of the audit
    stop: Record | None = None  # why no more labels are queried, although the budget is not spent
    added_classes: tuple[str, ...] = ()  # names of classes that were added during the run
    losses: tuple[Mapping[str, float], ...] = ()  # mean losses of each epoch, oldest first
    compute_seconds: float | None = None  # up to the last evaluation
    annotation_seconds: float | None = None  # of the answers whose time is known
    timed_answers: str = ""  # how many answers these are, unless all
    open_round: OpenRound | None = None  # the round that waits for annotators
    seconds_left: float | None = None  # estimate, without waiting for annotators
    is_active: bool | None = None  # whether a process on this machine works on the run
    seconds_since_write: float | None = None
    problems: tuple[str, ...] = ()  # messages about missing or unreadable files

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.folder.resolve().name

    @property
    def headline(self) -> str:
        """Main metric of the run."""
        name = headline_metric(self.stages[-1]) if self.stages else "accuracy"
        return name if name in METRIC_NAMES else "accuracy"

    @property
    def labels_spent(self) -> int | None:
        """Labels spent at the last evaluation."""
        return int(self.stages[-1]["labels"]) if self.stages else None

    def learning_curve(self, metric: str | None = None) -> list[tuple[float, float]]:
        """Return labels and a metric, the headline by default, for each stage that has it."""
        name = metric or self.headline
        return [(float(stage["labels"]), float(stage[name])) for stage in self.stages if name in stage]

    def describe(self) -> str:
        """Describe the current phase in a few words."""
        if self.phase == "empty":
            return "no run here yet"
        if self.phase == "finished":
            return f"finished, {pluralise(self.epoch, 'epoch')}"
        if self.phase == "waiting":
            paused = "" if self.is_active is not False else "paused, "
            return f"{paused}waiting for annotators: {self.open_round}"
        epochs = pluralise(self.epoch if self.epochs is None else self.epochs, "epoch")
        done = f"{self.phase}, {'' if self.epochs is None else f'{self.epoch} of '}{epochs}"
        return f"stopped while {done}" if self.is_active is False else done


def keep_valid_values(record: Mapping[str, Any]) -> Record:
    """Return a record without values that are not numbers (metrics undefined on a test set)."""
    text_fields = ("kind", "headline_metric", "evaluated_on", "resolution")
    return {
        name: value
        for name, value in record.items()
        if (isinstance(value, str) if name in text_fields else _is_number(value))
    }


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max
