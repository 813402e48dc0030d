"""The paper's figures, and figures that explain the selected samples, drawn from run folders.

Imports no torch. Plotting code is imported lazily, which keeps `--help` fast.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ducats.report.figures.registry import FIGURES, FigureSpec, resolve_figure
from ducats.utils.errors import UserError

if TYPE_CHECKING:
    from ducats.report.figures.base import PreparedFigure
    from ducats.report.run_reader import Run

__all__ = [
    "FIGURES",
    "FigureSpec",
    "draw_svg",
    "figure_id",
    "prepare_figure",
    "render_figure",
    "resolve_figure",
    "save_figure",
]

FILE_SUFFIXES = ("svg", "png", "pdf")


def prepare_figure(
    name: str,
    runs: "Sequence[Run]",
    *,
    round: int | None = None,
    images: Sequence[str] = (),
    max_points: int | None = None,
) -> "PreparedFigure":
    """Compute a figure without rendering it.

    Args:
        name: one of ``FIGURES``, or ``package.module:attribute``.
        runs: as returned by ``ducats.report.read_run``.
        round: show this round only, counted from 1, if the figure supports it.
        images: keys of pool images, if the figure supports them.
        max_points: maximum number of points in figures with an expensive layout (t-SNE).

    Raises:
        UserError: the figure does not exist, or the runs lack the required records.
    """
    spec = resolve_figure(name)
    for option, is_given in (("round", round is not None), ("images", len(images) > 0)):
        if is_given and option not in spec.options:
            supporting_figures = ", ".join(
                other for other, other_spec in FIGURES.items() if option in other_spec.options
            )
            raise UserError(
                f"`ducats figure {name}` does not support --{option}; use it with {supporting_figures}"
            )
    if not runs:
        raise UserError(f"`ducats figure {name}` needs run folders: {spec.needed_runs}")
    from ducats.report.figures.base import FigureOptions
    from ducats.runfolder.snapshot_files import load_readable_snapshots

    prepared = spec.load()(runs, FigureOptions(round, tuple(images), max_points))
    if not spec.uses_snapshots:
        return prepared
    return replace(
        prepared,
        snapshot_warnings=tuple(
            sentence for run in runs for sentence in load_readable_snapshots(run.folder)[1]
        ),
    )


def figure_id(name: str) -> str:
    """Return the name of a figure for files and ids: of a user's own, only the attribute."""
    return name.rpartition(":")[2]


def draw_svg(
    name: str,
    runs: "Sequence[Run]",
    *,
    id_prefix: str = "",
    round: int | None = None,
    images: Sequence[str] = (),
    max_points: int | None = None,
) -> str:
    """Draw a figure as an SVG element for a page; the output is deterministic.

    Args:
        id_prefix: prefix of all ids, followed by `figure_id`; must be unique on the page.

    The other arguments are those of `prepare_figure`.
    """
    from ducats.report.figures.render import render_svg

    prepared = prepare_figure(name, runs, round=round, images=images, max_points=max_points)
    return render_svg(
        prepared.draw, prepared.size, f"{id_prefix}{figure_id(name)}", prepared.title, prepared.description
    )


def render_figure(
    name: str,
    runs: "Sequence[Run]",
    file_format: str,
    *,
    round: int | None = None,
    images: Sequence[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Return a figure as ``svg``, ``png`` or ``pdf``, and a message for each corrupt snapshot."""
    from ducats.report.figures.fonts import with_drawable_classes
    from ducats.report.figures.render import render_file

    if file_format != "svg":
        runs = [with_drawable_classes(run) for run in runs]
    prepared = prepare_figure(name, runs, round=round, images=images)
    data = render_file(prepared.draw, prepared.size, file_format, prepared.title, prepared.description)
    return data, prepared.snapshot_warnings


def save_figure(
    name: str,
    runs: "Sequence[Run]",
    out: Path,
    *,
    round: int | None = None,
    images: Sequence[str] = (),
) -> tuple[str, ...]:
    """Save a figure as .svg, .png or .pdf, chosen by the suffix of ``out``.

    Returns:
        A message for each corrupt snapshot that was skipped.
    """
    from ducats.utils.files import write_atomically

    file_format = out.suffix.removeprefix(".").lower()
    if file_format not in FILE_SUFFIXES:
        raise UserError(f"--out {out} must end in .svg, .png or .pdf")
    data, warnings = render_figure(name, runs, file_format, round=round, images=images)
    write_atomically(out, lambda target: target.write(data))
    return warnings
