"""The command `ducats score`, which selects images from a pool of any size."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import Strict, TrustCode, app, console, print_line, print_warning
from ducats.cli.shutdown import report_exit
from ducats.utils.errors import UserError
from ducats.utils.findings import pluralise


@app.command
def score(
    run: Path,
    pool: str,
    *,
    budget: str,
    out: Path,
    query: str | None = None,
    kappa: float | None = None,
    pool_format: Literal["auto", "folder", "parquet", "csv", "shards"] = "auto",
    max_sample_mb: float | None = None,
    exclude_labelled: Annotated[bool, Parameter(negative=())] = False,
    strict: Strict = False,
    backend: str = "local",
    processes: int | None = None,
    chunks: int | None = None,
    ray_address: str | None = None,
    timeout: str | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    trust_code: TrustCode = False,
) -> int:
    """Score a pool of any size with the model of a finished run, and write the images selected for labelling.

    The pool is streamed with bounded memory. Run the same command again to resume. The selection does not
    depend on the number of processes. Exit code 1: a process exited before it was done.

    Args:
        run: Run folder.
        pool: Folder of images, .csv or .parquet table of paths, or .tar shards (one, a folder of them, or
            several as 'shards-{000..099}.tar'); a path, or with ducats[stream] a URL such as
            s3://bucket/images.
        budget: Number of images to select: a count, or a percentage of the pool such as 1%.
        out: Output folder for picks.csv, unreadable.csv and score.json.
        query: A query that `ducats queries` marks for score, or your own as package.module:name. Queries that
            do not just rank images choose from the most uncertain ones. Default: the query of the run if
            possible, else coverage.
        kappa: Number of candidates as a multiple of the budget, for queries that do not just rank images;
            default: as in the run, or 10 (coverage: 30).
        pool_format: Format of the pool.
        max_sample_mb: Largest image file, in megabytes; default: 256. Larger ones are not read, and listed in
            unreadable.csv.
        exclude_labelled: Skip images that the run has labelled, identified by their keys.
        backend: local: this machine; ray: a Ray cluster (ducats[ray]).
        processes: Number of parallel processes; default: 1 locally; on a cluster, one per GPU, or as many as
            fit into half of its CPUs.
        chunks: Number of parts of the pool, each saved when done; default: one per process, or 64 on a
            cluster.
        ray_address: Address of the Ray cluster; default: RAY_ADDRESS, or the cluster on this machine.
        timeout: Time limit on a cluster, such as 2h, default 24h; run the same command again to resume.
        batch_size: Batch size; default: as in the run.
        device: auto, cpu, cuda or mps.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from ducats.data.streaming import DEFAULT_MAX_SAMPLE_MB
    from ducats.deploy import load_trained_model
    from ducats.deploy.scoring import ScoringInterrupted, score_pool
    from ducats.deploy.scoring.files import UNREADABLE_FILE

    given = {"ray_address": ray_address, "timeout": timeout}
    backend_params = {name: value for name, value in given.items() if value is not None}
    if backend_params and backend == "local":
        raise UserError(f"--{next(iter(backend_params)).replace('_', '-')} needs --backend ray")
    columns = ("scoring", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("scoring", total=None)
            result = score_pool(
                load_trained_model(run, trust_code=trust_code),
                pool,
                out=out,
                budget=budget,
                query=query,
                kappa=kappa,
                pool_format=pool_format,
                max_sample_mb=DEFAULT_MAX_SAMPLE_MB if max_sample_mb is None else max_sample_mb,
                backend=backend,
                backend_params=backend_params,
                processes=processes,
                chunks=chunks,
                exclude_labelled=exclude_labelled,
                strict=strict,
                batch_size=batch_size,
                device=device,
                on_progress=lambda n_samples: progress.update(task, completed=n_samples),
            )
    except ScoringInterrupted as error:
        return report_exit(f"ducats: {error}", "red", 1)
    if result.n_unreadable:
        print_warning(f"unreadable images: {result.n_unreadable}; see {out / UNREADABLE_FILE}")
    if exclude_labelled:
        print_line(f"images skipped, already labelled by the run: {result.n_excluded}")
    rate = "" if result.samples_per_second is None else f", {result.samples_per_second:.0f} per second"
    print_line(
        f"{pluralise(result.n_samples, 'image')} scored{rate}; {len(result.picks)} selected by "
        f"{result.query}: {result.picks_file}"
    )
    return 0
