"""Synthetic snapshots for synthetic run folders, without torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy.special import digamma, logsumexp, softmax

from ducats import snapshot_files

_Array = np.ndarray[Any, Any]
WIDTH = 16  # of the features


@dataclass(frozen=True)
class Samples:
    """Latent state of synthetic samples, independent of any model."""

    label: _Array  # (N,) true class
    other: _Array  # (N,) class that it is mixed with
    mixed: _Array  # (N,) mixing weight, 0 … 0.5
    noise: _Array  # (N, WIDTH)
    target: bool

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: _Array) -> "Samples":
        return Samples(
            self.label[index], self.other[index], self.mixed[index], self.noise[index], self.target
        )


def samples(label: _Array, classes: int, target: bool, seed: int) -> Samples:
    """Make samples, some clear, some between two classes; every fiftieth target sample may be a duplicate."""
    draw = np.random.default_rng([seed, int(target)])
    other = (label + draw.integers(1, max(classes, 2), len(label))) % classes
    mixed, noise = draw.beta(1, 4, len(label)) / 2, 0.12 * draw.standard_normal((len(label), WIDTH))
    if target:
        for place in range(49, len(label), 50):
            if label[place] == label[place - 1]:
                other[place], mixed[place] = other[place - 1], mixed[place - 1]
                noise[place] = noise[place - 1]
    return Samples(label, other, mixed, noise, target)


def features(given: Samples, adapted: float) -> _Array:
    """Return features ``(N, CERTAINTY_BIN_WIDTH)``; adaptation reduces the target's offset and raises its strength.

    Args:
        given: source or target.
        adapted: 0 before adaptation, 1 when both domains coincide.
    """
    axes = np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0]
    strength, shift = (0.45 + 0.5 * adapted, 0.8 * (1 - adapted)) if given.target else (1.0, 0.0)
    share = given.mixed[:, None]
    where = strength * ((1 - share) * axes[given.label] + share * axes[given.other])
    found: _Array = where + given.noise + shift * axes[-1]
    return found


def log_alpha(found: _Array, classes: int) -> _Array:
    """Compute log alpha ``(N, C)`` from features."""
    axes = np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0]
    z: _Array = 6.0 * found @ axes[:classes].T - 0.5
    return z


def columns_from_log_alpha(z: _Array) -> dict[str, _Array]:
    """Compute the snapshot columns that follow from log alpha, by the paper's formulas in float64."""
    z = z.astype(np.float64)
    p, alpha = softmax(z, 1), np.exp(z)
    alpha0 = alpha.sum(1, keepdims=True)
    entropy = -(p * np.log(p)).sum(1)
    u_data = (p * (digamma(alpha0 + 1) - digamma(alpha + 1))).sum(1)
    u_dis = np.maximum(entropy - u_data, 1e-30)
    many = min(3, z.shape[1])
    top = np.argsort(-z, 1, kind="stable")[:, :many]
    return {
        "predicted": z.argmax(1).astype(np.int16),
        "probability": p.max(1).astype(np.float32),
        "entropy": entropy.astype(np.float32),
        "u_dis": u_dis.astype(np.float32),
        "u_data": u_data.astype(np.float32),
        "log_u_dis": np.log(u_dis).astype(np.float32),
        "log_alpha0": logsumexp(z, axis=1).astype(np.float32),
        "top_classes": top.astype(np.int16),
        "log_alpha": np.take_along_axis(z, top, 1).astype(np.float32),
    }


def pca_reference(found: _Array, most: int = 50) -> tuple[_Array, _Array]:
    """Return the principal components of the rows, strongest first, and each one's share of the variance."""
    centred = found - found.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    many = min(most, len(s))
    return (u * s)[:, :many].astype(np.float16), (s**2 / (s**2).sum())[:many].astype(np.float32)


@dataclass
class SnapshotSpec:
    """The contents of a snapshot that do not follow from log alpha."""

    round: int
    epoch: int
    pool: int
    source: int
    target: _Array  # this and the following have one row per sample
    image: _Array
    position: _Array
    sampled: _Array
    picked: _Array
    known: _Array
    label: _Array
    z: _Array
    raw: _Array = field(repr=False)  # features
    with_features: int = 2300


def write_snapshot(folder: Path, spec: SnapshotSpec) -> None:
    """Write one file of ``folder/snapshots`` as a run would."""
    rows = np.arange(len(spec.target))
    order = np.lexsort((np.random.default_rng(3).permutation(rows), ~(spec.picked | spec.known)))
    features_of = np.sort(order[: spec.with_features])  # labelled ones first
    components, explained = pca_reference(spec.raw[features_of])
    z_of = np.flatnonzero(spec.picked)
    snapshot_files.write_snapshot_file(
        folder,
        snapshot_files.Snapshot(
            round=spec.round,
            epoch=spec.epoch,
            pool=spec.pool,
            source=spec.source,
            is_target=spec.target,
            image=spec.image,
            position=spec.position,
            sampled=spec.sampled,
            picked=spec.picked,
            is_labelled=spec.known,
            label=spec.label,
            **columns_from_log_alpha(spec.z),
            feature_rows=features_of,
            features=components,
            explained_variance_ratio=explained,
            z_rows=z_of,
            z=spec.z[z_of],
        ),
    )


def write_thumbnail(folder: Path, image: int, label: int, seed: int = 0) -> None:
    """Write a small grey thumbnail that shows the class number, slightly displaced."""
    draw = np.random.default_rng([seed, image])
    canvas = Image.new("L", (16, 16), 0)
    ImageDraw.Draw(canvas).text(tuple(draw.integers(2, 5, 2).tolist()), str(label), 255)
    noisy = np.asarray(canvas, np.float64) + draw.normal(0, 25, (16, 16))
    _save(folder, image, Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def write_map_thumbnail(folder: Path, image: int, map_: _Array, colours: _Array) -> None:
    """Write a thumbnail of a label map in class colours, with noise."""
    noisy = colours[map_] + np.random.default_rng(image).normal(0, 15, (*map_.shape, 3))
    _save(folder, image, Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def _save(folder: Path, image: int, thumbnail: Image.Image) -> None:
    path = folder / "snapshots" / "pictures" / f"{image:06d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    thumbnail.save(path)
