"""Send each record of a run to the loggers exactly once, also across kills."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ducats import records
from ducats.files import write_text_atomically
from ducats.loggers.protocol import Logger, Maker
from ducats.progress import Event
from ducats.records import Record

KEPT = "loggers.json"  # in the run folder: the run's name, and the records sent to each logger


@dataclass
class _Told:
    """State of one logger."""

    make: Maker
    known: set[str]  # keys of the records sent to it
    logger: Logger | None = None
    failed: bool = False  # it could not start
    warned: bool = field(default=False)


class Logs:
    """Event listener that sends a run's records to its loggers. Use it as a context manager.

    The first failure of a logger is reported as a warning. Records that failed are sent again after the next
    epoch or when the run is resumed. A logger added later gets all records.

    Args:
        makers: logger factories by name.
        folder: the run folder.
        settings: the run's config.
        steps: optimiser steps per epoch.
        warn: shows a message to the user.
    """

    def __init__(
        self,
        makers: Mapping[str, Maker],
        folder: Path,
        *,
        settings: Mapping[str, Any],
        steps: int,
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._settings, self._steps, self._warn = folder, settings, steps, warn
        self._makers = makers
        self._all: dict[str, _Told] | None = None  # None until the first event
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> "Logs":
        return self

    def __call__(self, event: Event) -> None:
        """Send new records; training steps within an epoch are skipped, as they add none."""
        place = (event.phase, event.epoch)
        if self._makers and (event.phase != "train" or place != self._last):
            self._tell(start=True)
        self._last = place

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Do not write to the folder of a run that was refused before its first event.
        if self._makers and (kind is None or self._all is not None):
            self._tell()
        for name, one in (self._all or {}).items():
            if one.logger is not None:
                self._dare(name, one, one.logger.finish)

    def _tell(self, *, start: bool = False) -> None:
        self._all = self._all or self._opened()
        for name, one in self._all.items():
            self._dare(name, one, lambda one=one: self._tell_one(one, start=start))  # type: ignore[misc]

    def _opened(self) -> dict[str, _Told]:
        kept = self._kept()
        self._name = kept.get("name") or f"{self._folder.resolve().name}-{secrets.token_hex(3)}"
        told = kept.get("told") or {}
        return {name: _Told(make, set(told.get(name, ()))) for name, make in self._makers.items()}

    def _kept(self) -> dict[str, Any]:
        path = self._folder / KEPT
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
        except (ValueError, TypeError, OSError) as error:
            self._warn(f"{path} is corrupt ({error}); all records are logged again, as a new run")
            return {}

    def _tell_one(self, one: _Told, *, start: bool) -> None:
        lines = records.read(self._folder / "metrics.jsonl")
        new = [line for line in lines if _key(line) not in one.known]
        if one.failed or not (new or start):
            return
        if one.logger is None:
            one.failed = True  # reset below on success
            logger = one.make(self._folder)
            logger.start(self._name, self._settings)
            one.logger, one.failed = logger, False
            self._keep()
        for line in new:
            one.logger.log(values_of(line), int(line["epoch"]) * self._steps)
            one.known.add(_key(line))
            self._keep()

    def _keep(self) -> None:
        told = {name: sorted(one.known) for name, one in (self._all or {}).items()}
        kept = {"name": self._name, "told": {**(self._kept().get("told") or {}), **told}}
        write_text_atomically(self._folder / KEPT, json.dumps(kept, indent=1, ensure_ascii=False))

    def _dare(self, name: str, one: _Told, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a server, a disk or a custom logger may raise anything
            if not one.warned:
                what = "could not start" if one.failed else "failed"
                said = " ".join(str(error).split())
                self._warn(
                    f"the logger {name!r} {what} ({type(error).__name__}: {said}); the run continues, "
                    "and metrics.jsonl in the run folder has all records"
                )
            one.warned = True


def _key(line: Record) -> str:
    return f"{line['kind']} {line['epoch']}"


def values_of(line: Record) -> dict[str, float]:
    """Return the scalars of a record by their names in loggers.

    >>> values_of({"kind": "epoch", "epoch": 1, "losses": {"source/nll": 0.5}})
    {'loss/source/nll': 0.5}
    >>> values_of({"kind": "stage", "epoch": 1, "labels": 10, "accuracy": 0.5, "class_iou": [0.5, None]})
    {'stage/epoch': 1.0, 'stage/labels': 10.0, 'stage/accuracy': 0.5}
    """
    kind, found = ("loss", line.get("losses", {})) if line["kind"] == "epoch" else (line["kind"], line)
    return {
        f"{kind}/{name}": float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
