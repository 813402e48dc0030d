"""Read the state of a run from its folder, tolerating missing and corrupt files."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ducats.annotation import AnnotationStore, summary
from ducats.config import Config, query_epochs
from ducats.report.watch.eta import EtaEstimator
from ducats.report.watch.folders import is_run_active
from ducats.report.watch.run_state import OpenRound, Phase, RunState, keep_valid_values
from ducats.runfolder.records import Record, check_format
from ducats.utils.errors import UserError

REQUIRED_FIELDS = {
    "stage": ("stage", "epoch", "labels", "seconds"),
    "interim": ("epoch", "seconds"),
    "epoch": ("epoch",),
}
RUN_READ_ERRORS = (UserError, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)


class RunWatcher:
    """Read the states of runs repeatedly. Caches plans and epoch times between reads."""

    def __init__(self) -> None:
        self._plans: dict[Path, tuple[float, dict[str, Any]]] = {}
        self._stores: dict[Path, AnnotationStore] = {}
        self._estimators: dict[Path, EtaEstimator] = {}

    def read_state(self, folder: Path, now: float | None = None) -> RunState:
        """Return the state of a run. The contents of the folder never raise an error.

        Args:
            folder: run folder.
            now: current time in seconds since 1970; None for the system time.
        """
        now = time.time() if now is None else now
        problems: list[str] = []
        plan = self._plan(folder, problems)
        records = _read_valid_records(folder / "metrics.jsonl", problems)
        stages = tuple(record for record in records if record["kind"] == "stage")
        epochs = [record for record in records if record["kind"] == "epoch"]
        evaluated = [record for record in records if record["kind"] in ("stage", "interim")]
        epoch = max((int(record["epoch"]) for record in [*epochs, *stages]), default=0)
        phase = _current_phase(folder, epoch, plan, {int(stage["epoch"]) for stage in stages})
        open_round = None
        annotation_seconds = max((stage.get("annotation_seconds", 0.0) for stage in stages), default=0.0)
        try:
            if (folder / "questions").is_dir():
                open_round, annotation_seconds = self._annotation(folder, phase == "waiting")
        except RUN_READ_ERRORS as error:
            problems.append(f"questions cannot be read ({_describe_error(error)})")
        if phase == "waiting" and open_round is None:
            open_round = OpenRound(_count_labelled_rounds(folder / "labels") + 1, None, 0, 0, 0, 0)
        is_active, last_write = is_run_active(folder), _last_write(folder)
        estimator = self._estimators.setdefault(folder, EtaEstimator())
        estimator.update(epoch, _modification_time(folder / "metrics.jsonl"), plan.get("query_epochs") or ())
        seconds_per_epoch = estimator.seconds_per_epoch(
            records, epoch, started_at=_modification_time(folder / "pool.json")
        )
        seconds_left = None
        if (
            phase not in ("finished", "empty")
            and seconds_per_epoch is not None
            and plan.get("epochs") is not None
        ):
            elapsed = now - last_write if is_active and phase != "waiting" and last_write is not None else 0.0
            seconds_left = max(0.0, seconds_per_epoch * (plan["epochs"] - epoch) - elapsed)
        return RunState(
            folder,
            method=plan.get("method", ""),
            phase=phase,
            epoch=epoch,
            epochs=plan.get("epochs"),
            n_rounds=len(plan["query_epochs"]) if plan.get("query_epochs") is not None else None,
            n_labelled_rounds=_count_labelled_rounds(folder / "labels"),
            stages=stages,
            losses=tuple(_numeric_losses(record) for record in epochs),
            compute_seconds=max((float(record["seconds"]) for record in evaluated), default=None),
            annotation_seconds=annotation_seconds or None,
            open_round=open_round,
            seconds_left=seconds_left,
            is_active=is_active,
            seconds_since_write=max(0.0, now - last_write) if last_write is not None else None,
            problems=tuple(problems),
        )

    def _plan(self, folder: Path, problems: list[str]) -> dict[str, Any]:
        path = folder / "config.yaml"
        modified_at = _modification_time(path)
        if modified_at is None:
            problems.append("config.yaml is missing; the length of the run is unknown")
            return {}
        if folder not in self._plans or self._plans[folder][0] != modified_at:
            try:
                check_format(folder)
                plan = _parse_plan(yaml.safe_load(path.read_text(encoding="utf-8")), folder)
            except RUN_READ_ERRORS as error:
                problems.append(f"config.yaml cannot be read ({_describe_error(error)})")
                return {}
            self._plans[folder] = (modified_at, plan)
        return self._plans[folder][1]

    def _annotation(self, folder: Path, waiting: bool) -> tuple[OpenRound | None, float]:
        """Return the open round and the annotation time of all accepted answers."""
        store = self._stores.setdefault(folder, AnnotationStore(folder / "questions"))
        seconds = sum(answer.seconds or 0.0 for answer in store.answers() if answer.reject_reason is None)
        if not waiting:
            return None, seconds
        round_number = _count_labelled_rounds(folder / "labels") + 1
        round_folder = store.round_folder(round_number)
        n_files = len([*round_folder.glob("answers*.csv"), *round_folder.glob("answers/*.png")])
        for tally in summary.summarise_rounds(store):
            if tally.round == round_number:
                return OpenRound(
                    round_number, tally.questions, tally.settled, tally.open, tally.disputed, n_files
                ), seconds
        return OpenRound(round_number, None, 0, 0, 0, n_files), seconds


def _parse_plan(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return method, epochs and query epochs. For runs of the Python API, config.yaml contains the plan."""
    if isinstance(config.get("plan"), Mapping):
        plan = config["plan"]
        return {
            "method": folder.resolve().name,
            "epochs": int(plan["epochs"]),
            "query_epochs": [int(epoch) for epoch in plan["query_epochs"]],
        }
    plan_values = {"method": str(config["method"]), "epochs": int(config["train"]["epochs"])}
    try:
        return plan_values | {"query_epochs": list(query_epochs(Config.model_validate(config)))}
    except ValueError:  # a setting of another version: only the query epochs are unknown
        return plan_values


