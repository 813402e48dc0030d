"""The paper's figures, and those that say why a sample was picked, drawn from run folders. Needs no torch.

What draws is imported when something is drawn, so that `--help` can list the names at once.
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
    """Compute a figure without painting it.

    Args:
        name: one of ``NAMES``, which says what runs it wants.
        runs: as ``ducats.report.read_run`` reads them.
        round: one question only, for figures that take it.
        images: keys of the pool's images, for figures that take them.
        points: at most so many, where a figure takes long to lay them out.

    Raises:
        UserError: there is no such figure, or the runs lack what it shows.
    """
    if name not in NAMES:
        raise UserError(f"there is no figure {name!r}: there are {', '.join(NAMES)}")
    for option, given in (("round", round is not None), ("images", len(images) > 0)):
        if given and option not in NAMES[name].takes:
            those = ", ".join(other for other, entry in NAMES.items() if option in entry.takes)
            raise UserError(f"`ducats figure {name}` takes no --{option.removesuffix('s')}: {those} do")
    if not runs:
        raise UserError(f"name run folders: `ducats figure {name}` wants {NAMES[name].wants}")
    from ducats.figures.drawing import Asked
    from ducats.figures.table import FIGURES
    from ducats.snapshots import read_sound

    made = FIGURES[name](runs, Asked(round, tuple(images), points))
    if not NAMES[name].thoughts:
        return made
    return replace(made, lacks=tuple(sentence for run in runs for sentence in read_sound(run.folder)[1]))


def draw(
    name: str,
    runs: "Sequence[RunLike]",
    *,
    prefix: str = "",
    round: int | None = None,
    images: Sequence[str] = (),
    points: int | None = None,
) -> str:
    """Draw a figure as an SVG element for a page; the same runs give the same bytes.

    Args:
        name: one of ``NAMES``.
        runs: what it is drawn from.
        prefix: what its ids begin with, before the figure's name; unlike those of other figures in the page.
        round: one question only.
        images: keys of the pool's images.
        points: at most so many, where a figure takes long to lay them out.
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
    """Draw a figure into a file, whose ending says what it is: .svg, .png or .pdf.

    Returns:
        A sentence about each damaged snapshot that it had to do without.
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
