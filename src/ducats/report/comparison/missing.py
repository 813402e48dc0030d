"""Runs missing from a comparison: unreadable, unfinished or failed, with the last line of their log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ducats.report.method_tables.build import TaskTable
from ducats.report.provenance import progress_message
from ducats.report.run_reader import BrokenRun, Run
from ducats.report.tasks import data_and_task, format_task
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.findings import join_names
from ducats.utils.yaml_text import load_yaml

MAX_LOG_LINE_LENGTH = 240  # maximum characters of a log line
LOG_TAIL_BYTES = 4096  # bytes read from the end of a log
MAX_LISTED_PAIRS = 6  # maximum number of missing pairs of method and task that are listed


@dataclass(frozen=True)
class MissingRun:
    """A run that is not in the tables, and the reason as a sentence. Unknown fields are empty."""

    run_name: str
    method: str
    data_name: str
    task: str
    seed: str
    reason: str
    last_log_line: str = ""


def find_missing_runs(runs: Sequence[Run], broken: Sequence[BrokenRun]) -> list[MissingRun]:
    """Return all unreadable and unfinished runs, runs without a result and failed sweep runs, by name."""
    missing_runs = []
    for item in broken:
        config, reason = _read_config(RunFolder(item.folder).config_path), f"Cannot be read: {item.reason}."
        missing_runs.append(_missing_run(item.name, config, reason, _last_log_line(item.folder)))
    for run in runs:
        if reason := _missing_reason(run):
            last_log_line = "" if run.finished else _last_log_line(run.folder)
            missing_runs.append(_missing_run(run.name, run.config, reason, last_log_line))
    known_folders = {folder.resolve() for folder in [*(r.folder for r in runs), *(b.folder for b in broken)]}
    for sweep in dict.fromkeys(folder.parent for folder in known_folders):
        # A sweep writes the config of every run it starts to `configs/`.
        for path in sorted((sweep / "configs").glob("*.yaml")) if (sweep / "logs").is_dir() else []:
            folder = sweep / path.stem
            if folder not in known_folders:
                config, reason = _read_config(path), "Started, but wrote nothing."
                missing_runs.append(_missing_run(path.stem, config, reason, _last_log_line(folder)))
    return sorted(missing_runs, key=lambda missing_run: missing_run.run_name)


def describe_missing_pairs(table: TaskTable) -> str:
    """Describe which methods lack which tasks; empty if the table is complete."""
    ranking_key = table.measures[0].key if table.measures else ""
    missing_pairs = [
        f"{row.method} on {format_task(task)}"
        for row in table.rows
        for task in table.tasks
        if (task, ranking_key) not in row.values
    ]
    if not missing_pairs:
        return ""
    n_pairs = len(table.rows) * len(table.tasks)
    return (
        f"{len(missing_pairs)} of {n_pairs} combinations of method and task have no finished run: "
        f"{join_names(missing_pairs, MAX_LISTED_PAIRS)}."
    )


def _missing_reason(run: Run) -> str:
    if run.finished:
        return "" if run.result is not None else "Finished, but without a result on a test set."
    return progress_message(run)


def _missing_run(run_name: str, config: Mapping[str, Any], reason: str, last_log_line: str) -> MissingRun:
    method, seed = str(config.get("method", "")), str(config.get("seed", ""))
    return MissingRun(run_name, method, *data_and_task(config), seed, reason, last_log_line)


def _last_log_line(folder: Path) -> str:
    """Return the last line of a run's sweep log, with URLs removed and paths cut to their last part."""
    log = folder.resolve().parent / "logs" / f"{folder.resolve().name}.txt"
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last_line = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
    text = re.sub(r"\w+://\S+", "…", last_line)
    text = re.sub(r"(?<![\w.])(?:/[^\s/:,;'\"]+)+/(?=[^\s/])", "", text)
    return text if len(text) <= MAX_LOG_LINE_LENGTH else f"{text[:MAX_LOG_LINE_LENGTH]}…"


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # only the name of the run is known
    return config if isinstance(config, dict) else {}
