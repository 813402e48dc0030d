"""The command `ducats score`, which selects images from a pool of any size."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, console
from ducats.cli.leaving import say
from ducats.errors import UserError


@app.command
def score(
    run: Path,
    pool: str,
    *,
    budget: str,
    out: Path,
    query: str | None = None,
    kappa: float | None = None,
    kind: Literal["auto", "folder", "parquet", "csv", "shards"] = "auto",
    exclude_bought: Annotated[bool, Parameter(negative=())] = False,
    engine: str = "local",
    processes: int | None = None,
    parts: int | None = None,
    address: str | None = None,
    timeout: str | None = None,
    batch: int | None = None,
    device: str = "auto",
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
        query: duc, u_dis, u_data, entropy, margin, least_confident, random; or spread, clue, badge, coreset,
            which choose from the most uncertain images. Default: the query of the run if listed, else duc.
        kappa: Number of candidates as a multiple of the budget, for duc (first round), spread, clue, badge
            and coreset; default: as in the run, or 10.
        kind: Format of the pool.
        exclude_bought: Skip images that the run has labelled, identified by their keys.
        engine: local: this machine; ray: a Ray cluster (ducats[ray]).
        processes: Number of parallel processes; default: 1 locally; on a cluster, one per GPU, or as many as
            fit into half of its CPUs.
        parts: Number of parts of the pool, each saved when done; default: one per process, or 64 on a
            cluster.
        address: Address of the Ray cluster; default: RAY_ADDRESS, or the cluster on this machine.
        timeout: Time limit on a cluster, such as 2h, default 24h; run the same command again to resume.
        batch: Batch size; default: as in the run.
        device: auto, cpu, cuda or mps.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from ducats.inference import load_trained
    from ducats.scoring import Unfinished
    from ducats.scoring import score as score_pool

    knobs = {name: said for name, said in (("address", address), ("timeout", timeout)) if said is not None}
    if knobs and engine == "local":
        raise UserError(f"--{next(iter(knobs))} needs --engine ray")
    columns = ("scoring", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("scoring", total=None)
            found = score_pool(
                load_trained(run),
                pool,
                out=out,
                budget=budget,
                query=query,
                kappa=kappa,
                kind=kind,
                engine=engine,
                knobs=knobs,
                processes=processes,
                parts=parts,
                exclude_bought=exclude_bought,
                batch=batch,
                device=device,
                tell=lambda seen: progress.update(task, completed=seen),
            )
    except Unfinished as error:
        return say(f"ducats: {error}", "red", 1)
    if found.unreadable:
        _say(f"warning: unreadable images: {found.unreadable}; see {out / 'unreadable.csv'}", "yellow")
    if exclude_bought:
        _say(f"images skipped, already labelled by the run: {found.excluded}")
    rate = "" if found.rate is None else f", {found.rate:.0f} per second"
    _say(f"{found.seen} images scored{rate}; {len(found.picks)} selected by {found.query}: {found.file}")
    return 0


def _say(words: str, style: str | None = None) -> None:
    console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)
