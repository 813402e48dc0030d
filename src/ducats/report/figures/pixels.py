"""Figure 7: labelled pixels on images, round by round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.runs import (
    VOID_LABEL,
    RunSequence,
    is_segmentation,
    require_one_run,
    shorten_start,
)
from ducats.report.figures.thumbnails import load_rgb, show_image
from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.runfolder.label_files import RoundLabels
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise
from ducats.utils.npz_columns import AnyArray
from ducats.utils.palette import class_colours

MAX_DEFAULT_IMAGES = 4  # images by default
PAGE_IMAGE_WIDTH = 220  # maximum width of an image on a page, in pixels
PIXELS_PER_INCH = PAGE_IMAGE_WIDTH / 1.75  # of the widest images
NEW_COLOUR, EARLIER_COLOUR, VOID_COLOUR = (255, 210, 0), (76, 201, 240), (57, 255, 20)
SPARSE_LABEL_SHARE = 0.01  # labelled share of an image below which pixels are drawn larger
LEGEND_LETTER_INCHES, LEGEND_HANDLE_INCHES = 0.065, 0.5  # inches per letter and per handle of the legend
DARK_BRIGHTNESS, LIGHT_OPACITY = 0.38, 0.3  # image contrast below labelled pixels, on dark and on light


@dataclass(frozen=True)
class LabelledImage:
    """An image with its labelled pixels."""

    key: str
    image: Image.Image  # RGB, of any size
    size: tuple[int, int]  # height and width of the labelling grid
    positions: tuple[AnyArray, ...]  # pixel positions `y * width + x` of each shown round
    labels: tuple[AnyArray, ...]  # classes of each shown round
    max_width: int = PAGE_IMAGE_WIDTH  # maximum width of the drawing in pixels

    @property
    def drawing_size(self) -> tuple[int, int]:
        """Height and width of the drawing: the labelling grid, scaled down if it is too wide."""
        height, width = self.size
        if width <= self.max_width:
            return self.size
        return max(1, round(height * self.max_width / width)), self.max_width


def load_all_round_labels(run: Run) -> list[RoundLabels]:
    """Load the labels of all rounds."""
    labels_by_round: list[RoundLabels] = []
    while (round_labels := run.files.load_round_labels(len(labels_by_round) + 1)) is not None:
        labels_by_round.append(round_labels)
    return labels_by_round


def select_images(run: Run, keys: Sequence[str] = ()) -> list[LabelledImage]:
    """Return the given images, or the first ones that have a thumbnail."""
    if not is_segmentation(run):
        raise UserError(f"{run.folder} is a classification run; use `ducats figure gallery`")
    labels_by_round, pool = load_all_round_labels(run), run.files.load_pool()
    names, sizes = pool.keys, pool.sizes
    if not labels_by_round or sizes is None:
        raise UserError(f"{run.folder} has no labels yet; use a run whose first round was answered")
    thumbnails = snapshot_files.list_thumbnails(run.folder)
    available = {names[index]: (index, path) for index, path in thumbnails.items() if index < len(names)}
    if not available:
        raise UserError(
            f"{run.folder} has no thumbnails: it ran with engine.snapshot_samples=0; use `ducats picks`, "
            "which reads the data"
        )
    unknown = [key for key in keys if key not in available]
    if unknown:
        raise UserError(
            f"{run.folder} has no thumbnail of --images {unknown[0]}; available: {', '.join(available)}"
        )
    selected = []
    for key in keys or list(available)[:MAX_DEFAULT_IMAGES]:
        index, path = available[key]
        masks = [round_labels.image == index for round_labels in labels_by_round]
        selected.append(
            LabelledImage(
                key,
                Image.fromarray(load_rgb(path, None)),
                (int(sizes[index, 0]), int(sizes[index, 1])),
                tuple(labels.position[mask] for labels, mask in zip(labels_by_round, masks, strict=True)),
                tuple(labels.label[mask] for labels, mask in zip(labels_by_round, masks, strict=True)),
            )
        )
    return selected


def prepare_pixels(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare the figure of a run folder, drawn on its thumbnails."""
    run = require_one_run(runs, "pixels")
    labelled_images = select_images(run, options.images)
    rounds = range(1, len(labelled_images[0].positions) + 1)
    return prepare_labelled_pixels(labelled_images, rounds, run.classes)


