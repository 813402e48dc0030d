"""Figure 6: the first selected images of each round with prediction and label."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.pictures import show
from ducats.figures.runs import RunLike, Runs, class_name, of_pixels, only, questions_of, tail
from ducats.figures.style import COLOURS, INK
from ducats.snapshot_files import Snapshot

FIRST = 10  # images per round, as in the paper
WRONG = COLOURS[1]


@dataclass(frozen=True)
class Pick:
    """A selected image.

    Args:
        picture: path of the thumbnail; None if the run saved none.
        guess: name of the predicted class.
        label: name of the labelled class; empty if not labelled yet.
        u_dis: in nats.
        u_data: in nats.
    """

    key: str
    picture: Path | None
    guess: str
    label: str
    u_dis: float
    u_data: float


def first_picks(run: RunLike, found: Snapshot, most: int = FIRST) -> list[Pick]:
    """Return the first images of a round in the ledger's order; in stored order if not labelled yet."""
    bought = snapshot_files.load_round_labels(run.folder, found.round)
    rows = {int(found.image[row]): int(row) for row in np.flatnonzero(found.picked)}
    labels = {} if bought is None else dict(zip(bought.image.tolist(), bought.label.tolist(), strict=True))
    keys = snapshot_files.pool_keys(run.folder)
    picks = []
    for image in [image for image in (labels or rows) if image in rows][:most]:
        row = rows[image]
        picks.append(
            Pick(
                keys[image] if image < len(keys) else f"image {image}",
                snapshot_files.find_thumbnail(run.folder, image),
                class_name(run, int(found.predicted[row])),
                class_name(run, labels[image]) if image in labels else "",
                float(found.u_dis[row]),
                float(found.u_data[row]),
            )
        )
    return picks


def gallery(runs: Runs, asked: Asked) -> Drawing:
    """Prepare a row of ten images per round."""
    run = only(runs, "gallery")
    if of_pixels(run):
        raise UserError(f"{run.folder} is a segmentation run; use `ducats figure pixels`")
    questions = questions_of(run, asked.round)
    rounds = [(found, first_picks(run, found)) for found in questions]
    columns = max(1, *(len(picks) for _, picks in rounds))

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rounds), columns, squeeze=False)
        for line, (found, picks) in zip(grid, rounds, strict=True):
            for axes in line[len(picks) :]:
                axes.set_visible(False)
            for axes, pick in zip(line, picks, strict=False):
                show(axes, pick.picture, tail(pick.key, 12))
                wrong = bool(pick.label) and pick.label != pick.guess
                axes.set_title(
                    f"{tail(pick.guess, 9)} → {tail(pick.label, 9) or '?'}",
                    fontsize=8,
                    color=WRONG if wrong else INK,
                    fontweight="bold" if wrong else "normal",
                )
                axes.set_xlabel(f"{_short(pick.u_dis)} | {_short(pick.u_data)}", fontsize=7)
            asked_for = int(found.picked.sum())
            line[0].set_ylabel(f"round {found.round}\nn={asked_for}", fontsize=8)
        figure.supxlabel(
            "prediction → label; wrong predictions bold. Below: U_dis | U_data, nats", fontsize=8
        )

    known = [pick for _, picks in rounds for pick in picks if pick.label]
    wrong = sum(pick.label != pick.guess for pick in known)
    title = "First selected images of each round"
    said = f"{len(known)} labelled images; {wrong} wrong predictions"
    return Drawing(draw, (0.92 * columns + 0.5, 1.38 * len(rounds) + 0.35), title, f"{title}: {said}.")


def _short(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.0e}"
