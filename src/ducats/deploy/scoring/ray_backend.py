"""Score on a Ray cluster; the nodes need access to the pool, but no other shared folder.

The run's files are sent through Ray's object store, once to each node. The result of a chunk is sent back and
saved by this process, so a lost chunk can be scored again on any node.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ducats.deploy import TrainedModel
from ducats.deploy.scoring.chunk import ChunkResult, ProgressCallback
from ducats.deploy.scoring.files import save_chunk
from ducats.deploy.scoring.job import ChunkScorer, Job, ScoringInterrupted
from ducats.runfolder.run_folder import RunFolder
from ducats.utils.cluster import TaskLost, TaskPool
from ducats.utils.cluster.ray_connection import cluster_device, import_ray, parse_duration, ray_session
from ducats.utils.errors import UserError

DEFAULT_TIMEOUT = "24h"
DEFAULT_RAY_CHUNKS = 64  # many, so that losing a node loses little work
_POLL_SECONDS = 1.0  # maximum polling interval


def score_on_ray(
    job: Job,
    chunks: Sequence[int],
    *,
    processes: int | None,
    trained: TrainedModel,
    on_progress: ProgressCallback | None,
    ray_address: str = "auto",
    timeout: str = DEFAULT_TIMEOUT,
) -> None:
    """Score chunks on the nodes of a Ray cluster, each in a process with its own CPU or GPU.

    Args:
        processes: maximum number of parallel processes in the cluster; None: one per GPU, or as many as fit
            into half of its CPUs.
        ray_address: ``host:port`` of the cluster, or ``auto``.
        timeout: time limit, such as ``2h``; the chunks left can be scored by another call.

    Raises:
        ScoringInterrupted: The time limit is reached, or a chunk was lost repeatedly.
        UserError: There is no cluster, or a chunk cannot be scored.
    """
    deadline = time.monotonic() + parse_duration(timeout)
    with ray_session(ray_address):
        job = replace(job, device=cluster_device("--device", job.device))
        use_gpu = job.device == "cuda"
        task_pool = TaskPool(
            score_chunk_on_node, cpus_per_task=None if use_gpu else 1, use_gpu=use_gpu, max_tasks=processes
        )
        if not task_pool.free_slots():
            raise UserError(f"no node of the Ray cluster at --ray-address {ray_address} has CPUs; start one")
        files = [import_ray().put(pack_run_files(trained.run_folder.path, job.exclude_labelled))]
        remaining, n_done, n_samples = list(chunks), 0, 0
        try:
            while n_done < len(chunks):
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    raise ScoringInterrupted(
                        f"--timeout {timeout} reached with {len(chunks) - n_done} of {job.n_chunks} chunks "
                        "left; finished chunks are saved: run the same command again to resume"
                    )
                while remaining and task_pool.free_slots():
                    chunk = remaining.pop(0)
                    task_pool.submit(chunk, job, files, chunk)
                for chunk, result, error in task_pool.wait(min(_POLL_SECONDS, seconds_left)):
                    if error is not None:
                        raise _translate_error(chunk, job, error)
                    save_chunk(job.chunk_file(chunk), result)
                    n_done, n_samples = n_done + 1, n_samples + result.n_samples
                    if on_progress is not None:
                        on_progress(n_samples)
        finally:
            task_pool.stop()


def _translate_error(chunk: int, job: Job, error: Exception) -> Exception:
    if isinstance(error, UserError):
        return UserError(f"on a node of the cluster: {error}")
    if not isinstance(error, TaskLost):
        return error
    return ScoringInterrupted(
        f"chunk {chunk} of {job.n_chunks} was lost: {error} (out of memory, or an image that crashes the "
        "decoder?); finished chunks are saved: run the same command again to resume"
    )


def pack_run_files(run_folder: Path, include_labels: bool) -> dict[str, bytes]:
    """Return the content of the run's files that scoring needs, if wanted with the acquired labels."""
    files = RunFolder(run_folder)
    paths = [files.config_path, files.data_path, files.model_path]
    if include_labels:
        paths += [files.pool_path, *sorted(path for path in files.labels_path.rglob("*") if path.is_file())]
    return {path.relative_to(run_folder).as_posix(): path.read_bytes() for path in paths}


_scorers: list[tuple[Job, ChunkScorer]] = []  # at most one, reused for further chunks of the same job


def score_chunk_on_node(job: Job, files: Sequence[Any], chunk: int) -> ChunkResult:
    """Score a chunk in a Ray worker process.

    Args:
        files: one reference to the run's files; in a list, so that Ray does not fetch them on every call.
    """
    if not _scorers or _scorers[0][0] != job:
        _scorers.clear()
        with TemporaryDirectory(prefix="ducats-") as folder:
            for name, data in import_ray().get(files[0]).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            cpus = import_ray().get_runtime_context().get_assigned_resources().get("CPU", 1)
            here = replace(job, run_folder=Path(folder), threads=max(1, int(cpus)))
            _scorers.append((job, ChunkScorer(here)))
    return _scorers[0][1].score(chunk)
