"""Score a whole pool: score its chunks, merge them, and write the picks."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ducats.acquisition.budget import parse_budget
from ducats.acquisition.streaming_top_k import ScoredSamples
from ducats.data.streaming import DEFAULT_MAX_SAMPLE_MB, Pool, PoolFormat, open_pool
from ducats.deploy import TrainedModel
from ducats.deploy.classification import PREDICTION_COLUMNS
from ducats.deploy.scoring.chunk import ProgressCallback
from ducats.deploy.scoring.files import (
    PICKS_FILE,
    SUMMARY_FILE,
    UNREADABLE_FILE,
    MergedChunks,
    merge_chunks,
    missing_chunks,
    open_output_folder,
)
from ducats.deploy.scoring.job import Job, ScoringBackend, labelled_keys
from ducats.deploy.scoring.local_backend import score_locally
from ducats.deploy.scoring.ray_backend import DEFAULT_RAY_CHUNKS, score_on_ray
from ducats.deploy.scoring.streaming_query import (
    StreamingQuery,
    default_query,
    make_streaming_query,
    needs_pool_size,
    select_picks,
)
from ducats.deploy.triage_rule import hash_weights
from ducats.utils.errors import UserError
from ducats.utils.files import make_folder, write_csv_atomically, write_text_atomically
from ducats.utils.registry import bind_params, resolve
from ducats.utils.resources import available_cores

SCORING_BACKENDS: Mapping[str, ScoringBackend] = {"local": score_locally, "ray": score_on_ray}
DEFAULT_CHUNKS: Mapping[str, int] = {"ray": DEFAULT_RAY_CHUNKS}  # other backends: one per process
_CHUNK_COSTS = ("seconds", "cpu_seconds", "peak_memory_bytes")


class ScoringResult(NamedTuple):
    """Result of scoring a pool."""

    picks: ScoredSamples  # in order
    n_samples: int
    n_excluded: int
    n_unreadable: int
    seconds: float  # scoring time of this call
    samples_per_second: float | None  # samples per second of this call; None if all chunks were already done
    picks_file: Path
    query: str  # name of the query


def score_pool(
    trained: TrainedModel,
    pool_uri: str,
    *,
    out: Path,
    budget: int | str,
    query: str | None = None,
    kappa: float | None = None,
    pool_format: PoolFormat = "auto",
    max_sample_mb: float = DEFAULT_MAX_SAMPLE_MB,
    backend: str = "local",
    backend_params: Mapping[str, Any] | None = None,
    processes: int | None = None,
    chunks: int | None = None,
    exclude_labelled: bool = False,
    strict: bool = False,
    batch_size: int | None = None,
    device: str = "auto",
    on_progress: ProgressCallback | None = None,
) -> ScoringResult:
    """Select images of a pool for labelling; write ``picks.csv``, ``unreadable.csv`` and ``score.json``.

    If the process is killed, call the function again with the same arguments: it scores the missing chunks.

    Args:
        pool_uri, pool_format, max_sample_mb: pool, see ``open_pool``.
        budget: number of picks, or a percentage of the pool such as ``"1%"``.
        query: a query with a ``streaming_rule``; None: the run's query if it has one, else `coverage`.
        kappa: see ``make_streaming_query``.
        backend: one of ``SCORING_BACKENDS``.
        backend_params: parameters of the backend; `ray` has ``ray_address`` and ``timeout``.
        processes: number of parallel processes; None: 1 locally, as many as fit on a cluster.
        chunks: number of chunks, each saved when it is done; None: one per process, 64 on a cluster.
        exclude_labelled: skip samples that the run has labelled, identified by their keys.
        strict: raise if a sample is unreadable, after ``unreadable.csv`` is written.
        batch_size: None: the run's ``engine.scoring_batch_size``.
        on_progress: called regularly with the number of samples so far.

    Raises:
        UserError: An argument is invalid, or the pool or the run cannot be used.
        ScoringInterrupted: A process ended before its chunks were done.
    """
    if trained.per_pixel:
        raise UserError(
            "`ducats score` does not support segmentation; use `ducats predict --uncertainty-maps`"
        )
    batch_size = trained.config.engine.scoring_batch_size if batch_size is None else batch_size
    processes = 1 if processes is None and backend not in DEFAULT_CHUNKS else processes
    chunks = DEFAULT_CHUNKS.get(backend, processes or 1) if chunks is None else chunks
    for option, value in (("processes", processes), ("chunks", chunks), ("batch-size", batch_size)):
        if value is not None and value < 1:
            raise UserError(f"--{option} must be at least 1, not {value}")
    run_backend: ScoringBackend = bind_params(
        "backend", backend, resolve("backend", SCORING_BACKENDS, backend), 2, backend_params or {}
    )
    if out.absolute() == trained.run_folder.path.absolute():
        raise UserError(f"--out {out} is the run folder; choose another folder")
    if exclude_labelled:
        labelled_keys(trained.run_folder)  # raise now if there is no ledger
    if "://" not in pool_uri:  # other processes and later commands may have another working directory
        pool_uri = str(Path(pool_uri).expanduser().absolute())
    pool = open_pool(pool_uri, pool_format=pool_format, max_sample_mb=max_sample_mb)
    query = default_query(trained.config) if query is None else query
    streaming_query = _make_query(trained, pool, budget, query, kappa)
    settings = {
        "model": hash_weights(trained.run_folder.path),
        "pool": pool_uri,
        "pool_format": pool_format,
        "max_sample_mb": max_sample_mb,
        "samples": pool.n_samples,
        "budget": str(budget),
        "labels": streaming_query.budget,
        "query": query,
        "candidates": streaming_query.n_candidates,
        "columns": [name for name in (streaming_query.first_column, streaming_query.second_column) if name],
        "params": dict(streaming_query.params),
        "exclude_labelled": exclude_labelled,
        "batch_size": batch_size,
    }
    threads = max(1, available_cores() // (processes or 1))
    job = Job(
        run_folder=trained.run_folder.path.absolute(),
        pool_uri=pool_uri,
        pool_format=pool_format,
        streaming_query=streaming_query,
        n_chunks=chunks,
        batch_size=batch_size,
        exclude_labelled=exclude_labelled,
        device=device,
        threads=threads,
        out=out.absolute(),
        max_sample_mb=max_sample_mb,
    )
    with open_output_folder(out, settings):
        start, files = time.perf_counter(), [job.chunk_file(chunk) for chunk in range(chunks)]
        missing = missing_chunks(files)
        if missing:
            make_folder(job.chunk_file(0).parent)
            run_backend(job, missing, processes=processes, trained=trained, on_progress=on_progress)
        seconds = time.perf_counter() - start
        summary = {"backend": backend, "processes": processes, **settings}
        merged = merge_chunks(files, streaming_query.n_candidates)
        write_csv_atomically(out / UNREADABLE_FILE, ("key", "reason"), merged.unreadable)
        if strict and merged.unreadable:
            raise UserError(
                f"{len(merged.unreadable)} of {merged.n_samples} images cannot be read, listed in "
                f"{out / UNREADABLE_FILE}; replace them, or omit --strict to skip them"
            )
        return _write_results(trained, streaming_query, merged, out, seconds, missing, summary)


def _make_query(
    trained: TrainedModel, pool: Pool, budget: int | str, query: str, kappa: float | None
) -> StreamingQuery:
    try:
        amount, is_percentage = parse_budget(budget)
    except UserError:
        raise UserError(f"--budget {budget} is neither a count (5000) nor a percentage (1%)") from None
    pool_size = pool.count_samples() if is_percentage or needs_pool_size(trained.config, query) else None
    if pool_size == 0:
        raise UserError(f"pool {pool.name} contains no images; check the path")
    labels = math.floor(amount * (pool_size or 0) / 100 + 0.5) if is_percentage else int(amount)
    if labels == 0 or (is_percentage and amount > 100):
        pool_text = f" of a pool of {pool_size}" if is_percentage else ""
        raise UserError(
            f"--budget {budget} is {labels} labels{pool_text}; choose at least 1 label, at most 100 %"
        )
    return make_streaming_query(trained.config, query, labels, kappa=kappa, pool_size=pool_size)


def _write_results(
    trained: TrainedModel,
    streaming_query: StreamingQuery,
    merged: MergedChunks,
    out: Path,
    seconds: float,
    missing: Sequence[int],
    summary: dict[str, Any],
) -> ScoringResult:
    """Select the picks and write the three result files."""
    n_samples, unreadable, candidates = merged.n_samples, merged.unreadable, merged.candidates
    if n_samples == 0:
        raise UserError(f"pool {summary['pool']} contains no images; check the path")
    if len(unreadable) == n_samples:
        key, reason = unreadable[0]
        raise UserError(
            f"none of the {n_samples} images of {summary['pool']} can be read; first: {key} ({reason})"
        )
    if not len(candidates):
        raise UserError(
            f"the run has already labelled all readable images of {summary['pool']}; omit --exclude-labelled "
            "or choose another pool"
        )
    picks = select_picks(streaming_query, candidates, merged.labelled, trained.config.seed)
    keys = picks.key.tolist()
    if len(set(keys)) < len(keys):
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"two samples of the pool have the key {duplicate!r}; make the keys unique")
    n_scored = sum(merged.chunks[index].n_samples for index in missing)
    rate = n_scored / seconds if missing else None
    counts = {
        "images": n_samples,
        "unreadable": len(unreadable),
        "excluded": merged.n_excluded,
        "picked": len(picks),
        "seconds": seconds,
        "images_per_second": rate,
        "chunks": [
            {"images": chunk.n_samples, **{name: getattr(chunk, name) for name in _CHUNK_COSTS}}
            for chunk in merged.chunks
        ],
    }
    path = out / SUMMARY_FILE
    if missing or not path.exists():  # keep the timings if nothing was scored this time
        write_text_atomically(path, json.dumps(summary | counts, indent=1, ensure_ascii=False) + "\n")
    header = ("rank", "key", "guess", *PREDICTION_COLUMNS)
    write_csv_atomically(out / PICKS_FILE, header, _pick_rows(picks, trained.classes))
    return ScoringResult(
        picks=picks,
        n_samples=n_samples,
        n_excluded=merged.n_excluded,
        n_unreadable=len(unreadable),
        seconds=seconds,
        samples_per_second=rate,
        picks_file=out / PICKS_FILE,
        query=streaming_query.name,
    )


def _pick_rows(picks: ScoredSamples, classes: Sequence[str]) -> Iterable[list[str]]:
    numbers = zip(*(picks.columns[name].tolist() for name in PREDICTION_COLUMNS), strict=True)
    guesses = picks.columns["guess"].tolist()
    for rank, (key, guess, values) in enumerate(zip(picks.key, guesses, numbers, strict=True), start=1):
        yield [str(rank), key, classes[guess], *(f"{value:.6g}" for value in values)]
