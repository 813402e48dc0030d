"""Score a whole pool: score its chunks, merge them, and write the picks."""

import csv
import io
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ducats.budget import parse_budget
from ducats.errors import UserError
from ducats.files import write_text_atomically
from ducats.inference import Trained
from ducats.inference.images import COLUMNS
from ducats.inference.rule import fingerprint
from ducats.pool import Kind, Pool, open_pool
from ducats.registry import bind_params, resolve
from ducats.scoring.engines import DEFAULT_PARTS, ENGINES
from ducats.scoring.gathering import Gathered, gather, missing_of
from ducats.scoring.job import Engine, Job, bought_keys
from ducats.scoring.keeping import PICKS, SUMMARY, UNREADABLE, hold
from ducats.scoring.local import cores
from ducats.scoring.part import Tell
from ducats.scoring.plan import Plan, choose, make_plan, needs_the_pools_size, own_query
from ducats.streaming_top_k import ScoredSamples


class Picks(NamedTuple):
    """Result of scoring a pool."""

    picks: ScoredSamples  # in order
    seen: int  # number of samples
    excluded: int
    unreadable: int
    seconds: float  # scoring time of this call
    rate: float | None  # samples per second of this call; None if all chunks were already done
    file: Path
    query: str  # name of the query


def score(
    trained: Trained,
    where: str,
    *,
    out: Path,
    budget: int | str,
    query: str | None = None,
    kappa: float | None = None,
    kind: Kind = "auto",
    engine: str = "local",
    params: Mapping[str, Any] | None = None,
    processes: int | None = None,
    parts: int | None = None,
    exclude_bought: bool = False,
    batch: int | None = None,
    device: str = "auto",
    tell: Tell | None = None,
) -> Picks:
    """Select images of a pool for labelling; write ``picks.csv``, ``unreadable.csv`` and ``score.json``.

    If the process is killed, call the function again with the same arguments: it scores the missing chunks.

    Args:
        where: pool, see ``open_pool``.
        out: output folder.
        budget: number of picks, or a percentage of the pool such as ``"1%"``.
        query: one of ``QUERIES``; None: the run's query if it is one of them, else `duc`.
        kappa: see ``make_run_plan``.
        kind: pool format.
        engine: one of ``ENGINES``.
        params: parameters of the backend; `ray` has ``address`` and ``timeout``.
        processes: number of parallel processes; None: 1 locally, as many as fit on a cluster.
        parts: number of chunks, each saved when it is done; None: one per process, 64 on a cluster.
        exclude_bought: skip samples that the run has labelled, identified by their keys.
        batch: None: the run's ``engine.scoring_batch_size``.
        device: auto, cpu, cuda or mps.
        tell: called regularly with the number of samples so far.

    Raises:
        UserError: An argument is invalid, or the pool or the run cannot be used.
        Unfinished: A process ended before its chunks were done.
    """
    if trained.of_pixels:
        raise UserError(
            "`ducats score` does not support segmentation; use `ducats predict --uncertainty-maps`"
        )
    batch = trained.config.engine.scoring_batch_size if batch is None else batch
    processes = 1 if processes is None and engine not in DEFAULT_PARTS else processes
    parts = DEFAULT_PARTS.get(engine, processes or 1) if parts is None else parts
    for name, value in (("processes", processes), ("parts", parts), ("batch", batch)):
        if value is not None and value < 1:
            raise UserError(f"--{name} must be at least 1, not {value}")
    work: Engine = bind_params("engine", engine, resolve("engine", ENGINES, engine), 2, params or {})
    if out.absolute() == trained.home.path.absolute():
        raise UserError(f"--out {out} is the run folder; choose another folder")
    if exclude_bought:
        bought_keys(trained.home)  # raise now if there is no ledger
    if "://" not in where:  # other processes and later commands may have another working directory
        where = str(Path(where).expanduser().absolute())
    pool = open_pool(where, kind=kind)
    query = own_query(trained.config) if query is None else query
    plan = _plan(trained, pool, budget, query, kappa)
    settings = {
        "model": fingerprint(trained.home.path),
        "pool": where,
        "kind": kind,
        "samples": pool.count,
        "budget": str(budget),
        "labels": plan.budget,
        "query": query,
        "kept": plan.keep,
        "columns": [name for name in (plan.first, plan.second) if name],
        "params": dict(plan.params),
        "exclude_bought": exclude_bought,
        "batch": batch,
    }
    threads = max(1, cores() // (processes or 1))
    folder = str(trained.home.path.absolute())
    job = Job(folder, where, kind, plan, parts, batch, exclude_bought, device, threads, str(out.absolute()))
    with hold(out, settings):
        began, files = time.perf_counter(), [job.file(rank) for rank in range(parts)]
        missing = missing_of(files)
        if missing:
            job.file(0).parent.mkdir(parents=True, exist_ok=True)
            work(job, missing, processes=processes, trained=trained, tell=tell)
        seconds = time.perf_counter() - began
        told = {"engine": engine, "processes": processes, **settings}
        return _written(trained, plan, gather(files, plan.keep), out, seconds, missing, told)


def _plan(trained: Trained, pool: Pool, budget: int | str, query: str, kappa: float | None) -> Plan:
    try:
        amount, share = parse_budget(budget)
    except UserError:
        raise UserError(f"--budget {budget} is neither a count (5000) nor a percentage (1%)") from None
    size = pool.counted() if share or needs_the_pools_size(trained.config, query) else None
    if size == 0:
        raise UserError(f"pool {pool.name} contains no images; check the path")
    labels = math.floor(amount * (size or 0) / 100 + 0.5) if share else int(amount)
    if labels == 0 or (share and amount > 100):
        of = f" of a pool of {size}" if share else ""
        raise UserError(f"--budget {budget} is {labels} labels{of}; choose at least 1 label, at most 100 %")
    return make_plan(trained.config, query, labels, kappa=kappa, pool=size)


def _written(
    trained: Trained,
    plan: Plan,
    found: Gathered,
    out: Path,
    seconds: float,
    missing: Sequence[int],
    told: dict[str, Any],
) -> Picks:
    """Select the picks and write the three result files."""
    seen, unreadable, kept = found.seen, found.unreadable, found.kept
    if seen == 0:
        raise UserError(f"pool {told['pool']} contains no images; check the path")
    if len(unreadable) == seen:
        key, why = unreadable[0]
        raise UserError(f"none of the {seen} images of {told['pool']} can be read; first: {key} ({why})")
    if not len(kept):
        raise UserError(
            f"the run has already labelled all readable images of {told['pool']}; omit --exclude-labelled or "
            "choose another pool"
        )
    picks = choose(plan, kept, found.known, trained.config.seed)
    _check_keys(picks)
    scored = sum(found.parts[rank].seen for rank in missing)
    rate = scored / seconds if missing else None
    counts = {
        "images": seen,
        "unreadable": len(unreadable),
        "excluded": found.excluded,
        "picked": len(picks),
        "seconds": seconds,
        "images_per_second": rate,
        "parts": [
            {"images": r.seen, "seconds": r.seconds, "cpu_seconds": r.cpu_seconds, "memory": r.memory}
            for r in found.parts
        ],
    }
    _write_csv(out / UNREADABLE, ("key", "why"), unreadable)
    path = out / SUMMARY
    if missing or not path.exists():  # keep the timings if nothing was scored this time
        write_text_atomically(path, json.dumps(told | counts, indent=1, ensure_ascii=False) + "\n")
    header = ("rank", "key", "guess", *COLUMNS)
    _write_csv(out / PICKS, header, _lines(picks, trained.classes))
    return Picks(picks, seen, found.excluded, len(unreadable), seconds, rate, out / PICKS, plan.query)


def _check_keys(picks: ScoredSamples) -> None:
    keys = picks.key.tolist()
    if len(set(keys)) < len(keys):
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"two samples of the pool have the key {doubled!r}; make the keys unique")


def _lines(picks: ScoredSamples, classes: Sequence[str]) -> Iterable[list[str]]:
    numbers = zip(*(picks.columns[name].tolist() for name in COLUMNS), strict=True)
    guesses = picks.columns["guess"].tolist()
    for rank, (key, guess, values) in enumerate(zip(picks.key, guesses, numbers, strict=True), start=1):
        yield [str(rank), key, classes[guess], *(f"{value:.6g}" for value in values)]


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    write_text_atomically(path, text.getvalue())
