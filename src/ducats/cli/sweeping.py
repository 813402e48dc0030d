"""Commands over many runs: make them, and put them into a table."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, console
from ducats.errors import UserError

Names = Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)]


@app.command
def sweep(
    name: str,
    *,
    root: Path | None = None,
    source: Path | None = None,
    target: Path | None = None,
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    methods: Names = None,
    tasks: Names = None,
    devices: str = "auto",
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    cpus: int | None = None,
    timeout: str | None = None,
    slurm: Names = None,
    out: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run methods x tasks x seeds, several at a time. The same command goes on after a kill.

    Each run has a folder of its own, named by its config's digest; what is finished is skipped, and one run
    that fails does not stop the rest (exit code 1 in the end). `ducats table OUT` makes the table.

    Args:
        name: A YAML file, or one of the package's by name: office-home, ablation, digits, ...
        root: Folder of the benchmark.
        source: Folder of the source, where the data has two (gtav-cityscapes).
        target: Folder of the target, where the data has two.
        set: One setting for all runs as key=value, but not a method's query or objective. May be repeated.
        seeds: Instead of the sweep's own.
        methods: Only these of the sweep's methods; * stands for anything (duc-kappa-*).
        tasks: Only these of the sweep's tasks.
        devices: cpu, mps, or GPUs as cuda:0,cuda:1; auto: every GPU, or the CPU where there is none.
        workers: Runs at a time; by default one for each GPU, on a CPU one for each core.
        engine: Who computes: local, this machine; ray, a Ray cluster (ducats[ray]); slurm, one job for each
            run (ducats[slurm]). With the last two, all nodes must share the folder of the runs.
        address: Of the Ray cluster's head; by default RAY_ADDRESS, or the cluster of this machine.
        cpus: Of each run on Ray, by default 1, or with a GPU its share; never more than half of a node.
        timeout: Of the whole sweep on Ray, such as 12h; what is not done by then, the same command does.
        slurm: What sbatch shall know, as key=value: time=4:00:00 partition=gpu gpus_per_node=1 mem=32GB ...
        out: The folder of the runs, by default runs/NAME.
        dry_run: List the runs and where they stand, and start none.
    """
    from ducats.sweep import Wanted, Where, cells_of, check, listing, opened, read_sweep, run_all

    plan = read_sweep(name)
    wanted = Wanted(
        root=root,
        source=source,
        target=target,
        settings=tuple(set or ()),
        seeds=seeds,
        methods=methods,
        tasks=tasks,
    )
    where = Where(engine, devices, workers, cpus, address, timeout, tuple(slurm or ()))
    folder = out or Path("runs") / Path(name).stem
    with opened(where, folder, Path(name).stem) as found:
        cells = cells_of(plan, wanted, device=found.kind)
        check([cell for cell in cells if cell.state(folder) != "done"])
        if dry_run:
            sys.stdout.write(listing(cells, folder) + "\n")
            return 0
        return run_all(cells, folder, found.engine, console, seconds=found.seconds).code


@app.command
def table(
    *runs: Path,
    format: Literal["md", "csv", "latex"] | None = None,
    out: Path | None = None,
    against: Names = None,
) -> int:
    """Make a table of methods by tasks: mean and deviation, published numbers beside ours, significance.

    The number is always the last stage's of a finished run, never the best. Runs are paired by task and seed.

    Args:
        runs: Run folders, or folders that hold them.
        format: md, csv or latex; by default what the file's name says, or md.
        out: The file to write (.md, .csv, .tex); by default the table is printed.
        against: Methods that the others are compared with, by default random and duc.
    """
    from ducats.files import write_text_atomically
    from ducats.report.across import FORMATS, format_of, make_tables

    if not runs:
        raise UserError("name at least one folder of runs, e.g. `ducats table runs/digits`")
    write = FORMATS[format or format_of(out)]
    text = write(make_tables(list(runs), tuple(against or ("random", "duc"))))
    if out is None:
        sys.stdout.write(text)
    else:
        write_text_atomically(out, text)
        console.print(f"table in {out}", soft_wrap=True)
    return 0