def prepare_labelled_pixels(
    labelled_images: Sequence[LabelledImage], rounds: Sequence[int], classes: Sequence[str]
) -> PreparedFigure:
    """Prepare a row per image: a column per round (new pixels yellow, earlier ones blue), then labels.

    Args:
        rounds: numbers of the shown rounds; labels since the previous column count as new.
    """
    labels = np.concatenate([label for labelled_image in labelled_images for label in labelled_image.labels])
    shown_labels = np.unique(labels).tolist()
    n_classes = max(len(classes), 1 + max(shown_labels, default=0))
    names = [*classes, *(f"class {label}" for label in range(len(classes), n_classes))]
    names_by_label = {**dict(enumerate(names)), VOID_LABEL: "void"}
    colours = {**dict(enumerate(class_colours(names))), VOID_LABEL: VOID_COLOUR}
    tile_inches = labelled_images[0].max_width / PIXELS_PER_INCH
    max_key_length = int(9 * tile_inches)
    height = max(each.size[0] / each.size[1] for each in labelled_images)
    columns = len(rounds) + 1
    figure_width = tile_inches * columns + 0.3
    entries = [(NEW_COLOUR, "labelled in this round"), (EARLIER_COLOUR, "labelled before")]
    entries += [(colours[label], shorten_start(names_by_label[label], 20)) for label in shown_labels]
    longest = max(len(name) for _, name in entries)
    legend_columns = max(
        1, min(6, len(entries), int(figure_width / (LEGEND_LETTER_INCHES * longest + LEGEND_HANDLE_INCHES)))
    )

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(labelled_images), columns, squeeze=False)
        for row, labelled_image in zip(grid, labelled_images, strict=True):
            image = _brightened(labelled_image)
            for round_index, axes in enumerate(row[:-1]):
                total = sum(map(len, labelled_image.positions[: round_index + 1]))
                show_image(axes, _to_uint8(DARK_BRIGHTNESS * image))
                axes.imshow(round_overlay(labelled_image, round_index), interpolation="none")
                share = 100 * total / (labelled_image.size[0] * labelled_image.size[1])
                axes.set_xlabel(
                    f"+{len(labelled_image.positions[round_index]):,} = {total:,} px, {share:.2g}%",
                    fontsize=7,
                )
            show_image(row[-1], _to_uint8(LIGHT_OPACITY * image + (1 - LIGHT_OPACITY) * 255))
            row[-1].imshow(class_overlay(labelled_image, colours), interpolation="none")
            n_shown = len(set(np.concatenate(labelled_image.labels).tolist()) - {VOID_LABEL})
            row[-1].set_xlabel(pluralise(n_shown, "class"), fontsize=7)
            row[0].set_ylabel(shorten_start(labelled_image.key, max_key_length), fontsize=7)
        for round_number, axes in zip(rounds, grid[0][:-1], strict=True):
            axes.set_title(f"round {round_number}", fontsize=9)
        grid[0][-1].set_title("labels", fontsize=9)
        handles = [Patch(color=_hex(colour), label=name) for colour, name in entries]
        is_enlarged = any(map(enlargement_radius, labelled_images))
        note = "dots are larger than the labelled pixels" if is_enlarged else None
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=legend_columns,
            frameon=False,
            fontsize=8,
            title=note,
            title_fontsize=8,
        )

    title = "Labelled pixels on images"
    summary = (
        f"{pluralise(len(labels), 'pixel', f'{len(labels):,}')} of "
        f"{pluralise(len(labelled_images), 'image')} in {pluralise(len(rounds), 'round')}"
    )
    legend_height = 0.55 + 0.17 * -(-len(entries) // legend_columns)  # the legend
    size = (figure_width, (tile_inches * height + 0.28) * len(labelled_images) + legend_height)
    return PreparedFigure(draw, size, title, f"{title}: {summary}.")


def _to_uint8(values: AnyArray) -> AnyArray:
    return values.round().astype(np.uint8)


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


def round_overlay(labelled_image: LabelledImage, round_index: int) -> AnyArray:
    """Return an RGBA overlay ``(height, width, 4)`` of the pixels of a round and of earlier rounds."""
    rgba = np.zeros((*labelled_image.drawing_size, 4), np.uint8)
    positions = labelled_image.positions
    earlier = np.concatenate([positions[0][:0], *positions[:round_index]])
    for position, colour in ((earlier, EARLIER_COLOUR), (positions[round_index], NEW_COLOUR)):
        for cells in _enlarged_cells(labelled_image, position):
            rgba[cells] = (*colour, 255)
    return rgba


def class_overlay(labelled_image: LabelledImage, colours: dict[int, tuple[int, int, int]]) -> AnyArray:
    """Return an RGBA overlay ``(height, width, 4)`` of all labelled pixels in their class colours."""
    rgba = np.zeros((*labelled_image.drawing_size, 4), np.uint8)
    position, label = np.concatenate(labelled_image.positions), np.concatenate(labelled_image.labels)
    table = np.array([(*colours[value], 255) for value in label.tolist()], np.uint8).reshape(-1, 4)
    for cells in _enlarged_cells(labelled_image, position):
        rgba[cells] = table
    return rgba


def enlargement_radius(labelled_image: LabelledImage) -> int:
    """Return the radius by which labelled pixels are enlarged to be visible; 0 unless they are sparse."""
    height, width = labelled_image.drawing_size
    n_labels = sum(map(len, labelled_image.positions))
    return round(0.01 * width) if n_labels < SPARSE_LABEL_SHARE * height * width else 0


def _enlarged_cells(labelled_image: LabelledImage, position: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield rows and columns of the drawing, shifted by every offset up to the radius of enlargement."""
    height, width = labelled_image.drawing_size
    y, x = np.divmod(position, labelled_image.size[1])
    row, column = y * height // labelled_image.size[0], x * width // labelled_image.size[1]
    radius = enlargement_radius(labelled_image)
    for down in range(-radius, radius + 1):
        for right in range(-radius, radius + 1):
            yield (row + down).clip(0, height - 1), (column + right).clip(0, width - 1)


def _brightened(labelled_image: LabelledImage) -> AnyArray:
    """Return the image at drawing size, brightened for night images."""
    height, width = labelled_image.drawing_size
    image = labelled_image.image.resize((width, height), Image.Resampling.BILINEAR)
    values: AnyArray = np.asarray(image, np.float64)
    return (values * (255 / max(float(np.percentile(values, 99)), 1))).clip(0, 255)
