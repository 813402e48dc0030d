"""Figure 1b: Dirichlet densities of some samples over their three most likely classes."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ducats.report.figures.base import FigureOptions, PreparedFigure
from ducats.report.figures.runs import (
    RunSequence,
    describe_time,
    is_segmentation,
    require_one_run,
    shorten_start,
    snapshot_of_round_or_first,
)
from ducats.report.figures.style import TEXT_COLOUR, format_compact
from ducats.report.figures.thumbnails import show_image
from ducats.report.run_reader import Run
from ducats.runfolder import snapshot_files
from ducats.runfolder.snapshot_files import Snapshot
from ducats.utils.errors import UserError
from ducats.utils.npz_columns import AnyArray

TRIANGLE_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
TRIANGLE_PIXELS = 240  # pixels along the triangle's base
MAX_LOG_DENSITY_DROP = 7.0  # nats below the maximum that are still coloured: a factor of about 1000
MIN_VISIBLE_PIXELS = 30  # coloured pixels; a density with fewer is drawn as a dot
ENTROPY_TOLERANCE = 0.02  # entropies count as equal within this fraction of the highest one


def dirichlet_log_density(alpha: AnyArray, rho: AnyArray) -> AnyArray:
    """Log density of ``Dir(alpha)`` at points of the simplex.

    Args:
        alpha: ``(K,)``, positive.
        rho: ``(..., K)``, positive; sums to 1 along the last axis.
    """
    from scipy.special import gammaln

    alpha = np.asarray(alpha, np.float64)
    values: AnyArray = ((alpha - 1) * np.log(rho)).sum(-1) + gammaln(alpha.sum()) - gammaln(alpha).sum()
    return values


def density_grid(alpha: AnyArray, side: int = TRIANGLE_PIXELS) -> AnyArray:
    """Log density minus its maximum, ``(height, side)``, bottom row first; NaN outside the triangle."""
    height = int(side * TRIANGLE_CORNERS[2, 1])
    x, y = np.meshgrid((np.arange(side) + 0.5) / side, (np.arange(height) + 0.5) / side)
    third = y / TRIANGLE_CORNERS[2, 1]
    second = x - third / 2
    rho = np.stack([1 - second - third, second, third], -1)
    inside = (rho > 0).all(-1)
    log_densities = np.full(x.shape, np.nan)
    log_densities[inside] = dirichlet_log_density(alpha, rho[inside])
    log_densities -= np.nanmax(log_densities)
    return log_densities


def is_concentrated(alpha: AnyArray) -> bool:
    """Return whether the density is too concentrated to be visible as an image."""
    return int((density_grid(alpha) >= -MAX_LOG_DENSITY_DROP).sum()) < MIN_VISIBLE_PIXELS


def select_contrasting_rows(snapshot: Snapshot, has_thumbnail: AnyArray) -> list[int]:
    """Select rows that show what entropy cannot: a certain one, and two of equal entropy but different U_dis.

    Only unlabelled target samples are considered.

    Args:
        has_thumbnail: bool, rows with a thumbnail; preferred if their U_dis differs at least half as much.
    """
    rows = np.flatnonzero(snapshot.is_target & ~snapshot.is_labelled)
    if len(rows) < 3:
        raise UserError("there are fewer than three unlabelled samples; give images with --images")
    tolerance = ENTROPY_TOLERANCE * max(float(snapshot.entropy[rows].max()), 1e-6)
    most_certain = int(rows[np.argmin(snapshot.entropy[rows])])
    other_rows = rows[rows != most_certain]
    pair, u_dis_gap = _contrasting_pair(snapshot, other_rows, tolerance)
    rows_with_thumbnail = other_rows[has_thumbnail[other_rows]]
    if len(rows_with_thumbnail) > 1:
        thumbnail_pair, thumbnail_gap = _contrasting_pair(snapshot, rows_with_thumbnail, tolerance)
        if thumbnail_gap >= u_dis_gap / 2:
            pair = thumbnail_pair
    return [most_certain, *sorted(pair, key=lambda row: -float(snapshot.u_dis[row]))]


def _contrasting_pair(snapshot: Snapshot, rows: AnyArray, tolerance: float) -> tuple[tuple[int, int], float]:
    """Return the two rows of nearly equal entropy whose U_dis differs most, and the difference.

    If no two entropies are nearly equal, return the two closest ones.
    """
    rows = rows[np.argsort(snapshot.entropy[rows], kind="stable")]
    entropy, u_dis = snapshot.entropy[rows], snapshot.u_dis[rows]
    closest = int(np.argmin(np.diff(entropy)))
    best, gap = (closest, closest + 1), 0.0
    last = np.searchsorted(entropy, entropy + tolerance, "right")
    for start, stop in enumerate(last.tolist()):
        if stop - start > 1:
            gaps = np.abs(u_dis[start:stop] - u_dis[start])
            far = int(gaps.argmax())
            if gaps[far] > gap:
                best, gap = (start, start + far), float(gaps[far])
    return (int(rows[best[0]]), int(rows[best[1]])), gap


def rows_of_images(run: Run, snapshot: Snapshot, keys: Sequence[str]) -> list[int]:
    """Return the rows of the given pool images; in segmentation the pixel of highest entropy of each."""
    index_by_key = {key: index for index, key in enumerate(run.files.load_pool().keys)}
    rows = []
    for key in keys:
        if key not in index_by_key:
            example = next(iter(index_by_key), "none")
            raise UserError(f"the pool of {run.folder} has no --images {key}; give a key such as {example!r}")
        image_rows = np.flatnonzero(snapshot.is_target & (snapshot.image == index_by_key[key]))
        if not len(image_rows):
            raise UserError(
                f"--images {key} is not in the snapshot, which has only a sample of the pool; give another "
                "one"
            )
        rows.append(int(image_rows[np.argmax(snapshot.entropy[image_rows])]))
    return rows


def prepare_simplex(runs: RunSequence, options: FigureOptions) -> PreparedFigure:
    """Prepare one triangle per sample: the density of the class probabilities."""
    run = require_one_run(runs, "simplex")
    snapshot = snapshot_of_round_or_first(run, options.round)
    if snapshot.log_alpha.shape[1] < 3:
        raise UserError(f"{run.folder} has only two classes; `ducats figure simplex` needs three classes")
    keys = run.files.load_pool().keys
    thumbnails = snapshot_files.list_thumbnails(run.folder)
    domain_and_image = zip(snapshot.is_target, snapshot.image, strict=True)
    has_thumbnail = np.array([t and int(i) in thumbnails for t, i in domain_and_image])
    rows = (
        rows_of_images(run, snapshot, options.images)
        if options.images
        else select_contrasting_rows(snapshot, has_thumbnail)
    )
    sizes = run.files.load_pool().sizes if is_segmentation(run) else None
    alphas = [np.exp(snapshot.log_alpha[row].astype(np.float64)) for row in rows]
    is_dot = [is_concentrated(alpha) for alpha in alphas]
    columns = min(len(rows), 4)
    n_lines = -(-len(rows) // columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(n_lines, columns, squeeze=False).ravel()
        for axes in grid[len(rows) :]:
            axes.set_visible(False)
        for axes, row, alpha, dot in zip(grid, rows, alphas, is_dot, strict=False):
            image = int(snapshot.image[row])
            names = [run.class_name(label) for label in snapshot.top_classes[row].tolist()]
            _draw_triangle(axes, alpha, names, as_dot=dot)
            key = keys[image] if image < len(keys) else f"image {image}"
            axes.set_title(shorten_start(key) + _pixel_text(snapshot, row, sizes), fontsize=9)
            axes.text(0.5, -0.18, _sample_text(snapshot, row), ha="center", va="top", fontsize=8)
            if thumbnails.get(image) is not None:
                show_image(axes.inset_axes((0.0, 0.62, 0.3, 0.36)), thumbnails[image])
        figure.supxlabel(
            "colour: density, down to 1/1000 of its maximum; ring: expected probability"
            + ("; dot: density too concentrated to draw" if any(is_dot) else ""),
            fontsize=8,
        )

    summary = "; ".join(_sample_text(snapshot, row).replace("\n", ", ") for row in rows)
    title = "Dirichlet densities over the three most likely classes"
    size = (2.8 * columns, 3.1 * n_lines + 0.3)
    description = f"{title}, {describe_time(snapshot)}. {summary}. The ring is the expected probability."
    return PreparedFigure(draw, size, title, description)


def _pixel_text(snapshot: Snapshot, row: int, sizes: AnyArray | None) -> str:
    """Return the coordinates of a pixel as text; empty for whole images."""
    if sizes is None:
        return ""
    y, x = divmod(int(snapshot.position[row]), int(sizes[int(snapshot.image[row])][1]))
    return f", x {x}, y {y}"


def _sample_text(snapshot: Snapshot, row: int) -> str:
    probability_share = min(float(np.exp(snapshot.log_alpha[row] - snapshot.log_alpha0[row]).sum()), 1.0)
    total = float(np.exp(snapshot.log_alpha0[row].astype(np.float64)))
    return (
        f"entropy {snapshot.entropy[row]:.3g} nats =\n"
        f"U_dis {snapshot.u_dis[row]:.3g} + U_data {snapshot.u_data[row]:.3g}\n"
        f"three classes: {100 * probability_share:.3g}%, α₀ {format_compact(total)}"
    )


def _draw_triangle(axes: Axes, alpha: AnyArray, names: Sequence[str], *, as_dot: bool) -> None:
    log_densities = density_grid(alpha)
    viridis = colormaps["viridis"]
    colours = viridis(np.clip(1 + log_densities / MAX_LOG_DENSITY_DROP, 0, 1))
    colours[..., 3] = np.where(np.isnan(log_densities) | (log_densities < -MAX_LOG_DENSITY_DROP), 0, 1)
    axes.imshow(colours, extent=(0, 1, 0, TRIANGLE_CORNERS[2, 1]), origin="lower", interpolation="none")
    outline = np.vstack([TRIANGLE_CORNERS, TRIANGLE_CORNERS[:1]])
    axes.plot(outline[:, 0], outline[:, 1], color=TEXT_COLOUR, linewidth=1)
    mean = (alpha / alpha.sum()) @ TRIANGLE_CORNERS
    if as_dot:
        axes.plot(*mean, "o", color=viridis(1.0), markersize=4)
    for colour, width in (("white", 3.0), ("black", 1.2)):  # visible on any background
        axes.plot(*mean, "o", mfc="none", mec=colour, markersize=7, markeredgewidth=width)
    for corner, name, side in zip(TRIANGLE_CORNERS, names, ("top", "top", "bottom"), strict=True):
        y = corner[1] + (-0.03 if side == "top" else 0.03)
        axes.text(corner[0], y, shorten_start(name, 12), ha="center", va=side, fontsize=9)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.55, 1.0), aspect="equal")
    axes.axis("off")
