"""Progress display of a sweep in a terminal or a log."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from ducats.sweep.cells import Cell


class Board:
    """Progress bars in a terminal: all runs, and one for each active run. Prints a line when a run ends.

    Args:
        count: number of all runs.
        before: number of runs finished earlier.
    """

    def __init__(self, count: int, before: int, console: Console) -> None:
        self.count, self.ended_ones, self.failed, self.console = count, before, 0, console
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12, table_column=Column(min_width=12)),
            TextColumn("{task.fields[place]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn(
                "{task.fields[note]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )
        self._all = self.bars.add_task("runs", total=count, completed=before, place="", note="")
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Board":
        say(self.console, f"{self.count} runs, {self.ended_ones} already done")
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def started(self, name: str, where: str) -> None:
        """Add a run."""
        self._tasks[name] = self.bars.add_task(name, total=None, place="", note=where)

    def look(self, said: Mapping[str, str]) -> None:
        """Show the last log line of each active run."""
        for name, line in said.items():
            self.bars.update(self._tasks[name], note=line)
        failed = f", {self.failed} failed" if self.failed else ""
        self.bars.update(
            self._all, place=f"{self.ended_ones}/{self.count}", note=f"{len(said)} active{failed}"
        )

    def ended(self, name: str, how: str, seconds: float) -> None:
        """Remove a run and print its result."""
        self.ended_ones += 1
        self.failed += how.startswith("failed")
        self.bars.remove_task(self._tasks.pop(name))
        self.bars.update(self._all, completed=self.ended_ones)
        say(self.console, f"{self.ended_ones}/{self.count} {name}, {seconds:.0f} s: {how}")


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line without markup or highlighting."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def listing(cells: Sequence[Cell], out: Path) -> str:
    """Return one line per run with its state, and a last line with the totals."""
    states = [(cell.state(out), cell.name) for cell in cells]
    lines = [f"{state:5} {out / name}" for state, name in states]
    counts = [f"{sum(s == state for s, _ in states)} {state}" for state in ("done", "begun", "new")]
    return "\n".join([*lines, f"{len(cells)} runs: {', '.join(counts)}"])
