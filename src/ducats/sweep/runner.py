"""Execute the runs of a sweep, one process per run: a failed run does not affect the others."""

import shlex
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from ducats.sweep.jobs import JobEnd, SweepBackend, SweepJob, write_job
from ducats.sweep.progress import SweepProgress, print_line
from ducats.sweep.runs import SweepRun
from ducats.utils.errors import UserError
from ducats.utils.files import folder_lock, make_folder

EXIT_WAITING_FOR_LABELS = 3  # exit code of a run that waits for labels


@dataclass
class SweepOutcome:
    """Names of the runs of a sweep, by result."""

    skipped: list[str] = field(default_factory=list)  # finished earlier
    done: list[str] = field(default_factory=list)  # finished now
    waiting: list[str] = field(default_factory=list)  # waiting for labels from annotators
    failed: dict[str, str] = field(default_factory=dict)  # with the error of each
    unfinished: list[str] = field(default_factory=list)  # when the time limit was reached

    @property
    def exit_code(self) -> int:
        """Exit code: 1 if a run failed or is unfinished, otherwise 3 if one waits for labels, otherwise 0."""
        return 1 if self.failed or self.unfinished else EXIT_WAITING_FOR_LABELS if self.waiting else 0


def run_sweep(
    runs: Sequence[SweepRun],
    out: Path,
    backend: SweepBackend,
    console: Console,
    *,
    time_limit: float | None = None,
    waiting: Sequence[str] = (),
    shared_answers: Mapping[str, Sequence[Path]] = MappingProxyType({}),
) -> SweepOutcome:
    """Execute all runs that are not done yet, as many in parallel as the backend allows.

    Args:
        out: output folder, with a folder per run, configs/ and logs/.
        time_limit: in seconds; unfinished runs are stopped, and the next sweep resumes them.
        waiting: names of runs that cannot continue, because people have not answered yet.
        shared_answers: for runs whose labels people give: folders with answers that they may use.
    """
    outcome = SweepOutcome(skipped=[sweep_run.name for sweep_run in runs if sweep_run.state(out) == "done"])
    outcome.waiting += waiting
    done_names = {*outcome.skipped, *waiting}
    pending = deque(run for run in runs if run.name not in done_names)
    active = dict[str, SweepJob]()
    deadline = time.monotonic() + time_limit if time_limit is not None else float("inf")
    with (
        _folder_locked(out),
        _signals_as_interrupt(),
        SweepProgress(len(runs), len(outcome.skipped), console) as progress,
    ):
        try:
            while (pending or active) and time.monotonic() < deadline:
                n_free = min(len(pending), backend.free_slots()) if pending else 0
                new_runs = [pending.popleft() for _ in range(n_free)]
                new_jobs = [write_job(run, out, shared_answers.get(run.name, ())) for run in new_runs]
                for job, location in zip(new_jobs, backend.submit(new_jobs), strict=True):
                    active[job.name] = job
                    progress.add_run(job.name, location)
                for job_end in backend.pop_finished():
                    job = active.pop(job_end.name)
                    progress.finish_run(
                        job.name, _record_result(outcome, job, job_end), time.monotonic() - job.started
                    )
                progress.update({name: job.last_line() for name, job in active.items()})
                time.sleep(backend.poll_seconds if active or pending else 0)
            outcome.unfinished = [*active, *(run.name for run in pending)]
            if outcome.unfinished:
                _print_if_any(console, backend.stop())
        except BaseException:
            _print_if_any(console, backend.stop())
            raise
    _print_summary(outcome, len(runs), out, console, asks_people=bool(shared_answers))
    return outcome


def _record_result(outcome: SweepOutcome, job: SweepJob, job_end: JobEnd) -> str:
    """Record the result of a run; return a short description."""
    if job_end.exit_code == 0:
        outcome.done.append(job.name)
        return "done"
    if job_end.exit_code == EXIT_WAITING_FOR_LABELS:
        outcome.waiting.append(job.name)
        return "waiting for labels"
    error = job_end.reason or job.last_line()
    if job_end.exit_code < 0 and not job_end.reason:
        error = f"killed by {signal.Signals(-job_end.exit_code).name} (out of memory?)"
    outcome.failed[job.name] = error or f"exit code {job_end.exit_code}"
    return f"failed: {outcome.failed[job.name]}"


@contextmanager
def _folder_locked(out: Path) -> Iterator[None]:
    """Lock the folder against other sweeps."""
    make_folder(out)
    with folder_lock(out) as acquired:
        if not acquired:
            raise UserError(f"another sweep is running in {out}; wait for it, stop it, or give another --out")
        yield


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Ignored signals stay ignored: under nohup, a sweep outlives its terminal.
    handled = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _print_summary(
    outcome: SweepOutcome, count: int, out: Path, console: Console, *, asks_people: bool
) -> None:
    counts = [f"{len(outcome.done) + len(outcome.skipped)} done"]
    counts += [f"{len(outcome.skipped)} of them earlier"] if outcome.skipped else []
    counts += [f"{len(outcome.waiting)} waiting for labels"] if outcome.waiting else []
    counts += [f"{len(outcome.failed)} failed"] if outcome.failed else []
    counts += [f"{len(outcome.unfinished)} unfinished at the time limit"] if outcome.unfinished else []
    for name in outcome.waiting if not asks_people else ():
        print_line(console, f"waiting: {out / name / 'questions'}", "yellow")
    for name, error in outcome.failed.items():
        print_line(console, f"failed: {name}: {error} (log: {out / 'logs' / name}.txt)", "red")
    hint = "; run the same command again to retry" if outcome.failed else ""
    hint = "; run the same command again to resume" if outcome.unfinished else hint
    runs_text = "1 run" if count == 1 else f"{count} runs"
    print_line(
        console,
        f"{runs_text}: {', '.join(counts)}{hint}; for the table: `ducats table {shlex.quote(str(out))}`",
    )


def _print_if_any(console: Console, message: str) -> None:
    if message:
        print_line(console, message, "yellow")
