"""Whether a round's picks repeat each other: images that look alike to the model, pixels side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ducats.columns import Array
from ducats.snapshots import Picks, Snapshot

ALIKE = 0.95  # cosine of two samples' features from which on they count as near-duplicates
NEAR = 3  # pixels apart, or less
IMAGES = 50  # whose pixels are looked at


@dataclass(frozen=True)
class Pair:
    """Two rows of a snapshot and the cosine of their features, the more alike first."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class Repeats:
    """Near-duplicates among the picks.

    Args:
        pairs: all of them, most alike first.
        picks: with features, so that they could be compared.
        expected: as many pairs would be among as many random samples of the pool.
    """

    pairs: tuple[Pair, ...]
    picks: int
    expected: float


def repeats(snapshot: Snapshot) -> Repeats | None:
    """Find picks that lie in one direction from the middle of all features; none without features."""
    picked = np.flatnonzero(snapshot.picked[snapshot.features_of])
    if len(picked) < 2:
        return None
    rows = snapshot.features_of[picked]
    cosines = _cosines(snapshot.features[picked])
    first, second = np.nonzero(np.triu(cosines >= ALIKE, 1))
    order = np.argsort(-cosines[first, second], kind="stable")
    pairs = tuple(
        Pair(int(rows[first[k]]), int(rows[second[k]]), float(cosines[first[k], second[k]])) for k in order
    )
    open_ = snapshot.target & snapshot.sampled & ~snapshot.known
    among = _cosines(snapshot.features[np.flatnonzero(open_[snapshot.features_of])])
    many = len(among) * (len(among) - 1) / 2
    share = np.triu(among >= ALIKE, 1).sum() / many if many else 0.0
    return Repeats(pairs, len(picked), float(share) * len(picked) * (len(picked) - 1) / 2)


def _cosines(features: Array) -> Array:
    wide = features.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    # A sample in the very middle has no direction, and is like nothing.
    unit = np.divide(wide, length, out=np.zeros_like(wide), where=length > 0)
    return np.asarray(unit @ unit.T)


def neighbours(picks: Picks, sizes: Array) -> float:
    """The share of bought pixels with another one of the round near; of many images, some are looked at."""
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
    """The most alike, each sample in one pair only, so that one that repeats often does not fill the page."""
    found: list[Pair] = []
    seen: set[int] = set()
    for pair in pairs:
        if len(found) < most and not {pair.first, pair.second} & seen:
            found.append(pair)
            seen |= {pair.first, pair.second}
    return found