def _current_phase(folder: Path, epoch: int, plan: Mapping[str, Any], evaluated_epochs: set[int]) -> Phase:
    n_labelled_rounds = _count_labelled_rounds(folder / "labels")
    if (folder / "model.safetensors").is_file():
        return "finished"
    if _modification_time(folder / "config.yaml") is None and not epoch:
        return "empty"
    if (folder / "questions" / f"round-{n_labelled_rounds + 1:02d}").is_dir():
        return "waiting"
    query_epochs = plan.get("query_epochs") or []
    is_query_epoch = epoch in query_epochs and n_labelled_rounds <= query_epochs.index(epoch)
    if (is_query_epoch or epoch == plan.get("epochs")) and epoch not in evaluated_epochs:
        return "evaluating"
    return "querying" if is_query_epoch else "training"


def _read_valid_records(path: Path, problems: list[str]) -> list[Record]:
    """Return the records that are valid and have the required fields."""
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({_describe_error(error)})")
        return []
    records, bad_lines = [], []
    for line_number, text in enumerate(lines, start=1):
        try:
            record = json.loads(text)
            values = keep_valid_values(record) | {"losses": dict(record.get("losses") or {})}
            if any(name not in values for name in ("kind", *REQUIRED_FIELDS.get(values.get("kind", ""), ()))):
                raise ValueError
        except RUN_READ_ERRORS:
            bad_lines.append(line_number)
        else:
            records.append(values)
    if bad_lines:
        which = ", ".join(map(str, bad_lines[:5])) + (" and more" if len(bad_lines) > 5 else "")
        problems.append(f"{path.name} is corrupt in line {which}")
    return sorted(records, key=lambda record: (int(record.get("epoch", 0)), record["kind"]))


def _numeric_losses(record: Record) -> dict[str, float]:
    return {
        str(name): float(value) for name, value in record["losses"].items() if isinstance(value, int | float)
    }


def _count_labelled_rounds(labels: Path) -> int:
    """Count the labelled rounds."""
    return len(list(labels.glob("round-*.npz")))


def _modification_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _last_write(folder: Path) -> float | None:
    names = ("config.yaml", "metrics.jsonl", "checkpoint.pt", "requests", "labels", "model.safetensors")
    times = [time for name in names if (time := _modification_time(folder / name)) is not None]
    return max(times, default=None)


def _describe_error(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:120]}" if message else type(error).__name__
