"""Score on a Ray cluster; the nodes need access to the pool, but no other shared folder.

The run's files are sent through Ray's object store, once to each node. The result of a chunk is sent back and
saved by this process, so a lost chunk can be scored again on any node.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ducats.cluster import TaskLost, TaskPool, parse_duration, ray_session
from ducats.cluster.ray_connection import import_ray
from ducats.errors import UserError
from ducats.inference import Trained
from ducats.scoring.job import Job, Unfinished, Worker
from ducats.scoring.keeping import keep_part
from ducats.scoring.part import Result, Tell

TIMEOUT = "24h"
PARTS = 64  # default; many chunks, so that losing a node loses little work
BETWEEN = 1.0  # maximum polling interval


def on_ray(
    job: Job,
    ranks: Sequence[int],
    *,
    processes: int | None,
    trained: Trained,
    tell: Tell | None,
    address: str = "auto",
    timeout: str = TIMEOUT,
) -> None:
    """Score chunks on the nodes of a Ray cluster, each in a process with its own CPU or GPU.

    Args:
        ranks: missing chunks.
        processes: maximum number of parallel processes in the cluster; None: one per GPU, or as many as fit
            into half of its CPUs.
        tell: called whenever a chunk is done.
        address: ``host:port`` of the cluster, or ``auto``.
        timeout: time limit, such as ``2h``; the chunks left can be scored by another call.

    Raises:
        Unfinished: The time limit is reached, or a chunk was lost repeatedly.
        UserError: There is no cluster, or a chunk cannot be scored.
    """
    until = time.monotonic() + parse_duration(timeout)
    with ray_session(address):
        ray = import_ray()
        gpus = _has_gpus(ray.nodes(), job.device)
        crew = TaskPool(score_one, cpus_per_task=None if gpus else 1, use_gpu=gpus, max_tasks=processes)
        if not crew.free_slots():
            raise UserError(f"no node of the Ray cluster at --ray-address {address} has CPUs; start one")
        said = replace(job, device="cuda" if gpus else "cpu").to_json()
        files = [ray.put(packed(trained.home.path, job.exclude_bought))]
        todo, done, seen = list(ranks), 0, 0
        try:
            while done < len(ranks):
                left = until - time.monotonic()
                if left <= 0:
                    raise Unfinished(
                        f"--timeout {timeout} reached with {len(ranks) - done} of {job.parts} chunks left; "
                        "finished chunks are saved: run the same command again to resume"
                    )
                while todo and crew.free_slots():
                    rank = todo.pop(0)
                    crew.submit(rank, said, files, rank)
                for rank, result, error in crew.wait(min(BETWEEN, left)):
                    if error is not None:
                        raise _told(rank, job, error)
                    keep_part(job.file(rank), result)
                    done, seen = done + 1, seen + result.seen
                    if tell is not None:
                        tell(seen)
        finally:
            crew.stop()


def _has_gpus(nodes: Sequence[Mapping[str, Any]], device: str) -> bool:
    """Whether to use GPUs; all chunks use the same type of device, so that their scores are comparable."""
    found = any(node["Resources"].get("GPU") for node in nodes if node["Alive"])
    if device == "cuda" and not found:
        raise UserError("--device cuda: no node of the Ray cluster has a GPU; use --device cpu")
    return found and device in ("auto", "cuda")


def _told(rank: int, job: Job, error: Exception) -> Exception:
    if isinstance(error, UserError):
        return UserError(f"on a node of the cluster: {error}")
    if not isinstance(error, TaskLost):
        return error
    return Unfinished(
        f"chunk {rank} of {job.parts} was lost: {error} (out of memory, or an image that crashes the "
        "decoder?); finished chunks are saved: run the same command again to resume"
    )


def packed(run: Path, bought: bool) -> dict[str, bytes]:
    """Return the content of the run's files that scoring needs.

    Args:
        bought: whether to include the files that record the labelled samples.
    """
    paths = [run / name for name in ("config.yaml", "data.yaml", "model.safetensors")]
    if bought:
        paths += [run / "pool.json", *sorted(path for path in (run / "labels").rglob("*") if path.is_file())]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


_worker: dict[str, Worker] = {}  # by job, at most one: reused for further chunks of the same job


def score_one(job: str, files: Sequence[Any], rank: int) -> Result:
    """Score a chunk in a Ray worker process.

    Args:
        job: JSON of the job.
        files: one reference to the run's files; in a list, so that Ray does not fetch them on every call.
    """
    if job not in _worker:
        _worker.clear()
        with TemporaryDirectory(prefix="ducats-") as folder:
            for name, data in import_ray().get(files[0]).items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            _worker[job] = Worker(replace(Job.from_json(job), run=folder, threads=_threads()))
    return _worker[job].result(rank)


def _threads() -> int:
    """Return the number of CPUs that Ray has assigned to this process."""
    cpus = import_ray().get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, int(cpus))
