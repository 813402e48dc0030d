"""Files of model snapshots: outputs on a sample in each round and at the end of a run. Imports no torch.

A run saves them in its folder, with thumbnails of some images; reports and figures read them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ducats.runfolder import checksums
from ducats.runfolder.rounds import ROUND_FILES, round_file
from ducats.runfolder.run_folder import RunFolder
from ducats.utils import npz_columns
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray


@dataclass(frozen=True)
class Snapshot:
    """Model outputs on ``N`` rows at one time: images of source and pool, or pixels of them.

    Void pixels have no class and are known in advance; they have no row.
    """

    round: int  # round number; 0 at the end of the run
    epoch: int
    pool: int  # images in the pool; in segmentation its pixels that are not void, estimated from the sample
    source: int  # likewise for the source
    is_target: AnyArray  # bool: row of the pool, else of the source
    image: AnyArray  # int32: index in the pool or source
    position: AnyArray  # int32: pixel position y * width + x in the labelling grid; 0 for images
    sampled: AnyArray  # bool: in the random sample; the other rows were added because they were picked
    picked: AnyArray  # bool: requested in this round
    is_labelled: AnyArray  # bool: labelled in an earlier round
    label: AnyArray  # int16: class if known (source, or labelled so far), else -1; void -2
    predicted: AnyArray  # int16: class with the highest expected probability
    probability: AnyArray  # float32: expected probability of that class
    entropy: AnyArray  # float32: of the expected probabilities, in nats
    u_dis: AnyArray  # float32: distribution uncertainty, in nats
    u_data: AnyArray  # float32: data uncertainty, in nats
    log_u_dis: AnyArray  # float32: natural logarithm, accurate where u_dis underflows
    log_alpha0: AnyArray  # float32: log of the total evidence, the sum of alpha
    top_classes: AnyArray  # int16 (N, K): the K = min(3, C) classes with the highest alpha, descending
    log_alpha: AnyArray  # float32 (N, K): log alpha of these classes
    feature_rows: AnyArray  # int32 (F,): rows that have features; empty if the model returns none
    features: AnyArray  # float16 (F, D): their principal components, centred, strongest first
    explained_variance_ratio: AnyArray  # float32 (D,): fraction of these rows' variance in each component
    z_rows: AnyArray  # int32 (P,): picked rows
    z: AnyArray  # float32 (P, C): their log alpha of all classes

    def __len__(self) -> int:
        return len(self.image)


_SCALAR_FIELDS = ("round", "epoch", "pool", "source")
_SNAPSHOT_DTYPES: Mapping[str, Any] = {
    **dict.fromkeys(_SCALAR_FIELDS, np.int64),
    **dict.fromkeys(("is_target", "sampled", "picked", "is_labelled"), np.bool_),
    **dict.fromkeys(("image", "position", "feature_rows", "z_rows"), np.int32),
    **dict.fromkeys(("label", "predicted", "top_classes"), np.int16),
    "features": np.float16,
}  # the others are float32
_SUBSET_FIELDS = ("feature_rows", "features", "explained_variance_ratio", "z_rows", "z")


def snapshot_path(folder: Path, round_number: int) -> Path:
    """Return the path of a round's snapshot; 0 is the end of the run."""
    snapshots = RunFolder(folder).snapshots_path
    return round_file(snapshots, round_number) if round_number else snapshots / "final.npz"


def write_snapshot_file(folder: Path, snapshot: Snapshot) -> None:
    """Save a snapshot in a run folder, atomically."""
    named = {field.name: np.asarray(getattr(snapshot, field.name)) for field in fields(Snapshot)}
    kept = {name: (values, _SNAPSHOT_DTYPES.get(name, np.float32)) for name, values in named.items()}
    path = snapshot_path(folder, snapshot.round)
    checksums.write(path, lambda file: npz_columns.write_archive(file, kept))


def load_snapshots(folder: Path) -> list[Snapshot]:
    """Load all snapshots of a run in chronological order, the end last; empty if there are none.

    Raises:
        UserError: a file is corrupt.
    """
    return [load_snapshot(path) for path in _paths(folder)]


def load_newest_snapshot(folder: Path) -> Snapshot | None:
    """Load the newest snapshot of a run; None if there is none."""
    paths = _paths(folder)
    return load_snapshot(paths[-1]) if paths else None


