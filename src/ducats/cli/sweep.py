"""Commands over many runs: `ducats sweep` and `ducats table`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, check_poll, console, print_line
from ducats.config.options import ConfigFiles, DataOptions, SharedAnswers
from ducats.utils.errors import UserError

NameList = Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)]


@app.command
def sweep(
    name: str,
    *,
    data: DataOptions = DataOptions(),  # noqa: B008 - never changed
    config: ConfigFiles = [],  # noqa: B006 - never changed
    set: Annotated[list[str] | None, Parameter(negative=())] = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    methods: NameList = None,
    tasks: NameList = None,
    devices: str = "auto",
    workers: int | None = None,
    backend: str = "local",
    ray_address: str | None = None,
    cpus_per_run: int | None = None,
    timeout: str | None = None,
    slurm: NameList = None,
    out: Path | None = None,
    answers: SharedAnswers = [],  # noqa: B006 - never changed
    wait: Annotated[bool, Parameter(negative=())] = False,
    poll: float = 5.0,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run methods x tasks x seeds in parallel. Run the same command again to resume.

    Each run has its own folder, named by the digest of its config. Finished runs are skipped. A failed run
    does not stop the others; the exit code is then 1. `ducats table OUT` makes the table.

    Without ground truth, annotators label the target: the sweep says how many labels that takes, asks in its
    own folder for all runs at once (exit code 3), and never asks for the same image twice.

    Args:
        name: A YAML file, or the name of a sweep in the package: folders (your own images), office-home,
            ablation, digits, ...
        data: Options of the data.
        config: Config files for all runs, applied before those of tasks and methods.
        set: A setting for all runs as key=value, but not the query or objective of a method. Repeatable.
        seeds: Seeds to use instead of those of the sweep.
        methods: Run only these methods of the sweep; * is a wildcard (duc-kappa-*).
        tasks: Run only these tasks of the sweep.
        devices: cpu, mps, or GPUs as cuda:0,cuda:1; auto: all GPUs, or the CPU if there is none.
        workers: Number of parallel runs; default: one per GPU, or one per CPU core.
        backend: local: this machine; ray: a Ray cluster (ducats[ray]); slurm: one job per run
            (ducats[slurm]). With ray and slurm, all nodes must share the output folder.
        ray_address: Address of the Ray cluster; default: RAY_ADDRESS, or the cluster on this machine.
        cpus_per_run: CPUs per run on Ray; default: 1, or the GPU's share of the CPUs; at most half of a node.
        timeout: Time limit of the whole sweep on Ray, such as 12h; run the same command again to resume.
        slurm: Options for sbatch as key=value: time=4:00:00 partition=gpu gpus_per_node=1 mem=32GB ...
        out: Output folder for the runs; default: runs/NAME.
        answers: Folders of earlier runs or sweeps.
        wait: If the runs wait for annotators, keep waiting and continue when they have answered.
        poll: With --wait: seconds between checks for answers.
        dry_run: List the runs and their status without starting any, and what annotators have to label.
    """
    from ducats.sweep import (
        BackendOptions,
        SweepFilter,
        check_sweep_runs,
        count_labels,
        describe_cost,
        expand_sweep,
        format_run_list,
        labelling_costs,
        open_backend,
        read_sweep,
        run_sweep_with_people,
    )

    check_poll(poll)
    for earlier in answers:
        if not earlier.is_dir():
            raise UserError(f"--answers {earlier} is not a folder; give the folder of a run or a sweep")
    plan = read_sweep(name)
    sweep_filter = SweepFilter(
        data=data,
        config=tuple(config),
        settings=tuple(set or ()),
        seeds=seeds,
        methods=methods,
        tasks=tasks,
    )
    resources = BackendOptions(
        backend, devices, workers, cpus_per_run, ray_address, timeout, tuple(slurm or ())
    )
    folder = out or Path("runs") / Path(name).stem
    with open_backend(resources, folder, Path(name).stem) as opened_backend:
        runs = expand_sweep(plan, sweep_filter, device=opened_backend.device_type)
        pending = [cell for cell in runs if cell.state(folder) != "done"]
        check_sweep_runs(pending)
        costs = labelling_costs(pending)
        if dry_run:
            sys.stdout.write(format_run_list(runs, folder) + "\n")
        if costs:
            print_line(describe_cost(costs, count_labels(runs, folder)))
        if dry_run:
            return 0
        return run_sweep_with_people(
            runs,
            folder,
            opened_backend.backend,
            console,
            people=costs,
            folders=(folder, *answers),
            time_limit=opened_backend.time_limit,
            poll_seconds=poll if wait else None,
        ).exit_code


@app.command
def table(
    *runs: Path,
    format: Literal["md", "csv", "latex"] | None = None,
    out: Path | None = None,
    baselines: NameList = None,
) -> int:
    """Make a table of methods by tasks: mean and standard deviation, published numbers, significance.

    Values are those of the last stage of finished runs, never the best stage. Runs are paired by task and
    seed.

    Args:
        runs: Run folders, or folders that contain them.
        format: md, csv or latex; default: by the suffix of the output file, or md.
        out: Output file (.md, .csv, .tex); default: print the table.
        baselines: Baseline methods for the comparison; default: random and duc.
    """
    from ducats.report.method_tables.build import make_tables
    from ducats.report.method_tables.text import TABLE_WRITERS, format_from_path
    from ducats.utils.files import write_text_atomically

    if not runs:
        raise UserError("give at least one folder of runs, e.g. `ducats table runs/digits`")
    write = TABLE_WRITERS[format or format_from_path(out)]
    text = write(make_tables(list(runs), tuple(baselines or ("random", "duc"))))
    if out is None:
        sys.stdout.write(text)
    else:
        write_text_atomically(out, text)
        print_line(f"table in {out}")
    return 0
