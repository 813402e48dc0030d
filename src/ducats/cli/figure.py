"""The command `ducats figure`. Imports no torch."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from ducats.cli.base import app, console, print_line, print_warning
from ducats.report.figures import FIGURES, figure_id, save_figure

_FIGURE_LIST = "\n".join(
    f"* `{name}`: {entry.summary}. Needs {entry.needed_runs}." for name, entry in FIGURES.items()
)


@app.command(help_epilogue=f"Figures:\n\n{_FIGURE_LIST}")
def figure(
    name: str | None = None,
    /,
    *runs: Path,
    out: Path | None = None,
    round: int | None = None,
    images: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
) -> int:
    """Draw a figure of the paper, or one that explains the selected samples, from run folders.

    Args:
        name: Name of the figure, or your own as package.module:name; without a name, list all figures.
        runs: Run folders, or folders that contain them.
        out: Output file, .svg, .png or .pdf; default: NAME.svg.
        round: Only this round, counted from 1.
        images: Keys of pool images, as printed by `ducats labels RUN`.
    """
    if name is None:
        table = Table("figure", "shows", "needs", box=None, pad_edge=False)
        for known, entry in FIGURES.items():
            table.add_row(known, entry.summary, entry.needed_runs)
        console.print(table, highlight=False)
        return 0
    from ducats.report.run_reader import find_runs

    path = out or Path(f"{figure_id(name)}.svg")
    warnings = save_figure(
        name, find_runs(runs) if runs else [], path, round=round, images=tuple(images or ())
    )
    for warning in warnings:
        print_warning(warning)
    print_line(f"figure in {path}")
    return 0
