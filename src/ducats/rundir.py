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
from typing import IO, Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ducats import records
from ducats.errors import UserError
from ducats.files import write_atomically, write_text_atomically
from ducats.ledger import Ledger, Notes, Request, RequestWriter, Resolution

try:
    import fcntl
except ImportError:  # Windows: two commands on one folder are not detected
    fcntl = None  # type: ignore[assignment]


class RunDir:
    """The folder of one run; ``claim`` creates it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    # -- identity -------------------------------------------------------------------------------------

    def claim(self, identity: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Lock the folder for a new or resumed run; raise if its config or data differ."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            for draft in self.folder.rglob(".*.part"):  # left by a kill
                if not (self.questions in draft.parents and _at_work(draft)):
                    draft.unlink(missing_ok=True)
            self._same_or_new(self.folder / "config.yaml", identity, "another config")
            self._same_or_new(self.folder / "data.yaml", data, "other data")
        except UserError:
            self.release()
            raise
        if not (self.folder / "environment.json").exists():
            write_text_atomically(self.folder / "environment.json", json.dumps(_environment(), indent=1))

    def _same_or_new(self, path: Path, now: Mapping[str, Any], what: str) -> None:
        now = json.loads(json.dumps(now))
        changed = differences(self._yaml(path.name), now) if path.exists() else []
        if changed and not self._begun:
            # The run failed before its first epoch ended: restart with the new settings, nothing is lost.
            for name in ("config.yaml", "data.yaml", "pool.json", "checkpoint.pt"):
                (self.folder / name).unlink(missing_ok=True)
        elif changed:
            more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
            raise UserError(
                f"{self.folder} was created with {what} ({'; '.join(changed[:4])}{more}): "
                "choose another folder with --out, or undo the change to resume this run"
            )
        if not path.exists():
            write_text_atomically(path, yaml.safe_dump(now, sort_keys=False, allow_unicode=True))

    @property
    def _begun(self) -> bool:
        return self.metrics.exists() or (self.folder / "labels").exists() or self.finished

    def _take_lock(self) -> None:
        if fcntl is None:
            return
        self._lock = (self.folder / ".lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserError(f"another process is working on {self.folder}: wait for it, or stop it") from None

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()  # closing the file releases the lock
            self._lock = None

    @property
    def identity(self) -> dict[str, Any]:
        """Resolved config of the run."""
        return self._yaml("config.yaml")

    @property
    def data(self) -> dict[str, Any]:
        """Classes and digests of the data."""
        return self._yaml("data.yaml")

    def _yaml(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.exists():
            raise UserError(f"{self.folder} is not a run folder: {name} is missing")
        try:
            return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} is corrupt ({type(error).__name__}); restore it from a backup"
            ) from error

    # -- labels ---------------------------------------------------------------------------------------

    def ledger(
        self, keys: Sequence[str], sizes: Tensor | None = None, resolution: Resolution = "network"
    ) -> Ledger:
        """Open the ledger of the pool; the first call saves the pool's keys.

        Args:
            keys: stable names of the pool images.
            sizes: ``(N, 2)``, height and width of each image if pixels are labelled; None for whole images.
            resolution: the resolution of these sizes, see ``Ledger``.
        """
        path = self.folder / "pool.json"
        if not path.exists():
            pool: object = list(keys)
            if sizes is not None:
                alike = len(sizes) > 0 and bool((sizes == sizes[0]).all())
                shape = {"size": sizes[0].tolist()} if alike else {"sizes": sizes.tolist()}
                pool = {"resolution": resolution, **shape, "keys": pool}
            write_text_atomically(path, json.dumps(pool, ensure_ascii=False, indent=0))
        return Ledger(self.folder / "labels", keys, sizes, resolution)

    def bought(self) -> Ledger:
        """Open the ledger of a finished or paused run without loading its data."""
        path = self.folder / "pool.json"
        if not path.exists():
            raise UserError(f"{self.folder} has no ledger yet: pool.json is missing")
        pool = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(pool, list):
            return Ledger(self.folder / "labels", pool)
        sizes = pool.get("sizes") or [pool["size"]] * len(pool["keys"])
        return Ledger(self.folder / "labels", pool["keys"], sizes, pool["resolution"])

    def request(self, number: int) -> Request | None:
        """Return the request of a round; None if there is none yet."""
        path = self._request(number)
        return Request.load(path) if path.exists() else None

    def keep_request(self, request: Request) -> None:
        """Save a request, before it is answered."""
        request.save(self._request(request.round))

    def request_writer(self, number: int) -> RequestWriter:
        """Return a writer that saves a request image by image; a large one is never held in memory."""
        return RequestWriter(self._request(number), number)

    def _request(self, number: int) -> Path:
        return self.folder / "requests" / f"round-{number:02d}.npz"

    def notes(self, number: int) -> Notes | None:
        """Return the model's hints for a round; None if there are none."""
        path = self._notes(number)
        return Notes.load(path) if path.exists() else None

    def keep_notes(self, number: int, notes: Notes) -> None:
        """Save the model's hints for the annotators of a round."""
        notes.save(self._notes(number))

    def _notes(self, number: int) -> Path:
        return self.folder / "requests" / f"round-{number:02d}-notes.npz"

    @property
    def questions(self) -> Path:
        """Folder of the annotators' questions and answers."""
        return self.folder / "questions"

    # -- progress -------------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save model, optimiser and epoch; replaces the previous checkpoint."""
        write_atomically(self.folder / "checkpoint.pt", lambda file: torch.save(dict(state), file))

    def checkpoint(self) -> dict[str, Any] | None:
        """Load the latest checkpoint, without executing code from the file."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:
            raise UserError(
                f"{path} is corrupt ({type(error).__name__}); delete it to restart training, labels are kept"
            ) from error

    def record(self, record: Mapping[str, Any]) -> None:
        """Write a record to metrics.jsonl, replacing one of the same kind and epoch."""
        records.put(self.metrics, record, same=("kind", "epoch"))

    def save_confusion(self, epoch: int, classes: Sequence[str], counts: Tensor) -> None:
        """Save a confusion matrix: one row per label, one column per predicted class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["label", *classes])
        writer.writerows([name, *row] for name, row in zip(classes, counts.tolist(), strict=True))
        write_text_atomically(self.folder / "confusion" / f"epoch-{epoch:03d}.csv", text.getvalue())

    def forget_after(self, epoch: int) -> None:
        """Delete the records of later epochs."""
        records.keep(self.metrics, lambda record: record["epoch"] <= epoch)

    @property
    def metrics(self) -> Path:
        """Path of metrics.jsonl."""
        return self.folder / "metrics.jsonl"

    def stages(self) -> list[records.Record]:
        """Return one record per evaluated stage."""
        return self.lines("stage")

    def lines(self, kind: str) -> list[records.Record]:
        """Return the records of one kind."""
        return [r for r in records.read(self.metrics) if r["kind"] == kind]

    # -- the model ------------------------------------------------------------------------------------

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        """Save the final weights."""
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        write_atomically(self.folder / "model.safetensors", lambda file: file.write(save(tensors)))

    @property
    def begun(self) -> bool:
        """Whether the run has saved weights and would resume rather than restart."""
        return self.finished or (self._begun and (self.folder / "checkpoint.pt").exists())

    @property
    def finished(self) -> bool:
        """Whether the final weights are saved."""
        return (self.folder / "model.safetensors").exists()

    def model(self) -> dict[str, Tensor]:
        """Load the final weights."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise UserError(f"{self.folder} has no model yet: run the same `ducats run` command to finish it")
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is corrupt ({error}); restore it from a backup") from error


def _at_work(draft: Path) -> bool:
    """Return whether the process in the draft's name is alive; a labelling tool may be writing it."""
    number = draft.name.split(".")[-2]
    if fcntl is None or not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the settings that differ, as ``key: old -> new``."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return found


def _environment() -> dict[str, Any]:
    versions = {}
    for package in ("ducats", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "code": _code(),
        "versions": versions,
    }


def _code() -> str:
    """Return a digest of this package's source code; the version does not identify an edited clone."""
    home, found = Path(__file__).parent, hashlib.blake2b(digest_size=8)
    for path in sorted(home.rglob("*.py")):
        found.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
