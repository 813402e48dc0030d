"""What a comparison lacks: runs that broke, ended too early or never began, and what they said last."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ducats.report.across import Table
from ducats.report.chapter.state import state
from ducats.report.read import Broken, Run
from ducats.report.tasks import arrow, column_of

LONGEST = 240  # letters of what a run said last
TAIL = 4096  # bytes of a log that are looked at
NAMED = 6  # methods and tasks that are named where many are missing


@dataclass(frozen=True)
class Missing:
    """A run that no table counts.

    Args:
        name: of its folder.
        method: its method, or nothing if nobody can tell.
        data: its data set, likewise.
        task: its task, likewise.
        seed: its seed, likewise.
        lacks: what is missing, in words.
        said: the last line of its log, if it is one of a sweep.
    """

    name: str
    method: str
    data: str
    task: str
    seed: str
    lacks: str
    said: str = ""


def missing_runs(runs: Sequence[Run], broken: Sequence[Broken]) -> list[Missing]:
    """Every run that is broken, not finished, without a result, or that a sweep began in vain; by name."""
    found = [
        _missing(
            one.name,
            _config(one.folder / "config.yaml"),
            f"It cannot be read: {one.reason}.",
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
        # A sweep keeps the config of every run that it began beside the runs.
        for path in sorted((sweep / "configs").glob("*.yaml")) if (sweep / "logs").is_dir() else []:
            folder = sweep / path.stem
            if folder not in known:
                found.append(_missing(path.stem, _config(path), "It began and left nothing.", _said(folder)))
    return sorted(found, key=lambda one: one.name)


def holes(table: Table) -> str:
    """Which methods lack a task that others have, in words; nothing if the table is full."""
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
        f"{len(lacking)} of {len(table.rows) * len(table.tasks)} pairs of method and task have no finished "
        f"run: {', '.join(lacking[:NAMED])}{more}."
    )


def _lacks(run: Run) -> str:
    if run.finished:
        return "" if run.result is not None else "It is finished and has no result on a test set."
    return state(run)


def _missing(name: str, config: Mapping[str, Any], lacks: str, said: str) -> Missing:
    data, task = column_of(config)
    return Missing(name, str(config.get("method", "")), data, task, str(config.get("seed", "")), lacks, said)


def _said(folder: Path) -> str:
    """The last line of a run's log in its sweep, without addresses and without folders above the last."""
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
        return {}  # its name is all that can be told
    return found if isinstance(found, dict) else {}
