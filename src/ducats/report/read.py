"""Reading and validating run folders for reports. Does not need torch."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ducats import records
from ducats.errors import UserError
from ducats.figures.numbers import number as number
from ducats.records import HEADLINE_METRICS, Record, headline_metric
from ducats.report.kinds import KINDS, PIXELS, Kind

MEASURED = ("accuracy", "mean_class_accuracy", "mean_iou", "mean_iou_star", "ece", "nll", "brier", "aurc")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader, where available, is ten times as fast
DEPTH = 3  # levels searched for runs, enough for `runs/office-home/art-clipart/duc-0`


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
    def kind(self) -> Kind:
        """Classification or segmentation; only runs of one kind are compared."""
        task = self.config.get("task")
        if isinstance(task, Mapping) and task.get("name") == "segmentation":
            return PIXELS
        return KINDS[headline_metric(self.stages[-1] if self.stages else {})]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; empty if not recorded."""
        names = self.data.get("classes")
        return tuple(str(name) for name in names) if isinstance(names, list) else ()

    @property
    def result(self) -> Record | None:
        """The last stage, if it was evaluated on a test set; else None."""
        if self.stages and number(self.stages[-1], self.kind.headline) is not None:
            return self.stages[-1]
        return None


def read_run(folder: Path) -> Run:
    """Read one run folder. Raise ``UserError`` naming the file if one is corrupt."""
    config = _mapping(folder / "config.yaml")
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
    lines = _records(folder / "metrics.jsonl")
    return Run(
        folder=folder,
        method=method,
        seed=seed,
        config=config,
        stages=tuple(sorted((r for r in lines if r["kind"] == "stage"), key=lambda r: int(r["epoch"]))),
        epochs=tuple(sorted((r for r in lines if r["kind"] == "epoch"), key=lambda r: int(r["epoch"]))),
        finished=(folder / "model.safetensors").exists(),
        environment=_mapping(folder / "environment.json"),
        data=_mapping(folder / "data.yaml"),
    )


@dataclass(frozen=True)
class Broken:
    """A run folder that could not be read, and the reason, without the path of the folder."""

    folder: Path
    reason: str

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Found:
    """The readable and the unreadable runs at or below some paths."""

    runs: tuple[Run, ...]
    broken: tuple[Broken, ...]


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths once, ordered by path, then by name."""
    return [read_run(folder) for folder in run_folders(paths)]


def look(paths: Sequence[Path]) -> Found:
    """Read every run at or below the paths like ``find_runs``, but return unreadable ones separately."""
    runs, broken = [], []
    for folder in run_folders(paths):
        try:
            runs.append(read_run(folder))
        except (UserError, OSError) as error:
            broken.append(Broken(folder, str(error).replace(f"{folder}{os.sep}", "")))
    return Found(tuple(runs), tuple(broken))


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return every run folder at or below the paths once."""
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder. Give run folders, or folders that contain them")
        found = list(_run_folders(path, DEPTH))
        if not found:
            raise UserError(
                f"{path} contains no run (no config.yaml in it or up to {DEPTH} levels below). Give a folder "
                "written by `ducats run` or `ducats sweep`"
            )
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise UserError("no paths given. Give run folders, or folders that contain them")
    return list(folders.values())


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _run_folders(child, depth - 1)


def _mapping(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=LOADER)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"{path} is corrupt ({' '.join(str(error).split())}); restore it from a backup"
        ) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{path} must contain a mapping, not {type(value).__name__}; restore it from a backup"
        )
    return value


def _records(path: Path) -> list[Record]:
    try:
        lines = records.read_records(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); restore it from a backup") from error
    for place, line in enumerate(lines, start=1):
        wrong = _what_is_wrong(line)
        if wrong:
            raise UserError(f"{path} line {place} {wrong}; restore the file from a backup")
    return lines


def _what_is_wrong(line: Any) -> str:
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return "is not a record with a string for 'kind'"
    needed = {"stage": ("stage", "epoch", "labels", "seconds"), "epoch": ("epoch",)}.get(line["kind"], ())
    for key in needed:
        if number(line, key) is None:
            return f"has no number for {key!r}"
    for key in (*MEASURED, "clicks", "images", "pixels", "memory", "annotation_seconds"):
        if line.get(key) is not None and not _is_number(line[key]):
            return f"has a value for {key!r} that is not a number"
    if not isinstance(line.get("losses", {}), dict):
        return "has a value for 'losses' that is not a mapping"
    if headline_metric(line) not in HEADLINE_METRICS:
        return f"has the unknown headline {line['headline']!r} (known: {', '.join(HEADLINE_METRICS)})"
    for key in ("class_iou", "class_accuracy"):
        if key in line and not _is_per_class(line[key]):
            return f"has a value for {key!r} that is not a list of numbers"
    if "reliability" in line and not _is_reliability(line["reliability"]):
        return "has a value for 'reliability' that is not lists of equal length"
    if "temperature_scaled" in line and not _is_tempered(line["temperature_scaled"]):
        return "has a value for 'temperature_scaled' without temperature, labels or reliability"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_per_class(value: Any) -> bool:
    return isinstance(value, list) and all(v is None or _is_number(v) for v in value)


def _is_tempered(value: Any) -> bool:
    if not isinstance(value, dict) or not all(_is_number(value.get(k)) for k in ("temperature", "labels")):
        return False
    return _is_reliability(value.get("reliability"))


def _is_reliability(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    columns = [value.get(key) for key in ("upper", "count", "confidence", "accuracy")]
    return all(isinstance(c, list) and len(c) == len(value["upper"]) for c in columns)
