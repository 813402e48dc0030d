"""Reading and validating run folders for reports. Does not need torch."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ducats.report.figures.summary_stats import finite_number as finite_number
from ducats.report.run_kinds import RUN_KINDS, SEGMENTATION, RunKind
from ducats.runfolder import records
from ducats.runfolder.records import (
    ENVIRONMENT_FILE,
    FORMAT_KEY,
    HEADLINE_METRICS,
    Record,
    check_format,
    headline_metric,
)
from ducats.utils.errors import UserError

METRIC_KEYS = ("accuracy", "mean_class_accuracy", "mean_iou", "mean_iou_star", "ece", "nll", "brier", "aurc")
# The C loader, where available, is ten times as fast.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_SEARCH_DEPTH = 3  # levels searched for runs, enough for `runs/office-home/art-clipart/duc-0`


@dataclass(frozen=True)
class Run:
    """The contents of one run folder.

    Args:
        config: the resolved config.
        stages: one record per evaluated stage, oldest first.
        epochs: one record of mean losses per epoch, oldest first.
        finished: whether the final model was written.
        environment: versions and machine; empty if not recorded.
        data: classes and fingerprints of the data; empty if not recorded.
    """

    folder: Path
    method: str
    seed: int
    config: Mapping[str, Any]
    stages: tuple[Record, ...] = ()
    epochs: tuple[Record, ...] = ()
    finished: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

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
        """Class names; empty if not recorded."""
        names = self.data.get("classes")
        return tuple(str(name) for name in names) if isinstance(names, list) else ()

    @property
    def result(self) -> Record | None:
        """The last stage, if it was evaluated on a test set; else None."""
        if self.stages and finite_number(self.stages[-1], self.kind.headline_metric) is not None:
            return self.stages[-1]
        return None


def read_run(folder: Path) -> Run:
    """Read one run folder. Raise ``UserError`` naming the file if one is corrupt."""
    config = _read_mapping(folder / "config.yaml")
    check_format(folder)
    if not config:
        raise UserError(
            f"{folder} is not a run folder: it has no config.yaml. Give a folder written by `ducats run`"
        )
    method, seed = config.get("method"), config.get("seed")
    if isinstance(config.get("plan"), Mapping):  # a run of the Python API: the folder name serves as method
        method, seed = folder.resolve().name, config["plan"].get("seed")
    if not isinstance(method, str) or not isinstance(seed, int):
        raise UserError(
            f"{folder / 'config.yaml'} has no method or seed. Give a folder written by `ducats run`"
        )
    environment = _read_mapping(folder / ENVIRONMENT_FILE)
    all_records = _read_validated_records(folder / "metrics.jsonl")
    return Run(
        folder=folder,
        method=method,
        seed=seed,
        config=config,
        stages=tuple(sorted((r for r in all_records if r["kind"] == "stage"), key=lambda r: int(r["epoch"]))),
        epochs=tuple(sorted((r for r in all_records if r["kind"] == "epoch"), key=lambda r: int(r["epoch"]))),
        finished=(folder / "model.safetensors").exists(),
        environment={key: value for key, value in environment.items() if key != FORMAT_KEY},
        data=_read_mapping(folder / "data.yaml"),
    )


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


def find_run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return every run folder at or below the paths once."""
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder. Give run folders, or folders that contain them")
        found_folders = list(_walk_run_folders(path, MAX_SEARCH_DEPTH))
        if not found_folders:
            raise UserError(
                f"{path} contains no run (no config.yaml in it or up to {MAX_SEARCH_DEPTH} levels below). "
                "Give a folder written by `ducats run` or `ducats sweep`"
            )
        for folder in found_folders:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise UserError("no paths given. Give run folders, or folders that contain them")
    return list(folders.values())


def _walk_run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _walk_run_folders(child, depth - 1)


def _read_mapping(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=YAML_LOADER)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"{path} is corrupt ({' '.join(str(error).split())}); restore it from a backup"
        ) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{path} must contain a mapping, not {type(value).__name__}; restore it from a backup"
        )
    return value


def _read_validated_records(path: Path) -> list[Record]:
    try:
        all_records = records.read_records(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); restore it from a backup") from error
    for line_number, record in enumerate(all_records, start=1):
        error_text = _record_error(record)
        if error_text:
            raise UserError(f"{path} line {line_number} {error_text}; restore the file from a backup")
    return all_records


def _record_error(record: Any) -> str:
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return "is not a record with a string for 'kind'"
    required_keys = {"stage": ("stage", "epoch", "labels", "seconds"), "epoch": ("epoch",)}.get(
        record["kind"], ()
    )
    for key in required_keys:
        if finite_number(record, key) is None:
            return f"has no number for {key!r}"
    for key in (*METRIC_KEYS, "clicks", "images", "pixels", "peak_memory_bytes", "annotation_seconds"):
        if record.get(key) is not None and not _is_number(record[key]):
            return f"has a value for {key!r} that is not a number"
    if not isinstance(record.get("losses", {}), dict):
        return "has a value for 'losses' that is not a mapping"
    if headline_metric(record) not in HEADLINE_METRICS:
        known = ", ".join(HEADLINE_METRICS)
        return f"has the unknown headline metric {record['headline_metric']!r} (known: {known})"
    for key in ("class_iou", "class_accuracy"):
        if key in record and not _is_per_class(record[key]):
            return f"has a value for {key!r} that is not a list of numbers"
    if "reliability" in record and not _is_reliability(record["reliability"]):
        return "has a value for 'reliability' that is not lists of equal length"
    if "temperature_scaled" in record and not _is_temperature_scaled(record["temperature_scaled"]):
        return "has a value for 'temperature_scaled' without temperature, labels or reliability"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_per_class(value: Any) -> bool:
    return isinstance(value, list) and all(v is None or _is_number(v) for v in value)


def _is_temperature_scaled(value: Any) -> bool:
    if not isinstance(value, dict) or not all(_is_number(value.get(k)) for k in ("temperature", "labels")):
        return False
    return _is_reliability(value.get("reliability"))


def _is_reliability(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    columns = [value.get(key) for key in ("upper", "count", "confidence", "accuracy")]
    return all(isinstance(c, list) and len(c) == len(value["upper"]) for c in columns)
