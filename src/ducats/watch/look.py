"""Read the state of a run from its folder, tolerating missing and corrupt files."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ducats.annotation import AnnotationStore, summary
from ducats.config import Config, query_epochs
from ducats.errors import UserError
from ducats.records import Record
from ducats.watch.folders import held
from ducats.watch.pace import Pace
from ducats.watch.state import Phase, Round, State, numbers

NEEDED = {
    "stage": ("stage", "epoch", "labels", "seconds"),
    "interim": ("epoch", "seconds"),
    "epoch": ("epoch",),
}
BROKEN = (UserError, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)


class Watcher:
    """Read the states of runs repeatedly. Caches plans and epoch times between reads."""

    def __init__(self) -> None:
        self._plans: dict[Path, tuple[float, dict[str, Any]]] = {}
        self._desks: dict[Path, AnnotationStore] = {}
        self._paces: dict[Path, Pace] = {}

    def look(self, folder: Path, now: float | None = None) -> State:
        """Return the state of a run. The contents of the folder never raise an error.

        Args:
            folder: run folder.
            now: current time in seconds since 1970; None for the system time.
        """
        now = time.time() if now is None else now
        wrong: list[str] = []
        plan = self._plan(folder, wrong)
        lines = _lines(folder / "metrics.jsonl", wrong)
        stages = tuple(line for line in lines if line["kind"] == "stage")
        epochs = [line for line in lines if line["kind"] == "epoch"]
        measured = [line for line in lines if line["kind"] in ("stage", "interim")]
        epoch = max((int(line["epoch"]) for line in [*epochs, *stages]), default=0)
        phase = _phase(folder, epoch, plan, {int(one["epoch"]) for one in stages})
        people, seconds = None, max((one.get("annotation_seconds", 0.0) for one in stages), default=0.0)
        try:
            if (folder / "questions").is_dir():
                people, seconds = self._people(folder, phase == "waiting")
        except BROKEN as error:
            wrong.append(f"questions cannot be read ({_short(error)})")
        if phase == "waiting" and people is None:
            people = Round(_rounds(folder / "labels") + 1, None, 0, 0, 0, 0)
        at_work, last = held(folder), _last_write(folder)
        pace = self._paces.setdefault(folder, Pace())
        pace.see(epoch, _time(folder / "metrics.jsonl"), plan.get("after") or ())
        each = pace.seconds(lines, epoch, begun=_time(folder / "pool.json"))
        left = None
        if phase not in ("finished", "nothing") and each is not None and plan.get("epochs") is not None:
            gone = now - last if at_work and phase != "waiting" and last is not None else 0.0
            left = max(0.0, each * (plan["epochs"] - epoch) - gone)
        return State(
            folder,
            method=plan.get("method", ""),
            phase=phase,
            epoch=epoch,
            epochs=plan.get("epochs"),
            rounds=len(plan["after"]) if plan.get("after") is not None else None,
            bought=_rounds(folder / "labels"),
            stages=stages,
            losses=tuple(_losses(line) for line in epochs),
            seconds=max((float(line["seconds"]) for line in measured), default=None),
            people_seconds=seconds or None,
            round=people,
            left=left,
            at_work=at_work,
            silent=max(0.0, now - last) if last is not None else None,
            wrong=tuple(wrong),
        )

    def _plan(self, folder: Path, wrong: list[str]) -> dict[str, Any]:
        path = folder / "config.yaml"
        when = _time(path)
        if when is None:
            wrong.append("config.yaml is missing; the length of the run is unknown")
            return {}
        if folder not in self._plans or self._plans[folder][0] != when:
            try:
                found = _plan_of(yaml.safe_load(path.read_text(encoding="utf-8")), folder)
            except BROKEN as error:
                wrong.append(f"config.yaml cannot be read ({_short(error)})")
                return {}
            self._plans[folder] = (when, found)
        return self._plans[folder][1]

    def _people(self, folder: Path, waiting: bool) -> tuple[Round | None, float]:
        """Return the open round and the annotation time of all accepted answers."""
        desk = self._desks.setdefault(folder, AnnotationStore(folder / "questions"))
        seconds = sum(one.seconds or 0.0 for one in desk.answers() if one.reject_reason is None)
        if not waiting:
            return None, seconds
        number = _rounds(folder / "labels") + 1
        home = desk.round_folder(number)
        files = len([*home.glob("answers*.csv"), *home.glob("answers/*.png")])
        for one in summary.summarise_rounds(desk):
            if one.round == number:
                return Round(number, one.questions, one.settled, one.open, one.disputed, files), seconds
        return Round(number, None, 0, 0, 0, files), seconds


def _plan_of(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return method, epochs and query epochs. For runs of the Python API, config.yaml contains the plan."""
    if isinstance(config.get("plan"), Mapping):
        plan = config["plan"]
        return {
            "method": folder.resolve().name,
            "epochs": int(plan["epochs"]),
            "after": [int(epoch) for epoch in plan["ask_after"]],
        }
    found = {"method": str(config["method"]), "epochs": int(config["train"]["epochs"])}
    try:
        return found | {"after": list(query_epochs(Config.model_validate(config)))}
    except ValueError:  # a setting of another version: only the query epochs are unknown
        return found


def _phase(folder: Path, epoch: int, plan: Mapping[str, Any], measured: set[int]) -> Phase:
    bought = _rounds(folder / "labels")
    if (folder / "model.safetensors").is_file():
        return "finished"
    if _time(folder / "config.yaml") is None and not epoch:
        return "nothing"
    if (folder / "questions" / f"round-{bought + 1:02d}").is_dir():
        return "waiting"
    after = plan.get("after") or []
    asks = epoch in after and bought <= after.index(epoch)
    if (asks or epoch == plan.get("epochs")) and epoch not in measured:
        return "measuring"
    return "asking" if asks else "training"


def _lines(path: Path, wrong: list[str]) -> list[Record]:
    """Return the records that are valid and have the required fields."""
    try:
        texts = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        wrong.append(f"{path.name} cannot be read ({_short(error)})")
        return []
    found, bad = [], []
    for place, text in enumerate(texts, start=1):
        try:
            record = json.loads(text)
            kept = numbers(record) | {"losses": dict(record.get("losses") or {})}
            if any(name not in kept for name in ("kind", *NEEDED.get(kept.get("kind", ""), ()))):
                raise ValueError
        except BROKEN:
            bad.append(place)
        else:
            found.append(kept)
    if bad:
        which = ", ".join(map(str, bad[:5])) + (" and more" if len(bad) > 5 else "")
        wrong.append(f"{path.name} is corrupt in line {which}")
    return sorted(found, key=lambda record: (int(record.get("epoch", 0)), record["kind"]))


def _losses(line: Record) -> dict[str, float]:
    return {
        str(name): float(value) for name, value in line["losses"].items() if isinstance(value, int | float)
    }


def _rounds(labels: Path) -> int:
    """Count the labelled rounds."""
    return len(list(labels.glob("round-*.npz")))


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _last_write(folder: Path) -> float | None:
    names = ("config.yaml", "metrics.jsonl", "checkpoint.pt", "requests", "labels", "model.safetensors")
    times = [when for name in names if (when := _time(folder / name)) is not None]
    return max(times, default=None)


def _short(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:120]}" if said else type(error).__name__
