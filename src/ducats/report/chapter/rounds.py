"""Samples selected in each round of a run: prediction, label, uncertainties and redundancy."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.report.chapter.alike import Repeats, kept, neighbours, repeats
from ducats.report.kinds import IMAGES
from ducats.report.read import Run
from ducats.snapshot_files import RoundLabels, Snapshot

VOID = -2  # label of samples to which no class applies
PAIRS = 6  # near-duplicate pairs shown per round


@dataclass(frozen=True)
class Pick:
    """A selected image in the gallery.

    Args:
        key: name of the image.
        picture: thumbnail file; None if the run saved none.
        guess: predicted class at the time of the query.
        probability: predicted probability of ``guess``.
        label: class name; empty if there is no label yet.
        right: whether prediction and label agree; None if there is no label or no class applies.
        u_dis: in nats.
        u_data: in nats.
    """

    key: str
    picture: Path | None
    guess: str
    probability: float
    label: str
    right: bool | None
    u_dis: float
    u_data: float


@dataclass(frozen=True)
class Round:
    """The samples of one query.

    Args:
        number: round number, starting at 1.
        epoch: epoch after which the samples were selected.
        bought: number of labels; 0 if the round is not answered yet.
        known: number of samples in the snapshot that have a class label.
        right: number of these that were predicted correctly.
        void: number of samples in the snapshot to which no class applies.
        picks: selected images in the order of the ledger; empty in segmentation.
        alike: near-duplicates among them; None if unknown and in segmentation.
        pairs: some of the near-duplicate pairs with their cosine similarity, most similar first.
        near: share of labelled pixels close to another one; None if unknown and in classification.
    """

    number: int
    epoch: int
    bought: int
    known: int
    right: int
    void: int
    picks: tuple[Pick, ...]
    alike: Repeats | None
    pairs: tuple[tuple[Pick, Pick, float], ...]
    near: float | None


@dataclass(frozen=True)
class Why:
    """All rounds with a snapshot, and sentences about missing or unreadable data."""

    rounds: tuple[Round, ...]
    missing: tuple[str, ...]


def why(run: Run) -> Why:
    """Read the selected samples of a run from its snapshots and ledger."""
    missing: list[str] = []
    names: list[str] = []
    try:
        names = snapshot_files.pool_keys(run.folder)
    except UserError as error:
        missing.append(_plain(error, run))
    found, damaged = snapshot_files.load_readable_snapshots(run.folder)
    missing += [_plain(sentence, run) for sentence in damaged]
    rounds = []
    for snapshot in found:
        if not snapshot.round:
            continue
        try:
            bought = snapshot_files.load_round_labels(run.folder, snapshot.round)
        except UserError as error:
            bought = None
            missing.append(_plain(error, run))
        rounds.append(_round(run, snapshot, bought, names))
    if not found and not missing:
        missing.append(_none(run))
    return Why(tuple(rounds), tuple(missing))


def _plain(error: UserError | str, run: Run) -> str:
    """Return the error message without the path of the run folder."""
    return f"Not shown: {str(error).replace(f'{run.folder}{os.sep}', '')}."


def _none(run: Run) -> str:
    if run.finished and (not run.stages or run.stages[-1]["labels"] == 0):
        return "This run acquired no labels."
    if not run.finished and not run.stages:
        return "This run has not selected any samples yet."
    return (
        "The predictions for the selected samples are unknown: this run has no snapshots. It was made by an "
        "older version of ducats or with engine.snapshot_samples=0; new runs save snapshots."
    )


def _round(run: Run, snapshot: Snapshot, bought: RoundLabels | None, names: Sequence[str]) -> Round:
    labels: dict[tuple[int, int], int] = {}
    if bought is not None:
        places = zip(bought.image.tolist(), bought.position.tolist(), strict=True)
        labels = dict(zip(places, bought.label.tolist(), strict=True))
    order = {place: rank for rank, place in enumerate(labels)}
    at = {
        row: (int(snapshot.image[row]), int(snapshot.position[row]))
        for row in np.flatnonzero(snapshot.picked).tolist()
    }
    ranked = sorted(at, key=lambda row: order.get(at[row], len(order)))
    picks = {row: _pick(run, snapshot, row, labels.get(at[row]), names) for row in ranked}
    of_images = run.kind == IMAGES
    found = repeats(snapshot) if of_images else None
    pairs = kept(found.pairs if found else (), PAIRS)
    return Round(
        number=snapshot.round,
        epoch=snapshot.epoch,
        bought=len(labels),
        known=sum(1 for pick in picks.values() if pick.right is not None),
        right=sum(1 for pick in picks.values() if pick.right),
        void=sum(1 for pick in picks.values() if pick.label and pick.right is None),
        picks=tuple(picks.values()) if of_images else (),
        alike=found,
        pairs=tuple((picks[pair.first], picks[pair.second], pair.cosine) for pair in pairs),
        near=None if of_images or bought is None else _near(run, bought),
    )


def _pick(run: Run, snapshot: Snapshot, row: int, label: int | None, names: Sequence[str]) -> Pick:
    image, guess = int(snapshot.image[row]), int(snapshot.predicted[row])
    return Pick(
        key=names[image] if image < len(names) else f"image {image}",
        picture=snapshot_files.find_thumbnail(run.folder, image),
        guess=_class(run, guess),
        probability=float(snapshot.probability[row]),
        label="" if label is None else "no class applies" if label == VOID else _class(run, label),
        right=None if label is None or label == VOID else label == guess,
        u_dis=float(snapshot.u_dis[row]),
        u_data=float(snapshot.u_data[row]),
    )


def _class(run: Run, number: int) -> str:
    return run.classes[number] if 0 <= number < len(run.classes) else f"class {number}"


def _near(run: Run, bought: RoundLabels) -> float | None:
    task = run.config.get("task")
    unit = task.get("unit") if isinstance(task, Mapping) else None
    if unit not in (None, "pixel") or not len(bought.image):
        return None  # the pixels of a region or an image are adjacent by definition
    try:
        sizes = snapshot_files.pool_grid_sizes(run.folder)
    except UserError:
        return None  # reading the keys has already reported the corrupt file
    return None if sizes is None else neighbours(bought, sizes)
