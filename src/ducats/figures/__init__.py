"""The paper's figures, and figures that explain the selected samples, drawn from run folders.

Imports no torch. Plotting code is imported lazily, which keeps `--help` fast.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ducats.errors import UserError
from ducats.figures.names import NAMES, Entry

if TYPE_CHECKING:
    from ducats.figures.drawing import Drawing
    from ducats.figures.runs import RunLike

__all__ = ["NAMES", "Entry", "draw", "prepare", "save"]

KINDS = ("svg", "png", "pdf")


def prepare(
    name: str,
    runs: "Sequence[RunLike]",
    *,
    round: int | None = None,
    images: Sequence[str] = (),
    points: int | None = None,
) -> "Drawing":
    """Compute a figure without rendering it.

    Args:
        name: one of ``CLASS_NAMES``.
        runs: as returned by ``ducats.report.read_run``.
        round: show this round only, counted from 1, if the figure supports it.
        images: keys of pool images, if the figure supports them.
        points: maximum number of points in figures with an expensive layout (t-SNE).

    Raises:
        UserError: the figure does not exist, or the runs lack the required records.
    """
    if name not in NAMES:
        raise UserError(f"unknown figure {name!r}; choose one of {', '.join(NAMES)}")
    for option, given in (("round", round is not None), ("images", len(images) > 0)):
        if given and option not in NAMES[name].takes:
            those = ", ".join(other for other, entry in NAMES.items() if option in entry.takes)
            raise UserError(
                f"`ducats figure {name}` does not support --{option.removesuffix('s')}; use it with {those}"
            )
    if not runs:
        raise UserError(f"`ducats figure {name}` needs run folders: {NAMES[name].wants}")
    from ducats.figures.drawing import Asked
    from ducats.figures.table import FIGURES
    from ducats.snapshot_files import load_readable_snapshots

    made = FIGURES[name](runs, Asked(round, tuple(images), points))
    if not NAMES[name].thoughts:
        return made
    return replace(
        made, lacks=tuple(sentence for run in runs for sentence in load_readable_snapshots(run.folder)[1])
    )


def draw(
    name: str,
    runs: "Sequence[RunLike]",
    *,
    prefix: str = "",
    round: int | None = None,
    images: Sequence[str] = (),
    points: int | None = None,
) -> str:
    """Draw a figure as an SVG element for a page; the output is deterministic.

    Args:
        prefix: prefix of all ids, followed by the figure's name; must be unique on the page.

    The other arguments are those of `prepare`.
    """
    from ducats.figures.paper import svg

    made = prepare(name, runs, round=round, images=images, points=points)
    return svg(made.draw, made.size, f"{prefix}{name}", made.title, made.description)


def save(
    name: str,
    runs: "Sequence[RunLike]",
    out: Path,
    *,
    round: int | None = None,
    images: Sequence[str] = (),
) -> tuple[str, ...]:
    """Save a figure as .svg, .png or .pdf, chosen by the suffix of ``out``.

    Returns:
        A message for each corrupt snapshot that was skipped.
    """
    from ducats.figures.paper import file
    from ducats.files import write_atomically

    kind = out.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise UserError(f"--out {out} must end in .svg, .png or .pdf")
    made = prepare(name, runs, round=round, images=images)
    data = file(made.draw, made.size, kind, made.title, made.description)
    write_atomically(out, lambda target: target.write(data))
    return made.lacks
