"""Synthetic snapshots for synthetic run folders, without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy.special import digamma, logsumexp, softmax

from ducats.runfolder import snapshot_files
from ducats.utils.npz_columns import AnyArray

WIDTH = 16  # of the features
MAX_FEATURE_ROWS = 2300  # of a snapshot


@dataclass(frozen=True)
class Samples:
    """Latent state of synthetic samples, independent of any model."""

    label: AnyArray  # (N,) true class
    other: AnyArray  # (N,) class that it is mixed with
    mixed: AnyArray  # (N,) mixing weight, 0 … 0.5
    noise: AnyArray  # (N, WIDTH)
    target: bool

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: AnyArray) -> "Samples":
        return Samples(
            self.label[index], self.other[index], self.mixed[index], self.noise[index], self.target
        )


def samples(label: AnyArray, classes: int, target: bool, seed: int) -> Samples:
    """Make samples, some clear, some between two classes; every fiftieth target sample may be a duplicate."""
    rng = np.random.default_rng([seed, int(target)])
    other = (label + rng.integers(1, max(classes, 2), len(label))) % classes
    mixed, noise = rng.beta(1, 4, len(label)) / 2, 0.12 * rng.standard_normal((len(label), WIDTH))
    if target:
        for index in range(49, len(label), 50):
            if label[index] == label[index - 1]:
                other[index], mixed[index] = other[index - 1], mixed[index - 1]
                noise[index] = noise[index - 1]
    return Samples(label, other, mixed, noise, target)


def features(samples: Samples, adapted: float) -> AnyArray:
    """Return features ``(N, WIDTH)``; adaptation reduces the target's offset and raises its strength.

    Args:
        samples: source or target.
        adapted: 0 before adaptation, 1 when both domains coincide.
    """
    axes = np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0]
    strength, offset = (0.45 + 0.5 * adapted, 0.8 * (1 - adapted)) if samples.target else (1.0, 0.0)
    share = samples.mixed[:, None]
    position = strength * ((1 - share) * axes[samples.label] + share * axes[samples.other])
    result: AnyArray = position + samples.noise + offset * axes[-1]
    return result


def log_alpha(rows: AnyArray, classes: int) -> AnyArray:
    """Compute log alpha ``(N, C)`` from features."""
    axes = np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0]
    z: AnyArray = 6.0 * rows @ axes[:classes].T - 0.5
    return z


def columns_from_log_alpha(z: AnyArray) -> dict[str, AnyArray]:
    """Compute the snapshot columns that follow from log alpha, by the paper's formulas in float64."""
    z = z.astype(np.float64)
    p, alpha = softmax(z, 1), np.exp(z)
    alpha0 = alpha.sum(1, keepdims=True)
    entropy = -(p * np.log(p)).sum(1)
    u_data = (p * (digamma(alpha0 + 1) - digamma(alpha + 1))).sum(1)
    u_dis = np.maximum(entropy - u_data, 1e-30)
    n_top = min(3, z.shape[1])
    top = np.argsort(-z, 1, kind="stable")[:, :n_top]
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


def pca_reference(rows: AnyArray, max_components: int = 50) -> tuple[AnyArray, AnyArray]:
    """Return the principal components of the rows, strongest first, and each one's share of the variance."""
    centred = rows - rows.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    n_components = min(max_components, len(s))
    return (u * s)[:, :n_components].astype(np.float16), (s**2 / (s**2).sum())[:n_components].astype(
        np.float32
    )


def write_snapshot(
    folder: Path,
    *,
    z: AnyArray,
    raw: AnyArray,
    picked: AnyArray,
    is_labelled: AnyArray,
    **columns: Any,
) -> None:
    """Write one file of ``folder/snapshots`` as a run would.

    Args:
        z: log alpha of each sample.
        raw: features of each sample.
        columns: the other columns that do not follow from log alpha.
    """
    order = np.lexsort((np.random.default_rng(3).permutation(len(z)), ~(picked | is_labelled)))
    feature_rows = np.sort(order[:MAX_FEATURE_ROWS])  # labelled ones first
    components, explained = pca_reference(raw[feature_rows])
    z_rows = np.flatnonzero(picked)
    columns |= columns_from_log_alpha(z)
    snapshot_files.write_snapshot_file(
        folder,
        snapshot_files.Snapshot(
            picked=picked,
            is_labelled=is_labelled,
            **columns,
            feature_rows=feature_rows,
            features=components,
            explained_variance_ratio=explained,
            z_rows=z_rows,
            z=z[z_rows],
        ),
    )


def write_thumbnail(folder: Path, image: int, label: int, seed: int = 0) -> None:
    """Write a small grey thumbnail that shows the class number, slightly displaced."""
    rng = np.random.default_rng([seed, image])
    canvas = Image.new("L", (16, 16), 0)
    ImageDraw.Draw(canvas).text(tuple(rng.integers(2, 5, 2).tolist()), str(label), 255)
    noisy = np.asarray(canvas, np.float64) + rng.normal(0, 25, (16, 16))
    _save(folder, image, Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def write_map_thumbnail(folder: Path, image: int, label_map: AnyArray, colours: AnyArray) -> None:
    """Write a thumbnail of a label map in class colours, with noise."""
    noisy = colours[label_map] + np.random.default_rng(image).normal(0, 15, (*label_map.shape, 3))
    _save(folder, image, Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def _save(folder: Path, image: int, thumbnail: Image.Image) -> None:
    path = folder / "snapshots" / "thumbnails" / f"{image:06d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    thumbnail.save(path)
