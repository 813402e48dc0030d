"""Score on this machine, in this process or in several that share its cores and GPUs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ducats.errors import UserError
from ducats.inference import Trained
from ducats.scoring.job import Job, Unfinished, Worker
from ducats.scoring.part import Tell

BETWEEN = 0.05  # polling interval
COMMAND = [sys.executable, "-m", "ducats.scoring.worker"]
PATIENCE = 5.0  # seconds to wait for a killed process


def local(
    job: Job, ranks: Sequence[int], *, processes: int | None, trained: Trained, tell: Tell | None
) -> None:
    """Score chunks in this process, or in several that share the chunks, cores and GPUs."""
    processes = processes or 1
    if processes == 1:
        Worker(job, trained).do(ranks, tell)
    else:  # even if one chunk is left: the same number of threads gives bitwise the same result
        _in_several(job, [ranks[n::processes] for n in range(min(processes, len(ranks)))], tell)


@dataclass
class _Process:
    """Worker process."""

    number: int  # starts at 1
    handle: "subprocess.Popen[str]"
    log: Path
    listener: threading.Thread
    seen: int = 0
    error: str | None = None

    def listen(self) -> None:
        """Read the progress messages until the process closes its output."""
        assert self.handle.stdout is not None
        for line in self.handle.stdout:
            said = json.loads(line)
            self.seen, self.error = said.get("seen", self.seen), said.get("error", self.error)


def _in_several(job: Job, shares: Sequence[Sequence[int]], tell: Tell | None) -> None:
    running = list[_Process]()
    try:
        for number, share in enumerate(shares, start=1):
            running.append(_start(job, share, number, len(shares)))
        everyone = list(running)
        while running:
            for process in list(running):
                if process.handle.poll() is not None:
                    running.remove(process)
                    _close(process)
            if tell is not None:
                tell(sum(process.seen for process in everyone))
            time.sleep(BETWEEN if running else 0)
    finally:
        _end(running)


def _start(job: Job, share: Sequence[int], number: int, processes: int) -> _Process:
    log = Path(job.out) / f"process-{number}.log"
    with log.open("wb") as file:
        handle = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            encoding="utf-8",
            env={**os.environ, **_surroundings(job, number, processes)},
            start_new_session=True,  # only this process receives Ctrl-C; it then kills the workers
        )
    process = _Process(number, handle, log, threading.Thread())
    process.listener = threading.Thread(target=process.listen, daemon=True, name="ducats-listen")
    process.listener.start()
    assert handle.stdin is not None
    try:
        # Stays open: the worker exits when it closes, however this process ends.
        handle.stdin.write(f"{job.to_json()}\n{json.dumps(list(share))}\n")
        handle.stdin.flush()
    except BrokenPipeError:
        pass  # it has already exited; `_close` reports the reason
    return process


def _surroundings(job: Job, number: int, processes: int) -> dict[str, str]:
    """Return the environment variables of a worker: its number of threads and its GPU."""
    own = {"PYTHONIOENCODING": "utf-8"}
    if "OMP_NUM_THREADS" not in os.environ:
        own["OMP_NUM_THREADS"] = str(max(1, cores() // processes))
    gpus = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
    if gpus:
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        place = (number - 1) % gpus
        own["CUDA_VISIBLE_DEVICES"] = visible[place] if visible else str(place)
    return own


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close(process: _Process) -> None:
    """Clean up after a process that has exited; raise if it failed."""
    process.listener.join()
    for pipe in (process.handle.stdin, process.handle.stdout):
        assert pipe is not None
        pipe.close()
    code = process.handle.returncode
    if process.error is not None:
        raise UserError(process.error)
    if code:
        why = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        raise Unfinished(
            f"process {process.number} {why} (out of memory? see {process.log}); finished chunks are saved: "
            "run the same command again to resume"
        )
    process.log.unlink(missing_ok=True)


def _end(running: Sequence[_Process]) -> None:
    """Kill the processes that are still running."""
    for process in running:
        process.handle.kill()
    for process in running:
        process.handle.wait(PATIENCE)
        process.listener.join(PATIENCE)
        for pipe in (process.handle.stdin, process.handle.stdout):
            assert pipe is not None
            pipe.close()
