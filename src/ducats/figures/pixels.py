"""Picked pixels over images, round by round, from the run folder alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from ducats import snapshots
from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.pictures import load, show
from ducats.figures.points import Array
from ducats.figures.runs import VOID, RunLike, Runs, class_name, of_pixels, only, plural, tail
from ducats.palette import palette
from ducats.snapshots import Picks

SHOWN = 4  # images, if none are named
WIDE = 220  # pixels of a drawn image
NEW, EARLIER, NO_CLASS = (255, 210, 0), (76, 201, 240), (57, 255, 20)
SPARSE = 0.01  # share of an image, below which bought pixels are drawn larger
LETTER, HANDLE = 0.065, 0.5  # inches of a letter of the legend, and of what stands before a name
DIMMED, PALE = 0.38, 0.3  # so that what is lit stands out, on dark and on light


@dataclass(frozen=True)
class Shown:
    """One image and what was bought of it.

    Args:
        key: its name.
        picture: where the run kept it.
        size: height and width in which positions count.
        position: of each round's labels.
        label: of each round's labels.
    """

    key: str
    picture: Path
    size: tuple[int, int]
    position: tuple[Array, ...]
    label: tuple[Array, ...]


def rounds_of(run: RunLike) -> list[Picks]:
    """What was bought, round by round."""
    found: list[Picks] = []
    while (more := snapshots.picks(run.folder, len(found) + 1)) is not None:
        found.append(more)
    return found


def shown(run: RunLike, keys: Sequence[str] = ()) -> list[Shown]:
    """Images with their picture: those named, or the first of which something was bought."""
    if not of_pixels(run):
        raise UserError(f"{run.folder} bought whole images: `ducats figure gallery` shows them")
    bought, names, sizes = rounds_of(run), snapshots.keys(run.folder), snapshots.sizes(run.folder)
    if not bought or sizes is None:
        raise UserError(f"{run.folder} has bought nothing yet: show a run whose first question was answered")
    kept = [(place, snapshots.picture(run.folder, place)) for place in range(len(names))]
    there = {names[place]: (place, path) for place, path in kept if path is not None}
    if not there:
        raise UserError(
            f"{run.folder} kept no pictures: it was made with engine.snapshot=0 or before there were any; "
            "`ducats picks` draws from its data instead"
        )
    unknown = [key for key in keys if key not in there]
    if unknown:
        raise UserError(
            f"--image {unknown[0]}: there is no picture of it in {run.folder}; there are {', '.join(there)}"
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
    """A row per image; a column per round, new pixels yellow and earlier ones blue; then their labels."""
    run = only(runs, "pixels")
    found = shown(run, asked.images)
    rounds = len(found[0].position)
    labels = np.concatenate([label for one in found for label in one.label])
    occurring = np.unique(labels).tolist()
    colours = _colours(run, max(occurring, default=0))
    height = max(one.size[0] / one.size[1] for one in found)
    columns = rounds + 1
    wide = 1.75 * columns + 0.3
    entries = [(NEW, "bought in this round"), (EARLIER, "bought before")]
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
        note = "dots are larger than the pixels that they stand for" if any(map(reach, found)) else None
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=across,
            frameon=False,
            fontsize=8,
            title=note,
            title_fontsize=8,
        )

    title = "Picked pixels over images"
    said = f"{plural(len(labels), 'pixel')} of {plural(len(found), 'image')} in {plural(rounds, 'round')}"
    below = 0.55 + 0.17 * -(-len(entries) // across)  # the legend
    size = (wide, (1.75 * height + 0.28) * len(found) + below)
    return Drawing(draw, size, title, f"{title}: {said}.")


def _bytes(values: Array) -> Array:
    return values.round().astype(np.uint8)


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def lit(one: Shown, place: int) -> Array:
    """A round's pixels and those of the rounds before it, ``(height, width, 4)``, clear elsewhere."""
    values = np.zeros((*_grid(one.size), 4), np.uint8)
    before = np.concatenate([one.position[0][:0], *one.position[:place]])
    for position, colour in ((before, EARLIER), (one.position[place], NEW)):
        for at in _around(_cells(position, one.size, values.shape), values.shape, reach(one)):
            values[at] = (*colour, 255)
    return values


def labelled(one: Shown, colours: dict[int, tuple[int, int, int]]) -> Array:
    """Every bought pixel in its class's colour, ``(height, width, 4)``, clear elsewhere."""
    values = np.zeros((*_grid(one.size), 4), np.uint8)
    position, label = np.concatenate(one.position), np.concatenate(one.label)
    table = np.array([(*colours[value], 255) for value in label.tolist()], np.uint8).reshape(-1, 4)
    for at in _around(_cells(position, one.size, values.shape), values.shape, reach(one)):
        values[at] = table
    return values


def reach(one: Shown) -> int:
    """How far a drawn pixel goes beyond itself: some where few were bought of a large image, to be seen."""
    height, width = _grid(one.size)
    bought = sum(map(len, one.position))
    return round(0.01 * width) if bought < SPARSE * height * width else 0


def _around(cells: tuple[Array, Array], grid: tuple[int, ...], far: int) -> Iterator[tuple[Array, Array]]:
    """The cells and those no further away, place by place, all of them within the drawing."""
    for down in range(-far, far + 1):
        for right in range(-far, far + 1):
            yield (cells[0] + down).clip(0, grid[0] - 1), (cells[1] + right).clip(0, grid[1] - 1)


def _grid(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width that are drawn: those of the labels, or fewer if the image is too wide."""
    height, width = size
    return size if width <= WIDE else (max(1, round(height * WIDE / width)), WIDE)


def _drawn(one: Shown) -> Array:
    """The picture in the grid that is drawn, as bright as it can be: a night is to be seen, too."""
    height, width = _grid(one.size)
    picture = Image.fromarray(load(one.picture, None)).resize((width, height), Image.Resampling.BILINEAR)
    values: Array = np.asarray(picture, np.float64)
    return (values * (255 / max(float(np.percentile(values, 99)), 1))).clip(0, 255)


def _cells(position: Array, size: tuple[int, int], grid: tuple[int, ...]) -> tuple[Array, Array]:
    """Rows and columns of the drawing in which positions lie."""
    y, x = np.divmod(position, size[1])
    return y * grid[0] // size[0], x * grid[1] // size[1]


def _colours(run: RunLike, highest: int) -> dict[int, tuple[int, int, int]]:
    names = [class_name(run, label) for label in range(max(len(run.classes), highest + 1))]
    return {**dict(enumerate(palette(names))), VOID: NO_CLASS}
