"""Samples selected in each round of a run: prediction, label, uncertainties and redundancy."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats.report.figures.runs import VOID_LABEL
from ducats.report.run_kinds import CLASSIFICATION
from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.runfolder.label_files import RoundLabels
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

NEAR_DUPLICATE_COSINE = 0.95  # minimum cosine similarity of the features of near-duplicates
NEIGHBOUR_DISTANCE_PIXELS = 3  # maximum distance in pixels of neighbouring pixels
MAX_COMPARED_IMAGES = 50  # maximum number of images whose pixels are compared
MAX_SHOWN_PAIRS = 6  # near-duplicate pairs shown per round


@dataclass(frozen=True)
class SelectedImage:
    """A selected image in the gallery; uncertainties are in nats."""

    image_name: str
    thumbnail: Path | None  # None if the run saved none
    prediction: str  # predicted class at the time of the query
    probability: float  # predicted probability of `prediction`
    label: str  # class name; empty if there is no label yet
    # Whether prediction and label agree; None if there is no label or no class applies.
    is_correct: bool | None
    u_dis: float
    u_data: float

    @property
    def is_void(self) -> bool:
        """Whether no class applies."""
        return bool(self.label) and self.is_correct is None


@dataclass(frozen=True)
class NearDuplicatePair:
    """Two rows of a snapshot and the cosine similarity of their features."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True)
class NearDuplicates:
    """Near-duplicates among the selected samples."""

    pairs: tuple[NearDuplicatePair, ...]  # all near-duplicate pairs, most similar first
    n_compared: int  # number of selected samples that have features
    n_expected_pairs: float  # number of pairs expected among as many random samples of the pool


@dataclass(frozen=True)
class QueryRound:
    """The samples of one query, after an epoch."""

    number: int  # starting at 1
    epoch: int
    n_labels: int  # number of labels; 0 if the round is not answered yet
    n_labelled_in_snapshot: int  # number of samples in the snapshot that have a class label
    n_correct: int  # number of these that were predicted correctly
    n_void: int  # number of samples in the snapshot to which no class applies
    images: tuple[SelectedImage, ...]  # selected images in the order of the ledger; empty in segmentation
    near_duplicates: NearDuplicates | None  # near-duplicates among them; None if unknown and in segmentation
    # Some of the near-duplicate pairs with their cosine similarity, most similar first.
    shown_pairs: tuple[tuple[SelectedImage, SelectedImage, float], ...]
    # Share of labelled pixels close to another one; None if unknown and in classification.
    neighbour_share: float | None


@dataclass(frozen=True)
class Selections:
    """All rounds with a snapshot, and sentences about missing or unreadable data."""

    rounds: tuple[QueryRound, ...]
    missing_notes: tuple[str, ...]


def read_selections(run: Run) -> Selections:
    """Read the selected samples of a run from its snapshots and ledger."""
    missing_notes: list[str] = []
    image_names: Sequence[str] = ()
    try:
        image_names = run.files.load_pool().keys
    except UserError as error:
        missing_notes.append(_missing_note(error, run))
    snapshots, errors = snapshot_files.load_readable_snapshots(run.folder)
    missing_notes += [_missing_note(sentence, run) for sentence in errors]
    rounds = []
    for snapshot in snapshots:
        if not snapshot.round:
            continue
        try:
            round_labels = run.files.load_round_labels(snapshot.round)
        except UserError as error:
            round_labels = None
            missing_notes.append(_missing_note(error, run))
        if round_labels is not None and not len(round_labels.label):
            continue  # nothing was selected: a stop rule held, or the time was spent
        rounds.append(_round(run, snapshot, round_labels, image_names))
    if not snapshots and not missing_notes:
        missing_notes.append(_no_rounds_note(run))
    return Selections(tuple(rounds), tuple(missing_notes))


