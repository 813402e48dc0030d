"""A sweep at work: a process for each run, so that one that fails or dies takes no other with it."""

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
from ducats.files import locked
from ducats.sweep.cells import Cell
from ducats.sweep.engines import End, Engine, Running, arguments, lay_out
from ducats.sweep.show import Board, say
from ducats.sweep.slots import Slot

WAITING = 3  # a run's exit code when people have to answer first
PATIENCE = 5.0  # seconds between asking a run to end and ending it


@dataclass
class Outcome:
    """What became of the runs of a sweep, by their names.

    Args:
        skipped: were done before.
        done: were done now.
        waiting: need people's answers first.
        failed: with the last thing each of them said.
        left: runs that the time did not suffice for.
    """

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The exit code: 1 if a run failed or is left, else 3 if one waits for people, else 0."""
        return 1 if self.failed or self.left else WAITING if self.waiting else 0


def run_all(
    cells: Sequence[Cell],
    out: Path,
    where: Sequence[Slot] | Engine,
    console: Console,
    *,
    seconds: float | None = None,
) -> Outcome:
    """Do every run that is not done yet, as many at a time as there is room for.

    Args:
        cells: the runs.
        out: a folder for each, configs/ and logs/.
        where: slots of this machine, or who else computes them.
        console: where progress and the end are told.
        seconds: that all of it may take; what is not done by then is ended, and the next sweep goes on.
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
    """Runs on this machine: a process each, as many at a time as there are slots."""

    pace = 0.1

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._running: dict[str, tuple[Slot, subprocess.Popen[bytes]]] = {}

    def room(self) -> int:
        """One run for each free slot."""
        return len(self._free)

    def begin(self, runs: Sequence[Running]) -> list[str]:
        """Start a process for each."""
        for run in runs:
            slot = self._free.pop(0)
            with run.log.open("ab") as file:
                process = subprocess.Popen(
                    _command(run.config, run.folder),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **slot.environment},
                    start_new_session=True,  # Ctrl-C is for us; we end the runs in order
                )
            self._running[run.name] = slot, process
        return [self._running[run.name][0].title for run in runs]

    def ended(self) -> list[End]:
        """Those whose process is no more."""
        over = [
            End(name, process.returncode)
            for name, (_, process) in self._running.items()
            if process.poll() is not None
        ]
        self._free += [self._running.pop(end.name)[0] for end in over]
        return over

    def stop(self) -> str:
        """End what is under way, with all that it started; the next sweep goes on with it."""
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
    """What does one run, and ends when this process does."""
    return [sys.executable, "-m", "ducats.cli.child", str(os.getpid()), *arguments(config, folder)]


def _enter(outcome: Outcome, run: Running, end: End) -> str:
    """Put down how a run ended, and say it in a word or two."""
    if end.code == 0:
        outcome.done.append(run.name)
        return "done"
    if end.code == WAITING:
        outcome.waiting.append(run.name)
        return "waits for people's answers"
    said = end.why or run.last_line()
    if end.code < 0 and not end.why:
        said = f"ended by {signal.Signals(-end.code).name} (is there enough memory?)"
    outcome.failed[run.name] = said or f"exit code {end.code}"
    return f"failed: {outcome.failed[run.name]}"


@contextmanager
def _hold(out: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out) as alone:
        if not alone:
            raise UserError(f"another sweep is at work in {out}: wait for it, stop it, or give another --out")
        yield


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let a polite kill, or a terminal that is closed, end the sweep as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # What is ignored stays so: under nohup, a sweep outlives its terminal.
    heard = [name for name in names if signal.getsignal(name) is not signal.SIG_IGN]
    before = {name: signal.signal(name, stop) for name in heard}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _tell(outcome: Outcome, count: int, out: Path, console: Console) -> None:
    told = [f"{len(outcome.done) + len(outcome.skipped)} done"]
    told += [f"{len(outcome.skipped)} of them before"] if outcome.skipped else []
    told += [f"{len(outcome.waiting)} waiting for people's answers"] if outcome.waiting else []
    told += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    told += [f"{len(outcome.left)} not done when the time was over"] if outcome.left else []
    for name in outcome.waiting:
        say(console, f"waiting: {out / name / 'questions'}", "yellow")
    for name, said in outcome.failed.items():
        say(console, f"failed: {name}: {said} (log: {out / 'logs' / name}.txt)", "red")
    again = "; the same command tries again" if outcome.failed else ""
    again = "; the same command goes on" if outcome.left else again
    runs = "1 run" if count == 1 else f"{count} runs"
    say(console, f"{runs}: {', '.join(told)}{again}; the table: ducats table {out}")


def _say_if_any(console: Console, sentence: str) -> None:
    if sentence:
        say(console, sentence, "yellow")
