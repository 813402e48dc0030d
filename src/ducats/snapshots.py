"""What a model thought of some samples each time that it asked, and at the end of its run. Needs no torch.

A run leaves them in its folder, and pictures of some of what it asked; reports and figures read them.
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
    """What the model thought of some samples at one moment: source images and the pool's, or pixels of them.

    There are ``N`` rows. Of void, which has no class and is known beforehand, there is no row.
    """

    round: int  # number of the question; 0 at the end of the run
    epoch: int
    pool: int  # images in the pool; of pixels, those that are not void, estimated from the images looked at
    source: int  # the same of the source
    target: Array  # bool: of the pool; else of the source
    image: Array  # int32: place in pool or source
    position: Array  # int32: a pixel's place, y * width + x, in the grid that is bought; of images 0
    sampled: Array  # bool: belongs to the random sample; the others are here because they were picked
    picked: Array  # bool: asked for in this round
    known: Array  # bool: bought in an earlier round
    label: Array  # int16: class where it is known now (of the source, or bought), else -1; void -2
    guess: Array  # int16: class of the highest expected probability
    probability: Array  # float32: of the guess
    entropy: Array  # float32: of the expected probabilities, in nats
    u_dis: Array  # float32: distribution uncertainty, in nats
    u_data: Array  # float32: data uncertainty, in nats
    log_u_dis: Array  # float32: natural logarithm, sound where u_dis itself is too small for a float
    log_alpha0: Array  # float32: logarithm of the total evidence, the sum of alpha
    top: Array  # int16 (N, K): the K = min(3, C) classes of the highest alpha, falling
    log_alpha: Array  # float32 (N, K): of these classes
    features_of: Array  # int32 (F,): rows that have features; none if the model does not tell them
    features: Array  # float16 (F, D): their principal components, centred, the strongest first
    explained: Array  # float32 (D,): share of these rows' variance in each component
    z_of: Array  # int32 (P,): picked rows
    z: Array  # float32 (P, C): log alpha of all classes

    def __len__(self) -> int:
        return len(self.image)


@dataclass(frozen=True)
class Picks:
    """The labels that one round bought, in the ledger's order."""

    round: int
    image: Array  # int64 (n,): place in the pool
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
    """Where a run keeps the snapshot of a question; of its end for 0."""
    return folder / FOLDER / (f"round-{number:02d}.npz" if number else "end.npz")


def write(folder: Path, snapshot: Snapshot) -> None:
    """Keep a snapshot in a run's folder; whole or not at all."""
    named = {field.name: np.asarray(getattr(snapshot, field.name)) for field in fields(Snapshot)}
    kept = {name: (values, TYPES.get(name, np.float32)) for name, values in named.items()}
    columns.write(path_of(folder, snapshot.round), kept)


def read(folder: Path) -> list[Snapshot]:
    """All snapshots of a run in the order of time, the end last; none if it left none.

    Raises:
        UserError: a file is damaged.
    """
    return [load(path) for path in _paths(folder)]


def read_sound(folder: Path) -> tuple[list[Snapshot], list[str]]:
    """All snapshots of a run that can be read, in order of time, and a sentence about each that cannot."""
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
    """One snapshot.

    Raises:
        UserError: the file is damaged.
    """
    try:
        found = columns.read(path, ())
        named: dict[str, Any] = {field.name: found[field.name] for field in fields(Snapshot)}
        named |= {name: int(named[name]) for name in NUMBERS}
        snapshot = Snapshot(**named)
        _check(snapshot)
    except (*columns.UNREADABLE, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): remove it, and reports are made without it"
        ) from error
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Refuse columns that do not belong together."""
    rows = [f.name for f in fields(Snapshot) if f.name not in (*NUMBERS, *OF_OTHER_ROWS)]
    for name in rows:
        if len(getattr(snapshot, name)) != len(snapshot):
            raise ValueError(f"it has {len(snapshot)} rows, but {name} has {len(getattr(snapshot, name))}")
    for name, of in (("features", snapshot.features_of), ("z", snapshot.z_of)):
        if len(getattr(snapshot, name)) != len(of) or (of < 0).any() or (of >= len(snapshot)).any():
            raise ValueError(f"its {name} belong to other rows than it has")
    if snapshot.features.shape[1] != len(snapshot.explained):
        raise ValueError("its features have other components than it explains")


def picture(folder: Path, image: int) -> Path | None:
    """Where a run keeps the picture of one of the pool's images; None if it kept none."""
    found = (picture_path(folder, image, kind) for kind in ("png", "jpg"))
    return next((path for path in found if path.exists()), None)


def picture_path(folder: Path, image: int, kind: Literal["png", "jpg"]) -> Path:
    """Where a picture is kept, if it is."""
    return folder / FOLDER / "pictures" / f"{image:06d}.{kind}"


def picks(folder: Path, round: int) -> Picks | None:
    """What a round bought; None if it bought nothing yet.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / "labels" / f"round-{round:02d}.npz"
    if not path.exists():
        return None
    try:
        found = columns.read(path, (*LONG, "label"))
        addresses, label = Addresses.from_columns(found), found["label"]
        if len(label) != addresses.total:
            raise ValueError(f"it has {len(label)} labels for {addresses.total} addresses")
    except columns.UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read ({error}): restore it from a copy, its labels were paid for"
        ) from error
    image = np.repeat(addresses.image, addresses.count)
    position = addresses.positions(np.arange(len(addresses.image)))
    return Picks(round, image, position, label.astype(np.int16))


def keys(folder: Path) -> list[str]:
    """Names of the pool's images; none if the run has not written them down."""
    pool = _pool(folder)
    return [str(key) for key in (pool["keys"] if isinstance(pool, dict) else pool)]


def sizes(folder: Path) -> Array | None:
    """Height and width of each image in the grid that is bought, ``(N, 2)``; None where images are."""
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
        raise UserError(f"{path} was spoilt ({error}): restore it from a copy") from error
