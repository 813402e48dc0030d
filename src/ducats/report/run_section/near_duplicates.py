"""Redundancy among the samples of a round: images with near-duplicate features, adjacent pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ducats.runfolder.label_files import RoundLabels
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.npz_columns import AnyArray

NEAR_DUPLICATE_COSINE = 0.95  # minimum cosine similarity of the features of near-duplicates
NEIGHBOUR_DISTANCE_PIXELS = 3  # maximum distance in pixels of neighbouring pixels
MAX_COMPARED_IMAGES = 50  # maximum number of images whose pixels are compared


@dataclass(frozen=True)
class NearDuplicatePair:
    """Two rows of a snapshot and the cosine similarity of their features."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class NearDuplicates:
    """Near-duplicates among the selected samples.

    Args:
        pairs: all near-duplicate pairs, most similar first.
        n_compared: number of selected samples that have features.
        n_expected_pairs: number of pairs expected among as many random samples of the pool.
    """

    pairs: tuple[NearDuplicatePair, ...]
    n_compared: int
    n_expected_pairs: float


def find_near_duplicates(snapshot: Snapshot) -> NearDuplicates | None:
    """Find selected samples with a high cosine similarity of their centred features.

    Returns:
        None if fewer than two selected samples have features.
    """
    picked = np.flatnonzero(snapshot.picked[snapshot.feature_rows])
    if len(picked) < 2:
        return None
    rows = snapshot.feature_rows[picked]
    cosines = _cosines(snapshot.features[picked])
    first, second = np.nonzero(np.triu(cosines >= NEAR_DUPLICATE_COSINE, 1))
    order = np.argsort(-cosines[first, second], kind="stable")
    pairs = tuple(
        NearDuplicatePair(int(rows[first[k]]), int(rows[second[k]]), float(cosines[first[k], second[k]]))
        for k in order
    )
    is_candidate = snapshot.is_target & snapshot.sampled & ~snapshot.is_labelled
    candidate_cosines = _cosines(snapshot.features[np.flatnonzero(is_candidate[snapshot.feature_rows])])
    n_pairs = len(candidate_cosines) * (len(candidate_cosines) - 1) / 2
    pair_share = np.triu(candidate_cosines >= NEAR_DUPLICATE_COSINE, 1).sum() / n_pairs if n_pairs else 0.0
    return NearDuplicates(pairs, len(picked), float(pair_share) * len(picked) * (len(picked) - 1) / 2)


def _cosines(features: AnyArray) -> AnyArray:
    features64 = features.astype(np.float64)
    norm = np.linalg.norm(features64, axis=1, keepdims=True)
    # A zero vector has no direction: its similarity to every sample is 0.
    unit = np.divide(features64, norm, out=np.zeros_like(features64), where=norm > 0)
    return np.asarray(unit @ unit.T)


def neighbour_share(round_labels: RoundLabels, sizes: AnyArray) -> float:
    """Return the share of labelled pixels close to another one of the round.

    At most ``MAX_COMPARED_IMAGES`` images are used.
    """
    from scipy.spatial import cKDTree

    images = np.unique(round_labels.image)
    compared_images = (
        images[np.unique(np.linspace(0, len(images) - 1, MAX_COMPARED_IMAGES).astype(int))]
        if len(images)
        else images
    )
    n_near = total = 0
    for image in compared_images.tolist():
        width = int(sizes[image][1])
        coordinates = np.stack(np.divmod(round_labels.position[round_labels.image == image], width), axis=1)
        if len(coordinates) > 1:
            nearest, _ = cKDTree(coordinates).query(coordinates, k=2)
            n_near += int((nearest[:, 1] <= NEIGHBOUR_DISTANCE_PIXELS).sum())
        total += len(coordinates)
    return n_near / total if total else 0.0


def distinct_pairs(pairs: Sequence[NearDuplicatePair], max_pairs: int) -> list[NearDuplicatePair]:
    """Return the most similar pairs, with each sample in one pair only. One sample cannot fill the page."""
    found: list[NearDuplicatePair] = []
    used_rows: set[int] = set()
    for pair in pairs:
        if len(found) < max_pairs and not {pair.first, pair.second} & used_rows:
            found.append(pair)
            used_rows |= {pair.first, pair.second}
    return found