def _missing_note(error: UserError | str, run: Run) -> str:
    """Return the error message without the path of the run folder."""
    return f"Not shown: {str(error).replace(f'{run.folder}{os.sep}', '')}."


def _no_rounds_note(run: Run) -> str:
    if run.finished and (not run.stages or run.stages[-1]["labels"] == 0):
        return "This run acquired no labels."
    if not run.finished and not run.stages:
        return "This run has not selected any samples yet."
    return (
        "The predictions for the selected samples are unknown: this run has no snapshots, since it was made "
        "with engine.snapshot_samples=0."
    )


def selected_images(
    run: Run, snapshot: Snapshot, round_labels: RoundLabels | None, image_names: Sequence[str]
) -> dict[int, SelectedImage]:
    """Return the selected images (or those of the selected pixels) by row, in the order of the ledger."""
    labels: dict[tuple[int, int], int] = {}
    if round_labels is not None:
        round_locations = zip(round_labels.image.tolist(), round_labels.position.tolist(), strict=True)
        labels = dict(zip(round_locations, round_labels.label.tolist(), strict=True))
    order = {location: rank for rank, location in enumerate(labels)}
    locations = {
        row: (int(snapshot.image[row]), int(snapshot.position[row]))
        for row in np.flatnonzero(snapshot.picked).tolist()
    }
    ranked = sorted(locations, key=lambda row: order.get(locations[row], len(order)))
    return {
        row: _selected_image(run, snapshot, row, labels.get(locations[row]), image_names) for row in ranked
    }


def _round(
    run: Run, snapshot: Snapshot, round_labels: RoundLabels | None, image_names: Sequence[str]
) -> QueryRound:
    images = selected_images(run, snapshot, round_labels, image_names)
    is_classification = run.kind == CLASSIFICATION
    near_duplicates = find_near_duplicates(snapshot) if is_classification else None
    pairs = distinct_pairs(near_duplicates.pairs if near_duplicates else (), MAX_SHOWN_PAIRS)
    return QueryRound(
        number=snapshot.round,
        epoch=snapshot.epoch,
        n_labels=0 if round_labels is None else len(round_labels.image),
        n_labelled_in_snapshot=sum(image.is_correct is not None for image in images.values()),
        n_correct=sum(bool(image.is_correct) for image in images.values()),
        n_void=sum(image.is_void for image in images.values()),
        images=tuple(images.values()) if is_classification else (),
        near_duplicates=near_duplicates,
        shown_pairs=tuple((images[pair.first], images[pair.second], pair.cosine) for pair in pairs),
        neighbour_share=None
        if is_classification or round_labels is None
        else _pixel_neighbour_share(run, round_labels),
    )


def _selected_image(
    run: Run, snapshot: Snapshot, row: int, label: int | None, image_names: Sequence[str]
) -> SelectedImage:
    image, prediction = int(snapshot.image[row]), int(snapshot.predicted[row])
    return SelectedImage(
        image_name=image_names[image] if image < len(image_names) else f"image {image}",
        thumbnail=snapshot_files.find_thumbnail(run.folder, image),
        prediction=run.class_name(prediction),
        probability=float(snapshot.probability[row]),
        label="" if label is None else "no class applies" if label == VOID_LABEL else run.class_name(label),
        is_correct=None if label is None or label == VOID_LABEL else label == prediction,
        u_dis=float(snapshot.u_dis[row]),
        u_data=float(snapshot.u_data[row]),
    )


def _pixel_neighbour_share(run: Run, round_labels: RoundLabels) -> float | None:
    task = run.config.get("task")
    unit = task.get("unit") if isinstance(task, Mapping) else None
    if unit not in (None, "pixel") or not len(round_labels.image):
        return None  # the pixels of a region or an image are adjacent by definition
    try:
        sizes = run.files.load_pool().sizes
    except UserError:
        return None  # reading the keys has already reported the corrupt file
    return None if sizes is None else neighbour_share(round_labels, sizes)


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
