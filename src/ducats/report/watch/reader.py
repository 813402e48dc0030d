"""Read the state of a run from its folder, tolerating missing and corrupt files."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from ducats.annotation import AnnotationStore, summary
from ducats.config import Config, query_epochs
from ducats.report.watch.run_state import OpenRound, Phase, RunState, keep_valid_values
from ducats.runfolder import checksums, question_names
from ducats.runfolder.records import Record, describe_timed_record, finite_number, read_valid_records
from ducats.runfolder.rounds import round_name
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.errors import UserError

RUN_READ_ERRORS = (UserError, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
MAX_EPOCH_TIMES = 20  # last epochs that count


class RunWatcher:
    """Read the states of runs repeatedly. Caches plans and answers between reads."""

    def __init__(self) -> None:
        self._plans: dict[Path, tuple[float, dict[str, Any]]] = {}
        self._stores: dict[Path, AnnotationStore] = {}

    def read_state(self, folder: Path, now: float | None = None) -> RunState:
        """Return the state of a run. The contents of the folder never raise an error."""
        now = time.time() if now is None else now
        problems: list[str] = []
        run_folder = RunFolder(folder)
        plan = self._plan(run_folder, problems)
        records = _read_records(run_folder.metrics_path, problems)
        problems += _missing_files(run_folder)
        stages = tuple(record for record in records if record["kind"] == "stage")
        epochs = [record for record in records if record["kind"] == "epoch"]
        evaluated = [record for record in records if record["kind"] in ("stage", "interim")]
        epoch = max((int(record["epoch"]) for record in [*epochs, *stages]), default=0)
        phase = _current_phase(run_folder, epoch, plan, {int(stage["epoch"]) for stage in stages})
        stop = next((record for record in records if record["kind"] == "stop"), None)
        open_round = None
        annotation_seconds = max((stage.get("annotation_seconds", 0.0) for stage in stages), default=0.0)
        timed_answers = describe_timed_record(stages[-1]) if stages else ""
        try:
            if run_folder.questions_path.is_dir():
                open_round, annotation_seconds, timed_answers = self._annotation(
                    run_folder, phase == "waiting"
                )
        except RUN_READ_ERRORS as error:
            problems.append(f"questions cannot be read ({_describe_error(error)})")
        if phase == "waiting" and open_round is None:
            open_round = OpenRound(len(run_folder.labelled_rounds()) + 1, None, 0, 0, 0, 0)
        is_active, last_write = run_folder.is_active(), _last_write(run_folder)
        epoch_seconds = seconds_per_epoch(records)
        seconds_left = None
        if (
            phase not in ("finished", "empty")
            and epoch_seconds is not None
            and plan.get("epochs") is not None
        ):
            elapsed = now - last_write if is_active and phase != "waiting" and last_write is not None else 0.0
            seconds_left = max(0.0, epoch_seconds * (plan["epochs"] - epoch) - elapsed)
        return RunState(
            folder,
            method=plan.get("method", ""),
            phase=phase,
            epoch=epoch,
            epochs=plan.get("epochs"),
            n_rounds=len(plan["query_epochs"]) if plan.get("query_epochs") is not None else None,
            n_labelled_rounds=len(run_folder.labelled_rounds()) if stop is None else int(stop["round"]) - 1,
            stages=stages,
            audit=next((record for record in reversed(records) if record["kind"] == "audit"), None),
            stop=stop,
            added_classes=_added_classes(run_folder, problems),
            losses=tuple(_numeric_losses(record) for record in epochs),
            compute_seconds=max((float(record["seconds"]) for record in evaluated), default=None),
            annotation_seconds=annotation_seconds or None,
            timed_answers=timed_answers if annotation_seconds else "",
            open_round=open_round,
            seconds_left=seconds_left,
            is_active=is_active,
            seconds_since_write=max(0.0, now - last_write) if last_write is not None else None,
            problems=tuple(problems),
        )

    def _plan(self, run_folder: RunFolder, problems: list[str]) -> dict[str, Any]:
        folder, config_name = run_folder.path, run_folder.config_path.name
        modified_at = _modification_time(run_folder.config_path)
        if modified_at is None:
            problems.append(f"{config_name} is missing; the length of the run is unknown")
            return {}
        if folder not in self._plans or self._plans[folder][0] != modified_at:
            try:
                plan = _parse_plan(run_folder.identity, folder)
            except RUN_READ_ERRORS as error:
                problems.append(f"{config_name} cannot be read ({_describe_error(error)})")
                return {}
            self._plans[folder] = (modified_at, plan)
        return self._plans[folder][1]

    def _annotation(self, run_folder: RunFolder, waiting: bool) -> tuple[OpenRound | None, float, str]:
        """Return the open round, the time of all accepted answers, and how many have one, unless all."""
        store = self._stores.setdefault(run_folder.path, AnnotationStore(run_folder.questions_path))
        seconds = sum(answer.seconds or 0.0 for answer in store.answers() if answer.reject_reason is None)
        timed_answers = summary.describe_timed_answers(store)
        if not waiting:
            return None, seconds, timed_answers
        round_number = len(run_folder.labelled_rounds()) + 1
        round_folder = store.round_folder(round_number)
        label_maps = (round_folder / question_names.ANSWER_MAPS).glob("*.png")
        n_files = len([*round_folder.glob(question_names.ANSWER_TABLES), *label_maps])
        for tally in summary.summarise_rounds(store):
            if tally.round == round_number:
                counts = (tally.questions, tally.settled, tally.open, tally.disputed)
                return OpenRound(round_number, *counts, n_files), seconds, timed_answers
        return OpenRound(round_number, None, 0, 0, 0, n_files), seconds, timed_answers


def seconds_per_epoch(records: Sequence[Record]) -> float | None:
    """Return the median seconds of the last epochs; None before the first epoch ends.

    >>> seconds_per_epoch([{"kind": "epoch", "epoch": 1, "seconds": seconds} for seconds in (9.0, 1.0, 2.0)])
    2.0
    """
    epoch_seconds = [
        float(record["seconds"]) for record in records if record["kind"] == "epoch" and "seconds" in record
    ]
    return median(epoch_seconds[-MAX_EPOCH_TIMES:]) if epoch_seconds else None


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


def _current_phase(
    run_folder: RunFolder, epoch: int, plan: Mapping[str, Any], evaluated_epochs: set[int]
) -> Phase:
    n_labelled_rounds = len(run_folder.labelled_rounds())
    if run_folder.finished:
        return "finished"
    if not run_folder.config_path.exists() and not epoch:
        return "empty"
    if (run_folder.questions_path / round_name(n_labelled_rounds + 1)).is_dir():
        return "waiting"
    query_epochs = plan.get("query_epochs") or []
    is_query_epoch = epoch in query_epochs and n_labelled_rounds <= query_epochs.index(epoch)
    if (is_query_epoch or epoch == plan.get("epochs")) and epoch not in evaluated_epochs:
        return "evaluating"
    return "querying" if is_query_epoch else "training"


def _read_records(path: Path, problems: list[str]) -> list[Record]:
    """Return the valid records in chronological order, without values that are not numbers."""
    try:
        records, errors = read_valid_records(path)
        if not errors:
            checksums.verify(path)
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({_describe_error(error)})")
        return []
    except UserError as error:
        problems.append(f"{error}".replace(f"{path.parent}{os.sep}", ""))
    if errors:
        which = ", ".join(map(str, [*errors][:5])) + (" and more" if len(errors) > 5 else "")
        problems.append(f"{path.name} is corrupt in line {which}")
    valid = [
        record
        if record["kind"] in ("audit", "stop")
        else keep_valid_values(record) | {"losses": record.get("losses", {})}
        for record in records
    ]
    return sorted(valid, key=lambda record: (int(record.get("epoch", 0)), record["kind"]))


def _added_classes(run_folder: RunFolder, problems: list[str]) -> tuple[str, ...]:
    try:
        changes = run_folder.load_class_changes()
        return tuple(name for name, _ in run_folder.classes.added) if changes else ()
    except RUN_READ_ERRORS as error:
        problems.append(f"{run_folder.classes_path.name} cannot be read ({_describe_error(error)})")
        return ()


def _missing_files(run_folder: RunFolder) -> list[str]:
    needed = (run_folder.labels_path, run_folder.model_path)
    try:
        missing = [name for path in needed for name in checksums.missing(run_folder.path, f"{path.name}*")]
    except (UserError, OSError) as error:
        return [_describe_error(error)]
    return [f"{name} is missing" for name in missing]


def _numeric_losses(record: Record) -> dict[str, float]:
    return {
        str(name): value
        for name in record["losses"]
        if (value := finite_number(record["losses"], name)) is not None
    }


def _modification_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _last_write(run_folder: RunFolder) -> float | None:
    paths = [run_folder.config_path, run_folder.metrics_path, run_folder.checkpoint_path]
    paths += [run_folder.requests_path, run_folder.labels_path, run_folder.model_path]
    return max((time for path in paths if (time := _modification_time(path)) is not None), default=None)


def _describe_error(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:120]}" if message else type(error).__name__
