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

from ducats.deploy import TrainedModel
from ducats.deploy.scoring.chunk import ProgressCallback
from ducats.deploy.scoring.job import ChunkScorer, Job, ScoringInterrupted
from ducats.utils.errors import UserError
from ducats.utils.resources import available_cores

_POLL_SECONDS = 0.05  # polling interval
WORKER_COMMAND = [sys.executable, "-m", "ducats.deploy.scoring.worker"]
_EXIT_TIMEOUT_SECONDS = 5.0  # seconds to wait for a killed process


def score_locally(
    job: Job,
    chunks: Sequence[int],
    *,
    processes: int | None,
    trained: TrainedModel,
    on_progress: ProgressCallback | None,
) -> None:
    """Score chunks in this process, or in several that share the chunks, cores and GPUs."""
    processes = processes or 1
    if processes == 1:
        ChunkScorer(job, trained).score_and_save(chunks, on_progress)
    else:  # even if one chunk is left: the same number of threads gives bitwise the same result
        _run_processes(job, [chunks[n::processes] for n in range(min(processes, len(chunks)))], on_progress)


@dataclass
class _WorkerProcess:
    """Worker process."""

    number: int  # starts at 1
    handle: "subprocess.Popen[str]"
    log: Path
    reader: threading.Thread
    n_samples: int = 0
    error: str | None = None

    def read_messages(self) -> None:
        """Read the progress messages until the process closes its output."""
        assert self.handle.stdout is not None
        for line in self.handle.stdout:
            message = json.loads(line)
            self.n_samples, self.error = (
                message.get("n_samples", self.n_samples),
                message.get("error", self.error),
            )


def _run_processes(
    job: Job, chunk_groups: Sequence[Sequence[int]], on_progress: ProgressCallback | None
) -> None:
    running = list[_WorkerProcess]()
    try:
        for number, chunks in enumerate(chunk_groups, start=1):
            running.append(_start(job, chunks, number, len(chunk_groups)))
        processes = list(running)
        while running:
            for process in list(running):
                if process.handle.poll() is not None:
                    running.remove(process)
                    _check_exit(process)
            if on_progress is not None:
                on_progress(sum(process.n_samples for process in processes))
            time.sleep(_POLL_SECONDS if running else 0)
    finally:
        _kill_processes(running)


def _start(job: Job, chunks: Sequence[int], number: int, processes: int) -> _WorkerProcess:
    log = Path(job.out) / f"process-{number}.log"
    with log.open("wb") as file:
        handle = subprocess.Popen(
            WORKER_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            encoding="utf-8",
            env={**os.environ, **_process_environment(job, number, processes)},
            start_new_session=True,  # only this process receives Ctrl-C; it then kills the workers
        )
    process = _WorkerProcess(number, handle, log, threading.Thread())
    process.reader = threading.Thread(target=process.read_messages, daemon=True, name="ducats-progress")
    process.reader.start()
    assert handle.stdin is not None
    try:
        # Stays open: the worker exits when it closes, however this process ends.
        handle.stdin.write(f"{job.to_json()}\n{json.dumps(list(chunks))}\n")
        handle.stdin.flush()
    except BrokenPipeError:
        pass  # it has already exited; `_check_exit` reports the reason
    return process


def _process_environment(job: Job, number: int, processes: int) -> dict[str, str]:
    """Return the environment variables of a worker: its number of threads and its GPU."""
    environment = {"PYTHONIOENCODING": "utf-8"}
    if "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = str(max(1, available_cores() // processes))
    gpus = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
    if gpus:
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        gpu_index = (number - 1) % gpus
        environment["CUDA_VISIBLE_DEVICES"] = visible[gpu_index] if visible else str(gpu_index)
    return environment


def _check_exit(process: _WorkerProcess) -> None:
    """Clean up after a process that has exited; raise if it failed."""
    process.reader.join()
    for pipe in (process.handle.stdin, process.handle.stdout):
        assert pipe is not None
        pipe.close()
    code = process.handle.returncode
    if process.error is not None:
        raise UserError(process.error)
    if code:
        outcome = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        raise ScoringInterrupted(
            f"process {process.number} {outcome} (out of memory? see {process.log}); finished chunks are "
            "saved: run the same command again to resume"
        )
    process.log.unlink(missing_ok=True)


def _kill_processes(running: Sequence[_WorkerProcess]) -> None:
    """Kill the processes that are still running."""
    for process in running:
        process.handle.kill()
    for process in running:
        process.handle.wait(_EXIT_TIMEOUT_SECONDS)
        process.reader.join(_EXIT_TIMEOUT_SECONDS)
        for pipe in (process.handle.stdin, process.handle.stdout):
            assert pipe is not None
            pipe.close()
