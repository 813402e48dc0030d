"""Score on this machine, in this process or in several that share its cores and GPUs."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ducats.deploy import TrainedModel
from ducats.deploy.scoring.chunk import ProgressCallback
from ducats.deploy.scoring.job import ChunkScorer, Job, ScoringInterrupted
from ducats.utils.child_process import start_warm, stop_processes
from ducats.utils.errors import UserError
from ducats.utils.resources import available_cores

_POLL_SECONDS = 0.05  # polling interval
WORKER = f"{__name__}:score_chunks"


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
class _Worker:
    """Worker process."""

    number: int  # starts at 1
    process: BaseProcess
    log: Path
    messages: Connection
    n_samples: int = 0
    error: str | None = None

    def read_messages(self) -> None:
        """Read the messages that the process has sent."""
        with suppress(EOFError):  # it has exited
            while self.messages.poll():
                message = self.messages.recv()
                if isinstance(message, str):
                    self.error = message
                else:
                    self.n_samples = message


def _run_processes(
    job: Job, chunk_groups: Sequence[Sequence[int]], on_progress: ProgressCallback | None
) -> None:
    workers = list[_Worker]()
    try:
        for number, chunks in enumerate(chunk_groups, start=1):
            workers.append(_start(job, chunks, number, len(chunk_groups)))
        running = list(workers)
        while running:
            ended = [worker for worker in running if worker.process.exitcode is not None]
            for worker in running:
                worker.read_messages()
            if on_progress is not None:
                on_progress(sum(worker.n_samples for worker in workers))
            for worker in ended:
                running.remove(worker)
                _check_exit(worker)
            time.sleep(_POLL_SECONDS if running else 0)
    finally:
        stop_processes([worker.process for worker in workers])
        for worker in workers:
            worker.messages.close()


def _start(job: Job, chunks: Sequence[int], number: int, processes: int) -> _Worker:
    log = job.out / f"process-{number}.log"
    log.unlink(missing_ok=True)  # of an earlier attempt
    receiver, sender = Pipe(duplex=False)
    with sender:  # open in the worker only, so that its exit closes the pipe
        process = start_warm(
            WORKER, (job, list(chunks), sender), log, _process_environment(job, number, processes)
        )
    return _Worker(number, process, log, receiver)


def score_chunks(job: Job, chunks: Sequence[int], messages: Connection) -> None:
    """Score and save chunks in a worker; send the number of samples so far, or the message of a UserError."""
    try:
        ChunkScorer(job).score_and_save(chunks, messages.send)
    except UserError as error:
        messages.send(str(error))
        raise SystemExit(2) from None


def _process_environment(job: Job, number: int, processes: int) -> dict[str, str]:
    """Return the environment variables of a worker: its number of threads and its GPU."""
    environment = {}
    if "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = str(max(1, available_cores() // processes))
    gpus = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
    if gpus:
        visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        gpu_index = (number - 1) % gpus
        environment["CUDA_VISIBLE_DEVICES"] = visible[gpu_index] if visible else str(gpu_index)
    return environment


def _check_exit(worker: _Worker) -> None:
    """Raise if a process that has exited failed."""
    code = worker.process.exitcode
    if worker.error is not None:
        raise UserError(worker.error)
    if code:
        outcome = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        raise ScoringInterrupted(
            f"process {worker.number} {outcome} (out of memory? see {worker.log}); finished chunks are "
            "saved: run the same command again to resume"
        )
    worker.log.unlink(missing_ok=True)
