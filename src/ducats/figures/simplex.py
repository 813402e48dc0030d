"""Figure 1b: Dirichlet densities of some samples over their three most likely classes."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats import snapshot_files
from ducats.errors import UserError
from ducats.figures.drawing import Asked, Drawing
from ducats.figures.pictures import show
from ducats.figures.points import Array
from ducats.figures.runs import RunLike, Runs, class_name, first_or, of_pixels, only, tail, when
from ducats.figures.style import INK, short
from ducats.snapshot_files import Snapshot

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
SIDE = 240  # pixels along the triangle's base
DEPTH = 7.0  # nats below the maximum that are still coloured: a factor of about 1000
SEEN = 30  # coloured pixels; a density with fewer is drawn as a dot
NEARLY = 0.02  # entropies count as equal within this fraction of the highest one


def log_density(alpha: Array, rho: Array) -> Array:
    """Log density of ``Dir(alpha)`` at points of the simplex.

    Args:
        alpha: ``(K,)``, positive.
        rho: ``(..., K)``, positive; sums to 1 along the last axis.
    """
    from scipy.special import gammaln

    alpha = np.asarray(alpha, np.float64)
    found: Array = ((alpha - 1) * np.log(rho)).sum(-1) + gammaln(alpha.sum()) - gammaln(alpha).sum()
    return found


def on_a_grid(alpha: Array, side: int = SIDE) -> Array:
    """Log density minus its maximum, ``(height, side)``, bottom row first; NaN outside the triangle."""
    height = int(side * CORNERS[2, 1])
    x, y = np.meshgrid((np.arange(side) + 0.5) / side, (np.arange(height) + 0.5) / side)
    third = y / CORNERS[2, 1]
    second = x - third / 2
    rho = np.stack([1 - second - third, second, third], -1)
    inside = (rho > 0).all(-1)
    found = np.full(x.shape, np.nan)
    found[inside] = log_density(alpha, rho[inside])
    found -= np.nanmax(found)
    return found


def is_sharp(alpha: Array) -> bool:
    """Return whether the density is too concentrated to be visible as an image."""
    return int((on_a_grid(alpha) >= -DEPTH).sum()) < SEEN


def telling(found: Snapshot, pictured: Array) -> list[int]:
    """Select rows that show what entropy cannot: a certain one, and two of equal entropy but different U_dis.

    Only unlabelled target samples are considered.

    Args:
        pictured: bool, rows with a thumbnail; preferred if their U_dis differs at least half as much.
    """
    rows = np.flatnonzero(found.is_target & ~found.is_labelled)
    if len(rows) < 3:
        raise UserError("there are fewer than three unlabelled samples; give images with --images")
    near = NEARLY * max(float(found.entropy[rows].max()), 1e-6)
    sure = int(rows[np.argmin(found.entropy[rows])])
    rest = rows[rows != sure]
    pair, gap = _pair(found, rest, near)
    with_picture = rest[pictured[rest]]
    if len(with_picture) > 1:
        other, also = _pair(found, with_picture, near)
        if also >= gap / 2:
            pair = other
    return [sure, *sorted(pair, key=lambda row: -float(found.u_dis[row]))]


def _pair(found: Snapshot, rows: Array, near: float) -> tuple[tuple[int, int], float]:
    """Return the two rows of nearly equal entropy whose U_dis differs most, and the difference.

    If no two entropies are nearly equal, return the two closest ones.
    """
    rows = rows[np.argsort(found.entropy[rows], kind="stable")]
    entropy, u_dis = found.entropy[rows], found.u_dis[rows]
    nearest = int(np.argmin(np.diff(entropy)))
    best, gap = (nearest, nearest + 1), 0.0
    last = np.searchsorted(entropy, entropy + near, "right")
    for start, stop in enumerate(last.tolist()):
        if stop - start > 1:
            gaps = np.abs(u_dis[start:stop] - u_dis[start])
            far = int(gaps.argmax())
            if gaps[far] > gap:
                best, gap = (start, start + far), float(gaps[far])
    return (int(rows[best[0]]), int(rows[best[1]])), gap


def named(run: RunLike, found: Snapshot, keys: Sequence[str]) -> list[int]:
    """Return the rows of the given pool images; in segmentation the pixel of highest entropy of each."""
    places = {key: place for place, key in enumerate(snapshot_files.pool_keys(run.folder))}
    rows = []
    for key in keys:
        if key not in places:
            some = next(iter(places), "none")
            raise UserError(f"the pool of {run.folder} has no --images {key}; give a key such as {some!r}")
        there = np.flatnonzero(found.is_target & (found.image == places[key]))
        if not len(there):
            raise UserError(
                f"--images {key} is not in the snapshot, which has only a sample of the pool; give another one"
            )
        rows.append(int(there[np.argmax(found.entropy[there])]))
    return rows


def simplex(runs: Runs, asked: Asked) -> Drawing:
    """Prepare one triangle per sample: the density of the class probabilities."""
    run = only(runs, "simplex")
    found = first_or(run, asked.round)
    if found.log_alpha.shape[1] < 3:
        raise UserError(f"{run.folder} has only two classes; `ducats figure simplex` needs three classes")
    keys = snapshot_files.pool_keys(run.folder)
    files = {
        int(i): snapshot_files.find_thumbnail(run.folder, int(i))
        for i in np.unique(found.image[found.is_target])
    }
    pictured = np.array(
        [t and files[int(i)] is not None for t, i in zip(found.is_target, found.image, strict=True)]
    )
    rows = named(run, found, asked.images) if asked.images else telling(found, pictured)
    sizes = snapshot_files.pool_grid_sizes(run.folder) if of_pixels(run) else None
    alphas = [np.exp(found.log_alpha[row].astype(np.float64)) for row in rows]
    sharp = [is_sharp(alpha) for alpha in alphas]
    columns = min(len(rows), 4)
    lines = -(-len(rows) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes in grid[len(rows) :]:
            axes.set_visible(False)
        for axes, row, alpha, dot in zip(grid, rows, alphas, sharp, strict=False):
            image = int(found.image[row])
            _triangle(
                axes, alpha, [class_name(run, label) for label in found.top_classes[row].tolist()], dot=dot
            )
            key = keys[image] if image < len(keys) else f"image {image}"
            axes.set_title(tail(key) + _pixel(found, row, sizes), fontsize=9)
            axes.text(0.5, -0.18, _numbers(found, row), ha="center", va="top", fontsize=8)
            if files.get(image) is not None:
                show(axes.inset_axes((0.0, 0.62, 0.3, 0.36)), files[image])
        figure.supxlabel(
            "colour: density, down to 1/1000 of its maximum; ring: expected probability"
            + ("; dot: density too concentrated to draw" if any(sharp) else ""),
            fontsize=8,
        )

    told = "; ".join(_numbers(found, row).replace("\n", ", ") for row in rows)
    title = "Dirichlet densities over the three most likely classes"
    size = (2.8 * columns, 3.1 * lines + 0.3)
    return Drawing(
        draw, size, title, f"{title}, {when(found)}. {told}. The ring is the expected probability."
    )


def _pixel(found: Snapshot, row: int, sizes: Array | None) -> str:
    """Return the coordinates of a pixel as text; empty for whole images."""
    if sizes is None:
        return ""
    y, x = divmod(int(found.position[row]), int(sizes[int(found.image[row])][1]))
    return f", x {x}, y {y}"


def _numbers(found: Snapshot, row: int) -> str:
    held = min(float(np.exp(found.log_alpha[row] - found.log_alpha0[row]).sum()), 1.0)
    total = float(np.exp(found.log_alpha0[row].astype(np.float64)))
    return (
        f"entropy {found.entropy[row]:.3g} nats =\n"
        f"U_dis {found.u_dis[row]:.3g} + U_data {found.u_data[row]:.3g}\n"
        f"three classes: {100 * held:.3g}%, α₀ {short(total)}"
    )


def _triangle(axes: Axes, alpha: Array, names: Sequence[str], *, dot: bool) -> None:
    below = on_a_grid(alpha)
    viridis = colormaps["viridis"]
    colours = viridis(np.clip(1 + below / DEPTH, 0, 1))
    colours[..., 3] = np.where(np.isnan(below) | (below < -DEPTH), 0, 1)
    axes.imshow(colours, extent=(0, 1, 0, CORNERS[2, 1]), origin="lower", interpolation="none")
    outline = np.vstack([CORNERS, CORNERS[:1]])
    axes.plot(outline[:, 0], outline[:, 1], color=INK, linewidth=1)
    mean = (alpha / alpha.sum()) @ CORNERS
    if dot:
        axes.plot(*mean, "o", color=viridis(1.0), markersize=4)
    for colour, width in (("white", 3.0), ("black", 1.2)):  # visible on any background
        axes.plot(*mean, "o", mfc="none", mec=colour, markersize=7, markeredgewidth=width)
    for corner, name, side in zip(CORNERS, names, ("top", "top", "bottom"), strict=True):
        y = corner[1] + (-0.03 if side == "top" else 0.03)
        axes.text(corner[0], y, tail(name, 12), ha="center", va=side, fontsize=9)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.55, 1.0), aspect="equal")
    axes.axis("off")
