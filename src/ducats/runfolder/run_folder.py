"""Read and write the files of a run folder.

Every write is atomic. Every step leaves a file and is skipped if its file exists. A run can therefore be
killed at any moment; run the same command again to resume.
"""

import csv
import hashlib
import io
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ducats.ledger import AnnotatorHints, GridResolution, Ledger, Request, RequestWriter
from ducats.runfolder import records
from ducats.utils.errors import UserError
from ducats.utils.files import LOCK_FILE, try_lock, write_atomically, write_text_atomically


class RunFolder:
    """The folder of one run; ``claim`` creates it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._lock: FileLock | None = None

    # -- identity -------------------------------------------------------------------------------------

    def claim(self, identity: Mapping[str, Any], data_summary: Mapping[str, Any]) -> None:
        """Lock the folder for a new or resumed run; raise if its config or data differ."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire_lock()
        try:
            records.check_format(self.path)
            for draft in self.path.rglob(".*.part"):  # left by a kill
                if not (self.questions_path in draft.parents and _writer_is_alive(draft)):
                    draft.unlink(missing_ok=True)
            self._check_or_write(self.path / "config.yaml", identity, "another config")
            self._check_or_write(self.path / "data.yaml", data_summary, "other data")
        except UserError:
            self.release()
            raise
        environment = self.path / records.ENVIRONMENT_FILE
        if not environment.exists():
            write_text_atomically(environment, json.dumps(_environment(), indent=1))

    def _check_or_write(self, path: Path, current: Mapping[str, Any], what: str) -> None:
        current = json.loads(json.dumps(current))
        changed = settings_differences(self._yaml(path.name), current) if path.exists() else []
        if changed and not self._has_results:
            # The run failed before its first epoch ended: restart with the new settings, nothing is lost.
            for name in ("config.yaml", "data.yaml", "pool.json", "checkpoint.pt"):
                (self.path / name).unlink(missing_ok=True)
        elif changed:
            more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
            raise UserError(
                f"{self.path} was created with {what} ({'; '.join(changed[:4])}{more}): "
                "choose another folder with --out, or undo the change to resume this run"
            )
        if not path.exists():
            write_text_atomically(path, yaml.safe_dump(current, sort_keys=False, allow_unicode=True))

    @property
    def _has_results(self) -> bool:
        return self.metrics_path.exists() or (self.path / "labels").exists() or self.finished

    def _acquire_lock(self) -> None:
        self._lock = try_lock(self.path / LOCK_FILE)
        if self._lock is None:
            raise UserError(f"another process is working on {self.path}: wait for it, or stop it")

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def identity(self) -> dict[str, Any]:
        """Resolved config of the run."""
        return self._yaml("config.yaml")

    @property
    def data_summary(self) -> dict[str, Any]:
        """Classes and digests of the data."""
        return self._yaml("data.yaml")

    def _yaml(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            raise UserError(f"{self.path} is not a run folder: {name} is missing")
        records.check_format(self.path)
        try:
            return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is corrupt ({type(error).__name__}); restore it from a backup"
            ) from error

    # -- labels ---------------------------------------------------------------------------------------

    def open_ledger(
        self, keys: Sequence[str], sizes: Tensor | None = None, resolution: GridResolution = "network"
    ) -> Ledger:
        """Open the ledger of the pool; the first call saves the pool's keys.

        Args:
            keys: stable names of the pool images.
            sizes: ``(N, 2)``, height and width of each image if pixels are labelled; None for whole images.
            resolution: the resolution of these sizes, see ``Ledger``.
        """
        path = self.path / "pool.json"
        if not path.exists():
            pool: object = list(keys)
            if sizes is not None:
                same_size = len(sizes) > 0 and bool((sizes == sizes[0]).all())
                shape = {"size": sizes[0].tolist()} if same_size else {"sizes": sizes.tolist()}
                pool = {"resolution": resolution, **shape, "keys": pool}
            write_text_atomically(path, json.dumps(pool, ensure_ascii=False, indent=0))
        return Ledger(self.path / "labels", keys, sizes, resolution)

    def load_ledger(self) -> Ledger:
        """Open the ledger of a finished or paused run without loading its data."""
        path = self.path / "pool.json"
        if not path.exists():
            raise UserError(f"{self.path} has no ledger yet: pool.json is missing")
        pool = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(pool, list):
            return Ledger(self.path / "labels", pool)
        sizes = pool.get("sizes") or [pool["size"]] * len(pool["keys"])
        return Ledger(self.path / "labels", pool["keys"], sizes, pool["resolution"])

    def load_request(self, round_number: int) -> Request | None:
        """Return the request of a round; None if there is none yet."""
        path = self._request_path(round_number)
        return Request.load(path) if path.exists() else None

    def save_request(self, request: Request) -> None:
        """Save a request, before it is answered."""
        request.save(self._request_path(request.round))

    def request_writer(self, round_number: int) -> RequestWriter:
        """Return a writer that saves a request image by image; a large one is never held in memory."""
        return RequestWriter(self._request_path(round_number), round_number)

    def _request_path(self, round_number: int) -> Path:
        return self.path / "requests" / f"round-{round_number:02d}.npz"

    def load_hints(self, round_number: int) -> AnnotatorHints | None:
        """Return the model's hints for a round; None if there are none."""
        path = self._hints_path(round_number)
        return AnnotatorHints.load(path) if path.exists() else None

    def save_hints(self, round_number: int, hints: AnnotatorHints) -> None:
        """Save the model's hints for the annotators of a round."""
        hints.save(self._hints_path(round_number))

    def _hints_path(self, round_number: int) -> Path:
        return self.path / "requests" / f"round-{round_number:02d}-hints.npz"

    @property
    def questions_path(self) -> Path:
        """Folder of the annotators' questions and answers."""
        return self.path / "questions"

    # -- progress -------------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save model, optimiser and epoch; replaces the previous checkpoint."""
        write_atomically(self.path / "checkpoint.pt", lambda file: torch.save(dict(state), file))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Load the latest checkpoint, without executing code from the file."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:
            raise UserError(
                f"{path} is corrupt ({type(error).__name__}); delete it to restart training, labels are kept"
            ) from error

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Write a record to metrics.jsonl, replacing one of the same kind and epoch."""
        records.upsert_record(self.metrics_path, record, key_fields=("kind", "epoch"))

    def save_confusion(self, epoch: int, classes: Sequence[str], counts: Tensor) -> None:
        """Save a confusion matrix: one row per label, one column per predicted class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["label", *classes])
        writer.writerows([name, *row] for name, row in zip(classes, counts.tolist(), strict=True))
        write_text_atomically(self.path / "confusion" / f"epoch-{epoch:03d}.csv", text.getvalue())

    def discard_after(self, epoch: int) -> None:
        """Delete the records of later epochs."""
        records.filter_records(self.metrics_path, lambda record: record["epoch"] <= epoch)

    @property
    def metrics_path(self) -> Path:
        """Path of metrics.jsonl."""
        return self.path / "metrics.jsonl"

    def stages(self) -> list[records.Record]:
        """Return one record per evaluated stage."""
        return self.read_records("stage")

    def read_records(self, kind: str) -> list[records.Record]:
        """Return the records of one kind."""
        return [r for r in records.read_records(self.metrics_path) if r["kind"] == kind]

    # -- the model ------------------------------------------------------------------------------------

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        """Save the final weights."""
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        write_atomically(self.path / "model.safetensors", lambda file: file.write(save(tensors)))

    @property
    def is_resumable(self) -> bool:
        """Whether the run has saved weights and would resume rather than restart."""
        return self.finished or (self._has_results and (self.path / "checkpoint.pt").exists())

    @property
    def finished(self) -> bool:
        """Whether the final weights are saved."""
        return (self.path / "model.safetensors").exists()

    def load_model(self) -> dict[str, Tensor]:
        """Load the final weights."""
        path = self.path / "model.safetensors"
        if not path.exists():
            raise UserError(f"{self.path} has no model yet: run the same `ducats run` command to finish it")
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is corrupt ({error}); restore it from a backup") from error


def _writer_is_alive(draft: Path) -> bool:
    """Return whether the process in the draft's name is alive; a labelling tool may be writing it."""
    pid = draft.name.split(".")[-2]
    if os.name == "nt" or not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
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


def _environment() -> dict[str, Any]:
    versions = {}
    for package in ("ducats", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        records.FORMAT_KEY: records.RUN_FORMAT,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "source_digest": _source_digest(),
        "versions": versions,
    }


def _source_digest() -> str:
    """Return a digest of this package's source code; the version does not identify an edited clone."""
    package, found = Path(__file__).parent, hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
