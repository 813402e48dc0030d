"""Scoring on a Ray cluster: nodes share the pool, or a store of it, and nothing else.

The run's files travel through Ray's object store, once to each node, and what a part keeps comes back and is
written down here: so no folder has to be shared, and a part that was lost can be read again on any node.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ducats.cluster import Crew, Lost, connected, seconds_of
from ducats.cluster.joining import import_ray
from ducats.errors import UserError
from ducats.inference import Trained
from ducats.scoring.job import Job, Unfinished, Worker
from ducats.scoring.keeping import keep_part
from ducats.scoring.part import Result, Tell

TIMEOUT = "24h"
PARTS = 64  # by default: so few samples are lost with a node, whatever the number of nodes
BETWEEN = 1.0  # seconds, at most, between two looks at the cluster


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
    """Score parts on the nodes of a Ray cluster, each in a process with a CPU, or with a GPU, to itself.

    Args:
        job: all there is to know.
        ranks: parts that are missing.
        processes: that may work at once in the whole cluster; None: as many as half of its CPUs hold.
        trained: the model.
        tell: called whenever a part is done.
        address: of the cluster.
        timeout: after which what is not done is given up, for now.

    Raises:
        Unfinished: The time is over, or a part was lost again and again.
        UserError: There is no cluster, or a part cannot be scored at all.
    """
    until = time.monotonic() + seconds_of(timeout)
    with connected(address):
        ray = import_ray()
        gpus = _has_gpus(ray.nodes(), job.device)
        crew = Crew(score_one, cpus=None if gpus else 1, gpus=gpus, most=processes)
        if not crew.room():
            raise UserError(f"no node of the Ray cluster at --address {address} has CPUs: start one that has")
        said = replace(job, device="cuda" if gpus else "cpu").to_json()
        files = [ray.put(packed(trained.home.folder, job.exclude_bought))]
        todo, done, seen = list(ranks), 0, 0
        try:
            while done < len(ranks):
                left = until - time.monotonic()
                if left <= 0:
                    raise Unfinished(
                        f"--timeout {timeout} is over, with {len(ranks) - done} of {job.parts} parts to do; "
                        "parts that are done are kept, and the same command goes on"
                    )
                while todo and crew.room():
                    rank = todo.pop(0)
                    crew.begin(rank, said, files, rank)
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
    """Whether to compute on GPUs: all parts on the same kind of device, so that their numbers agree."""
    found = any(node["Resources"].get("GPU") for node in nodes if node["Alive"])
    if device == "cuda" and not found:
        raise UserError("--device cuda: no node of the Ray cluster has a GPU; --device cpu works anywhere")
    return found and device in ("auto", "cuda")


def _told(rank: int, job: Job, error: Exception) -> Exception:
    if isinstance(error, UserError):
        return UserError(f"on a node of the cluster: {error}")
    if not isinstance(error, Lost):
        return error
    return Unfinished(
        f"part {rank} of {job.parts} was lost: {error} (is there enough memory? does an image crash the "
        "decoder?); parts that are done are kept, and the same command goes on"
    )


def packed(run: Path, bought: bool) -> dict[str, bytes]:
    """The files of a run that scoring needs.

    Args:
        run: its folder.
        bought: whether those are needed, too, that say which samples it bought.
    """
    paths = [run / name for name in ("config.yaml", "data.yaml", "model.safetensors")]
    if bought:
        paths += [run / "pool.json", *sorted(path for path in (run / "labels").rglob("*") if path.is_file())]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in paths}


_worker: dict[str, Worker] = {}  # of this process, if it scored a part of the same job before


def score_one(job: str, files: Sequence[Any], rank: int) -> Result:
    """Score a part, on a node; runs in a process of Ray's.

    Args:
        job: as JSON.
        files: one reference to the run's files, so that they are fetched only where they are not yet known.
        rank: which part.
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
    """CPUs that Ray gave to this process."""
    cpus = import_ray().get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, int(cpus))
