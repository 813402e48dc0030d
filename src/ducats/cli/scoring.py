"""The command that says which images of a pool are worth a label, whatever the pool's size."""

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
    """Let a finished run's model look at a pool of any size, and write which images are worth a label.

    The pool streams by in bounded memory. The same command goes on after a kill, and the picks are the same
    on any number of processes. Exit code 1: a process ended before it was done.

    Args:
        run: The run's folder.
        pool: A folder of images, a .csv or .parquet table of paths, or .tar shards (one, a folder of them, or
            several as 'shards-{000..099}.tar'); a path, or with ducats[stream] a URL such as s3://bucket/images.
        budget: Labels to spend: a count, or a share of the pool as 1%.
        out: The folder to write to: picks.csv, unreadable.csv, score.json.
        query: duc, u_dis, u_data, entropy, margin, least_confident, random; or spread, clue, badge, coreset,
            which choose among the most uncertain. By default the run's own, or else duc.
        kappa: How many times the budget pass the first round of duc, or are candidates of spread, clue, badge
            and coreset; by default as in the run, or 10.
        kind: What the pool is.
        exclude_bought: Pass over images that the run bought, by their keys.
        engine: Who does the work: local, this machine; or ray, a Ray cluster (ducats[ray]).
        processes: At once; by default 1, on a cluster as many as half of its CPUs hold, or one for each GPU.
        parts: That the pool is scored in, each kept when it is done; by default one for each process, on a
            cluster 64.
        address: Of the Ray cluster's head; by default RAY_ADDRESS, or the cluster of this machine.
        timeout: Of the work on a cluster, such as 2h, by default 24h; then the same command goes on.
        batch: Images at a time; by default as in the run.
        device: auto, cpu, cuda or mps.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    from ducats.inference import load_trained
    from ducats.scoring import Unfinished
    from ducats.scoring import score as score_pool

    knobs = {name: said for name, said in (("address", address), ("timeout", timeout)) if said is not None}
    if knobs and engine == "local":
        raise UserError(f"--{next(iter(knobs))} goes with --engine ray: leave it out, or give that engine")
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
        _say(f"beware: {found.unreadable} cannot be read, see {out / 'unreadable.csv'}", "yellow")
    if exclude_bought:
        _say(f"{found.excluded} passed over, which the run bought")
    rate = "" if found.rate is None else f", {found.rate:.0f} a second"
    _say(f"{found.seen} images looked at{rate}; {len(found.picks)} picked by {found.query}: {found.file}")
    return 0


def _say(words: str, style: str | None = None) -> None:
    console.print(words, style=style, highlight=False, markup=False, soft_wrap=True)
