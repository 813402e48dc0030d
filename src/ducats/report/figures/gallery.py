"""Figure 6: the first selected images of each round with prediction and label."""

from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.fonts import shorten_to_width
from ducats.report.figures.runs import (
    RunSequence,
    is_segmentation,
    require_one_run,
    require_round_snapshots,
    shorten_start,
)
from ducats.report.figures.style import PLOT_COLOURS, TEXT_COLOUR
from ducats.report.figures.thumbnails import show_image
from ducats.report.run_reader import Run
from ducats.report.run_section.selections import SelectedImage, selected_images
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError

MAX_IMAGES_PER_ROUND = 10  # images per round, as in the paper
MIN_COLUMNS = 5  # as wide as the text below the images
COLUMN_WIDTH = 0.92  # inches
TITLE_WIDTH, TITLE_SIZE = 61.0, 8  # points; the width leaves a gap to the next title
WRONG_COLOUR = PLOT_COLOURS[1]


def first_selected_images(run: Run, snapshot: Snapshot) -> list[SelectedImage]:
    """Return the first images of a round in the ledger's order; in stored order if not labelled yet."""
    round_labels, keys = run.files.load_round_labels(snapshot.round), run.files.load_pool().keys
    images = list(selected_images(run, snapshot, round_labels, keys).values())
    return ([image for image in images if image.label] or images)[:MAX_IMAGES_PER_ROUND]


def prepare_gallery(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare a row of ten images per round."""
    run = require_one_run(runs, "gallery")
    if is_segmentation(run):
        raise UserError(f"{run.folder} is a segmentation run; use `ducats figure pixels`")
    round_snapshots = require_round_snapshots(run, options.round)
    rounds = [(snapshot, first_selected_images(run, snapshot)) for snapshot in round_snapshots]
    columns = max(MIN_COLUMNS, *(len(picks) for _, picks in rounds))

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rounds), columns, squeeze=False)
        for row, (snapshot, picks) in zip(grid, rounds, strict=True):
            for axes in row[len(picks) :]:
                axes.set_visible(False)
            for axes, pick in zip(row, picks, strict=False):
                show_image(axes, pick.thumbnail, shorten_start(pick.image_name, 12))
                wrong = bool(pick.label) and not pick.is_correct
                label = "void" if pick.is_void else pick.label or "?"
                lines = [
                    shorten_to_width(line, TITLE_WIDTH, TITLE_SIZE, bold=wrong)
                    for line in (pick.prediction, f"→ {label}")
                ]
                axes.set_title(
                    "\n".join(lines),
                    fontsize=TITLE_SIZE,
                    color=WRONG_COLOUR if wrong else TEXT_COLOUR,
                    fontweight="bold" if wrong else "normal",
                )
                axes.set_xlabel(
                    f"{_format_uncertainty(pick.u_dis)} | {_format_uncertainty(pick.u_data)}", fontsize=7
                )
            n_selected = int(snapshot.picked.sum())
            row[0].set_ylabel(f"round {snapshot.round}\nn={n_selected}", fontsize=8)
        figure.supxlabel(
            "prediction → label; wrong predictions bold. Below: U_dis | U_data, nats", fontsize=8
        )

    labelled = [pick for _, picks in rounds for pick in picks if pick.label]
    wrong = sum(not pick.is_correct for pick in labelled)
    title = "First selected images of each round"
    summary = f"{len(labelled)} labelled images; {wrong} wrong predictions"
    return PreparedFigure(
        draw, (COLUMN_WIDTH * columns + 0.5, 1.5 * len(rounds) + 0.35), title, f"{title}: {summary}."
    )


def _format_uncertainty(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= value < 100 else f"{value:.0e}"