def load_readable_snapshots(folder: Path) -> tuple[list[Snapshot], list[str]]:
    """Load all readable snapshots in chronological order, and return what is corrupt or missing.

    The messages are one for each snapshot, and one for all thumbnails. The figures of a page read the same
    snapshots one after the other, so the last ones are kept in memory.
    """
    readable, problems = [], []
    for path in _paths(folder):
        try:
            readable.append(_load_cached(path, _version(path)))
        except UserError as error:
            problems.append(str(error))
    return readable, [*problems, *_thumbnail_problems(folder)]


def _thumbnail_problems(folder: Path) -> list[str]:
    thumbnails = thumbnail_path(folder, 0, "png").parent
    missing = checksums.missing(folder, f"{thumbnails.relative_to(folder).as_posix()}/*")
    problems = []
    for path in [*(folder / name for name in missing), *sorted(thumbnails.glob("*"))]:
        try:
            checksums.verify(path)
        except UserError as error:
            problems.append(str(error))
    if len(problems) > 1:
        return [f"{problems[0]} (and {len(problems) - 1} more)"]
    return problems


@lru_cache(maxsize=8)
def _load_cached(path: Path, _: tuple[int, int] | None) -> Snapshot:
    return load_snapshot(path)


def _version(path: Path) -> tuple[int, int] | None:
    """Return time and size of a file; None if it is missing."""
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


def _paths(folder: Path) -> list[Path]:
    files = RunFolder(folder).snapshots_path.glob(ROUND_FILES)
    rounds = sorted(files, key=lambda path: (len(path.name), path.name))
    end = snapshot_path(folder, 0)
    lost = [folder / name for name in checksums.missing(folder, f"{end.parent.name}/*.npz")]
    lost_rounds = [path for path in lost if path != end]
    return [*lost_rounds, *rounds, *([end] if end.exists() or end in lost else [])]


def load_snapshot(path: Path) -> Snapshot:
    """Load one snapshot.

    Raises:
        UserError: the file is corrupt.
    """
    checksums.verify(path)
    try:
        found = npz_columns.read_columns(path, ())
        named: dict[str, Any] = {field.name: found[field.name] for field in fields(Snapshot)}
        named |= {name: int(named[name]) for name in _SCALAR_FIELDS}
        snapshot = Snapshot(**named)
        _check(snapshot)
    except (*npz_columns.READ_ERRORS, TypeError) as error:
        raise checksums.corrupt(path, error) from error
    return snapshot


def _check(snapshot: Snapshot) -> None:
    """Raise if columns are inconsistent."""
    rows = [f.name for f in fields(Snapshot) if f.name not in (*_SCALAR_FIELDS, *_SUBSET_FIELDS)]
    for name in rows:
        if len(getattr(snapshot, name)) != len(snapshot):
            raise ValueError(f"{name} has {len(getattr(snapshot, name))} rows instead of {len(snapshot)}")
    for name, of in (("features", snapshot.feature_rows), ("z", snapshot.z_rows)):
        if len(getattr(snapshot, name)) != len(of) or (of < 0).any() or (of >= len(snapshot)).any():
            raise ValueError(f"{name} does not match its rows")
    if snapshot.features.shape[1] != len(snapshot.explained_variance_ratio):
        raise ValueError("features and explained_variance_ratio differ in their number of components")


def find_thumbnail(folder: Path, image: int) -> Path | None:
    """Return the path of an image's thumbnail; None if the run saved none, or if it is damaged."""
    for path in (thumbnail_path(folder, image, suffix) for suffix in ("png", "jpg")):
        if path.exists():
            with suppress(UserError):
                checksums.verify(path)
                return path
    return None


def list_thumbnails(folder: Path) -> dict[int, Path]:
    """Return the paths of all thumbnails that the run saved, by the number of the image."""
    paths = sorted(_thumbnails_path(folder).glob("*"))
    return {int(path.stem): path for path in paths if path.stem.isdigit() and path.suffix in (".png", ".jpg")}


def thumbnail_path(folder: Path, image: int, suffix: Literal["png", "jpg"]) -> Path:
    """Return the path at which an image's thumbnail is saved."""
    return _thumbnails_path(folder) / f"{image:06d}.{suffix}"


def _thumbnails_path(folder: Path) -> Path:
    return RunFolder(folder).snapshots_path / "thumbnails"
