"""The folder of a run: paths, identity, lock, records.

Every write is atomic. Every step leaves a file and is skipped if its file exists. A run can therefore be
killed at any moment; run the same command again to resume.
"""

import hashlib
import json
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock

from ducats.runfolder import checksums, label_files, records
from ducats.runfolder.amendments import (
    AMENDMENT_FILES,
    MERGE_CHANNEL,
    Amendment,
    CorrectedLabels,
    append_amendment,
    load_amendments,
)
from ducats.runfolder.audit_files import LiveAuditState, PoolPredictions
from ducats.runfolder.class_changes import (
    CLASSES_FILE,
    ClassChange,
    ClassList,
    load_class_changes,
    save_class_changes,
)
from ducats.runfolder.hints import AnnotatorHints
from ducats.runfolder.label_files import ImageLabelRounds, RoundLabels
from ducats.runfolder.pool_file import PoolInfo, pool_text, read_pool_file
from ducats.runfolder.rounds import round_file, round_name, rounds_in
from ducats.utils.errors import UserError
from ducats.utils.files import LOCK_FILE, csv_text, make_folder, try_lock, write_csv_atomically
from ducats.utils.yaml_text import load_yaml

RUN_FORMAT = 3  # version of the files in a run folder; raise it when their names or keys change
FORMAT_KEY = "run_folder_format"


