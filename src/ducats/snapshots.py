"""Files of model snapshots: outputs on a sample in each round and at the end of a run. Imports no torch.

A run saves them in its folder, with thumbnails of some images; reports and figures read them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ducats import columns
from ducats.addresses import LONG, Addresses
from ducats.columns import Array
from ducats.errors import UserError

FOLDER = "snapshots"


@dataclass(frozen=True)
class Snapshot:
    """Model outputs on ``N`` rows at one time: images of source and pool, or pixels of them.

    Void pixels have no class and are known in advance; they have no row.
    """

    round: int  # round number; 0 at the end of the run
    epoch: int
    pool: int  # images in the pool; in segmentation its pixels that are not void, estimated from the sample
    source: int  # likewise for the source
    target: Array  # bool: row of the pool, else of the source
    image: Array  # int32: index in the pool or source
    position: Array  # int32: pixel position y * width + x in the labelling grid; 0 for images
    sampled: Array  # bool: in the random sample; the other rows were added because they were picked
    picked: Array  # bool: requested in this round
    known: Array  # bool: labelled in an earlier round
    label: Array  # int16: class if known (source, or labelled so far), else -1; void -2
    guess: Array  # int16: class with the highest expected probability
    probability: Array  # float32: expected probability of that class
    entropy: Array  # float32: of the expected probabilities, in nats
    u_dis: Array  # float32: distribution uncertainty, in nats
    u_data: Array  # float32: data uncertainty, in nats
    log_u_dis: Array  # float32: natural logarithm, accurate where u_dis underflows
    log_alpha0: Array  # float32: log of the total evidence, the sum of alpha
    top: Array  # int16 (N, K): the K = min(3, C) classes with the highest alpha, descending
    log_alpha: Array  # float32 (N, K): log alpha of these classes
    features_of: Array  # int32 (F,): rows that have features; empty if the model returns none
    features: Array  # float16 (F, D): their principal components, centred, strongest first
    explained: Array  # float32 (D,): fraction of these rows' variance in each component
    z_of: Array  # int32 (P,): picked rows
    z: Array  # float32 (P, C): their log alpha of all classes

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Picks:
    """The labels acquired in one round, in the ledger's order."""

    round: int
    image: Array  # int64 (n,): index in the pool
    position: Array  # int64 (n,)
    label: Array  # int16 (n,): class, or -2 for void


NUMBERS = ("round", "epoch", "pool", "source")
TYPES: Mapping[str, Any] = {
    **dict.fromkeys(NUMBERS, np.int64),
    **dict.fromkeys(("target", "sampled", "picked", "known"), np.bool_),
    **dict.fromkeys(("image", "position", "features_of", "z_of"), np.int32),
    **dict.fromkeys(("label", "guess", "top"), np.int16),
    "features": np.float16,
}  # the others are float32
OF_OTHER_ROWS = ("features_of", "features", "explained", "z_of", "z")


def path_of(folder: Path, number: int) -> Path:
    """Return the path of a round's snapshot; 0 is the end of the run."""
    return folder / FOLDER / (f"round-{number:02d}.npz" if number else "end.npz")


def write(folder: Path, snapshot: Snapshot) -> None:
    """Save a snapshot in a run folder, atomically."""
    named = {field.name: np.asarray(getattr(snapshot, field.name)) for field in fields(Snapshot)}
    kept = {name: (values, TYPES.get(name, np.float32)) for name, values in named.items()}
    columns.write(path_of(folder, snapshot.round), kept)


def read(folder: Path) -> list[Snapshot]:
    """Load all snapshots of a run in chronological order, the end last; empty if there are none.

    Raises:
        UserError: a file is corrupt.
    """
    return [load(path) for path in _paths(folder)]


def read_sound(folder: Path) -> tuple[list[Snapshot], list[str]]:
    """Load all readable snapshots in chronological order, and return a message for each corrupt one."""
    sound, damaged = [], []
    for path in _paths(folder):
        try:
            sound.append(load(path))
        except UserError as error:
            damaged.append(str(error))
    return sound, damaged


