"""Figure 7: labelled pixels on images, round by round, from the run folder alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.pictures import load, show
from ducats.figures.points import Array
from ducats.figures.runs import VOID, RunLike, Runs, class_name, of_pixels, only, plural, tail
from ducats.palette import class_colours
from ducats.snapshot_files import RoundLabels

SHOWN = 4  # images by default
WIDE = 220  # maximum width of a drawn image in pixels
NEW, EARLIER, NO_CLASS = (255, 210, 0), (76, 201, 240), (57, 255, 20)
SPARSE = 0.01  # labelled share of an image below which pixels are drawn larger
LETTER, HANDLE = 0.065, 0.5  # inches per letter and per handle of the legend
DIMMED, PALE = 0.38, 0.3  # image contrast below labelled pixels, on dark and on light


@dataclass(frozen=True)
class Shown:
    """An image with its labelled pixels.

    Args:
        picture: path of the thumbnail.
        size: height and width of the labelling grid.
        position: pixel positions ``y * width + x`` of each round.
        label: classes of each round.
    """

    key: str
    picture: Path
    size: tuple[int, int]
    position: tuple[Array, ...]
    label: tuple[Array, ...]


def rounds_of(run: RunLike) -> list[RoundLabels]:
    """Load the labels of all rounds."""
    found: list[RoundLabels] = []
    while (more := snapshot_files.load_round_labels(run.folder, len(found) + 1)) is not None:
        found.append(more)
    return found


def shown(run: RunLike, keys: Sequence[str] = ()) -> list[Shown]:
    """Return the given images, or the first ones that have a thumbnail."""
    if not of_pixels(run):
        raise UserError(f"{run.folder} is a classification run; use `ducats figure gallery`")
    bought, names, sizes = (
        rounds_of(run),
        snapshot_files.pool_keys(run.folder),
        snapshot_files.pool_grid_sizes(run.folder),
    )
    if not bought or sizes is None:
        raise UserError(f"{run.folder} has no labels yet; use a run whose first round was answered")
    kept = [(place, snapshot_files.find_thumbnail(run.folder, place)) for place in range(len(names))]
    there = {names[place]: (place, path) for place, path in kept if path is not None}
    if not there:
        raise UserError(
            f"{run.folder} has no thumbnails: it ran with engine.snapshot_samples=0 or an older version; use "
            "`ducats picks`, which reads the data"
        )
    unknown = [key for key in keys if key not in there]
    if unknown:
        raise UserError(
            f"{run.folder} has no thumbnail of --images {unknown[0]}; available: {', '.join(there)}"
        )
    found = []
    for key in keys or list(there)[:SHOWN]:
        place, path = there[key]
        mine = [picks.image == place for picks in bought]
        found.append(
            Shown(
                key,
                path,
                (int(sizes[place, 0]), int(sizes[place, 1])),
                tuple(picks.position[some] for picks, some in zip(bought, mine, strict=True)),
                tuple(picks.label[some] for picks, some in zip(bought, mine, strict=True)),
            )
        )
    return found


def pixels(runs: Runs, asked: Asked) -> Drawing:
    """Prepare a row per image: a column per round (new pixels yellow, earlier ones blue), then labels."""
    run = only(runs, "pixels")
    found = shown(run, asked.images)
    rounds = len(found[0].position)
    labels = np.concatenate([label for one in found for label in one.label])
    occurring = np.unique(labels).tolist()
    colours = _colours(run, max(occurring, default=0))
    height = max(one.size[0] / one.size[1] for one in found)
    columns = rounds + 1
    wide = 1.75 * columns + 0.3
    entries = [(NEW, "labelled in this round"), (EARLIER, "labelled before")]
    entries += [(colours[label], tail(class_name(run, label), 20)) for label in occurring]
    longest = max(len(name) for _, name in entries)
    across = max(1, min(6, len(entries), int(wide / (LETTER * longest + HANDLE))))

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(found), columns, squeeze=False)
        for line, one in zip(grid, found, strict=True):
            picture = _drawn(one)
            for place, axes in enumerate(line[:rounds]):
                total = sum(map(len, one.position[: place + 1]))
                show(axes, _bytes(DIMMED * picture))
                axes.imshow(lit(one, place), interpolation="none")
                share = 100 * total / (one.size[0] * one.size[1])
                axes.set_xlabel(f"+{len(one.position[place]):,} = {total:,} px, {share:.2g}%", fontsize=7)
            show(line[-1], _bytes(PALE * picture + (1 - PALE) * 255))
            line[-1].imshow(labelled(one, colours), interpolation="none")
            classes = len(np.unique(np.concatenate(one.label)))
            line[-1].set_xlabel(f"{classes} class{'' if classes == 1 else 'es'}", fontsize=7)
            line[0].set_ylabel(tail(one.key, 16), fontsize=7)
        for place, axes in enumerate(grid[0][:-1]):
            axes.set_title(f"round {place + 1}", fontsize=9)
        grid[0][-1].set_title("labels", fontsize=9)
        handles = [Patch(color=_hex(colour), label=name) for colour, name in entries]
        note = "dots are larger than the labelled pixels" if any(map(reach, found)) else None
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=across,
            frameon=False,
            fontsize=8,
            title=note,
            title_fontsize=8,
        )

    title = "Labelled pixels on images"
    said = f"{plural(len(labels), 'pixel')} of {plural(len(found), 'image')} in {plural(rounds, 'round')}"
    below = 0.55 + 0.17 * -(-len(entries) // across)  # the legend
    size = (wide, (1.75 * height + 0.28) * len(found) + below)
    return Drawing(draw, size, title, f"{title}: {said}.")


def _bytes(values: Array) -> Array:
    return values.round().astype(np.uint8)


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def lit(one: Shown, place: int) -> Array:
    """Return an RGBA overlay ``(height, width, 4)`` of the pixels of a round and of earlier rounds."""
    values = np.zeros((*_grid(one.size), 4), np.uint8)
    before = np.concatenate([one.position[0][:0], *one.position[:place]])
    for position, colour in ((before, EARLIER), (one.position[place], NEW)):
        for at in _around(_cells(position, one.size, values.shape), values.shape, reach(one)):
            values[at] = (*colour, 255)
    return values


def labelled(one: Shown, colours: dict[int, tuple[int, int, int]]) -> Array:
    """Return an RGBA overlay ``(height, width, 4)`` of all labelled pixels in their class colours."""
    values = np.zeros((*_grid(one.size), 4), np.uint8)
    position, label = np.concatenate(one.position), np.concatenate(one.label)
    table = np.array([(*colours[value], 255) for value in label.tolist()], np.uint8).reshape(-1, 4)
    for at in _around(_cells(position, one.size, values.shape), values.shape, reach(one)):
        values[at] = table
    return values


def reach(one: Shown) -> int:
    """Return the radius by which labelled pixels are enlarged to be visible; 0 unless they are sparse."""
    height, width = _grid(one.size)
    bought = sum(map(len, one.position))
    return round(0.01 * width) if bought < SPARSE * height * width else 0


def _around(cells: tuple[Array, Array], grid: tuple[int, ...], far: int) -> Iterator[tuple[Array, Array]]:
    """Yield the cells shifted by every offset up to ``far``, clipped to the grid."""
    for down in range(-far, far + 1):
        for right in range(-far, far + 1):
            yield (cells[0] + down).clip(0, grid[0] - 1), (cells[1] + right).clip(0, grid[1] - 1)


def _grid(size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of the drawing: the labelling grid, scaled down if it is too wide."""
    height, width = size
    return size if width <= WIDE else (max(1, round(height * WIDE / width)), WIDE)


def _drawn(one: Shown) -> Array:
    """Load the thumbnail at drawing size, brightened for night images."""
    height, width = _grid(one.size)
    picture = Image.fromarray(load(one.picture, None)).resize((width, height), Image.Resampling.BILINEAR)
    values: Array = np.asarray(picture, np.float64)
    return (values * (255 / max(float(np.percentile(values, 99)), 1))).clip(0, 255)


def _cells(position: Array, size: tuple[int, int], grid: tuple[int, ...]) -> tuple[Array, Array]:
    """Convert positions to rows and columns of the drawing."""
    y, x = np.divmod(position, size[1])
    return y * grid[0] // size[0], x * grid[1] // size[1]


def _colours(run: RunLike, highest: int) -> dict[int, tuple[int, int, int]]:
    names = [class_name(run, label) for label in range(max(len(run.classes), highest + 1))]
    return {**dict(enumerate(class_colours(names))), VOID: NO_CLASS}
