"""Redundancy among the samples of a round: images with near-duplicate features, adjacent pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ducats.npz_columns import AnyArray
from ducats.snapshot_files import RoundLabels, Snapshot

ALIKE = 0.95  # minimum cosine similarity of the features of near-duplicates
NEAR = 3  # maximum distance in pixels of neighbouring pixels
IMAGES = 50  # maximum number of images whose pixels are compared


@dataclass(frozen=True)
class Pair:
    """Two rows of a snapshot and the cosine similarity of their features."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class Repeats:
    """Near-duplicates among the selected samples.

    Args:
        pairs: all near-duplicate pairs, most similar first.
        picks: number of selected samples that have features.
        expected: number of pairs expected among as many random samples of the pool.
    """

    pairs: tuple[Pair, ...]
    picks: int
    expected: float


def repeats(snapshot: Snapshot) -> Repeats | None:
    """Find selected samples with a high cosine similarity of their centred features.

    Returns:
        None if fewer than two selected samples have features.
    """
    picked = np.flatnonzero(snapshot.picked[snapshot.feature_rows])
    if len(picked) < 2:
        return None
    rows = snapshot.feature_rows[picked]
    cosines = _cosines(snapshot.features[picked])
    first, second = np.nonzero(np.triu(cosines >= ALIKE, 1))
    order = np.argsort(-cosines[first, second], kind="stable")
    pairs = tuple(
        Pair(int(rows[first[k]]), int(rows[second[k]]), float(cosines[first[k], second[k]])) for k in order
    )
    open_ = snapshot.is_target & snapshot.sampled & ~snapshot.is_labelled
    among = _cosines(snapshot.features[np.flatnonzero(open_[snapshot.feature_rows])])
    many = len(among) * (len(among) - 1) / 2
    share = np.triu(among >= ALIKE, 1).sum() / many if many else 0.0
    return Repeats(pairs, len(picked), float(share) * len(picked) * (len(picked) - 1) / 2)


def _cosines(features: AnyArray) -> AnyArray:
    wide = features.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    # A zero vector has no direction: its similarity to every sample is 0.
    unit = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
    return np.asarray(unit @ unit.T)


def neighbours(picks: RoundLabels, sizes: AnyArray) -> float:
    """Return the share of labelled pixels close to another one of the round, from up to ``IMAGES`` images."""
    from scipy.spatial import cKDTree

    images = np.unique(picks.image)
    chosen = images[np.unique(np.linspace(0, len(images) - 1, IMAGES).astype(int))] if len(images) else images
    near = total = 0
    for image in chosen.tolist():
        width = int(sizes[image][1])
        where = np.stack(np.divmod(picks.position[picks.image == image], width), axis=1)
        if len(where) > 1:
            nearest, _ = cKDTree(where).query(where, k=2)
            near += int((nearest[:, 1] <= NEAR).sum())
        total += len(where)
    return near / total if total else 0.0


def kept(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Return the most similar pairs, with each sample in one pair only. One sample cannot fill the page."""
    found: list[Pair] = []
    seen: set[int] = set()
    for pair in pairs:
        if len(found) < most and not {pair.first, pair.second} & seen:
            found.append(pair)
            seen |= {pair.first, pair.second}
    return found
