"""Reading and validating run folders for reports. Does not need torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ducats.report.run_kinds import RUN_KINDS, SEGMENTATION, RunKind
from ducats.runfolder import checksums
from ducats.runfolder.class_changes import ClassList
from ducats.runfolder.records import Record, finite_number, headline_metric, read_valid_records
from ducats.runfolder.run_folder import RunFolder
from ducats.runfolder.search import find_run_folders
from ducats.utils.errors import UserError


@dataclass(frozen=True)
class Run:
    """The contents of one run folder."""

    folder: Path
    method: str
    seed: int
    config: Mapping[str, Any]  # the resolved config
    stages: tuple[Record, ...] = ()  # one record per evaluated stage, oldest first
    epochs: tuple[Record, ...] = ()  # one record of mean losses per epoch, oldest first
    pseudo_labels: tuple[Record, ...] = ()  # one record of their numbers per refresh, oldest first
    audits: tuple[Record, ...] = ()  # one record of the audit's figures per stage, oldest first
    random_gain: Record | None = None  # the gain over random labels, by the audit
    added_classes: tuple[Record, ...] = ()  # images of classes added during the run, by stage
    stop_reason: str = ""  # why no more labels were queried, although the budget was not spent
    finished: bool = False  # whether the final model was written
    # Versions and machine; empty if not recorded.
    environment: Mapping[str, Any] = field(default_factory=dict)
    # Classes and fingerprints of the data; empty if not recorded.
    data: Mapping[str, Any] = field(default_factory=dict)
    class_list: ClassList = field(default_factory=partial(ClassList, ()))  # empty if not recorded

    @property
    def files(self) -> RunFolder:
        """The files of the run."""
        return RunFolder(self.folder)

    @property
    def name(self) -> str:
        """Name of the folder; pages show no more of its path."""
        return self.folder.resolve().name

    @property
    def kind(self) -> RunKind:
        """Classification or segmentation; only runs of one kind are compared."""
        task = self.config.get("task")
        if isinstance(task, Mapping) and task.get("name") == "segmentation":
            return SEGMENTATION
        return RUN_KINDS[headline_metric(self.stages[-1] if self.stages else {})]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number, with those added since the start; empty if not recorded."""
        return self.class_list.resolved_names

    def class_names(self, count: int) -> tuple[str, ...]:
        """Return the names of the first classes; numbers where they were not recorded."""
        return tuple(self.class_name(n) for n in range(count))

    def class_name(self, label: int) -> str:
        """Return the name of a class; its number if the name is unknown."""
        return self.classes[label] if 0 <= label < len(self.classes) else f"class {label}"

    @property
    def result(self) -> Record | None:
        """The last stage, if it was evaluated on a test set; else None."""
        if self.stages and finite_number(self.stages[-1], self.kind.headline_metric) is not None:
            return self.stages[-1]
        return None


def read_run(folder: Path) -> Run:
    """Read one run folder. Raise ``UserError`` naming the file if one is corrupt."""
    run_folder = RunFolder(folder)
    config = run_folder.identity
    method, seed = config.get("method"), config.get("seed")
    if isinstance(config.get("plan"), Mapping):  # a run of the Python API: the folder name serves as method
        method, seed = folder.resolve().name, config["plan"].get("seed")
    if not isinstance(method, str) or not isinstance(seed, int):
        raise UserError(
            f"{run_folder.config_path} has no method or seed. Give a folder written by `ducats run`"
        )
    checksums.verify(run_folder.metrics_path)
    records, errors = read_valid_records(run_folder.metrics_path)
    for line_number, error in errors.items():
        path = run_folder.metrics_path
        raise UserError(f"{path} line {line_number} {error}; {checksums.remedy(path)}")
    checksums.verify(run_folder.data_path)
    has_data = run_folder.data_path.exists()
    return Run(
        folder=folder,
        method=method,
        seed=seed,
        config=config,
        stages=_of_kind(records, "stage"),
        epochs=_of_kind(records, "epoch"),
        pseudo_labels=_of_kind(records, "pseudo_labels"),
        audits=_of_kind(records, "audit"),
        random_gain=next(iter(_of_kind(records, "random_gain")), None),
        added_classes=_of_kind(records, "added_classes"),
        stop_reason=next((str(record["reason"]) for record in _of_kind(records, "stop")), ""),
        # Some delete the weights of finished runs, which are large.
        finished=run_folder.finished or bool(checksums.missing(folder, run_folder.model_path.name)),
        environment=run_folder.environment,
        data=run_folder.data_summary if has_data else {},
        class_list=run_folder.classes if has_data else ClassList(()),
    )


def _of_kind(records: Sequence[Record], kind: str) -> tuple[Record, ...]:
    found = (record for record in records if record["kind"] == kind)
    return tuple(sorted(found, key=lambda record: int(record["epoch"])))


def finished_or_all(runs: Sequence[Run]) -> list[Run]:
    """Return the finished runs, or all if none is finished."""
    return [run for run in runs if run.finished] or list(runs)


@dataclass(frozen=True)
class BrokenRun:
    """A run folder that could not be read, and the reason, without the path of the folder."""

    folder: Path
    reason: str

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class ScannedRuns:
    """The readable and the unreadable runs at or below some paths."""

    runs: tuple[Run, ...]
    broken: tuple[BrokenRun, ...]


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths once, ordered by path, then by name."""
    return [read_run(folder) for folder in find_run_folders(paths)]


def scan_runs(paths: Sequence[Path]) -> ScannedRuns:
    """Read every run at or below the paths like ``find_runs``, but return unreadable ones separately."""
    runs, broken = [], []
    for folder in find_run_folders(paths):
        try:
            runs.append(read_run(folder))
        except (UserError, OSError) as error:
            broken.append(BrokenRun(folder, str(error).replace(f"{folder}{os.sep}", "")))
    return ScannedRuns(tuple(runs), tuple(broken))
