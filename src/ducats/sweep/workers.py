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

from ducats.config import to_yaml
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.sweep.cells import Cell
from ducats.sweep.show import Board, say
from ducats.sweep.slots import Slot

try:
    import fcntl
except ImportError:  # no such thing on Windows: there, two sweeps in one folder are not noticed
    fcntl = None  # type: ignore[assignment]

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
    """

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """The exit code: 1 if a run failed, else 3 if one waits for people, else 0."""
        return 1 if self.failed else WAITING if self.waiting else 0


@dataclass(frozen=True)
class Running:
    """A run that is under way."""

    cell: Cell
    slot: Slot
    process: "subprocess.Popen[bytes]"
    log: Path
    before: int  # bytes that an earlier attempt left in the log
    began: float


def run_all(cells: Sequence[Cell], out: Path, slots: Sequence[Slot], console: Console) -> Outcome:
    """Do every run that is not done yet, as many at a time as there are slots.

    Args:
        cells: the runs.
        out: a folder for each, configs/ and logs/.
        slots: where they are computed.
        console: where progress and the end are told.
    """
    outcome = Outcome(skipped=[cell.name for cell in cells if cell.state(out) == "done"])
    before = set(outcome.skipped)
    todo = deque(cell for cell in cells if cell.name not in before)
    free, running = list(slots), list[Running]()
    with _hold(out), _stoppable(), Board(len(cells), len(before), console) as board:
        try:
            while todo or running:
                while todo and free:
                    running.append(_start(todo.popleft(), out, free.pop(0)))
                    board.started(running[-1].cell.name, running[-1].slot.title)
                for run in [run for run in running if run.process.poll() is not None]:
                    running.remove(run)
                    free.append(run.slot)
                    board.ended(run.cell.name, _enter(outcome, run), time.monotonic() - run.began)
                board.look({run.cell.name: _last_line(run) for run in running})
                time.sleep(0.1 if running else 0)
        except BaseException:
            _end(running)
            raise
    _tell(outcome, len(cells), out, console)
    return outcome


def _start(cell: Cell, out: Path, slot: Slot) -> Running:
    config, log = out / "configs" / f"{cell.name}.yaml", out / "logs" / f"{cell.name}.txt"
    write_text_atomically(config, to_yaml(cell.config))
    log.parent.mkdir(exist_ok=True)
    command = _command(config.absolute(), cell.folder(out).absolute())
    with log.open("ab") as file:
        before = file.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **slot.environment},
            start_new_session=True,  # Ctrl-C is for us; we end the runs, and what they started, in order
        )
    return Running(cell, slot, process, log, before, time.monotonic())


def _command(config: Path, folder: Path) -> list[str]:
    """What does one run, and ends when this process does."""
    child = [sys.executable, "-m", "ducats.cli.child", str(os.getpid())]
    return [*child, "run", "-c", str(config), "--out", str(folder)]


def _enter(outcome: Outcome, run: Running) -> str:
    """Put down how a run ended, and say it in a word or two."""
    code = run.process.returncode
    if code == 0:
        outcome.done.append(run.cell.name)
        return "done"
    if code == WAITING:
        outcome.waiting.append(run.cell.name)
        return "waits for people's answers"
    said = _last_line(run)
    if code < 0:
        said = f"ended by {signal.Signals(-code).name} (is there enough memory?)"
    outcome.failed[run.cell.name] = said or f"exit code {code}"
    return f"failed: {outcome.failed[run.cell.name]}"


def _last_line(run: Running, most: int = 4096) -> str:
    """The last line of a run's log that says something."""
    with run.log.open("rb") as file:
        file.seek(max(run.before, run.log.stat().st_size - most))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end(running: Sequence[Running]) -> None:
    """End what is under way, with all that it started; the next sweep goes on with it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for run in running:
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, how)
        until = time.monotonic() + PATIENCE
        while any(run.process.poll() is None for run in running) and time.monotonic() < until:
            time.sleep(0.05)


@contextmanager
def _hold(out: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f"another sweep is at work in {out}: wait for it, stop it, or give another --out"
                ) from None
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
    for name in outcome.waiting:
        say(console, f"waiting: {out / name / 'questions'}", "yellow")
    for name, said in outcome.failed.items():
        say(console, f"failed: {name}: {said} (log: {out / 'logs' / name}.txt)", "red")
    again = "; the same command tries again" if outcome.failed else ""
    runs = "1 run" if count == 1 else f"{count} runs"
    say(console, f"{runs}: {', '.join(told)}{again}; the table: ducats table {out}")
