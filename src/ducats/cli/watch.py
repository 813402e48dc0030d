"""The command `ducats watch`. Imports no torch."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ducats.cli.base import app, console, print_line
from ducats.utils.errors import UserError

if TYPE_CHECKING:
    from ducats.report.watch.run_state import RunState


@app.command
def watch(
    *runs: Path,
    once: Annotated[bool, Parameter(negative=())] = False,
    poll: float = 2.0,
) -> int:
    """Watch the progress of runs: phase, stages, learning curve, losses, annotation time, time left.

    One run is shown in full, several in a table. The command only reads run folders, so it can be started and
    stopped at any time, on any machine that has access to them. It ends when all runs are finished, or with
    Ctrl-C. If the output is not a terminal, it prints a line for each change.

    Args:
        runs: Run folders, or folders that contain them.
        once: Print the current state and exit.
        poll: Seconds between updates.
    """
    from rich.live import Live

    from ducats.report.watch.dashboard import Dashboard, status_line
    from ducats.report.watch.reader import RunWatcher
    from ducats.runfolder.search import find_run_folders

    if not runs:
        raise UserError("give at least one folder of runs, e.g. `ducats watch runs`")
    if poll <= 0:
        raise UserError(f"--poll must be a positive number of seconds, not {poll:g}")
    watcher = RunWatcher()

    def read_states() -> "list[RunState]":
        return [watcher.read_state(folder) for folder in find_run_folders(runs, include_incomplete=True)]

    states = read_states()
    if once:
        console.print(Dashboard(states))
        return 0
    try:
        if console.is_terminal:
            with Live(Dashboard(states), console=console, auto_refresh=False) as live:
                while not _all_finished(states):
                    time.sleep(poll)
                    states = read_states()
                    live.update(Dashboard(states), refresh=True)
        else:
            printed = set[str]()
            while True:
                for state in states:
                    if (summary := status_line(replace(state, seconds_left=None))) not in printed:
                        print_line(status_line(state))
                        printed.add(summary)
                if _all_finished(states):
                    break
                time.sleep(poll)
                states = read_states()
    except KeyboardInterrupt:
        pass  # stopping the display does not affect the runs
    return 0


def _all_finished(states: "Sequence[RunState]") -> bool:
    return all(state.phase == "finished" for state in states)
