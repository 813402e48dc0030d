"""Runs as a report sees them: what a run folder says, checked, and nothing that needs torch."""

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
from ducats.records import HEADLINES, Record, headline_of
from ducats.report.kinds import KINDS, PIXELS, Kind

MEASURED = ("accuracy", "mean_class_accuracy", "mean_iou", "mean_iou_star", "ece", "nll", "brier", "aurc")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where there is one: ten times as fast
DEPTH = 3  # `runs/office-home/art-clipart/duc-0`: deeper folders are somebody's data, not runs


@dataclass(frozen=True)
class Run:
    """What one run folder says.

    Args:
        folder: where the run lives.
        method: its method's name.
        seed: its seed.
        config: the resolved config that made it.
        stages: one record per measured stage, oldest first.
        epochs: one record of mean losses per epoch, oldest first.
        finished: whether its last model was written.
        environment: versions and machine; empty if nobody wrote them down.
        data: classes and fingerprints of its data; empty if nobody wrote them down.
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
        """The folder's own name: what a page may show of a path."""
        return self.folder.resolve().name

    @property
    def kind(self) -> Kind:
        """Whether it is about images or about pixels; only runs of one kind are compared."""
        task = self.config.get("task")
        if isinstance(task, Mapping) and task.get("name") == "segmentation":
            return PIXELS
        return KINDS[headline_of(self.stages[-1] if self.stages else {})]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names; none if nobody wrote them down."""
        names = self.data.get("classes")
        return tuple(str(name) for name in names) if isinstance(names, list) else ()

    @property
    def result(self) -> Record | None:
        """The last stage, if it was measured on a test set."""
        if self.stages and number(self.stages[-1], self.kind.headline) is not None:
            return self.stages[-1]
        return None


def read_run(folder: Path) -> Run:
    """Read one run folder; a file that somebody broke is an error that names it."""
    config = _mapping(folder / "config.yaml")
    if not config:
        raise UserError(
            f"{folder} is not a run: it has no config.yaml; give the folder that `ducats run` made"
        )
    method, seed = config.get("method"), config.get("seed")
    if isinstance(config.get("plan"), Mapping):  # a run of the Python API: its folder names it
        method, seed = folder.resolve().name, config["plan"].get("seed")
    if not isinstance(method, str) or not isinstance(seed, int):
        raise UserError(
            f"{folder / 'config.yaml'} names no method and seed: give a folder that `ducats run` made"
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
    """A run folder that could not be read, and why: a sentence without the path to the folder."""

    folder: Path
    reason: str

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Found:
    """What lies at or below some paths: runs, and folders that somebody broke."""

    runs: tuple[Run, ...]
    broken: tuple[Broken, ...]


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run at or below the paths, each once, in the order of the paths and then of their names."""
    return [read_run(folder) for folder in run_folders(paths)]


def look(paths: Sequence[Path]) -> Found:
    """Read every run at or below the paths like ``find_runs``; a broken one does not hide the others."""
    runs, broken = [], []
    for folder in run_folders(paths):
        try:
            runs.append(read_run(folder))
        except (UserError, OSError) as error:
            broken.append(Broken(folder, str(error).replace(f"{folder}{os.sep}", "")))
    return Found(tuple(runs), tuple(broken))


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Find every run folder at or below the paths, each once."""
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give run folders, or folders that hold them")
        found = list(_run_folders(path, DEPTH))
        if not found:
            raise UserError(
                f"{path} holds no run (no config.yaml in it or {DEPTH} folders down): name what "
                "`ducats run` or `ducats sweep` wrote"
            )
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    if not folders:
        raise UserError("there is nothing to report: give run folders, or folders that hold them")
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
            f"{path} cannot be read ({' '.join(str(error).split())}): undo what changed it"
        ) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{path} must hold `key: value` pairs, not {type(value).__name__}: undo what changed it"
        )
    return value


def _records(path: Path) -> list[Record]:
    try:
        lines = records.read(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}): undo what changed it") from error
    for place, line in enumerate(lines, start=1):
        wrong = _what_is_wrong(line)
        if wrong:
            raise UserError(f"{path} line {place} {wrong}: it was edited; undo that")
    return lines


def _what_is_wrong(line: Any) -> str:
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return "is not a record with a kind"
    needed = {"stage": ("stage", "epoch", "labels", "seconds"), "epoch": ("epoch",)}.get(line["kind"], ())
    for key in needed:
        if number(line, key) is None:
            return f"has no number for {key!r}"
    for key in (*MEASURED, "clicks", "images", "pixels", "memory", "people_seconds"):
        if line.get(key) is not None and not _is_number(line[key]):
            return f"has something else than a number for {key!r}"
    if not isinstance(line.get("losses", {}), dict):
        return "has losses without names"
    if headline_of(line) not in HEADLINES:
        return f"is ranked by {line['headline']!r}, which no report knows (there are: {', '.join(HEADLINES)})"
    for key in ("class_iou", "class_accuracy"):
        if key in line and not _is_per_class(line[key]):
            return f"has a {key} that is not a list of numbers"
    if "reliability" in line and not _is_reliability(line["reliability"]):
        return "has a reliability that is not lists of one length"
    if "tempered" in line and not _is_tempered(line["tempered"]):
        return "has a tempered model without temperature, labels or reliability"
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
