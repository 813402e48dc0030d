"""The logger protocol, and the dispatcher that sends each record of a run exactly once, also across kills."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ducats.runfolder import checksums, records
from ducats.runfolder.records import Record
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.progress import Event


class Logger(Protocol):
    """Receives a run's metrics. Its exceptions are reported once and never stop the run."""

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start or resume logging.

        Args:
            name: unique name of the run, the same each time it is resumed.
            settings: the run's config, nested as in config.yaml.
        """

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values by name. They are not sent again, so they should be stored when this returns.

        Args:
            values: ``loss/...`` of an epoch, or ``stage/...`` of a stage (``interim/...`` in between).
            step: optimiser steps so far; never decreases, but may repeat.
        """

    def finish(self) -> None:
        """Called when the run ends or pauses."""


LoggerFactory = Callable[[Path], Logger]  # takes the run folder


@dataclass
class _LoggerState:
    """State of one logger."""

    factory: LoggerFactory
    logged: set[str]  # keys of the records sent to it
    logger: Logger | None = None
    failed: bool = False  # it could not start
    warned: bool = False


class LoggerDispatcher:
    """Event listener that sends a run's records to its loggers. Use it as a context manager.

    The first failure of a logger is reported as a warning. Records that failed are sent again after the next
    epoch or when the run is resumed. A logger added later gets all records.
    """

    def __init__(
        self,
        factories: Mapping[str, LoggerFactory],
        folder: Path,
        *,
        settings: Mapping[str, Any],
        steps_per_epoch: int,
        warn: Callable[[str], None],
    ) -> None:
        self._factories, self._folder, self._settings = factories, folder, settings
        # The run's name, and the records sent to each logger.
        self._state_path, self._metrics_path = RunFolder(folder).loggers_path, RunFolder(folder).metrics_path
        self._steps_per_epoch, self._warn = steps_per_epoch, warn
        self._states: dict[str, _LoggerState] | None = None  # None until the first event
        self._last_event: tuple[str, int] | None = None

    def __enter__(self) -> "LoggerDispatcher":
        return self

    def __call__(self, event: Event) -> None:
        """Send new records; training steps within an epoch are skipped, as they add none."""
        current = (event.phase, event.epoch)
        if self._factories and (event.phase != "train" or current != self._last_event):
            self._send(start=True)
        self._last_event = current

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Do not write to the folder of a run that was refused before its first event.
        if self._factories and (kind is None or self._states is not None):
            self._send()
        for name, state in (self._states or {}).items():
            if state.logger is not None:
                self._guard(name, state, state.logger.finish)

    def _send(self, *, start: bool = False) -> None:
        self._states = self._states or self._load_states()
        for name, state in self._states.items():
            self._guard(name, state, lambda state=state: self._send_new(state, start=start))  # type: ignore[misc]

    def _load_states(self) -> dict[str, _LoggerState]:
        saved = self._load_file()
        self._name = saved.get("name") or f"{self._folder.resolve().name}-{secrets.token_hex(3)}"
        logged = saved.get("logged") or {}
        return {
            name: _LoggerState(factory, set(logged.get(name, ())))
            for name, factory in self._factories.items()
        }

    def _load_file(self) -> dict[str, Any]:
        path = self._state_path
        try:
            if not path.exists():
                return {}
            checksums.verify(path)
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, OSError) as error:
            self._warn(f"{path} is corrupt ({error}); all records are logged again, as a new run")
            return {}

    def _send_new(self, state: _LoggerState, *, start: bool) -> None:
        all_records = records.read_records(self._metrics_path)
        new_records = [record for record in all_records if _record_key(record) not in state.logged]
        if state.failed or not (new_records or start):
            return
        if state.logger is None:
            state.failed = True  # reset below on success
            logger = state.factory(self._folder)
            logger.start(self._name, self._settings)
            state.logger, state.failed = logger, False
            self._save()
        for record in new_records:
            state.logger.log(extract_scalars(record), int(record["epoch"]) * self._steps_per_epoch)
            state.logged.add(_record_key(record))
            self._save()

    def _save(self) -> None:
        logged = {name: sorted(state.logged) for name, state in (self._states or {}).items()}
        saved = {"name": self._name, "logged": {**(self._load_file().get("logged") or {}), **logged}}
        checksums.write_text(self._state_path, json.dumps(saved, indent=1, ensure_ascii=False))

    def _guard(self, name: str, state: _LoggerState, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a server, a disk or a custom logger may raise anything
            if not state.warned:
                verb = "could not start" if state.failed else "failed"
                message = " ".join(str(error).split())
                self._warn(
                    f"the logger {name!r} {verb} ({type(error).__name__}: {message}); the run continues, "
                    f"and {self._metrics_path.name} in the run folder has all records"
                )
            state.warned = True


def _record_key(record: Record) -> str:
    return f"{record['kind']} {record['epoch']}"


def extract_scalars(record: Record) -> dict[str, float]:
    """Return the scalars of a record by their names in loggers.

    >>> extract_scalars({"kind": "epoch", "epoch": 1, "losses": {"source/nll": 0.5}})
    {'loss/source/nll': 0.5}
    >>> extract_scalars({"kind": "stage", "epoch": 1, "labels": 10, "accuracy": 0.5, "class_iou": [0.5]})
    {'stage/epoch': 1.0, 'stage/labels': 10.0, 'stage/accuracy': 0.5}
    """
    kind, found = (
        ("loss", record.get("losses", {})) if record["kind"] == "epoch" else (record["kind"], record)
    )
    return {
        f"{kind}/{name}": float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
