"""The command that looks at runs while they work. No torch."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.live import Live

from ducats.cli.base import app, console
from ducats.errors import UserError

if TYPE_CHECKING:
    from ducats.watch import State


@app.command
def watch(
    *runs: Path,
    once: Annotated[bool, Parameter(negative=())] = False,
    every: float = 2.0,
) -> int:
    """Show how runs go: what each does, stages, learning curve, losses, people's time, what is left.

    One run is shown in full, several in a table. It reads their folders only, so it may be started, ended and
    started anew at any time, on any machine that sees the folders. It ends when all runs are finished, or
    with Ctrl-C. Where nobody watches (a pipe, a log), a line is printed for each change.

    Args:
        runs: Run folders, or folders that hold them.
        once: Print how things stand, and end.
        every: Seconds between two looks.
    """
    from ducats.watch import Picture, Watcher, line, run_folders

    if not runs:
        raise UserError("name at least one folder of runs, e.g. `ducats watch runs`")
    if every <= 0:
        raise UserError(f"--every {every:g} is no time between two looks: give some seconds, as --every 2")
    watcher = Watcher()

    def look() -> "list[State]":
        return [watcher.look(folder) for folder in run_folders(runs)]

    states = look()
    if once:
        console.print(Picture(states))
        return 0
    try:
        if console.is_terminal:
            with Live(Picture(states), console=console, auto_refresh=False) as live:
                while not _over(states):
                    time.sleep(every)
                    states = look()
                    live.update(Picture(states), refresh=True)
        else:
            said = set[str]()
            while True:
                for state in states:
                    if (news := line(replace(state, left=None))) not in said:
                        console.print(line(state), highlight=False, markup=False, soft_wrap=True)
                        said.add(news)
                if _over(states):
                    break
                time.sleep(every)
                states = look()
    except KeyboardInterrupt:
        pass  # whoever watches may go; the runs do not notice
    return 0


def _over(states: "Sequence[State]") -> bool:
    return all(state.phase == "finished" for state in states)
