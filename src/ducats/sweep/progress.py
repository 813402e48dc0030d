"""Progress display of a sweep in a terminal or a log."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from ducats.sweep.runs import SweepRun
from ducats.utils.findings import pluralise


class SweepProgress:
    """Progress bars in a terminal: all runs, and one for each active run. Prints a line when a run ends."""

    def __init__(self, count: int, n_done: int, console: Console) -> None:
        self.count, self.n_ended, self.n_failed, self.console = count, n_done, 0, console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12, table_column=Column(min_width=12)),
            TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn(
                "{task.fields[status]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console,
            disable=not console.is_terminal,
            expand=True,
        )
        self._total_task = self.progress.add_task("runs", total=count, completed=n_done, count="", status="")
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "SweepProgress":
        print_line(self.console, f"{pluralise(self.count, 'run')}, {self.n_ended} already done")
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def add_run(self, name: str, location: str) -> None:
        """Add a run."""
        self._tasks[name] = self.progress.add_task(name, total=None, count="", status=location)

    def update(self, last_lines: Mapping[str, str]) -> None:
        """Show the last log line of each active run."""
        for name, line in last_lines.items():
            self.progress.update(self._tasks[name], status=line)
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        self.progress.update(
            self._total_task, count=f"{self.n_ended}/{self.count}", status=f"{len(last_lines)} active{failed}"
        )

    def finish_run(self, name: str, result: str, seconds: float) -> None:
        """Remove a run and print its result."""
        self.n_ended += 1
        self.n_failed += result.startswith("failed")
        self.progress.remove_task(self._tasks.pop(name))
        self.progress.update(self._total_task, completed=self.n_ended)
        print_line(self.console, f"{self.n_ended}/{self.count} {name}, {seconds:.0f} s: {result}")


def print_line(console: Console, line: str, style: str | None = None) -> None:
    """Print a line without markup or highlighting."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def format_run_list(runs: Sequence[SweepRun], out: Path) -> str:
    """Return one line per run with its state, and a last line with the totals."""
    states = [(run.state(out), run.name) for run in runs]
    lines = [f"{state:7} {out / name}" for state, name in states]
    counts = [f"{sum(s == state for s, _ in states)} {state}" for state in ("done", "started", "new")]
    return "\n".join([*lines, f"{pluralise(len(runs), 'run')}: {', '.join(counts)}"])