def _paths(folder: Path) -> list[Path]:
    rounds = sorted((folder / FOLDER).glob("round-*.npz"), key=lambda path: (len(path.name), path.name))
    end = path_of(folder, 0)
    return [*rounds, *([end] if end.exists() else [])]


def load(path: Path) -> Snapshot:
    """Load one snapshot.

    Raises:
        UserError: the file is corrupt.
    """
    try:
        found = columns.read(path, ())
        named: dict[str, Any] = {field.name: found[field.name] for field in fields(Snapshot)}
        named |= {name: int(named[name]) for name in NUMBERS}
        snapshot = Snapshot(**named)
        _check(snapshot)
    except (*columns.UNREADABLE, TypeError) as error:
        raise UserError(f"{path} is corrupt ({error}); remove it, reports work without it") from error
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Raise if columns are inconsistent."""
    rows = [f.name for f in fields(Snapshot) if f.name not in (*NUMBERS, *OF_OTHER_ROWS)]
    for name in rows:
        if len(getattr(snapshot, name)) != len(snapshot):
            raise ValueError(f"{name} has {len(getattr(snapshot, name))} rows instead of {len(snapshot)}")
    for name, of in (("features", snapshot.features_of), ("z", snapshot.z_of)):
        if len(getattr(snapshot, name)) != len(of) or (of < 0).any() or (of >= len(snapshot)).any():
            raise ValueError(f"{name} does not match its rows")
    if snapshot.features.shape[1] != len(snapshot.explained):
        raise ValueError("features and explained differ in their number of components")


def picture(folder: Path, image: int) -> Path | None:
    """Return the path of an image's thumbnail; None if the run saved none."""
    found = (picture_path(folder, image, kind) for kind in ("png", "jpg"))
    return next((path for path in found if path.exists()), None)


def picture_path(folder: Path, image: int, kind: Literal["png", "jpg"]) -> Path:
    """Return the path at which an image's thumbnail is saved."""
    return folder / FOLDER / "pictures" / f"{image:06d}.{kind}"


def picks(folder: Path, round: int) -> Picks | None:
    """Load the labels of a round; None if it has none yet.

    Raises:
        UserError: the file is corrupt.
    """
    path = folder / "labels" / f"round-{round:02d}.npz"
    if not path.exists():
        return None
    try:
        found = columns.read(path, (*LONG, "label"))
        addresses, label = Addresses.from_columns(found), found["label"]
        if len(label) != addresses.total:
            raise ValueError(f"it has {len(label)} labels for {addresses.total} locations")
    except columns.UNREADABLE as error:
        raise UserError(
            f"{path} is corrupt ({error}); restore it from a backup, it holds acquired labels"
        ) from error
    image = np.repeat(addresses.image, addresses.count)
    position = addresses.positions(np.arange(len(addresses.image)))
    return Picks(round, image, position, label.astype(np.int16))


def keys(folder: Path) -> list[str]:
    """Return the names of the pool's images; empty if the run has not saved them yet."""
    pool = _pool(folder)
    return [str(key) for key in (pool["keys"] if isinstance(pool, dict) else pool)]


def sizes(folder: Path) -> Array | None:
    """Return the size of each image's labelling grid, ``(N, 2)``; None if whole images are classified."""
    pool = _pool(folder)
    if not isinstance(pool, dict):
        return None
    return np.array(pool.get("sizes") or [pool["size"]] * len(pool["keys"]), np.int64)


def _pool(folder: Path) -> Any:
    path = folder / "pool.json"
    if not path.exists():
        return []
    try:
        pool = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(pool, list) or (isinstance(pool, dict) and {"keys"} < pool.keys()):
            return pool
        raise ValueError("it has no keys")
    except ValueError as error:
        raise UserError(f"{path} is corrupt ({error}); restore it from a backup") from error