class RunFolder:
    """The folder of one run; ``claim`` creates it. It holds paths only, so it need not exist."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.lock_path = folder / LOCK_FILE  # locked while a process works on the run
        self.config_path = folder / "config.yaml"
        self.data_path = folder / "data.yaml"
        self.environment_path = folder / "environment.json"
        self.unreadable_path = folder / "unreadable.csv"  # only if files were skipped
        self.pool_path = folder / "pool.json"
        self.metrics_path = folder / records.METRICS_FILE
        self.confusion_path = folder / "confusion"
        self.requests_path = folder / "requests"  # and the model's hints
        self.labels_path = folder / "labels"
        self.classes_path = folder / CLASSES_FILE  # changes of the classes; only if there are any
        self.questions_path = folder / "questions"  # see ``question_names``
        self.audit_path = folder / "audit"  # predictions for the whole pool, state of live labelling
        self.people_path = folder / "people.json"  # private: the tokens of `ducats label --people`
        self.snapshots_path = folder / "snapshots"  # see ``snapshot_files``
        self.checkpoint_path = folder / "checkpoint.pt"
        self.frozen_path = folder / "frozen.safetensors"
        self.model_path = folder / "model.safetensors"
        self.loggers_path = folder / "loggers.json"
        self.tensorboard_path = folder / "tensorboard"
        self.triage_path = folder / "triage.json"
        self.export_path = folder / "export"
        self.picks_path = folder / "picks.png"
        self._lock: FileLock | None = None

    # -- identity -------------------------------------------------------------------------------------

    def claim(
        self, identity: Mapping[str, Any], data_summary: Mapping[str, Any], *, device: str = ""
    ) -> None:
        """Lock the folder for a new or resumed run; raise if its config or data differ.

        Args:
            device: name of the device, stored with the versions; by default the machine's.
        """
        self.lock()
        try:
            for draft in self.path.rglob(".*.part"):  # left by a kill
                is_of_tool = self.questions_path in draft.parents or draft.match(f".{AMENDMENT_FILES}*")
                if not (is_of_tool and _writer_is_alive(draft)):
                    draft.unlink(missing_ok=True)
            checksums.create(self.path)
            self._verify_results()
            self._check_or_write(self.config_path, identity, "another config")
            self._check_or_write(self.data_path, data_summary, "other data")
        except UserError:
            self.release()
            raise
        environment = _environment(device or platform.machine())
        if not self.environment_path.exists():
            checksums.write_text(self.environment_path, json.dumps(environment, indent=1))
        elif self._has_results and not self.finished:
            started_with = self.environment.get("source_digest")
            if started_with not in (None, environment["source_digest"]):
                warnings.warn(
                    f"{self.path} was started by another version of ducats, so its results may mix two "
                    "versions; to run it again from the start, choose another folder with --out",
                    stacklevel=2,
                )

    def lock(self) -> None:
        """Create the folder and lock it for this process; raise if another one works on it."""
        make_folder(self.path)
        self._lock = try_lock(self.lock_path)
        if self._lock is None:
            raise UserError(f"another process is working on {self.path}: wait for it, or stop it")
        try:
            self.check_format()
        except UserError:
            self.release()
            raise

    def discard_outdated(
        self, identity: Mapping[str, Any], keys: Sequence[str], classes: Sequence[str]
    ) -> None:
        """Delete what a run cannot keep with other settings or another pool, so that it is made again.

        Args:
            identity: settings of the run. If they differ from those in the folder, all results are deleted.
            keys: of the pool. If they differ, requests and labels are deleted, too: they refer to its images
                by index. The caller can make them again.
            classes: of the run. If the number of a class differs, the same is done.
        """
        known_keys = list(self.load_pool().keys)
        other_pool = bool(known_keys) and known_keys != list(keys)
        if self.data_path.exists():
            numbered = self.classes.resolved_names
            other_pool |= numbered != tuple(classes[: len(numbered)])
        has_config = self.config_path.exists()
        plain = json.loads(json.dumps(identity))
        if has_config and not other_pool and not settings_differences(self.identity, plain):
            return
        if other_pool and self.load_amendments():
            raise UserError(
                f"{self.path} has amended labels, and since then images were added or removed, or classes "
                "merged; choose another folder with --out, or restore the images"
            )
        # The weights first: without them, the run is not finished.
        results = [self.model_path, self.checkpoint_path, self.metrics_path, self.triage_path]
        results += [*self.confusion_path.glob("*.csv"), *self.snapshots_path.rglob("*.*")]
        results += self.audit_path.glob("*.npz")
        if other_pool:
            results += [*self.labels_path.glob("*.npz"), *self.requests_path.glob("*.npz"), self.pool_path]
        for path in (*results, self.data_path, self.config_path):
            checksums.delete(path)

    def _check_or_write(self, path: Path, current: Mapping[str, Any], what: str) -> None:
        current = json.loads(json.dumps(current))
        changed = settings_differences(_read_mapping(path), current) if path.exists() else []
        if changed and not self._has_results:
            # The run failed before its first epoch ended: restart with the new settings, nothing is lost.
            stale_paths = (self.config_path, self.data_path, self.pool_path, self.unreadable_path)
            for stale in (*stale_paths, self.checkpoint_path, self.frozen_path):
                checksums.delete(stale)
        elif changed:
            more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
            raise UserError(
                f"{self.path} was created with {what} ({'; '.join(changed[:4])}{more}): "
                "choose another folder with --out, or undo the change to resume this run"
            )
        self._write_once(path, yaml.safe_dump(current, sort_keys=False, allow_unicode=True))

    def _write_once(self, path: Path, text: str) -> None:
        """Write a file unless it exists; if it was deleted after the first results, it must be the same."""
        if path.exists():
            checksums.verify(path)
        elif self._has_results:
            checksums.write_again(path, text)
        else:
            checksums.write_text(path, text)

    def _verify_results(self) -> None:
        """Raise if results are damaged or missing; without a checkpoint, missing ones are made again."""
        if self.finished:
            checksums.verify(self.model_path)
            return
        if not self.checkpoint_path.exists():
            checksums.accept_missing(self.path)
        checksums.verify_results(self.path)

    @property
    def _has_results(self) -> bool:
        return self.metrics_path.exists() or self.labels_path.exists() or self.finished

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def is_active(self) -> bool | None:
        """Return whether a process on this machine works on the run; None if the system cannot tell.

        The lock is not acquired: a run that starts at that moment would find it taken.
        """
        try:
            lock_stat = self.lock_path.stat()
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        inode = f"{os.major(lock_stat.st_dev):02x}:{os.minor(lock_stat.st_dev):02x}:{lock_stat.st_ino}"
        return any(inode in line.split() for line in locks)

    def check_format(self) -> None:
        """Raise if the folder was written in another format; one without environment.json is accepted."""
        if self.environment_path.exists():
            checksums.verify(self.environment_path)
        try:
            found = json.loads(self.environment_path.read_text(encoding="utf-8")).get(FORMAT_KEY, 1)
        except (OSError, ValueError, AttributeError):
            return
        if found != RUN_FORMAT:
            raise UserError(
                f"{self.path} has run folder format {found}, but this version of ducats reads format "
                f"{RUN_FORMAT}; run it again in a new folder"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """Resolved config of the run."""
        return self._read_required(self.config_path)

    @property
    def data_summary(self) -> dict[str, Any]:
        """Classes and digests of the data."""
        return self._read_required(self.data_path)

    @property
    def classes(self) -> ClassList:
        """The classes of the run, with those that were added, renamed or merged since it started."""
        names = self.data_summary.get("classes")
        initial = tuple(map(str, names)) if isinstance(names, list) else ()
        return ClassList(initial, self.load_class_changes())

    def load_class_changes(self) -> tuple[ClassChange, ...]:
        """Return the changes of the classes, oldest first."""
        return load_class_changes(self.classes_path)

    def save_class_changes(self, changes: Sequence[ClassChange]) -> None:
        """Save all changes of the classes."""
        save_class_changes(self.classes_path, changes)

    def _read_required(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            raise UserError(
                f"{self.path} is not a run folder: it has no {path.name}. Give a folder written by "
                "`ducats run`"
            )
        self.check_format()
        return _read_mapping(path)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine; empty if not recorded."""
        checksums.verify(self.environment_path)
        found = _read_mapping(self.environment_path) if self.environment_path.exists() else {}
        return {key: value for key, value in found.items() if key != FORMAT_KEY}

    def save_unreadable(self, files: Sequence[tuple[str, tuple[Path, str]]]) -> None:
        """List the files that were skipped: set, path, reason. An empty list keeps an earlier one."""
        if files:
            rows = [(name, str(path), reason) for name, (path, reason) in files]
            write_csv_atomically(self.unreadable_path, ("set", "path", "reason"), rows)

    # -- labels ---------------------------------------------------------------------------------------

    def save_pool(self, pool: PoolInfo) -> None:
        """Save the pool's keys, once: image indices refer to them."""
        self._write_once(self.pool_path, pool_text(pool))

    def load_pool(self) -> PoolInfo:
        """Return the pool; without keys if it is not saved yet."""
        checksums.verify(self.pool_path)
        return read_pool_file(self.pool_path) if self.pool_path.exists() else PoolInfo()

    def request_path(self, round_number: int) -> Path:
        """Return the path of a round's request."""
        return round_file(self.requests_path, round_number)

    def requested_rounds(self) -> list[int]:
        """Return the rounds with a request, ascending."""
        return rounds_in(self.requests_path)

    def load_hints(self, round_number: int) -> AnnotatorHints | None:
        """Return the model's hints for a round; None if there are none."""
        path = self._hints_path(round_number)
        return AnnotatorHints.load(path) if path.exists() else None

    def save_hints(self, round_number: int, hints: AnnotatorHints) -> None:
        """Save the model's hints for the annotators of a round."""
        hints.save(self._hints_path(round_number))

    def _hints_path(self, round_number: int) -> Path:
        return self.requests_path / f"{round_name(round_number)}-hints.npz"

    def labelled_rounds(self) -> list[int]:
        """Return the rounds with labels, ascending."""
        return rounds_in(self.labels_path)

    def count_round_labels(self, round_number: int) -> int:
        """Return the number of labels acquired in a round."""
        path = round_file(self.labels_path, round_number)
        return label_files.read_label_file(path).pixel_runs.n_locations if path.exists() else 0

    def load_round_labels(
        self, round_number: int, n_rounds: int | None = None, *, with_audit: bool = False
    ) -> RoundLabels | None:
        """Return the labels of a round; None if it has none yet.

        Args:
            n_rounds: apply only the amendments that count after this number of rounds; None for all.
            with_audit: include those for the audit.
        """
        path = round_file(self.labels_path, round_number)
        checksums.verify(path)
        if not path.exists():
            return None
        found = label_files.read_label_file(path)
        image = np.repeat(found.pixel_runs.image, found.pixel_runs.count)
        position = found.pixel_runs.positions(np.arange(len(found.pixel_runs.image)))
        amendments = self.load_amendments()
        if n_rounds is not None and amendments:
            amendments = amendments[
                : label_files.read_label_file(round_file(self.labels_path, n_rounds)).n_amendments
            ]
        corrected = CorrectedLabels.from_amendments(amendments)
        label = corrected.apply_to_images(image, position, found.labels.astype(np.int16))
        if len(found.marks.index) and not with_audit:
            is_pick = ~found.marks.mask(len(image))
            image, position, label = image[is_pick], position[is_pick], label[is_pick]
        return RoundLabels(round_number, image, position, label)

    def count_class_labels(self) -> Counter[int]:
        """Return the number of labels of each class in use, by class number."""
        counts = Counter[int]()
        for round_number in self.labelled_rounds():
            found = self.load_round_labels(round_number, with_audit=True)
            assert found is not None
            label, count = np.unique(found.label, return_counts=True)
            counts.update(dict(zip(label.tolist(), count.tolist(), strict=True)))
        return self.classes.merge_counts(counts)

    def load_image_labels(self, image: int) -> ImageLabelRounds:
        """Return all labels of one image with their rounds, in the order of acquisition, corrected."""
        positions, labels, rounds = [np.zeros(0, np.int64)], [np.zeros(0, np.int16)], [np.zeros(0, np.int64)]
        for round_number in self.labelled_rounds():
            found = label_files.read_label_file(round_file(self.labels_path, round_number))
            runs = found.pixel_runs.runs_of_images(np.array([image]))
            positions.append(found.pixel_runs.positions(runs))
            labels.append(found.labels[found.pixel_runs.location_indices(runs)].astype(np.int16))
            rounds.append(np.full(len(positions[-1]), round_number))
        position, label = np.concatenate(positions), np.concatenate(labels)
        corrected = CorrectedLabels.from_amendments(self.load_amendments())
        return ImageLabelRounds(position, corrected.apply(image, position, label), np.concatenate(rounds))

    def load_amendments(self, *, with_merges: bool = True) -> list[Amendment]:
        """Return the amendments of labels, oldest first.

        Args:
            with_merges: include the labels of merged classes, at which nobody has looked again.
        """
        found = load_amendments(self.labels_path)
        return [one for one in found if with_merges or one.channel != MERGE_CHANNEL]

    def count_unused_corrections(self) -> int:
        """Return the number of corrections that the run has not trained on, made after its newest round."""
        amendments, rounds = self.load_amendments(), self.labelled_rounds()
        newest = round_file(self.labels_path, rounds[-1]) if amendments and rounds else None
        n_used = 0 if newest is None else label_files.read_label_file(newest).n_amendments
        unused = [amendment for amendment in amendments[n_used:] if amendment.channel != MERGE_CHANNEL]
        return sum(bool(one.runs) for amendment in unused for one in amendment.corrections)

    def append_amendment(self, amendment: Amendment) -> None:
        """Save an amendment of labels."""
        append_amendment(self.labels_path, amendment)

    # -- progress -------------------------------------------------------------------------------------

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Write a record to metrics.jsonl, replacing one of the same kind and epoch."""
        records.upsert_record(self.metrics_path, record, key_fields=("kind", "epoch"))

    def save_confusion(self, epoch: int, classes: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
        """Save a confusion matrix: one row per label, one column per predicted class."""
        rows = [[name, *row] for name, row in zip(classes, counts, strict=True)]
        checksums.write_text(self.confusion_file(epoch), csv_text(["label", *classes], rows))

    def confusion_file(self, epoch: int) -> Path:
        """Return the path of an epoch's confusion matrix."""
        return self.confusion_path / f"epoch-{epoch:03d}.csv"

    def save_pool_predictions(self, epoch: int, predictions: PoolPredictions) -> None:
        """Save the predictions for the whole pool after an epoch."""
        predictions.save(self._pool_predictions_file(epoch))

    def load_pool_predictions(self, epoch: int) -> PoolPredictions:
        """Return the predictions for the whole pool after an epoch."""
        return PoolPredictions.load(self._pool_predictions_file(epoch))

    def save_live_audit(self, state: LiveAuditState) -> None:
        """Save the state of the audit of live labelling."""
        state.save(self._live_audit_file)

    def load_live_audit(self) -> LiveAuditState:
        """Return the state of the audit of live labelling; an empty one if there is none."""
        return LiveAuditState.load(self._live_audit_file)

    @property
    def _live_audit_file(self) -> Path:
        return self.audit_path / "live.json"

    def _pool_predictions_file(self, epoch: int) -> Path:
        return self.audit_path / f"epoch-{epoch:03d}.npz"

    def discard_after(self, epoch: int) -> None:
        """Delete the records of later epochs."""
        records.filter_records(self.metrics_path, lambda record: record["epoch"] <= epoch)

    def stages(self) -> list[records.Record]:
        """Return one record per evaluated stage."""
        return self.read_records("stage")

    def read_records(self, kind: str) -> list[records.Record]:
        """Return the records of one kind."""
        return [r for r in records.read_records(self.metrics_path) if r["kind"] == kind]

    @property
    def is_resumable(self) -> bool:
        """Whether the run has saved weights and would resume rather than restart."""
        return self.finished or (self._has_results and self.checkpoint_path.exists())

    @property
    def finished(self) -> bool:
        """Whether the final weights are saved."""
        return self.model_path.exists()


def _read_mapping(path: Path) -> dict[str, Any]:
    checksums.verify(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else load_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise checksums.corrupt(path, error) from error
    if not isinstance(value, dict):
        raise checksums.corrupt(path, f"it must contain a mapping, not {type(value).__name__}")
    return value


def _writer_is_alive(draft: Path) -> bool:
    """Return whether the process in the draft's name is alive; a labelling tool may be writing it."""
    pid = draft.name.split(".")[-2]
    if os.name == "nt" or not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process
    return True


def settings_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the settings that differ, as ``key: old -> new``."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += settings_differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return found


def _environment(device: str) -> dict[str, Any]:
    versions = {}
    for package in ("ducats", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        FORMAT_KEY: RUN_FORMAT,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": device,
        "source_digest": _source_digest(Path(__file__).parents[1]),
        "versions": versions,
    }


def _source_digest(package: Path) -> str:
    """Return a digest of a package's source code; the version does not identify an edited clone."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
