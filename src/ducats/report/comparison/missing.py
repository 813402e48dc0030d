"""Runs missing from a comparison: unreadable, unfinished or failed, with the last line of their log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ducats.report.across import Table
from ducats.report.read import Broken, Run
from ducats.report.run_section.status import progress_message
from ducats.report.tasks import arrow, column_of

LONGEST = 240  # maximum characters of a log line
TAIL = 4096  # bytes read from the end of a log
NAMED = 6  # maximum number of missing pairs of method and task that are listed


@dataclass(frozen=True)
class Missing:
    """A run that is not in the tables. Unknown fields are empty.

    Args:
        name: name of the run folder.
        lacks: the reason, as a sentence.
        said: last line of the log of a sweep run.
    """

    name: str
    method: str
    data: str
    task: str
    seed: str
    lacks: str
    said: str = ""


def missing_runs(runs: Sequence[Run], broken: Sequence[Broken]) -> list[Missing]:
    """Return all unreadable and unfinished runs, runs without a result and failed sweep runs, by name."""
    found = [
        _missing(
            one.name,
            _config(one.folder / "config.yaml"),
            f"Cannot be read: {one.reason}.",
            _said(one.folder),
        )
        for one in broken
    ]
    for run in runs:
        if lacks := _lacks(run):
            said = "" if run.finished else _said(run.folder)
            found.append(_missing(run.name, run.config, lacks, said))
    known = {folder.resolve() for folder in [*(r.folder for r in runs), *(b.folder for b in broken)]}
    for sweep in dict.fromkeys(folder.parent for folder in known):
        # A sweep writes the config of every run it starts to `configs/`.
        for path in sorted((sweep / "configs").glob("*.yaml")) if (sweep / "logs").is_dir() else []:
            folder = sweep / path.stem
            if folder not in known:
                found.append(_missing(path.stem, _config(path), "Started, but wrote nothing.", _said(folder)))
    return sorted(found, key=lambda one: one.name)


def holes(table: Table) -> str:
    """Describe which methods lack which tasks; empty if the table is complete."""
    first = table.measures[0].key if table.measures else ""
    lacking = [
        f"{row.method} on {arrow(task)}"
        for row in table.rows
        for task in table.tasks
        if (task, first) not in row.values
    ]
    if not lacking:
        return ""
    more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
    return (
        f"{len(lacking)} of {len(table.rows) * len(table.tasks)} combinations of method and task have no "
        f"finished run: {', '.join(lacking[:NAMED])}{more}."
    )


def _lacks(run: Run) -> str:
    if run.finished:
        return "" if run.result is not None else "Finished, but without a result on a test set."
    return progress_message(run)


def _missing(name: str, config: Mapping[str, Any], lacks: str, said: str) -> Missing:
    data, task = column_of(config)
    return Missing(name, str(config.get("method", "")), data, task, str(config.get("seed", "")), lacks, said)


def _said(folder: Path) -> str:
    """Return the last line of a run's sweep log, with URLs removed and paths cut to their last part."""
    log = folder.resolve().parent / "logs" / f"{folder.resolve().name}.txt"
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
    plain = re.sub(r"\w+://\S+", "…", last)
    plain = re.sub(r"(?<![\w.])(?:/[^\s/:,;'\"]+)+/(?=[^\s/])", "", plain)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"


def _config(path: Path) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # only the name of the run is known
    return found if isinstance(found, dict) else {}
