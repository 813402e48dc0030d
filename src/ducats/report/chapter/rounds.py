"""Why these samples: what a run picked round by round, what it thought of it, and what the label was."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ducats import snapshots
from ducats.errors import UserError
from ducats.report.chapter.alike import Repeats, kept, neighbours, repeats
from ducats.report.kinds import IMAGES
from ducats.report.read import Run
from ducats.snapshots import Picks, Snapshot

VOID = -2  # the label of what no class applies to
PAIRS = 6  # near-duplicates shown of a round


@dataclass(frozen=True)
class Pick:
    """A pick in the gallery.

    Args:
        key: the image's name.
        picture: its file; none if the run kept none.
        guess: what the model took it for.
        probability: of the guess.
        label: what it is; empty while nobody has said.
        right: whether guess and label agree; none where there is no label, or no class applies.
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
    """What one question asked for.

    Args:
        number: 1 for the first.
        epoch: after which it was asked.
        bought: labels; 0 while nobody has answered.
        known: picks that were looked at and have a class.
        right: of these, those that the model had guessed.
        void: of those looked at, those that no class applies to.
        picks: in the order of the ledger; those of pixels are not listed.
        alike: near-duplicates among them; none where that is not known, and of pixels.
        pairs: some of these, most alike first.
        near: of bought pixels, the share that lies near another; none where that is not known, and of images.
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
    """All rounds that left something to look at, and what is missing."""

    rounds: tuple[Round, ...]
    missing: tuple[str, ...]


def why(run: Run) -> Why:
    """Read what a run's snapshots and ledger say of its picks; what is not there, or damaged, is said."""
    missing: list[str] = []
    names: list[str] = []
    try:
        names = snapshots.keys(run.folder)
    except UserError as error:
        missing.append(_plain(error, run))
    found, damaged = snapshots.read_sound(run.folder)
    missing += [_plain(sentence, run) for sentence in damaged]
    rounds = []
    for snapshot in found:
        if not snapshot.round:
            continue
        try:
            bought = snapshots.picks(run.folder, snapshot.round)
        except UserError as error:
            bought = None
            missing.append(_plain(error, run))
        rounds.append(_round(run, snapshot, bought, names))
    if not found and not missing:
        missing.append(_none(run))
    return Why(tuple(rounds), tuple(missing))


def _plain(error: UserError | str, run: Run) -> str:
    """An error without the path to the run, which is nobody's business."""
    return f"Not shown: {str(error).replace(f'{run.folder}{os.sep}', '')}."


def _none(run: Run) -> str:
    if run.finished and (not run.stages or run.stages[-1]["labels"] == 0):
        return "This run asked for no labels."
    if not run.finished and not run.stages:
        return "This run has asked nothing yet."
    return (
        "What the model thought of its picks is not known: this run left no snapshots. It was made by an "
        "older ducats or with engine.snapshot=0; a new run leaves them."
    )


def _round(run: Run, snapshot: Snapshot, bought: Picks | None, names: Sequence[str]) -> Round:
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
    image, guess = int(snapshot.image[row]), int(snapshot.guess[row])
    return Pick(
        key=names[image] if image < len(names) else f"image {image}",
        picture=snapshots.picture(run.folder, image),
        guess=_class(run, guess),
        probability=float(snapshot.probability[row]),
        label="" if label is None else "no class applies" if label == VOID else _class(run, label),
        right=None if label is None or label == VOID else label == guess,
        u_dis=float(snapshot.u_dis[row]),
        u_data=float(snapshot.u_data[row]),
    )


def _class(run: Run, number: int) -> str:
    return run.classes[number] if 0 <= number < len(run.classes) else f"class {number}"


def _near(run: Run, bought: Picks) -> float | None:
    task = run.config.get("task")
    unit = task.get("unit") if isinstance(task, Mapping) else None
    if unit not in (None, "pixel") or not len(bought.image):
        return None  # pixels of a region or an image lie side by side, since they are bought together
    try:
        sizes = snapshots.sizes(run.folder)
    except UserError:
        return None  # that the file is spoilt was said with the keys
    return None if sizes is None else neighbours(bought, sizes)
