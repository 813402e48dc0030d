"""Execute the runs of a sweep, one process per run: a failed run does not affect the others."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ducats.errors import UserError
from ducats.files import folder_lock
from ducats.sweep.cells import Cell
from ducats.sweep.engines import End, Engine, Running, arguments, lay_out
from ducats.sweep.show import Board, say
from ducats.sweep.slots import Slot

WAITING = 3  # exit code of a run that waits for labels
PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL


@dataclass
class Outcome:
    """Names of the runs of a sweep, by result.

    Args:
        skipped: finished earlier.
        done: finished now.
        waiting: waiting for labels from annotators.
        failed: failed, with the error of each.
        left: unfinished when the time limit was reached.
    """

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """Exit code: 1 if a run failed or is unfinished, otherwise 3 if one waits for labels, otherwise 0."""
        return 1 if self.failed or self.left else WAITING if self.waiting else 0


def run_all(
    cells: Sequence[Cell],
    out: Path,
    where: Sequence[Slot] | Engine,
    console: Console,
    *,
    seconds: float | None = None,
) -> Outcome:
    """Execute all runs that are not done yet, as many in parallel as the backend allows.

    Args:
        out: output folder, with a folder per run, configs/ and logs/.
        where: slots of this machine, or a backend.
        seconds: time limit; unfinished runs are stopped, and the next sweep resumes them.
    """
    engine: Engine = Processes(where) if isinstance(where, Sequence) else where
    outcome = Outcome(skipped=[cell.name for cell in cells if cell.state(out) == "done"])
    before = set(outcome.skipped)
    todo = deque(cell for cell in cells if cell.name not in before)
    running = dict[str, Running]()
    until = time.monotonic() + seconds if seconds is not None else float("inf")
    with _hold(out), _stoppable(), Board(len(cells), len(before), console) as board:
        try:
            while (todo or running) and time.monotonic() < until:
                room = min(len(todo), engine.room()) if todo else 0
                begun = [lay_out(todo.popleft(), out) for _ in range(room)]
                for run, place in zip(begun, engine.begin(begun), strict=True):
                    running[run.name] = run
                    board.started(run.name, place)
                for end in engine.ended():
                    run = running.pop(end.name)
                    board.ended(run.name, _enter(outcome, run, end), time.monotonic() - run.began)
                board.look({name: run.last_line() for name, run in running.items()})
                time.sleep(engine.pace if running or todo else 0)
            outcome.left = [*running, *(cell.name for cell in todo)]
            if outcome.left:
                _say_if_any(console, engine.stop())
        except BaseException:
            _say_if_any(console, engine.stop())
            raise
    _tell(outcome, len(cells), out, console)
    return outcome


class Processes:
    """Execute runs on this machine, one process per slot."""

    pace = 0.1

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._running: dict[str, tuple[Slot, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Start one process per run."""
        for run in runs:
            slot = self._free.pop(0)
            with run.log.open("ab") as file:
                process = subprocess.Popen(
                    _command(run.config, run.folder),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **slot.environment},
                    start_new_session=True,  # Ctrl-C reaches only the sweep, which stops the runs
                )
            self._running[run.name] = slot, process
        return [self._running[run.name][0].title for run in runs]

    def ended(self) -> list[End]:
        """Return the runs whose process has ended."""
        over = [
            End(name, process.returncode)
            for name, (_, process) in self._running.items()
            if process.poll() is not None
        ]
        self._free += [self._running.pop(end.name)[0] for end in over]
        return over

    def stop(self) -> str:
        """Stop all active runs and their child processes; the next sweep resumes them."""
        processes = [process for _, process in self._running.values()]
        for how in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            until = time.monotonic() + PATIENCE
            while any(process.poll() is None for process in processes) and time.monotonic() < until:
                time.sleep(0.05)
        return ""


def _command(config: Path, folder: Path) -> list[str]:
    """Return the command of a run that ends when this process ends."""
    return [sys.executable, "-m", "ducats.cli.child", str(os.getpid()), *arguments(config, folder)]


def _enter(outcome: Outcome, run: Running, end: End) -> str:
    """Record the result of a run; return a short description."""
    if end.code == 0:
        outcome.done.append(run.name)
        return "done"
    if end.code == WAITING:
        outcome.waiting.append(run.name)
        return "waiting for labels"
    said = end.why or run.last_line()
    if end.code < 0 and not end.why:
        said = f"killed by {signal.Signals(-end.code).name} (out of memory?)"
    outcome.failed[run.name] = said or f"exit code {end.code}"
    return f"failed: {outcome.failed[run.name]}"


@contextmanager
def _hold(out: Path) -> Iterator[None]:
    """Lock the folder against other sweeps."""
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out) as alone:
        if not alone:
            raise UserError(f"another sweep is running in {out}; wait for it, stop it, or give another --out")
        yield


@contextmanager
def _stoppable() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Ignored signals stay ignored: under nohup, a sweep outlives its terminal.
    heard = [name for name in names if signal.getsignal(name) is not signal.SIG_IGN]
    before = {name: signal.signal(name, stop) for name in heard}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _tell(outcome: Outcome, count: int, out: Path, console: Console) -> None:
    told = [f"{len(outcome.done) + len(outcome.skipped)} done"]
    told += [f"{len(outcome.skipped)} of them earlier"] if outcome.skipped else []
    told += [f"{len(outcome.waiting)} waiting for labels"] if outcome.waiting else []
    told += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    told += [f"{len(outcome.left)} unfinished at the time limit"] if outcome.left else []
    for name in outcome.waiting:
        say(console, f"waiting: {out / name / 'questions'}", "yellow")
    for name, said in outcome.failed.items():
        say(console, f"failed: {name}: {said} (log: {out / 'logs' / name}.txt)", "red")
    again = "; run the same command again to retry" if outcome.failed else ""
    again = "; run the same command again to resume" if outcome.left else again
    runs = "1 run" if count == 1 else f"{count} runs"
    say(console, f"{runs}: {', '.join(told)}{again}; for the table: ducats table {out}")


def _say_if_any(console: Console, sentence: str) -> None:
    if sentence:
        say(console, sentence, "yellow")
