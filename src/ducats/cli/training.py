"""Commands that train: one run, and the demo."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ducats.cli.base import app, console
from ducats.errors import UserError
from ducats.options import Settings, folder_of, task_of


@app.command
def run(*, settings: Settings = Settings(), out: Path | None = None) -> int:  # noqa: B008 - never changed
    """Train, ask for labels, learn, repeat. The same command goes on after a kill or a pause.

    With two folders and nothing else, DUC runs on an ImageNet ResNet-50 and asks people: questions with
    thumbnails are put into the run's folder, and the run pauses (exit code 3) until answers.csv is there.
    With -c segmentation, pixels are bought: DIR holds images/ and labels/ (the target needs no labels),
    --classes says what label files mean, and people answer masks with label PNGs in the same way.
    `ducats config --explain` with the same options lists every setting, `ducats queries` the queries.

    Args:
        settings: what to run.
        out: The run's folder. By default runs/DATA-METHOD-DIGEST (with a benchmark's task after DATA), so
            that one command means one folder.
    """
    config = settings.load()
    import torch

    from ducats.assemble import assemble, check_names, make_speed, settled
    from ducats.display import Show, stage_table
    from ducats.doctor.known import incomplete
    from ducats.doctor.task import misfits
    from ducats.engine.processes import make_fabric
    from ducats.run import run as run_parts
    from ducats.rundir import RunDir

    for misfit in misfits(config):
        raise UserError(misfit)
    config = settled(config)
    folder = out or folder_of(config)
    home = RunDir(folder)
    check_names(config, begun=home.begun)
    engine = config.engine
    fabric = make_fabric(
        engine.device, engine.processes, engine.precision, deterministic=engine.deterministic
    )
    if engine.threads:
        torch.set_num_threads(engine.threads)
    fabric.launch()
    finished = home.finished
    if fabric.is_global_zero and not finished:
        for lack in incomplete(config):
            console.print(f"warning: {lack}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    parts, plan = assemble(config, home)
    if fabric.is_global_zero:
        rounds = "1 round" if len(plan.budget) == 1 else f"{len(plan.budget)} rounds"
        what = "pixels" if parts.buys_pixels else "images, whole" if parts.source.of_pixels else "labels"
        asked = f"{sum(plan.budget):,} {what} in {rounds}".replace(",", " ") if plan.budget else "no labels"
        console.print(
            f"{config.method} on {' '.join(filter(None, (config.data.name, task_of(config))))}: "
            f"{len(parts.source)} source images, "
            f"{len(parts.pool)} target images, {len(parts.source.classes)} classes, {asked}; folder {folder}",
            highlight=False,
            soft_wrap=True,
        )
    with Show() as show:
        run_parts(
            parts,
            plan,
            folder,
            fabric=fabric,
            identity=config.identity(),
            speed=make_speed(config),
            listen=show,
        )
    if fabric.is_global_zero:
        if finished:
            console.print("finished already: this is from its folder (another --seed or --out runs anew)")
        if stages := home.stages():
            console.print(stage_table(stages))
        note = "" if parts.test is not None else " (no labelled target images, so nothing was measured)"
        ledger = home.bought()
        spent = f"{len(ledger)} labels spent"
        if parts.source.of_pixels:
            spent = f"{len(ledger)} pixels bought with {ledger.clicks()} clicks"
        console.print(f"{spent}; model in {folder}/model.safetensors{note}", soft_wrap=True)
    return 0


@app.command
def demo(
    *,
    task: Literal["classification", "segmentation"] = "classification",
    out: Path | None = None,
    seeds: Annotated[list[int] | None, Parameter(negative=(), consume_multiple=True)] = None,
    jobs: int | None = None,
) -> int:
    """Compare five methods from printed to handwritten digits, or on drawn streets. No download.

    With --task segmentation, from rendered to camera-like street scenes, buying pixels.

    Args:
        task: What the demo is about: images with a label each, or with a label for each pixel.
        out: Where to put the runs, summary.json and index.html (by default runs/demo, or
            runs/demo-segmentation); what is done already is not done again.
        seeds: By default 0 1 2.
        jobs: Runs at a time, one thread each; by default the number of cores.
    """
    from ducats.demo import demo as run_demo

    folder = out or Path("runs/demo" if task == "classification" else f"runs/demo-{task}")
    jobs = jobs or os.cpu_count() or 1
    run_demo(folder, seeds=seeds or [0, 1, 2], jobs=jobs, console=console, task=task)
    return 0
