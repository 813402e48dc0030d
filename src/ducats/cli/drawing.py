"""The command that draws the paper's figures from run folders. No torch."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from ducats.cli.base import app, console
from ducats.figures import NAMES, save

LISTED = "\n".join(f"* `{name}`: {entry.line}. Wants {entry.wants}." for name, entry in NAMES.items())


@app.command(help_epilogue=f"Figures:\n\n{LISTED}")
def figure(
    name: str | None = None,
    /,
    *runs: Path,
    out: Path | None = None,
    round: int | None = None,
    image: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
) -> int:
    """Draw one of the paper's figures, or one that says why samples were picked, from run folders alone.

    Args:
        name: Which figure; without a name, all are listed.
        runs: Run folders, or folders that hold them.
        out: The file to write, .svg, .png or .pdf; by default NAME.svg.
        round: One question only, counted from 1.
        image: Keys of images of the pool, as `ducats labels RUN` prints them.
    """
    if name is None:
        table = Table("figure", "shows", "wants", box=None, pad_edge=False)
        for known, entry in NAMES.items():
            table.add_row(known, entry.line, entry.wants)
        console.print(table, highlight=False)
        return 0
    from ducats.report.read import find_runs

    path = out or Path(f"{name}.svg")
    lacks = save(name, find_runs(runs) if runs else [], path, round=round, images=tuple(image or ()))
    for sentence in lacks:
        console.print(f"beware: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"figure in {path}", soft_wrap=True)
    return 0
