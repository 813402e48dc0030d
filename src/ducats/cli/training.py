"""The commands `ducats run` and `ducats demo`."""

import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from ducats.cli.base import app, console
from ducats.cli.leaving import launch, speaks
from ducats.errors import AwaitingLabels, UserError
from ducats.options import Settings, folder_of, task_of
from ducats.progress import together

if TYPE_CHECKING:
    from ducats.parts import Parts, Plan


@app.command
def run(
    *,
    settings: Settings = Settings(),  # noqa: B008 - never changed
    out: Path | None = None,
    wait: Annotated[bool, Parameter(negative=())] = False,
    poll: float = 5.0,
) -> int:
    """Train, query, label, repeat. Run the same command again to resume after a kill or a pause.

    With only --source and --target, DUC trains an ImageNet ResNet-50 and queries human annotators: questions
    with thumbnails are written to the run folder, and the run pauses (exit code 3) until answers.csv exists.
    With -c segmentation, pixels are labelled: each folder contains images/ and labels/ (optional for the
    target), --classes defines the values of the label files, and masks are answered with label PNGs.
    `ducats config --explain` with the same options lists every setting, `ducats queries` the queries.

    Args:
        settings: Options of the run.
        out: Run folder; default: runs/DATA-METHOD-DIGEST (with the benchmark task after DATA), so that the
            same command always uses the same folder.
        wait: Instead of pausing, wait until all answers are there, then continue. Ctrl-C stops waiting; run
            the same command again to resume.
        poll: With --wait: seconds between checks for answers.
    """
    if not 0 < poll < math.inf:
        raise UserError(f"--poll must be a positive number of seconds, not {poll:g}")
    config = settings.load()
    import torch

    from ducats.assemble import assemble, check_names, make_speed, settled
    from ducats.display import Show, stage_table
    from ducats.doctor.known import incomplete
    from ducats.doctor.task import misfits
    from ducats.engine import hosts
    from ducats.engine.processes import make_fabric
    from ducats.engine.processes import together as all_together
    from ducats.engine.streams import steps_in_epoch
    from ducats.loggers import Logs, find
    from ducats.run import run as run_parts
    from ducats.rundir import RunDir

    for misfit in misfits(config):
        raise UserError(misfit)
    config = settled(config)
    folder = out or folder_of(config)
    home = RunDir(folder)
    check_names(config, begun=home.begun)
    engine = config.engine
    loggers = find(engine.loggers)
    group = hosts.settle(engine.processes, engine.nodes)
    fabric = make_fabric(
        engine.device,
        group.processes,
        engine.precision,
        nodes=group.nodes,
        strategy=engine.strategy,
        deterministic=engine.deterministic,
    )
    if engine.threads:
        torch.set_num_threads(engine.threads)
    launch(fabric)
    finished = home.finished
    if fabric.is_global_zero and not finished:
        for lack in incomplete(config):
            warn(console, lack)
    parts, plan = all_together(fabric, lambda: assemble(config, home))  # may fail on one host only
    if fabric.is_global_zero:
        console.print(
            f"{config.method} on {' '.join(filter(None, (config.data.name, task_of(config))))}: "
            f"{len(parts.source)} source images, {len(parts.pool)} target images, "
            f"{len(parts.source.classes)} classes, {asked(parts, plan)}; folder {folder}",
            highlight=False,
            soft_wrap=True,
        )
    steps = plan.steps_per_epoch or steps_in_epoch(len(parts.source), len(parts.pool), plan.batch_size)
    with (
        Show() as show,
        Logs(
            loggers if fabric.is_global_zero else {},
            folder,
            settings=config.identity(),
            steps=steps,
            warn=partial(warn, show.console),
        ) as logs,
    ):
        run_parts(
            parts,
            plan,
            folder,
            fabric=fabric,
            identity=config.identity(),
            speed=make_speed(config),
            listen=together(show, logs),
            wait=waiting(show.console, poll) if wait else None,
        )
    if fabric.is_global_zero:
        if finished:
            console.print(
                "already finished; results from its folder (use another --seed or --out for a new run)"
            )
        if stages := home.stages():
            console.print(stage_table(stages))
        note = "" if parts.test is not None else " (not evaluated: no labelled target images)"
        ledger = home.bought()
        spent = f"{len(ledger)} labels acquired"
        if parts.source.of_pixels:
            spent = f"{len(ledger)} pixels labelled with {ledger.clicks()} clicks"
        if (seconds := ledger.seconds()) is not None:
            spent += f", {seconds / 60:.1f} minutes of annotation"
        console.print(f"{spent}; model in {folder}/model.safetensors{note}", soft_wrap=True)
    return 0


def warn(to: Console, sentence: str) -> None:
    """Print a warning."""
    to.print(f"warning: {sentence}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def asked(parts: "Parts", plan: "Plan") -> str:
    """Describe the budget and the rounds of a plan."""
    count = len(plan.ask_after)
    if not count:
        return "no labels"
    rounds = "1 round" if count == 1 else f"{count} rounds"
    if plan.time is not None:
        what = f"{parts.task.unit.name}s" if parts.source.of_pixels else "labels"
        about = f"about {plan.time.questions(None, 0, 0, count)} {what} each at {plan.time.answer:g} s"
        return f"{plan.time} in {rounds}, {about}"
    what = "pixels" if parts.buys_pixels else "whole images" if parts.source.of_pixels else "labels"
    return f"{sum(plan.budget):,} {what} in {rounds}".replace(",", " ")


def waiting(to: Console, poll: float) -> Callable[[int, AwaitingLabels | UserError], None]:
    """Return a callback that sleeps for ``poll`` seconds and prints each message only once per round."""
    said = set[int | str]()

    def wait(number: int, pause: AwaitingLabels | UserError) -> None:
        wrong = isinstance(pause, UserError)
        what = str(pause) if wrong else number  # the number of open questions changes with each answer
        if speaks() and what not in said:
            more = f"--wait: checking every {poll:g} s; Ctrl-C stops waiting"
            style = "red" if wrong else "yellow"
            to.print(f"{pause} ({more})", style=style, highlight=False, markup=False, soft_wrap=True)
        said.add(what)
        time.sleep(poll)

    return wait


@app.command
def demo(
    *,
    task: Literal["classification", "segmentation"] = "classification",
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    jobs: int | None = None,
) -> int:
    """Compare five methods on printed to handwritten digits, without any download.

    With --task segmentation, compare three methods on synthetic streets, from rendered to camera-like images.

    Args:
        task: Task of the demo.
        out: Output folder for the runs, summary.json and report.html; default: runs/demo or
            runs/demo-segmentation. Finished runs are skipped.
        seeds: Random seeds; default: 0 1 2.
        jobs: Number of parallel runs, with one thread each; default: the number of cores.
    """
    from ducats.demo import demo as run_demo

    folder = out or Path("runs/demo" if task == "classification" else f"runs/demo-{task}")
    jobs = jobs or os.cpu_count() or 1
    run_demo(folder, seeds=seeds or [0, 1, 2], jobs=jobs, console=console, task=task)
    return 0
